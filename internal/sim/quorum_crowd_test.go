package sim_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/quorum"
	"github.com/stretchr/testify/require"
)

func TestQuorumCallersReturnInTimeWhenEveryNodeIsSilent(t *testing.T) {
	locktest.QuorumBubble(t, 3, func(t *testing.T, _ []*locktest.FakeNode, join locktest.JoinFunc) {
		q := join()
		for _, w := range q.Wires {
			w.BlackHole()
		}
		before := runtime.NumGoroutine()
		var all sync.WaitGroup
		for i := range 300 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				begun := time.Now()
				_, err := q.TryAcquire(ctx, strconv.Itoa(i), 10*time.Second)
				if took := time.Since(begun); took != 100*time.Millisecond {
					t.Errorf("took %v", took)
				}
				if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, leasehold.ErrNoQuorum) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		synctest.Wait()
		// What is left are the round trips that go-redis has not given up, each with the goroutines of its connection here.
		require.Less(t, runtime.NumGoroutine()-before, 3*locktest.MaxFlights*8)

		// Without a context of the caller's there is a bound as well.
		begun := time.Now()
		_, err := q.TryAcquire(t.Context(), "k", 10*time.Second)
		require.ErrorIs(t, err, leasehold.ErrNoQuorum)
		require.LessOrEqual(t, time.Since(begun), quorum.Patience)
	})
}

func TestQuorumServesFiftyClientsOnFiveNodes(t *testing.T) {
	locktest.QuorumBubble(t, 5, func(t *testing.T, nodes []*locktest.FakeNode, join locktest.JoinFunc) {
		for i, n := range nodes {
			n.SetOffset(time.Duration(i) * 50 * time.Millisecond)
		}
		o := &simObserver{}
		var all sync.WaitGroup
		begun := time.Now()
		last, longest := begun, time.Duration(0)
		for range 50 {
			q := join()
			for _, w := range q.Wires {
				w.Delay(100*time.Microsecond + rand.N(time.Millisecond))
			}
			all.Go(func() {
				called := o.tick.Add(1)
				err := q.WithLock(t.Context(), "k", 5*time.Second, func(_ context.Context, x *leasehold.Lease) error {
					o.handedOut(x, called)
					o.mu.Lock()
					longest = max(longest, time.Since(last))
					o.mu.Unlock()
					time.Sleep(2 * time.Millisecond)
					o.mu.Lock()
					last = time.Now()
					o.mu.Unlock()
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		require.Empty(t, o.faults)
		require.Len(t, o.leases, 50)
		t.Logf("all served after %v, the lock was free for %v at most", time.Since(begun), longest)
		require.Less(t, longest, time.Second, "progress all the time")
		require.Less(t, time.Since(begun), 15*time.Second)
	})
}

func TestQuorumContendersDoNotUndoEachOtherForEver(t *testing.T) {
	for range 5 {
		locktest.QuorumBubble(t, 3, func(t *testing.T, _ []*locktest.FakeNode, join locktest.JoinFunc) {
			var all sync.WaitGroup
			begun := time.Now()
			for i := range 2 {
				q := join()
				for j, w := range q.Wires { // each is first at another node, and they begin together
					w.Delay(time.Millisecond + time.Duration((i+j)%3)*time.Millisecond)
				}
				all.Go(func() {
					x, err := q.Acquire(t.Context(), "k", time.Minute)
					if err != nil {
						t.Error(err)
						return
					}
					_ = x.Release(t.Context())
				})
			}
			all.Wait()
			require.Less(t, time.Since(begun), 3*time.Second)
		})
	}
}

func TestQuorumLocksWithWithLockAutoRenewalHooksAndStats(t *testing.T) {
	locktest.QuorumBubble(t, 3, func(t *testing.T, nodes []*locktest.FakeNode, join locktest.JoinFunc) {
		var mu sync.Mutex
		seen := map[string]int{}
		count := func(what string) func(leasehold.Event) {
			return func(e leasehold.Event) {
				mu.Lock()
				defer mu.Unlock()
				seen[what]++
				require.Equal(t, "k", e.Key)
			}
		}
		q := join(leasehold.WithOwner("me"), leasehold.WithHooks(leasehold.Hooks{
			Acquired: func(_ context.Context, e leasehold.Event) { count("acquired")(e); require.Positive(t, e.FencingToken) },
			GaveUp:   func(_ context.Context, e leasehold.Event) { count("gave up")(e) },
			Renewed:  count("renewed"), Jeopardy: count("jeopardy"), Lost: count("lost"), Released: count("released"), Detached: count("detached"),
		}))
		other := join()
		err := q.WithLock(t.Context(), "k", 300*time.Millisecond, func(ctx context.Context, x *leasehold.Lease) error {
			for i := range 10 {
				q.Hooks[i%3].Next(1, locktest.Runs("renew")).Fail(locktest.ErrBroken) // one node at a time is of no account
				time.Sleep(200 * time.Millisecond)
				require.NoError(t, ctx.Err())
				_, err := other.TryAcquire(ctx, "k", time.Second)
				require.ErrorIs(t, err, leasehold.ErrHeld)
			}
			s, err := other.Inspect(ctx, "k")
			require.NoError(t, err)
			require.True(t, s.Held)
			require.Equal(t, "me", s.Owner)
			require.Equal(t, x.FencingToken(), s.FencingToken)
			return nil
		})
		require.NoError(t, err)
		require.Zero(t, seen["lost"]+seen["gave up"]+seen["jeopardy"])
		require.Equal(t, 1, seen["acquired"])
		require.Equal(t, 1, seen["released"])
		require.Greater(t, seen["renewed"], 15)
		stats := q.Stats()
		require.Equal(t, int64(1), stats.Acquired)
		require.Equal(t, int64(1), stats.Released)
		require.Zero(t, stats.Held)

		// Cut off from a majority, the holder is told at its deadline.
		begun := time.Now()
		err = q.WithLock(t.Context(), "k", 300*time.Millisecond, func(ctx context.Context, _ *leasehold.Lease) error {
			begun = time.Now()
			q.Wires[0].BlackHole()
			q.Wires[1].BlackHole()
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), leasehold.ErrLost)
			return nil
		})
		require.ErrorIs(t, err, leasehold.ErrLost)
		require.LessOrEqual(t, time.Since(begun), 600*time.Millisecond)
		require.Equal(t, 1, seen["lost"])
		require.Positive(t, seen["jeopardy"])
		q.Wires[0].Pass()
		q.Wires[1].Pass()

		x, err := other.Acquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		synctest.Wait() // all nodes have it
		require.NoError(t, q.ForceRelease(t.Context(), "k"))
		require.ErrorIs(t, x.Renew(t.Context()), leasehold.ErrLost)
		s, err := q.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.False(t, s.Held)
		require.Equal(t, x.FencingToken(), s.FencingToken, "of the last lease")
		q.Wires[1].Refuse()
		q.Wires[2].Refuse()
		require.ErrorIs(t, q.ForceRelease(t.Context(), "k"), leasehold.ErrNoQuorum)
		_, err = q.Inspect(t.Context(), "k")
		require.ErrorIs(t, err, leasehold.ErrNoQuorum)
	})
}

func TestQuorumCloseIsBoundedAndReleases(t *testing.T) {
	locktest.QuorumBubble(t, 3, func(t *testing.T, _ []*locktest.FakeNode, join locktest.JoinFunc) {
		q := join()
		var leases []*leasehold.Lease
		for _, key := range []string{"a", "b", "c"} {
			x, err := q.TryAcquire(t.Context(), key, time.Minute, leasehold.WithAutoRenew(true))
			require.NoError(t, err)
			leases = append(leases, x)
		}
		synctest.Wait()
		require.NoError(t, q.Close())
		for _, x := range leases {
			require.ErrorIs(t, x.Err(), leasehold.ErrReleased)
			require.Equal(t, []string{"", "", ""}, q.Holders(x.Key()))
		}
		_, err := q.TryAcquire(t.Context(), "a", time.Minute)
		require.ErrorIs(t, err, leasehold.ErrClosed)

		q = join()
		_, err = q.TryAcquire(t.Context(), "a", time.Minute, leasehold.WithAutoRenew(true))
		require.NoError(t, err)
		for _, w := range q.Wires {
			w.BlackHole()
		}
		begun := time.Now()
		require.Error(t, q.Close())
		require.LessOrEqual(t, time.Since(begun), 2*locktest.CloseBound+time.Second)
	})
}

// An acquire that is late at one node must not make up for the key that a forced release takes from another one.
func TestQuorumForceReleaseReachesEveryNodeBeforeItReturns(t *testing.T) {
	locktest.QuorumBubble(t, 3, func(t *testing.T, _ []*locktest.FakeNode, join locktest.JoinFunc) {
		q, other := join(), join()
		other.Hooks[2].Next(1, locktest.Runs("acquire")).Delay(50 * time.Millisecond)
		q.Hooks[0].Next(1, locktest.Runs("release")).Delay(100 * time.Millisecond)
		x, err := other.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		require.NoError(t, q.ForceRelease(t.Context(), "k"))
		time.Sleep(60 * time.Millisecond)
		require.Equal(t, []string{"", "", x.Token()}, q.Holders("k"))
		require.ErrorIs(t, x.Renew(t.Context()), leasehold.ErrLost)

		// One that cannot be reached is waited for no longer than other calls wait for it.
		q.Wires[0].BlackHole()
		begun := time.Now()
		require.NoError(t, q.ForceRelease(t.Context(), "k"))
		require.LessOrEqual(t, time.Since(begun), quorum.Patience)
	})
}
