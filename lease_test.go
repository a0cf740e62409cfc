package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/inside"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestANilLeaseIsNotHeld(t *testing.T) {
	var x *leasehold.Lease
	assert.Empty(t, x.Key())
	assert.Empty(t, x.Token())
	assert.Zero(t, x.FencingToken())
	assert.Zero(t, x.ValidUntil())
	assert.False(t, x.Valid())
	for _, err := range []error{
		x.Err(), x.Renew(t.Context()), x.Release(t.Context()), x.EnsureFor(t.Context(), time.Second),
	} {
		require.ErrorIs(t, err, leasehold.ErrInvalid)
		var e *leasehold.Error
		require.ErrorAs(t, err, &e)
	}
	<-x.Done()
	<-x.Contended()
	ctx, cancel := x.Context(t.Context())
	defer cancel()
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), leasehold.ErrInvalid)
}

func TestALeaseEndsAtItsDeadlineByATimer(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		ctx, cancel := x.Context(t.Context())
		defer cancel()
		p.Wire.BlackHole() // the network has no part in it
		until := x.ValidUntil()

		time.Sleep(time.Until(until) - time.Nanosecond)
		synctest.Wait()
		assert.True(t, x.Valid())
		require.NoError(t, x.Err())
		require.NoError(t, ctx.Err())

		locktest.AwaitEnd(x)
		assert.Zero(t, time.Until(until))
		<-ctx.Done()
		assert.Zero(t, time.Until(until))
		assert.False(t, x.Valid())
		require.ErrorIs(t, x.Err(), leasehold.ErrLost)
		assert.Equal(t, x.Err(), context.Cause(ctx))
		require.ErrorIs(t, x.Renew(t.Context()), leasehold.ErrLost)
		require.ErrorIs(t, x.EnsureFor(t.Context(), 0), leasehold.ErrLost)
		require.NoError(t, w.Raw.Get(t.Context(), "k").Err(), "Redis lets nobody in before")
		later, cancel := x.Context(t.Context())
		defer cancel()
		require.ErrorIs(t, context.Cause(later), leasehold.ErrLost)
	})
}

// Go's monotonic clock stands still while a machine is suspended; only the wall clock shows it.
func TestALeaseOfASuspendedMachineIsLostWhenItIsFirstAsked(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		ctx, cancel := x.Context(t.Context())
		defer cancel()
		done := x.Done()

		p.Skew.Store(int64(59 * time.Second))
		assert.True(t, x.Valid())
		p.Skew.Store(int64(time.Minute))
		assert.False(t, x.Valid())
		<-done
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), leasehold.ErrLost)
		p.Skew.Store(0) // somebody sets the clock back
		assert.False(t, x.Valid())
		require.ErrorIs(t, x.Err(), leasehold.ErrLost)
		require.ErrorIs(t, x.Renew(t.Context()), leasehold.ErrLost)
		assert.Zero(t, time.Since(inside.State(x).Begun.Time))
	})
}

func TestAWallClockThatIsSetBackLengthensNoLease(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		p.Skew.Store(-int64(time.Hour))
		assert.True(t, x.Valid())
		time.Sleep(time.Until(x.ValidUntil()))
		assert.False(t, x.Valid())
	})
}

func TestRenewPutsTheFullTTLBack(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		fence := x.FencingToken()
		for range 3 {
			time.Sleep(600 * time.Millisecond)
			p.Fault.Next(1, nil).DelayReply(100 * time.Millisecond)
			begun := time.Now()
			require.NoError(t, x.Renew(t.Context()))
			assert.Equal(t, 990*time.Millisecond, x.ValidUntil().Sub(begun), "from the moment before the call")
			assert.Equal(t, 900*time.Millisecond, w.M.TTL("k"))
		}
		assert.Equal(t, fence, x.FencingToken())
		assert.Len(t, p.Heard("renewed"), 3)
	})
}

func TestARenewalNeverCreatesALock(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		for name, lose := range map[string]func(){
			"gone":           func() { w.M.Del("k") },
			"somebody's":     func() { w.Take("k", time.Second) },
			"without a life": func() { w.Take("k", time.Second); w.M.SetTTL("k", time.Second) },
		} {
			p := w.Party()
			w.M.Del("k")
			x, err := p.TryAcquire(t.Context(), "k", time.Minute)
			require.NoError(t, err)
			lose()
			before := w.M.Dump()
			require.ErrorIs(t, x.Renew(t.Context()), leasehold.ErrLost, name)
			require.ErrorIs(t, x.Release(t.Context()), leasehold.ErrLost, name)
			assert.Equal(t, before, w.M.Dump(), name)
			assert.False(t, x.Valid())
			locktest.AwaitEnd(x)
			assert.Len(t, p.Fault.Sent(), 2, "it was told that the key is not ours, and need not ask again")
		}
	})
}

func TestAFailedRenewLeavesTheLeaseHeldUntilItsDeadline(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		until := x.ValidUntil()
		p.Fault.Every(nil).Fail(locktest.ErrNetwork)
		for range 3 {
			time.Sleep(100 * time.Millisecond)
			err = x.Renew(t.Context())
			require.ErrorIs(t, err, locktest.ErrNetwork)
			require.NotErrorIs(t, err, leasehold.ErrLost)
			require.NoError(t, x.Err())
			assert.Equal(t, until, x.ValidUntil())
		}
		assert.Len(t, p.Heard("jeopardy"), 1, "once")
		p.Fault.Clear()
		require.NoError(t, x.Renew(t.Context()))
		p.Fault.Every(nil).Fail(locktest.ErrNetwork)
		require.Error(t, x.Renew(t.Context()))
		assert.Equal(t, []string{"start", "acquired", "jeopardy", "renewed", "jeopardy"}, p.Story())

		locktest.AwaitEnd(x)
		require.ErrorIs(t, x.Err(), leasehold.ErrLost)
		require.ErrorIs(t, x.Err(), locktest.ErrNetwork, "a loss says what kept it from being renewed")
	})
}

// That says nothing about the lease.
func TestARenewThatItsCallerCutsShortIsNoJeopardy(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, x.Renew(cancelled), context.Canceled)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		p.Wire.BlackHole()
		require.ErrorIs(t, x.Renew(ctx), context.DeadlineExceeded)
		assert.Empty(t, p.Heard("jeopardy"))
		assert.True(t, x.Valid())
	})
}

// What was not trusted for an instant may have been somebody else's in that instant.
func TestALateYesToARenewalChangesNothing(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "k", 100*time.Millisecond)
		require.NoError(t, err)
		time.Sleep(50 * time.Millisecond)
		p.Fault.Next(1, nil).DelayReply(60 * time.Millisecond)
		require.Error(t, x.Renew(t.Context()))
		locktest.AwaitEnd(x)
		until := x.ValidUntil()
		time.Sleep(time.Second)
		assert.False(t, x.Valid())
		assert.Equal(t, until, x.ValidUntil())
		assert.Empty(t, p.Heard("renewed"))
	})
}

func TestContextEndsWithTheLeaseAndOnlyWithIt(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		type word string
		parent, stop := context.WithCancel(context.WithValue(t.Context(), word("a"), 1))
		of, cancel := x.Context(parent)
		defer cancel()
		own, done := x.Context(t.Context())
		left, cancel := x.Context(t.Context())
		defer cancel()
		assert.Equal(t, 1, of.Value(word("a")))

		done()
		require.ErrorIs(t, own.Err(), context.Canceled)
		stop()
		require.ErrorIs(t, context.Cause(of), context.Canceled)
		assert.True(t, x.Valid(), "the lease goes on without it")
		require.NoError(t, left.Err())
		require.NoError(t, x.Release(t.Context()))
		require.ErrorIs(t, context.Cause(left), leasehold.ErrReleased)
		require.NotErrorIs(t, context.Cause(of), leasehold.ErrReleased, "the first cause stays")
		assert.Zero(t, inside.State(x).Contexts)
	})
}

func TestEnsureForRenewsOnlyIfItMust(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "k", 10*time.Second)
		require.NoError(t, err)
		sent := func() int { return len(p.Fault.Sent()) - 1 }
		require.NoError(t, x.EnsureFor(t.Context(), 0))
		require.NoError(t, x.EnsureFor(t.Context(), 9900*time.Millisecond))
		assert.Zero(t, sent())
		time.Sleep(time.Second)
		require.NoError(t, x.EnsureFor(t.Context(), 8900*time.Millisecond))
		assert.Zero(t, sent())
		require.NoError(t, x.EnsureFor(t.Context(), 8901*time.Millisecond))
		assert.Equal(t, 1, sent())
		assert.Equal(t, 9900*time.Millisecond, time.Until(x.ValidUntil()))

		require.ErrorIs(t, x.EnsureFor(t.Context(), 9901*time.Millisecond), leasehold.ErrInvalid)
		time.Sleep(5 * time.Second)
		p.Fault.Next(1, nil).DelayReply(time.Second)
		err = x.EnsureFor(t.Context(), 9500*time.Millisecond)
		require.ErrorContains(t, err, "only 8.9s left after a renewal, want 9.5s")
		require.NotErrorIs(t, err, leasehold.ErrLost)
		w.M.Del("k")
		require.NoError(t, x.EnsureFor(t.Context(), time.Second), "it asks nobody if it need not")
		require.ErrorIs(t, x.EnsureFor(t.Context(), 9*time.Second), leasehold.ErrLost)
	})
}

func TestContendedIsClosedOnceSomebodyWaits(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		a, b := w.Party(), w.Party()
		x, err := a.TryAcquire(t.Context(), "k", 3*time.Second, leasehold.WithAutoRenew(true))
		require.NoError(t, err)
		contended := x.Contended()
		time.Sleep(10 * time.Second)
		select {
		case <-contended:
			assert.Fail(t, "nobody waits")
		default:
		}
		got := locktest.Beside(func() (*leasehold.Lease, error) { return b.Acquire(t.Context(), "k", time.Second) })
		begun := time.Now()
		<-contended
		assert.LessOrEqual(t, time.Since(begun), time.Second, "the next renewal tells")
		<-x.Contended()
		require.NoError(t, x.Release(t.Context()))
		require.NoError(t, (<-got).Err)
	})
}

func TestErrorsCanBeToldApart(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		locktest.AwaitEnd(x)
		err = x.Err()
		var e *leasehold.Error
		require.ErrorAs(t, err, &e)
		assert.Equal(t, "k", e.Key)
		for _, other := range []error{leasehold.ErrHeld, leasehold.ErrReleased, leasehold.ErrStale, leasehold.ErrClosed, leasehold.ErrNoQuorum, leasehold.ErrInvalid, context.Canceled} {
			assert.False(t, errors.Is(err, other), "%v", other)
		}
		require.EqualError(t, x.Renew(t.Context()), `leasehold: renew "k": lease lost: its time ran out`)
	})
}

// No wall clock of ours is sent to the server or compared with another's.
func TestAWallClockThatIsWrongIsNoMatter(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, q := w.Party(), w.Party()
		q.Skew.Store(int64(time.Minute))
		x, err := p.TryAcquire(t.Context(), "k", 10*time.Second)
		require.NoError(t, err)
		_, err = q.TryAcquire(t.Context(), "k", 10*time.Second)
		require.ErrorIs(t, err, leasehold.ErrHeld)
		require.NoError(t, x.Release(t.Context()))
		y, err := q.TryAcquire(t.Context(), "k", 10*time.Second)
		require.NoError(t, err)
		time.Sleep(9900*time.Millisecond - time.Nanosecond)
		assert.True(t, y.Valid())
		time.Sleep(time.Nanosecond)
		assert.False(t, y.Valid())
	})
}

func TestALockDelayKeepsOthersOutAfterALossAndNotAfterARelease(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, q := w.Party(leasehold.WithLockDelay(5*time.Second)), w.Party()
		begun := time.Now()
		x, err := p.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		require.NoError(t, x.Renew(t.Context()))
		assert.Equal(t, 6*time.Second, w.M.TTL("k"))
		locktest.AwaitEnd(x)
		assert.Equal(t, 990*time.Millisecond, time.Since(begun), "its own trust is not longer")
		y, err := q.Acquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		assert.InDelta(t, 6*time.Second, time.Since(begun), float64(5*time.Millisecond))
		require.NoError(t, y.Release(t.Context()))

		x, err = p.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		require.NoError(t, x.Release(t.Context()))
		_, err = q.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
	})
}

// Whoever waits for a lock that their own caller holds waits for ever.
func TestAnAcquireWithAContextOfTheLeaseThatHoldsTheKeyIsRefused(t *testing.T) {
	type word string
	nothing := func() {}
	for name, derive := range map[string]func(ctx context.Context, p *locktest.Party) (context.Context, context.CancelFunc){
		"fn's context": func(ctx context.Context, _ *locktest.Party) (context.Context, context.CancelFunc) {
			return ctx, nothing
		},
		"one with a value": func(ctx context.Context, _ *locktest.Party) (context.Context, context.CancelFunc) {
			return context.WithValue(ctx, word("a"), 1), nothing
		},
		"one with a timeout": func(ctx context.Context, _ *locktest.Party) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Hour)
		},
		"one that nothing ends": func(ctx context.Context, _ *locktest.Party) (context.Context, context.CancelFunc) {
			return context.WithoutCancel(ctx), nothing
		},
		"one of another lease inside": func(ctx context.Context, p *locktest.Party) (context.Context, context.CancelFunc) {
			x, err := p.TryAcquire(ctx, fmt.Sprint("between ", p.Stats().Acquired), time.Minute)
			require.NoError(p.T, err)
			return x.Context(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
				p := w.Party(leasehold.WithKeyPrefix("p:"))
				require.NoError(t, p.WithLock(t.Context(), "k", time.Minute, func(ctx context.Context, _ *leasehold.Lease) error {
					inner, cancel := derive(ctx, p)
					defer cancel()
					p.RefusesNested(inner, "p:", "k")
					return nil
				}))
				x, err := p.TryAcquire(t.Context(), "k", time.Minute)
				require.NoError(t, err)
				ctx, cancel := x.Context(t.Context())
				defer cancel()
				inner, cancel := derive(ctx, p)
				defer cancel()
				p.RefusesNested(inner, "p:", "k")
			})
		})
	}
	locktest.QuorumBubble(t, 3, func(t *testing.T, _ []*locktest.FakeNode, join locktest.JoinFunc) {
		q := join()
		require.NoError(t, q.WithLock(t.Context(), "k", time.Minute, func(ctx context.Context, _ *leasehold.Lease) error {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			for _, e := range locktest.EntryPointsOf(ctx) {
				if e.Ttl {
					require.ErrorIs(t, e.Call(q.Locker, "k", time.Second), leasehold.ErrInvalid, e.Name)
				}
			}
			return nil
		}))
	})
}

// Another Locker of the same Redis is told by the fencing token of the lease that holds the lock: nothing else says that
// two clients reach one Redis.
func TestAWaitOfAnotherLockerForTheLeaseOfItsContextIsRefused(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, q := w.Party(leasehold.WithKeyPrefix("p:")), w.Party()
		require.NoError(t, p.WithLock(t.Context(), "k", time.Minute, func(ctx context.Context, _ *leasehold.Lease) error {
			ctx, cancel := context.WithTimeout(ctx, time.Hour)
			defer cancel()
			begun := time.Now()
			_, err := q.Acquire(ctx, "p:k", time.Minute)
			require.ErrorIs(t, err, leasehold.ErrInvalid)
			require.EqualError(t, err, `leasehold: acquire "p:k": invalid argument: held by the lease of this context: pass it`)
			require.ErrorIs(t, q.WithLock(ctx, "p:k", time.Minute, locktest.Idle), leasehold.ErrInvalid)
			assert.Zero(t, time.Since(begun))
			synctest.Wait()
			assert.Empty(t, w.Line("p:k"), "it stands in the line")

			// What is no wait is no fault either.
			_, err = q.TryAcquire(ctx, "p:k", time.Minute)
			require.ErrorIs(t, err, leasehold.ErrHeld)
			return q.WithLock(ctx, "k", time.Minute, locktest.Idle) // the key of another name
		}))
		require.NoError(t, q.WithLock(t.Context(), "p:k", time.Minute, locktest.Idle))
	})
}

func TestOnlyALeaseThatIsHeldRefusesAnotherOfItsContext(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		require.NoError(t, p.WithLock(t.Context(), "k", time.Minute, func(ctx context.Context, x *leasehold.Lease) error {
			on := context.WithoutCancel(ctx)
			require.NoError(t, p.WithLock(ctx, "other", time.Minute, func(ctx context.Context, _ *leasehold.Lease) error {
				p.RefusesNested(ctx, "", "k")
				p.RefusesNested(ctx, "", "other")
				return nil
			}))
			require.NoError(t, x.Release(ctx))
			return p.WithLock(on, "k", time.Minute, locktest.Idle)
		}))

		err := p.WithLock(t.Context(), "k", time.Minute, func(ctx context.Context, x *leasehold.Lease) error {
			w.M.Del("k")
			require.ErrorIs(t, x.Renew(ctx), leasehold.ErrLost)
			return p.WithLock(context.WithoutCancel(ctx), "k", time.Minute, locktest.Idle)
		})
		require.ErrorIs(t, err, leasehold.ErrLost)
	})
}

func TestFromContextReturnsTheInnermostLease(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		is := func(ctx context.Context, want *leasehold.Lease) {
			t.Helper()
			x, ok := leasehold.FromContext(ctx)
			require.Equal(t, want != nil, ok)
			require.Same(t, want, x)
		}
		is(t.Context(), nil)
		var kept context.Context
		var lease *leasehold.Lease
		require.NoError(t, p.WithLock(t.Context(), "a", time.Minute, func(a context.Context, x *leasehold.Lease) error {
			is(a, x)
			child, cancel := context.WithTimeout(a, time.Second)
			defer cancel()
			is(child, x)
			require.NoError(t, p.WithLock(child, "b", time.Minute, func(b context.Context, y *leasehold.Lease) error {
				is(b, y)
				is(a, x)
				return nil
			}))
			kept, lease = a, x
			return nil
		}))
		is(kept, lease)
		require.ErrorIs(t, lease.Err(), leasehold.ErrReleased, "it says so itself")

		z, err := p.TryAcquire(t.Context(), "z", time.Minute)
		require.NoError(t, err)
		of, cancel := z.Context(t.Context())
		defer cancel()
		is(of, z)
		assert.Contains(t, fmt.Sprint(of), `.Lease("z")`)
		require.NoError(t, z.Release(t.Context()))
		over, cancel := z.Context(t.Context())
		defer cancel()
		is(over, z)
		require.ErrorIs(t, context.Cause(over), leasehold.ErrReleased)
	})
}
