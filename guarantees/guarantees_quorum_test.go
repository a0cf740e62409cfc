package guarantees_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/stretchr/testify/require"
)

// What docs/guarantees.md says of a quorum and no other test shows. Each for three nodes and for five.

// bothQuorums runs fn in a bubble with three nodes and in one with five; q is a majority of them.
func bothQuorums(t *testing.T, fn func(t *testing.T, nodes []*locktest.FakeNode, q int, join locktest.JoinFunc)) {
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprint(n, " nodes"), func(t *testing.T) {
			locktest.QuorumBubble(t, n, func(t *testing.T, nodes []*locktest.FakeNode, join locktest.JoinFunc) { fn(t, nodes, n/2+1, join) })
		})
	}
}

func TestQuorumNeedsAMajorityAndNoMore(t *testing.T) {
	bothQuorums(t, func(t *testing.T, nodes []*locktest.FakeNode, q int, join locktest.JoinFunc) {
		one := join()
		for _, w := range one.Wires[q:] {
			w.Refuse()
		}
		x := locktest.Take(t, one.Locker, time.Second)
		require.NoError(t, x.Renew(t.Context()))
		require.NoError(t, x.Release(t.Context()))
		one.Wires[0].Refuse()
		_, err := one.TryAcquire(t.Context(), "k", time.Second)
		require.ErrorIs(t, err, leasehold.ErrNoQuorum)
	})
}

func TestQuorumInQuarantineOutlivesTheLossOfAllData(t *testing.T) {
	bothQuorums(t, func(t *testing.T, nodes []*locktest.FakeNode, _ int, join locktest.JoinFunc) {
		d := leasehold.WithRestartQuarantine(time.Second)
		one, two := join(d), join(d)
		x := locktest.Take(t, one.Locker, time.Second)
		for _, n := range nodes {
			n.Forget()
		}
		_, err := two.TryAcquire(t.Context(), "k", time.Second)
		require.ErrorIs(t, err, leasehold.ErrNoQuorum)
		y, err := two.Acquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		require.False(t, x.Valid())
		require.Greater(t, y.FencingToken(), x.FencingToken())
	})
}

// As many nodes forget as are needed to make a majority with those that never knew.
func TestQuorumWithoutQuarantineLetsASecondHolderInAfterALossOfData(t *testing.T) {
	bothQuorums(t, func(t *testing.T, nodes []*locktest.FakeNode, q int, join locktest.JoinFunc) {
		one, two := join(), join()
		x := locktest.Take(t, one.Locker, time.Minute)
		time.Sleep(time.Second)
		for _, n := range nodes[:q] {
			n.Forget()
		}
		locktest.RequireTwoHolders(t, x, two.Locker)
	})
}

// No quarantine sees a key that is gone without a restart: after FLUSHALL, an eviction, a failover inside a node, or when
// the node's clock was set forward. Of the h nodes that hold a lease all but a majority may lose it so, and not one more.
func TestQuorumKeepsALeaseWhileAMajorityKeepsItsKey(t *testing.T) {
	for name, lose := range map[string]func(*locktest.FakeNode){
		"flushed":           func(n *locktest.FakeNode) { n.FlushAll() },
		"clock set forward": func(n *locktest.FakeNode) { n.Step(2 * time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			bothQuorums(t, func(t *testing.T, nodes []*locktest.FakeNode, q int, join locktest.JoinFunc) {
				d := leasehold.WithRestartQuarantine(time.Minute)
				for _, h := range []int{q, len(nodes)} {
					one, two := join(d), join(d)
					for _, hook := range one.Hooks[h:] {
						hook.Next(1, nil).Fail(locktest.ErrBroken)
					}
					x := locktest.Take(t, one.Locker, time.Minute)
					time.Sleep(time.Second)
					for _, n := range nodes[:h-q] {
						lose(n)
					}
					locktest.RequireHeld(t, two.Locker, "k")
					lose(nodes[h-q])
					locktest.RequireTwoHolders(t, x, two.Locker)
					for _, n := range nodes {
						n.FlushAll()
					}
				}
			})
		})
	}
}

func TestQuorumOfNodesThatAreSetBackKeepsTheLockForLongerButNotTheLease(t *testing.T) {
	bothQuorums(t, func(t *testing.T, nodes []*locktest.FakeNode, _ int, join locktest.JoinFunc) {
		one, two := join(), join()
		x := locktest.Take(t, one.Locker, time.Minute)
		for _, n := range nodes {
			n.Step(-time.Hour)
		}
		locktest.AwaitEnd(x)
		time.Sleep(time.Second)
		locktest.RequireHeld(t, two.Locker, "k")
		time.Sleep(time.Hour)
		require.Greater(t, locktest.Take(t, two.Locker, time.Minute).FencingToken(), x.FencingToken())
	})
}

// The holder is on the side of the minority.
func TestQuorumServesTheSideOfTheMajority(t *testing.T) {
	bothQuorums(t, func(t *testing.T, nodes []*locktest.FakeNode, q int, join locktest.JoinFunc) {
		one, two := join(), join()
		x := locktest.Take(t, one.Locker, time.Second, leasehold.WithAutoRenew(true))
		time.Sleep(5 * time.Second)
		require.True(t, x.Valid())
		for i := range nodes {
			if i < q {
				one.Wires[i].BlackHole()
			} else {
				two.Wires[i].BlackHole()
			}
		}
		y, err := two.Acquire(t.Context(), "k", time.Second, leasehold.WithAutoRenew(true))
		require.NoError(t, err)
		require.False(t, x.Valid())
		require.Greater(t, y.FencingToken(), x.FencingToken())
		_, err = one.TryAcquire(t.Context(), "k", time.Second)
		require.ErrorIs(t, err, leasehold.ErrNoQuorum)
		require.True(t, y.Valid())
	})
}

// The clocks of all nodes are behind, and some of them lose their data without a restart.
func TestQuorumTokensFallOnlyIfNoNodeOfBothLeasesKeptItsCounter(t *testing.T) {
	bothQuorums(t, func(t *testing.T, nodes []*locktest.FakeNode, q int, join locktest.JoinFunc) {
		for _, lost := range []int{0, len(nodes) - q, len(nodes)} {
			one := join()
			x := locktest.Take(t, one.Locker, time.Minute)
			time.Sleep(time.Second)
			require.NoError(t, x.Release(t.Context()))
			for i, n := range nodes {
				if i < lost {
					n.FlushAll()
				}
				n.Step(-time.Hour)
			}
			y := locktest.Take(t, join().Locker, time.Second)
			require.Equal(t, lost < len(nodes), y.FencingToken() > x.FencingToken(), "%d lost", lost)
			require.NoError(t, y.Release(t.Context()))
			time.Sleep(time.Second) // a node that had not heard of the release would refuse the next lease
		}
	})
}
