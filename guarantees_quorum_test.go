package leasehold

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What docs/guarantees.md says of a quorum and no other test shows. Each for three nodes and for five.

// bothQuorums runs fn in a bubble with three nodes and in one with five; q is a majority of them.
func bothQuorums(t *testing.T, fn func(t *testing.T, nodes []*fakeNode, q int, join joinFunc)) {
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprint(n, " nodes"), func(t *testing.T) {
			quorumBubble(t, n, func(t *testing.T, nodes []*fakeNode, join joinFunc) { fn(t, nodes, n/2+1, join) })
		})
	}
}

func TestQuorumNeedsAMajorityAndNoMore(t *testing.T) {
	bothQuorums(t, func(t *testing.T, nodes []*fakeNode, q int, join joinFunc) {
		one := join()
		for _, w := range one.Wires[q:] {
			w.Refuse()
		}
		x := take(t, one.Locker, time.Second)
		require.NoError(t, x.Renew(t.Context()))
		require.NoError(t, x.Release(t.Context()))
		one.Wires[0].Refuse()
		_, err := one.TryAcquire(t.Context(), "k", time.Second)
		require.ErrorIs(t, err, ErrNoQuorum)
	})
}

func TestQuorumInQuarantineOutlivesTheLossOfAllData(t *testing.T) {
	bothQuorums(t, func(t *testing.T, nodes []*fakeNode, _ int, join joinFunc) {
		d := WithRestartQuarantine(time.Second)
		one, two := join(d), join(d)
		x := take(t, one.Locker, time.Second)
		for _, n := range nodes {
			n.Forget()
		}
		_, err := two.TryAcquire(t.Context(), "k", time.Second)
		require.ErrorIs(t, err, ErrNoQuorum)
		y, err := two.Acquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		require.False(t, x.Valid())
		require.Greater(t, y.FencingToken(), x.FencingToken())
	})
}

// As many nodes forget as are needed to make a majority with those that never knew.
func TestQuorumWithoutQuarantineLetsASecondHolderInAfterALossOfData(t *testing.T) {
	bothQuorums(t, func(t *testing.T, nodes []*fakeNode, q int, join joinFunc) {
		one, two := join(), join()
		x := take(t, one.Locker, time.Minute)
		time.Sleep(time.Second)
		for _, n := range nodes[:q] {
			n.Forget()
		}
		requireTwoHolders(t, x, two.Locker)
	})
}

// No quarantine sees a key that is gone without a restart: after FLUSHALL, an eviction, a failover inside a node, or when
// the node's clock was set forward. Of the h nodes that hold a lease all but a majority may lose it so, and not one more.
func TestQuorumKeepsALeaseWhileAMajorityKeepsItsKey(t *testing.T) {
	for name, lose := range map[string]func(*fakeNode){
		"flushed":           func(n *fakeNode) { n.FlushAll() },
		"clock set forward": func(n *fakeNode) { n.Step(2 * time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			bothQuorums(t, func(t *testing.T, nodes []*fakeNode, q int, join joinFunc) {
				d := WithRestartQuarantine(time.Minute)
				for _, h := range []int{q, len(nodes)} {
					one, two := join(d), join(d)
					for _, hook := range one.Hooks[h:] {
						hook.Next(1, nil).Fail(errBroken)
					}
					x := take(t, one.Locker, time.Minute)
					time.Sleep(time.Second)
					for _, n := range nodes[:h-q] {
						lose(n)
					}
					requireHeld(t, two.Locker, "k")
					lose(nodes[h-q])
					requireTwoHolders(t, x, two.Locker)
					for _, n := range nodes {
						n.FlushAll()
					}
				}
			})
		})
	}
}

func TestQuorumOfNodesThatAreSetBackKeepsTheLockForLongerButNotTheLease(t *testing.T) {
	bothQuorums(t, func(t *testing.T, nodes []*fakeNode, _ int, join joinFunc) {
		one, two := join(), join()
		x := take(t, one.Locker, time.Minute)
		for _, n := range nodes {
			n.Step(-time.Hour)
		}
		awaitEnd(x)
		time.Sleep(time.Second)
		requireHeld(t, two.Locker, "k")
		time.Sleep(time.Hour)
		require.Greater(t, take(t, two.Locker, time.Minute).FencingToken(), x.FencingToken())
	})
}

// The holder is on the side of the minority.
func TestQuorumServesTheSideOfTheMajority(t *testing.T) {
	bothQuorums(t, func(t *testing.T, nodes []*fakeNode, q int, join joinFunc) {
		one, two := join(), join()
		x := take(t, one.Locker, time.Second, WithAutoRenew(true))
		time.Sleep(5 * time.Second)
		require.True(t, x.Valid())
		for i := range nodes {
			if i < q {
				one.Wires[i].BlackHole()
			} else {
				two.Wires[i].BlackHole()
			}
		}
		y, err := two.Acquire(t.Context(), "k", time.Second, WithAutoRenew(true))
		require.NoError(t, err)
		require.False(t, x.Valid())
		require.Greater(t, y.FencingToken(), x.FencingToken())
		_, err = one.TryAcquire(t.Context(), "k", time.Second)
		require.ErrorIs(t, err, ErrNoQuorum)
		require.True(t, y.Valid())
	})
}

// The clocks of all nodes are behind, and some of them lose their data without a restart.
func TestQuorumTokensFallOnlyIfNoNodeOfBothLeasesKeptItsCounter(t *testing.T) {
	bothQuorums(t, func(t *testing.T, nodes []*fakeNode, q int, join joinFunc) {
		for _, lost := range []int{0, len(nodes) - q, len(nodes)} {
			one := join()
			x := take(t, one.Locker, time.Minute)
			time.Sleep(time.Second)
			require.NoError(t, x.Release(t.Context()))
			for i, n := range nodes {
				if i < lost {
					n.FlushAll()
				}
				n.Step(-time.Hour)
			}
			y := take(t, join().Locker, time.Second)
			require.Equal(t, lost < len(nodes), y.FencingToken() > x.FencingToken(), "%d lost", lost)
			require.NoError(t, y.Release(t.Context()))
			time.Sleep(time.Second) // a node that had not heard of the release would refuse the next lease
		}
	})
}
