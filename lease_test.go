package leasehold_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"text/template"
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

// printed is all that the usual ways of printing make of a value.
func printed(t *testing.T, v any) (all []string) {
	t.Helper()
	held := struct {
		V any
		v any
	}{v, v}
	for _, flag := range []string{"", "+", "#", "-60", "060", ".200", " "} {
		for _, verb := range "vTtbcdoOqxXUeEfFgGsp" {
			format := "%" + flag + string(verb)
			for _, arg := range []any{v, held, &held, []any{v}, map[string]any{"v": v}} {
				all = append(all, fmt.Sprintf(format, arg))
			}
		}
	}
	var text, object, page bytes.Buffer
	slog.New(slog.NewTextHandler(&text, nil)).Info("m", "v", v, "held", held)
	slog.New(slog.NewJSONHandler(&object, nil)).Info("m", "v", v, "held", held)
	require.NoError(t, template.Must(template.New("").Parse("{{.}}{{.V}}{{printf `%d` .V}}")).Execute(&page, held))
	marshalled, err := json.Marshal(held)
	require.NoError(t, err)
	tagged, err := xml.Marshal(v)
	require.NoError(t, err)
	return append(all, text.String(), object.String(), page.String(), string(marshalled), string(tagged), fmt.Sprint(fmt.Errorf("%w: %v", locktest.ErrNetwork, v)))
}

// Whatever a log, a panic or a debugger's print makes of a lease or a Locker: the token is a proof of ownership, and the
// keeper changes the lease meanwhile, which the race detector sees.
func TestNothingThatIsPrintedShowsATokenOrRacesWithTheKeeper(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party(leasehold.WithOwner("worker 7"))
		x := p.Keeps("k", 30*time.Millisecond)
		y, err := p.TryAcquire(t.Context(), "other", time.Minute)
		require.NoError(t, err)
		ctx, cancel := y.Context(t.Context())
		defer cancel()

		for _, v := range []any{x, *x, y, *y, ctx} {
			var all sync.WaitGroup
			all.Go(func() {
				for range 5 {
					assert.NoError(t, y.Renew(t.Context()))
					time.Sleep(20 * time.Millisecond)
				}
			})
			for range 2 {
				for _, s := range printed(t, v) {
					for _, token := range []string{x.Token(), y.Token()} {
						secret := token[locktest.SecretAt : locktest.SecretAt+locktest.SecretLength]
						assert.NotContains(t, s, secret)
						assert.NotContains(t, strings.ToLower(s), hex.EncodeToString([]byte(secret)))
					}
				}
				time.Sleep(50 * time.Millisecond)
			}
			all.Wait()
		}
	})
}

func TestALockerIsPrintedWithoutARaceWithItsCalls(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		p.Keeps("k", 30*time.Millisecond)
		var all sync.WaitGroup
		all.Go(func() {
			for range 5 {
				assert.NoError(t, p.WithLock(t.Context(), "other", time.Minute, locktest.Idle))
				time.Sleep(20 * time.Millisecond)
			}
		})
		for range 2 {
			for _, format := range []string{"%v", "%+v", "%#v", "%s", "%d"} {
				assert.Contains(t, fmt.Sprintf(format, p.Locker), "locker (")
				assert.Contains(t, fmt.Sprintf(format, struct{ L *leasehold.Locker }{p.Locker}), "locker (")
			}
			time.Sleep(50 * time.Millisecond)
		}
		all.Wait()
		assert.Equal(t, "locker (1 leases held, 0 acquires waiting)", fmt.Sprint(p.Locker))
	})
}

func TestALeaseSaysWhichItIsAndHowItStands(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party(leasehold.WithOwner("worker 7"))
		x, err := p.TryAcquire(t.Context(), "invoice:7", time.Minute)
		require.NoError(t, err)
		until := x.ValidUntil().Format("2006-01-02T15:04:05.000Z07:00")
		says := func(how string) {
			t.Helper()
			want := fmt.Sprintf(`lease "invoice:7" (fencing token %d, %s)`, x.FencingToken(), how)
			for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
				assert.Equal(t, want, fmt.Sprintf(format, x))
			}
			assert.Equal(t, want, x.String())
			assert.Equal(t, want, x.GoString())
			assert.Equal(t, fmt.Sprintf("%q|%120s|%.5s", want, want, want), fmt.Sprintf("%q|%120s|%.5s", x, x, x))
			assert.Equal(t, "%!d(string="+want+")", fmt.Sprintf("%d", x))

			var line bytes.Buffer
			slog.New(slog.NewJSONHandler(&line, nil)).Info("m", "lease", x)
			assert.Contains(t, line.String(), fmt.Sprintf(
				`"lease":{"key":"invoice:7","fencing_token":%d,"owner":"worker 7","state":%q}`, x.FencingToken(), how))
		}
		says("held until " + until)
		p.Fault.Next(1, nil).Fail(locktest.ErrNetwork)
		require.Error(t, x.Renew(t.Context()))
		says("held until " + until + ", in jeopardy: the network is gone")
		require.NoError(t, x.Release(t.Context()))
		says("released")
		x, err = p.TryAcquire(t.Context(), "invoice:7", time.Second)
		require.NoError(t, err)
		locktest.AwaitEnd(x)
		says("lost: its time ran out")
	})
}

func TestNoLeaseIsPrintedToo(t *testing.T) {
	var x *leasehold.Lease
	var l *leasehold.Locker
	for _, v := range []any{x, l, leasehold.Lease{}} {
		for _, s := range printed(t, v) {
			assert.NotContains(t, s, "PANIC")
		}
	}
	assert.Equal(t, "<nil> <nil>", fmt.Sprint(x, l))
	assert.Equal(t, "<nil>", x.String())
	assert.Equal(t, slog.AnyValue(nil), x.LogValue())
}
