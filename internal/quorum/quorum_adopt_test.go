package quorum_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/stretchr/testify/require"
)

func TestQuorumAdoptHasAHigherTokenAcceptedByAMajority(t *testing.T) {
	locktest.QuorumBubble(t, 3, func(t *testing.T, nodes []*locktest.FakeNode, join locktest.JoinFunc) {
		a, b := join(), join()
		nodes[2].SetCounter("k", 500*time.Millisecond) // grants with a candidate that is never accepted
		late := a.Hooks[2].Next(1, nil).Hold()
		x, err := a.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		late.Release()
		synctest.Wait()
		ahead := nodes[2].Counter("k")
		require.Greater(t, ahead, x.FencingToken())

		y, err := b.Adopt(t.Context(), "k", x.Token(), time.Second)
		require.NoError(t, err)
		synctest.Wait()
		require.Greater(t, y.FencingToken(), x.FencingToken())
		accepted := 0
		for _, n := range nodes {
			if n.Counter("k") == y.FencingToken() {
				accepted++
			}
		}
		require.GreaterOrEqual(t, accepted, 2)
		require.Equal(t, []string{y.Token(), y.Token(), y.Token()}, b.Holders("k"))

		// A dead node that is not needed costs nothing, and one that has lost its data no more.
		b.Wires[2].BlackHole()
		begun := time.Now()
		z, err := b.Adopt(t.Context(), "k", y.Token(), time.Second)
		require.NoError(t, err)
		require.Zero(t, time.Since(begun))
		require.Greater(t, z.FencingToken(), y.FencingToken())
		require.ErrorContains(t, y.Err(), "another has adopted the lease")
	})
}

func TestQuorumAdoptCreatesNothingAndGivesBackWhatItGot(t *testing.T) {
	locktest.QuorumBubble(t, 3, func(t *testing.T, nodes []*locktest.FakeNode, join locktest.JoinFunc) {
		a, b := join(), join()
		x := locktest.Taken(t, a, 10*time.Second)
		time.Sleep(time.Second)

		// Only one node has the former token: the adoption has that one for a moment.
		nodes[0].Del("k")
		require.NoError(t, nodes[1].Set("k", "somebody"))
		_, err := b.Adopt(t.Context(), "k", x.Token(), time.Minute)
		require.ErrorIs(t, err, leasehold.ErrLost)
		synctest.Wait()
		require.Equal(t, []string{"", "somebody", x.Token()}, a.Holders("k"))
		require.InDelta(t, time.Minute.Seconds(), nodes[2].TTL("k").Seconds(), 0.1)

		// A majority had it all along, and answers nothing.
		nodes[1].Del("k")
		require.NoError(t, nodes[1].Set("k", x.Token()))
		nodes[1].SetTTL("k", 9*time.Second)
		b.Hooks[0].Next(1, nil).Fail(locktest.ErrBroken)
		b.Hooks[1].Next(1, nil).Lose(locktest.ErrBroken)
		_, err = b.Adopt(t.Context(), "k", x.Token(), time.Second)
		require.ErrorIs(t, err, leasehold.ErrNoQuorum)
		require.NotErrorIs(t, err, leasehold.ErrLost)
		synctest.Wait()
		require.Equal(t, []string{"", x.Token(), x.Token()}, a.Holders("k"))
		require.Equal(t, 9*time.Second, nodes[1].TTL("k").Round(time.Second), "a failed adoption does not shorten it")
		require.NoError(t, x.Renew(t.Context()), "who holds it still has a majority")
		synctest.Wait()
		require.Equal(t, []string{x.Token(), x.Token(), x.Token()}, a.Holders("k"), "and gets the others back")
	})
}

// The raise of an adoption leaves the time alone, since the attempt may fail after it.
func TestQuorumAdoptThatFailsAfterItsRaiseShortensNoLease(t *testing.T) {
	locktest.QuorumBubble(t, 3, func(t *testing.T, nodes []*locktest.FakeNode, join locktest.JoinFunc) {
		a, b := join(), join()
		x := locktest.Taken(t, a, time.Minute)
		nodes[1].SetCounter("k", 500*time.Millisecond)
		b.Hooks[2].Every(nil).Fail(locktest.ErrBroken)
		b.Hooks[0].Next(1, locktest.Runs("renew")).Lose(locktest.ErrBroken)
		_, err := b.Adopt(t.Context(), "k", x.Token(), time.Second)
		require.ErrorIs(t, err, leasehold.ErrNoQuorum)
		synctest.Wait()
		require.Equal(t, []string{x.Token(), x.Token(), x.Token()}, a.Holders("k"))
		time.Sleep(50 * time.Second)
		require.True(t, x.Valid())
		require.NoError(t, x.Renew(t.Context()))
		require.Equal(t, []string{x.Token(), x.Token(), x.Token()}, a.Holders("k"))
	})
}

func TestQuorumAdoptCanBeCalledAgainAtOnce(t *testing.T) {
	for _, n := range []int{3, 5} {
		locktest.QuorumBubble(t, n, func(t *testing.T, nodes []*locktest.FakeNode, join locktest.JoinFunc) {
			a, b := join(), join()
			x := locktest.Taken(t, a, time.Minute)
			token := x.Detach()
			require.NoError(t, a.Close())
			var late []interface{ Release() }
			for i := range n/2 + 1 {
				late = append(late, b.Hooks[i].Next(1, locktest.Runs("acquire")).HoldReply())
			}
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, err := b.Adopt(ctx, "k", token, 10*time.Second)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			got := locktest.Beside(func() (*leasehold.Lease, error) { return b.Adopt(t.Context(), "k", token, 10*time.Second) })
			time.Sleep(time.Second)
			for _, l := range late {
				l.Release()
			}
			r := <-got
			require.NoError(t, r.Err)
			synctest.Wait()
			for _, holder := range b.Holders("k") {
				require.Equal(t, r.Lease.Token(), holder)
			}
			require.NoError(t, r.Lease.Renew(t.Context()))
		})
	}
}

// An outage begins when the nodes have done it and before they have said so, and outlasts the first tries to undo it.
func TestQuorumAdoptAfterAnOutageFindsTheLease(t *testing.T) {
	locktest.QuorumBubble(t, 3, func(t *testing.T, nodes []*locktest.FakeNode, join locktest.JoinFunc) {
		a, b := join(), join()
		x := locktest.Taken(t, a, time.Minute)
		for _, w := range b.Wires {
			w.DropReplies(1, "evalsha", "eval")
			w.Refuse()
		}
		_, err := b.Adopt(t.Context(), "k", x.Detach(), 10*time.Second)
		require.ErrorIs(t, err, leasehold.ErrNoQuorum)
		time.Sleep(2 * time.Second)
		for _, w := range b.Wires {
			w.Pass()
		}
		y, err := b.Adopt(t.Context(), "k", x.Token(), 10*time.Second)
		require.NoError(t, err)
		require.True(t, y.Valid())
	})
}

// A node in quarantine may have the former token from before: it cannot tell what it has given since.
func TestQuorumAdoptObeysTheQuarantine(t *testing.T) {
	locktest.QuorumBubble(t, 3, func(t *testing.T, nodes []*locktest.FakeNode, join locktest.JoinFunc) {
		a, b := join(leasehold.WithRestartQuarantine(time.Minute)), join(leasehold.WithRestartQuarantine(time.Minute))
		time.Sleep(2 * time.Minute)
		x := locktest.Taken(t, a, 50*time.Second)
		token := x.Detach()
		for _, n := range nodes[:2] {
			n.Forget()
			require.NoError(t, n.Set("k", token))
			n.SetTTL("k", 50*time.Second)
		}
		_, err := b.Adopt(t.Context(), "k", token, time.Second)
		require.ErrorIs(t, err, leasehold.ErrNoQuorum)
		require.ErrorContains(t, err, "in quarantine for another")
		synctest.Wait()
		require.Equal(t, []string{token, token, token}, b.Holders("k"))
	})
}

func TestQuorumTellsALossByWhatMostNodesSay(t *testing.T) {
	for _, c := range []struct{ nodes, says string }{
		{"...", "the key is gone"},
		{"..x", "the key is gone"},
		{"ooo", "the key is now held by another"},
		{"oox", "the key is now held by another"},
		{"hhx", "the key is now held by another"}, // a hash
		{".....", "the key is gone"},
		{"oooxx", "the key is now held by another"},
	} {
		for what, hears := range map[string]func(x *leasehold.Lease) error{
			"Renew":   func(x *leasehold.Lease) error { return x.Renew(context.Background()) },
			"Release": func(x *leasehold.Lease) error { return x.Release(context.Background()) },
		} {
			t.Run(c.nodes+" "+what, func(t *testing.T) {
				locktest.QuorumBubble(t, len(c.nodes), func(t *testing.T, nodes []*locktest.FakeNode, join locktest.JoinFunc) {
					x := locktest.Taken(t, join(), time.Minute)
					for i, n := range nodes {
						switch c.nodes[i] {
						case '.':
							n.Del("k")
						case 'o':
							require.NoError(t, n.Set("k", "somebody"))
						case 'h':
							n.Del("k")
							n.HSet("k", "f", "v")
						}
					}
					synctest.Wait()
					err := hears(x)
					require.ErrorIs(t, err, leasehold.ErrLost)
					require.ErrorContains(t, err, c.says)
				})
			})
		}
	}
}
