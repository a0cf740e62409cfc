package leasehold_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestInspectTellsWhoHoldsALockAndWhoWaits(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		// What a Locker does with its leases is no matter of Inspect's.
		p := w.Party(leasehold.WithOwner("worker 7"), leasehold.WithKeyPrefix("app:"), leasehold.WithRenewEvery(time.Second))
		s, err := p.Inspect(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, leasehold.LockState{Key: "app:k"}, s)

		x, err := p.TryAcquire(t.Context(), "k", 10*time.Second, leasehold.WithLockDelay(time.Second))
		require.NoError(t, err)
		q := w.Party(leasehold.WithKeyPrefix("app:"))
		waiting := locktest.Beside(func() (*leasehold.Lease, error) { return q.Acquire(t.Context(), "k", time.Minute) })
		time.Sleep(3100 * time.Millisecond)
		before := w.M.Dump()
		s, err = p.Inspect(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, leasehold.LockState{"app:k", true, "worker 7", 7900 * time.Millisecond, x.FencingToken(), 1, false, 1}, s)
		assert.Equal(t, before, w.M.Dump(), "it changed something")

		require.NoError(t, x.Release(t.Context()))
		y := (<-waiting).Lease
		s, err = p.Inspect(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, leasehold.LockState{"app:k", true, "", time.Minute, y.FencingToken(), 0, false, 1}, s)
		require.NoError(t, y.Release(t.Context()))
		s, err = p.Inspect(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, leasehold.LockState{Key: "app:k", FencingToken: y.FencingToken()}, s)
	})
}

func TestInspectTellsOfKeysThatAreNotOurs(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		for _, value := range []string{"", "x", "0123456789abcdef.0123456789abcdef0123456789", "somebody.else.altogether.with.a.label"} {
			require.NoError(t, w.M.Set("k", value))
			s, err := p.Inspect(t.Context(), "k")
			require.NoError(t, err)
			assert.Equal(t, leasehold.LockState{Key: "k", Held: true, TTL: -1, Holders: 1}, s)
		}
		w.M.Del("k")
		w.M.HSet("hash", "f", "v")
		_, err := p.Inspect(t.Context(), "hash")
		require.ErrorContains(t, err, "WRONGTYPE")
		w.M.Del("hash")
	})
}

func TestForceReleaseGivesTheLockToTheFirstWaiter(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		a, b := w.Party(), w.Party()
		op := w.Party(leasehold.WithRenewEvery(time.Second)) // which is no matter of this call
		require.NoError(t, op.ForceRelease(t.Context(), "k"), "nobody holds it")
		x := a.Keeps("k", 3*time.Second)
		waiting := locktest.Beside(func() (*leasehold.Lease, error) { return b.Acquire(t.Context(), "k", time.Minute) })
		locktest.Await(t, time.Second, func() bool { return len(w.Line("k")) == 1 })
		time.Sleep(100 * time.Millisecond)

		begun := time.Now()
		require.NoError(t, op.ForceRelease(t.Context(), "k"))
		r := <-waiting
		require.NoError(t, r.Err)
		assert.Zero(t, time.Since(begun), "by a message")
		assert.Greater(t, r.Lease.FencingToken(), x.FencingToken())
		assert.Contains(t, op.Logged(), "released by force")
		locktest.AwaitEnd(x)
		assert.LessOrEqual(t, time.Since(begun), time.Second, "its next renewal tells the holder")
		require.ErrorIs(t, x.Err(), leasehold.ErrLost)
		assert.Equal(t, r.Lease.Token(), w.Owner("k"))
	})
}

func TestForceReleaseFreesAKeyThatIsNoLock(t *testing.T) {
	for kind, put := range map[string]func(m *miniredis.Miniredis){
		"a value without a ttl": func(m *miniredis.Miniredis) { _ = m.Set("k", "left behind, without a ttl") },
		"an empty value":        func(m *miniredis.Miniredis) { _ = m.Set("k", "") },
		"a hash":                func(m *miniredis.Miniredis) { m.HSet("k", "f", "v") },
		"a list":                func(m *miniredis.Miniredis) { _, _ = m.Push("k", "v") },
		"a set":                 func(m *miniredis.Miniredis) { _, _ = m.SAdd("k", "v") },
	} {
		t.Run(kind, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
				put(w.M)
				p := w.Party()
				require.NoError(t, p.ForceRelease(t.Context(), "k"))
				assert.False(t, w.M.Exists("k"))
				_, err := p.TryAcquire(t.Context(), "k", time.Second)
				require.NoError(t, err)
			})
			locktest.QuorumBubble(t, 3, func(t *testing.T, nodes []*locktest.FakeNode, join locktest.JoinFunc) {
				for _, n := range nodes {
					put(n.Miniredis)
				}
				p := join()
				require.NoError(t, p.ForceRelease(t.Context(), "k"))
				synctest.Wait()
				_, err := p.TryAcquire(t.Context(), "k", time.Second)
				require.NoError(t, err)
			})
		})
	}
}

// A hash has taken the place of the lock while somebody waits: the waiter is served as by any release.
func TestForceReleaseOfAKeyThatIsNoLockServesTheFirstWaiter(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		a, b := w.Party(), w.Party()
		a.Keeps("k", 30*time.Second)
		waiting := locktest.Beside(func() (*leasehold.Lease, error) { return b.Acquire(t.Context(), "k", time.Minute) })
		locktest.Await(t, time.Second, func() bool { return len(w.Line("k")) == 1 })
		w.M.Del("k")
		w.M.HSet("k", "f", "v")
		require.NoError(t, w.Party().ForceRelease(t.Context(), "k"))
		r := <-waiting
		require.NoError(t, r.Err)
		assert.Equal(t, r.Lease.Token(), w.Owner("k"))
	})
}

func TestForceReleaseTellsALeaseOfTheSameLockerAtOnce(t *testing.T) {
	locktest.EachKind(t, func(t *testing.T, l, other *leasehold.Locker, owner func() string) {
		for _, by := range []*leasehold.Locker{l, other} {
			x, err := l.TryAcquire(t.Context(), "k", 30*time.Second, leasehold.WithAutoRenew(true))
			require.NoError(t, err)
			y, err := l.TryAcquire(t.Context(), "another key", 30*time.Second)
			require.NoError(t, err)
			synctest.Wait()
			ctx, cancel := x.Context(t.Context())
			defer cancel()
			require.NoError(t, by.ForceRelease(t.Context(), "k"))
			require.True(t, y.Valid())
			require.NoError(t, y.Release(t.Context()))
			if by == other {
				require.True(t, x.Valid(), "nobody can have told it")
				time.Sleep(10 * time.Second)
				require.ErrorContains(t, x.Err(), "the key is gone")
				continue
			}
			require.ErrorIs(t, x.Err(), leasehold.ErrLost)
			require.ErrorContains(t, x.Err(), "released by force")
			require.ErrorIs(t, context.Cause(ctx), leasehold.ErrLost)
			require.ErrorIs(t, x.Release(t.Context()), leasehold.ErrLost)
			synctest.Wait()
			require.Empty(t, owner())
		}
	})
}

// What this Locker has got since, by waiting for what it released by force itself, is no lease that was lost.
func TestForceReleaseTellsNoLeaseThatCameAfterIt(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x := p.Keeps("k", 30*time.Second)
		waiting := locktest.Beside(func() (*leasehold.Lease, error) {
			return p.Acquire(t.Context(), "k", time.Minute, leasehold.WithAutoRenew(true))
		})
		locktest.Await(t, time.Second, func() bool { return len(w.Line("k")) == 1 })
		reply := p.Fault.Next(1, locktest.RunOf(locktest.ReleaseScript, "force")).HoldReply()
		done := make(chan error, 1)
		go func() { done <- p.ForceRelease(t.Context(), "k") }()
		r := <-waiting
		require.NoError(t, r.Err)
		reply.Release()
		require.NoError(t, <-done)
		synctest.Wait()
		require.ErrorContains(t, x.Err(), "released by force")
		require.True(t, r.Lease.Valid())
		require.Equal(t, leasehold.LossForced, p.Heard("lost")[0].Loss)
	})
}

func TestALossSaysWhatBecameOfTheKey(t *testing.T) {
	for what, c := range map[string]struct {
		to   func(w *locktest.World)
		says string
	}{
		"deleted": {func(w *locktest.World) { w.M.Del("k") }, "the key is gone"},
		"taken":   {func(w *locktest.World) { w.Take("k", time.Minute) }, "the key is now held by another"},
		"a hash":  {func(w *locktest.World) { w.M.Del("k"); w.M.HSet("k", "f", "v"); w.M.SetTTL("k", time.Minute) }, "the key is no lock any more"},
		"a list":  {func(w *locktest.World) { w.M.Del("k"); w.M.Push("k", "v"); w.M.SetTTL("k", time.Minute) }, "the key is no lock any more"},
	} {
		for by, hears := range map[string]func(t *testing.T, x *leasehold.Lease) error{
			"Renew":   func(t *testing.T, x *leasehold.Lease) error { return x.Renew(t.Context()) },
			"Release": func(t *testing.T, x *leasehold.Lease) error { return x.Release(t.Context()) },
			"a renewal": func(t *testing.T, x *leasehold.Lease) error {
				time.Sleep(10 * time.Second) // not at the deadline only
				return x.Err()
			},
		} {
			t.Run(what+", by "+by, func(t *testing.T) {
				locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
					p := w.Party()
					x, err := p.TryAcquire(t.Context(), "k", 30*time.Second, leasehold.WithAutoRenew(by == "a renewal"))
					require.NoError(t, err)
					c.to(w)
					err = hears(t, x)
					require.ErrorIs(t, err, leasehold.ErrLost)
					require.ErrorContains(t, err, c.says)
					require.Empty(t, p.Heard("jeopardy"))
					require.Len(t, p.Heard("lost"), 1)
					assert.Equal(t, leasehold.LossGone, p.Heard("lost")[0].Loss)
				})
			})
		}
	}
}

func TestDetachEndsTheLeaseHereAndNotInRedis(t *testing.T) {
	locktest.EachKind(t, func(t *testing.T, l, other *leasehold.Locker, owner func() string) {
		x, err := l.TryAcquire(t.Context(), "k", 10*time.Second, leasehold.WithAutoRenew(true))
		require.NoError(t, err)
		synctest.Wait()
		ctx, cancel := x.Context(t.Context())
		defer cancel()
		done := x.Done()
		token := x.Detach()
		require.Equal(t, owner(), token)

		require.ErrorIs(t, x.Err(), leasehold.ErrReleased)
		require.NotErrorIs(t, x.Err(), leasehold.ErrLost)
		require.ErrorContains(t, x.Err(), "detached")
		require.False(t, x.Valid())
		<-done
		require.ErrorIs(t, context.Cause(ctx), leasehold.ErrReleased)
		require.ErrorIs(t, x.Renew(t.Context()), leasehold.ErrReleased)
		require.ErrorIs(t, x.EnsureFor(t.Context(), time.Second), leasehold.ErrReleased)
		require.NoError(t, x.Release(t.Context()), "as after a release")
		require.Empty(t, x.Detach(), "it is given away once")
		stats := l.Stats()
		require.Zero(t, stats.Held)
		require.Zero(t, stats.Lost)
		require.Zero(t, stats.Released)
		require.Zero(t, stats.ReleasesUnconfirmed)
		require.EqualValues(t, 1, stats.Detached)

		require.NoError(t, l.Close())
		require.Equal(t, token, owner(), "Close has released it")
		time.Sleep(9 * time.Second)
		require.Equal(t, token, owner())
		y, err := other.Adopt(t.Context(), "k", token, 10*time.Second)
		require.NoError(t, err)
		require.NoError(t, y.Release(t.Context()))
	})
}

func TestADetachedLeaseIsRenewedNoMore(t *testing.T) {
	locktest.EachKind(t, func(t *testing.T, l, _ *leasehold.Locker, owner func() string) {
		x, err := l.TryAcquire(t.Context(), "k", 10*time.Second, leasehold.WithAutoRenew(true))
		require.NoError(t, err)
		time.Sleep(time.Minute)
		token := x.Detach()
		require.NotEmpty(t, token)
		time.Sleep(10*time.Second + time.Millisecond)
		require.Empty(t, owner())
		require.ErrorIs(t, x.Err(), leasehold.ErrReleased, "and it stays what it was")
	})
}

// The answer of a renewal that was on its way comes when somebody else has the lease.
func TestDetachDuringARenewalIsNoLoss(t *testing.T) {
	for _, adopted := range []bool{false, true} {
		locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
			p, q := w.Party(), w.Party()
			x := p.Keeps("k", 3*time.Second)
			renewal := p.Fault.Next(1, locktest.RunOf(locktest.RenewScript)).Hold()
			<-renewal.Arrived()
			token := x.Detach()
			if adopted {
				_, err := q.Adopt(t.Context(), "k", token, 10*time.Second)
				require.NoError(t, err)
			}
			renewal.Release()
			synctest.Wait()
			require.ErrorIs(t, x.Err(), leasehold.ErrReleased)
			require.Zero(t, p.Stats().Lost)
			want := 3 * time.Second
			if adopted {
				want = 10 * time.Second
			}
			require.Equal(t, want, w.M.TTL("k"))
		})
	}
}

func TestDetachOfALeaseThatHasEndedGivesNothing(t *testing.T) {
	require.Empty(t, (*leasehold.Lease)(nil).Detach())
	for name, end := range map[string]func(t *testing.T, w *locktest.World, x *leasehold.Lease){
		"released": func(t *testing.T, _ *locktest.World, x *leasehold.Lease) { require.NoError(t, x.Release(t.Context())) },
		"expired":  func(_ *testing.T, _ *locktest.World, _ *leasehold.Lease) { time.Sleep(time.Minute) },
		"lost": func(t *testing.T, w *locktest.World, x *leasehold.Lease) {
			w.M.Del("k")
			require.ErrorIs(t, x.Renew(t.Context()), leasehold.ErrLost)
		},
	} {
		locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
			x, err := w.Party().TryAcquire(t.Context(), "k", 10*time.Second)
			require.NoError(t, err)
			end(t, w, x)
			before := x.Err()
			require.Empty(t, x.Detach(), name)
			require.Equal(t, before, x.Err(), name)
		})
	}
}

// Of Detach, Release and a loss that meet, one comes first: a token that was given away is not released.
func TestDetachAndReleaseOfOneLeaseAtOnce(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		for range 50 {
			x, err := p.TryAcquire(t.Context(), "k", 10*time.Second)
			require.NoError(t, err)
			var all sync.WaitGroup
			tokens := make([]string, 3)
			for i := range tokens {
				all.Go(func() { tokens[i] = x.Detach() })
			}
			all.Go(func() { assert.NoError(t, x.Release(t.Context())) })
			all.Wait()
			given := 0
			for _, token := range tokens {
				if token != "" {
					given++
				}
			}
			require.LessOrEqual(t, given, 1)
			require.Equal(t, given == 1, w.Owner("k") != "")
			w.M.Del("k")
		}
	})
}

func TestWithLockLeavesADetachedLeaseAlone(t *testing.T) {
	locktest.EachKind(t, func(t *testing.T, l, other *leasehold.Locker, owner func() string) {
		mine := errors.New("the work goes on elsewhere")
		var token string
		err := l.WithLock(t.Context(), "k", 10*time.Second, func(ctx context.Context, x *leasehold.Lease) error {
			synctest.Wait()
			token = x.Detach()
			require.ErrorIs(t, context.Cause(ctx), leasehold.ErrReleased)
			return mine
		})
		require.Equal(t, mine, err)
		synctest.Wait()
		require.Equal(t, token, owner())
		_, err = other.Adopt(t.Context(), "k", token, 10*time.Second)
		require.NoError(t, err)
	})
}

func TestQuorumSendsNoRefillForADetachedLease(t *testing.T) {
	locktest.QuorumBubble(t, 3, func(t *testing.T, nodes []*locktest.FakeNode, join locktest.JoinFunc) {
		q := join()
		x := locktest.Taken(t, q, 10*time.Second)
		nodes[2].Del("k")
		slow := q.Hooks[2].Next(1, locktest.Runs("renew")).HoldReply()
		require.NoError(t, x.Renew(t.Context()))
		token := x.Detach()
		slow.Release() // "absent", behind a round that a majority confirmed
		synctest.Wait()
		require.NotContains(t, q.Spies[2].Took(), "refill")
		require.Equal(t, []string{token, token, ""}, q.Holders("k"))
	})
}

// What it checks, the tests of internal/diagnose say.
func TestDiagnoseLooksAtEveryServerOfALocker(t *testing.T) {
	ctx := t.Context()
	nodes := []redis.UniversalClient{redistest.Server(t).Client(), redistest.Server(t).Client(), redistest.Server(t).Client()}
	quorum, err := leasehold.NewQuorum(nodes)
	require.NoError(t, err)
	single := leasehold.New(nodes[0])
	defer quorum.Close()
	defer single.Close()
	for _, l := range []struct {
		*leasehold.Locker
		servers int
	}{{single, 1}, {quorum, 3}} {
		found, err := l.Diagnose(ctx)
		require.NoError(t, err)
		rights := map[string]bool{}
		for _, f := range found {
			if f.Check == "rights" {
				assert.Equal(t, slog.LevelInfo, f.Level, f)
				rights[f.Server] = true
			}
		}
		assert.Len(t, rights, l.servers)
	}
}

func TestDiagnoseSaysThatNothingCouldBeAsked(t *testing.T) {
	_, err := leasehold.New(nil).Diagnose(t.Context())
	require.ErrorIs(t, err, leasehold.ErrInvalid)
	away := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer away.Close()
	l := leasehold.New(away)
	defer l.Close()
	_, err = l.Diagnose(t.Context())
	var e *leasehold.Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, "diagnose", e.Op)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = l.Diagnose(ctx)
	require.ErrorIs(t, err, context.Canceled)
}
