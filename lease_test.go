package leasehold

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-leasehold/leasehold/internal/line"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestANilLeaseIsNotHeld(t *testing.T) {
	var x *Lease
	assert.Empty(t, x.Key())
	assert.Empty(t, x.Token())
	assert.Zero(t, x.FencingToken())
	assert.Zero(t, x.ValidUntil())
	assert.False(t, x.Valid())
	for _, err := range []error{
		x.Err(), x.Renew(t.Context()), x.Release(t.Context()), x.EnsureFor(t.Context(), time.Second),
	} {
		require.ErrorIs(t, err, ErrInvalid)
		var e *Error
		require.ErrorAs(t, err, &e)
	}
	<-x.Done()
	<-x.Contended()
	ctx, cancel := x.Context(t.Context())
	defer cancel()
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), ErrInvalid)
}

func TestALeaseEndsAtItsDeadlineByATimer(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x, err := p.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		ctx, cancel := x.Context(t.Context())
		defer cancel()
		p.wire.BlackHole() // the network has no part in it
		until := x.ValidUntil()

		time.Sleep(time.Until(until) - time.Nanosecond)
		synctest.Wait()
		assert.True(t, x.Valid())
		require.NoError(t, x.Err())
		require.NoError(t, ctx.Err())

		awaitEnd(x)
		assert.Zero(t, time.Until(until))
		<-ctx.Done()
		assert.Zero(t, time.Until(until))
		assert.False(t, x.Valid())
		require.ErrorIs(t, x.Err(), ErrLost)
		assert.Equal(t, x.Err(), context.Cause(ctx))
		require.ErrorIs(t, x.Renew(t.Context()), ErrLost)
		require.ErrorIs(t, x.EnsureFor(t.Context(), 0), ErrLost)
		require.NoError(t, w.raw.Get(t.Context(), "k").Err(), "Redis lets nobody in before")
		later, cancel := x.Context(t.Context())
		defer cancel()
		require.ErrorIs(t, context.Cause(later), ErrLost)
	})
}

// Go's monotonic clock stands still while a machine is suspended; only the wall clock shows it.
func TestALeaseOfASuspendedMachineIsLostAtTheFirstLook(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		ctx, cancel := x.Context(t.Context())
		defer cancel()
		done := x.Done()

		p.skew.Store(int64(59 * time.Second))
		assert.True(t, x.Valid())
		p.skew.Store(int64(time.Minute))
		assert.False(t, x.Valid())
		<-done
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), ErrLost)
		p.skew.Store(0) // somebody sets the clock back
		assert.False(t, x.Valid())
		require.ErrorIs(t, x.Err(), ErrLost)
		require.ErrorIs(t, x.Renew(t.Context()), ErrLost)
		assert.Zero(t, time.Since(x.begun.Time))
	})
}

func TestAWallClockThatIsSetBackLengthensNoLease(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		p.skew.Store(-int64(time.Hour))
		assert.True(t, x.Valid())
		time.Sleep(time.Until(x.ValidUntil()))
		assert.False(t, x.Valid())
	})
}

func TestRenewPutsTheFullTTLBack(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x, err := p.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		fence := x.FencingToken()
		for range 3 {
			time.Sleep(600 * time.Millisecond)
			p.fault.Next(1, nil).DelayReply(100 * time.Millisecond)
			begun := time.Now()
			require.NoError(t, x.Renew(t.Context()))
			assert.Equal(t, 990*time.Millisecond, x.ValidUntil().Sub(begun), "from the moment before the call")
			assert.Equal(t, 900*time.Millisecond, w.m.TTL("k"))
		}
		assert.Equal(t, fence, x.FencingToken())
		assert.Len(t, p.heard("renewed"), 3)
	})
}

func TestARenewalNeverCreatesALock(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for name, lose := range map[string]func(){
			"gone":           func() { w.m.Del("k") },
			"somebody's":     func() { w.take("k", time.Second) },
			"without a life": func() { w.take("k", time.Second); w.m.SetTTL("k", time.Second) },
		} {
			p := w.party()
			w.m.Del("k")
			x, err := p.TryAcquire(t.Context(), "k", time.Minute)
			require.NoError(t, err)
			lose()
			before := w.m.Dump()
			require.ErrorIs(t, x.Renew(t.Context()), ErrLost, name)
			require.ErrorIs(t, x.Release(t.Context()), ErrLost, name)
			assert.Equal(t, before, w.m.Dump(), name)
			assert.False(t, x.Valid())
			awaitEnd(x)
			assert.Len(t, p.fault.Sent(), 2, "it was told that the key is not ours, and need not ask again")
		}
	})
}

func TestAFailedRenewLeavesTheLeaseHeldUntilItsDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x, err := p.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		until := x.ValidUntil()
		p.fault.Every(nil).Fail(errNetwork)
		for range 3 {
			time.Sleep(100 * time.Millisecond)
			err = x.Renew(t.Context())
			require.ErrorIs(t, err, errNetwork)
			require.NotErrorIs(t, err, ErrLost)
			require.NoError(t, x.Err())
			assert.Equal(t, until, x.ValidUntil())
		}
		assert.Len(t, p.heard("jeopardy"), 1, "once")
		p.fault.Clear()
		require.NoError(t, x.Renew(t.Context()))
		p.fault.Every(nil).Fail(errNetwork)
		require.Error(t, x.Renew(t.Context()))
		assert.Equal(t, []string{"start", "acquired", "jeopardy", "renewed", "jeopardy"}, p.story())

		awaitEnd(x)
		require.ErrorIs(t, x.Err(), ErrLost)
		require.ErrorIs(t, x.Err(), errNetwork, "a loss says what kept it from being renewed")
	})
}

// That says nothing about the lease.
func TestARenewThatItsCallerCutsShortIsNoJeopardy(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, x.Renew(cancelled), context.Canceled)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		p.wire.BlackHole()
		require.ErrorIs(t, x.Renew(ctx), context.DeadlineExceeded)
		assert.Empty(t, p.heard("jeopardy"))
		assert.True(t, x.Valid())
	})
}

// What was not trusted for an instant may have been somebody else's in that instant.
func TestALateYesToARenewalChangesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x, err := p.TryAcquire(t.Context(), "k", 100*time.Millisecond)
		require.NoError(t, err)
		time.Sleep(50 * time.Millisecond)
		p.fault.Next(1, nil).DelayReply(60 * time.Millisecond)
		require.Error(t, x.Renew(t.Context()))
		awaitEnd(x)
		until := x.ValidUntil()
		time.Sleep(time.Second)
		assert.False(t, x.Valid())
		assert.Equal(t, until, x.ValidUntil())
		assert.Empty(t, p.heard("renewed"))
	})
}

func TestContextEndsWithTheLeaseAndOnlyWithIt(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
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
		require.ErrorIs(t, context.Cause(left), ErrReleased)
		require.NotErrorIs(t, context.Cause(of), ErrReleased, "the first cause stays")
		assert.Empty(t, x.contexts)
	})
}

func TestEnsureForRenewsOnlyIfItMust(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x, err := p.TryAcquire(t.Context(), "k", 10*time.Second)
		require.NoError(t, err)
		sent := func() int { return len(p.fault.Sent()) - 1 }
		require.NoError(t, x.EnsureFor(t.Context(), 0))
		require.NoError(t, x.EnsureFor(t.Context(), 9900*time.Millisecond))
		assert.Zero(t, sent())
		time.Sleep(time.Second)
		require.NoError(t, x.EnsureFor(t.Context(), 8900*time.Millisecond))
		assert.Zero(t, sent())
		require.NoError(t, x.EnsureFor(t.Context(), 8901*time.Millisecond))
		assert.Equal(t, 1, sent())
		assert.Equal(t, 9900*time.Millisecond, time.Until(x.ValidUntil()))

		require.ErrorIs(t, x.EnsureFor(t.Context(), 9901*time.Millisecond), ErrInvalid)
		time.Sleep(5 * time.Second)
		p.fault.Next(1, nil).DelayReply(time.Second)
		err = x.EnsureFor(t.Context(), 9500*time.Millisecond)
		require.ErrorContains(t, err, "only 8.9s left after a renewal, want 9.5s")
		require.NotErrorIs(t, err, ErrLost)
		w.m.Del("k")
		require.NoError(t, x.EnsureFor(t.Context(), time.Second), "it asks nobody if it need not")
		require.ErrorIs(t, x.EnsureFor(t.Context(), 9*time.Second), ErrLost)
	})
}

func TestContendedIsClosedOnceSomebodyWaits(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b := w.party(), w.party()
		x, err := a.TryAcquire(t.Context(), "k", 3*time.Second, WithAutoRenew(true))
		require.NoError(t, err)
		contended := x.Contended()
		time.Sleep(10 * time.Second)
		select {
		case <-contended:
			assert.Fail(t, "nobody waits")
		default:
		}
		got := beside(func() (*Lease, error) { return b.Acquire(t.Context(), "k", time.Second) })
		begun := time.Now()
		<-contended
		assert.LessOrEqual(t, time.Since(begun), time.Second, "the next renewal tells")
		<-x.Contended()
		require.NoError(t, x.Release(t.Context()))
		require.NoError(t, (<-got).err)
	})
}

func TestErrorsCanBeToldApart(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x, err := p.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		awaitEnd(x)
		err = x.Err()
		var e *Error
		require.ErrorAs(t, err, &e)
		assert.Equal(t, "k", e.Key)
		for _, other := range []error{ErrHeld, ErrReleased, ErrStale, ErrClosed, ErrNoQuorum, ErrInvalid, context.Canceled} {
			assert.False(t, errors.Is(err, other), "%v", other)
		}
		require.EqualError(t, x.Renew(t.Context()), `leasehold: renew "k": lease lost: its time ran out`)
	})
}

// No wall clock of ours is sent to the server or compared with another's.
func TestAWallClockThatIsWrongIsNoMatter(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p, q := w.party(), w.party()
		q.skew.Store(int64(time.Minute))
		x, err := p.TryAcquire(t.Context(), "k", 10*time.Second)
		require.NoError(t, err)
		_, err = q.TryAcquire(t.Context(), "k", 10*time.Second)
		require.ErrorIs(t, err, ErrHeld)
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
	inBubble(t, func(t *testing.T, w *world) {
		p, q := w.party(WithLockDelay(5*time.Second)), w.party()
		begun := time.Now()
		x, err := p.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		require.NoError(t, x.Renew(t.Context()))
		assert.Equal(t, 6*time.Second, w.m.TTL("k"))
		awaitEnd(x)
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

// An answer brings the whole TTL. A message brings less, and the lease must be renewed before that is over.
func TestALeaseIsTrustedForAsLongAsItsGrantSays(t *testing.T) {
	l := New(nil)
	anchor := l.clock.Now()
	for name, tt := range map[string]struct {
		life, ttl, maxHold time.Duration
		trust              time.Duration // from the anchor
		due                time.Duration // at the latest, of the first renewal
	}{
		"an answer":                     {0, time.Minute, 0, time.Minute - 600*time.Millisecond, 20 * time.Second},
		"an answer, with a bound":       {0, time.Minute, time.Second, time.Second, 20 * time.Second},
		"a message":                     {2500 * time.Millisecond, time.Minute, 0, 2475 * time.Millisecond, 1642 * time.Millisecond},
		"a message, for a short TTL":    {time.Second, time.Second, 0, 990 * time.Millisecond, 334 * time.Millisecond},
		"a message, with a lower bound": {2500 * time.Millisecond, time.Minute, time.Second, time.Second, 167 * time.Millisecond},
	} {
		for range 100 { // the first renewal has jitter
			a := attempt{o: &options{maxHold: tt.maxHold}, asks: line.Waiter{TTL: tt.ttl}}
			x := newLease(l, &a, line.Grant{Anchor: anchor, Life: tt.life, Fence: 7, Resent: true})
			assert.Equal(t, anchor.Plus(tt.trust), x.deadline, name)
			assert.Equal(t, anchor, x.begun, name)
			assert.LessOrEqual(t, x.schedule.Due(), anchor.Add(tt.due), name)
			assert.Positive(t, x.schedule.Due().Sub(anchor.Time), name)
			assert.True(t, x.resent, name)
		}
	}
}
