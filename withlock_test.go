package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

func TestWithLockKeepsTheLockForAsLongAsFnRuns(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		var fence int64
		err := p.WithLock(t.Context(), "k", 300*time.Millisecond, func(ctx context.Context, x *leasehold.Lease) error {
			fence = x.FencingToken()
			stop := w.NobodyGetsIn("k")
			time.Sleep(3 * time.Second)
			stop()
			assert.Equal(t, fence, x.FencingToken(), "it was taken anew")
			assert.Equal(t, x.Token(), w.Owner("k"))
			return ctx.Err()
		})
		require.NoError(t, err)
		assert.Empty(t, w.Owner("k"))
		released := p.Heard("released")
		require.Len(t, released, 1)
		assert.True(t, released[0].Clean)
		assert.InDelta(t, 3*time.Second, released[0].Held, float64(20*time.Millisecond))
	})
}

func TestWithLockWithoutRenewalEndsFnsContextAtTheDeadline(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		begun := time.Now()
		err := p.WithLock(t.Context(), "k", time.Second, func(ctx context.Context, x *leasehold.Lease) error {
			<-ctx.Done()
			assert.Equal(t, 990*time.Millisecond, time.Since(begun), "before Redis lets anybody in")
			assert.ErrorIs(t, context.Cause(ctx), leasehold.ErrLost)
			assert.False(t, x.Valid())
			return nil
		}, leasehold.WithAutoRenew(false))
		require.ErrorIs(t, err, leasehold.ErrLost)
		require.EqualError(t, err, `leasehold: hold "k": lease lost: its time ran out`)
	})
}

func TestWithLockDoesNotRunFnWithoutTheLock(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		fn := func(context.Context, *leasehold.Lease) error { assert.Fail(t, "it ran"); return nil }
		w.Take("k", time.Minute)
		require.ErrorIs(t, p.TryWithLock(t.Context(), "k", time.Second, fn), leasehold.ErrHeld)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := p.WithLock(ctx, "k", time.Second, fn)
		require.ErrorIs(t, err, leasehold.ErrHeld)
		require.ErrorIs(t, err, context.DeadlineExceeded)

		w.M.Lpush("list", "v")
		w.M.SetTTL("list", time.Minute)
		require.ErrorContains(t, p.WithLock(t.Context(), "list", time.Second, fn), "WRONGTYPE")
		require.ErrorIs(t, p.WithLock(t.Context(), "", time.Second, fn), leasehold.ErrInvalid)
		p.Wire.BlackHole()
		require.Error(t, p.TryWithLock(t.Context(), "free", time.Second, fn))
		p.Wire.Pass()
		require.NoError(t, p.Close())
		require.ErrorIs(t, p.WithLock(t.Context(), "k", time.Second, fn), leasehold.ErrClosed)
	})
}

func TestWithLockTellsALossToFnAndToItsCaller(t *testing.T) {
	const ttl = time.Second
	for name, tt := range map[string]struct {
		lose   func(w *locktest.World, p *locktest.Party)
		within time.Duration // of the loss
		why    string
		kind   leasehold.Loss
	}{
		"the key is deleted":          {func(w *locktest.World, _ *locktest.Party) { w.M.Del("k") }, ttl / 3, "the key is gone", leasehold.LossGone},
		"Redis is flushed":            {func(w *locktest.World, _ *locktest.Party) { w.M.FlushAll() }, ttl / 3, "the key is gone", leasehold.LossGone},
		"the token is replaced":       {func(w *locktest.World, _ *locktest.Party) { w.Take("k", time.Minute) }, ttl / 3, "the key is now held by another", leasehold.LossGone},
		"Redis does not answer":       {func(_ *locktest.World, p *locktest.Party) { p.Wire.BlackHole() }, ttl - ttl/100, "its time ran out while renewals failed: no answer from redis within", leasehold.LossRenewals},
		"Redis refuses connections":   {func(_ *locktest.World, p *locktest.Party) { p.Wire.Refuse() }, ttl - ttl/100, "its time ran out while renewals failed: ", leasehold.LossRenewals},
		"Redis cannot write":          {func(w *locktest.World, _ *locktest.Party) { w.M.SetError("READONLY replica") }, ttl - ttl/100, "its time ran out while renewals failed: ", leasehold.LossRenewals},
		"the rights are taken away":   {func(w *locktest.World, _ *locktest.Party) { w.M.SetError("NOPERM no") }, ttl - ttl/100, "its time ran out while renewals failed: NOPERM no", leasehold.LossRenewals},
		"the machine has been asleep": {func(_ *locktest.World, p *locktest.Party) { p.Skew.Add(int64(time.Hour)) }, ttl / 3, "its time ran out", leasehold.LossExpired},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
				p := w.Party()
				err := p.WithLock(t.Context(), "k", ttl, func(ctx context.Context, x *leasehold.Lease) error {
					time.Sleep(time.Second)
					tt.lose(w, p)
					begun := time.Now()
					<-ctx.Done()
					assert.LessOrEqual(t, time.Since(begun), tt.within)
					assert.ErrorIs(t, context.Cause(ctx), leasehold.ErrLost)
					assert.ErrorIs(t, ctx.Err(), context.Canceled)
					assert.ErrorIs(t, x.Err(), leasehold.ErrLost)
					<-x.Done()
					assert.False(t, x.Valid())
					w.M.SetError("")
					p.Wire.Pass()
					return locktest.ErrWork
				})
				synctest.Wait() // for the hooks
				require.ErrorIs(t, err, locktest.ErrWork)
				require.ErrorIs(t, err, leasehold.ErrLost)
				require.ErrorContains(t, err, locktest.ErrWork.Error()+"\n", "fn's error comes first")
				require.ErrorContains(t, err, tt.why)
				lost := p.Heard("lost")
				require.Len(t, lost, 1)
				assert.ErrorContains(t, lost[0].Err, tt.why)
				assert.Equal(t, tt.kind, lost[0].Loss)
				assert.Contains(t, p.Logged(), "lease lost")
			})
		})
	}
}

func TestWithLockSaysALossOnceThoughFnReturnsItToo(t *testing.T) {
	for name, result := range map[string]func(ctx context.Context, x *leasehold.Lease) error{
		"the cause of its context": func(ctx context.Context, _ *leasehold.Lease) error { return context.Cause(ctx) },
		"wrapped": func(_ context.Context, x *leasehold.Lease) error {
			return fmt.Errorf("paying: %w", x.Release(context.Background()))
		},
		"the lease's":       func(_ context.Context, x *leasehold.Lease) error { return x.Err() },
		"a renewal's":       func(ctx context.Context, x *leasehold.Lease) error { return x.Renew(ctx) },
		"its own release's": func(ctx context.Context, x *leasehold.Lease) error { return x.Release(ctx) },
	} {
		for when, lose := range map[string]func(w *locktest.World, ctx context.Context){
			"early":          func(w *locktest.World, ctx context.Context) { w.M.Del("k"); <-ctx.Done() },
			"at the release": func(w *locktest.World, _ context.Context) { w.M.Del("k") },
		} {
			locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
				var own error
				err := w.Party().WithLock(t.Context(), "k", time.Second, func(ctx context.Context, x *leasehold.Lease) error {
					lose(w, ctx)
					own = result(ctx, x)
					return own
				})
				require.ErrorIs(t, err, leasehold.ErrLost)
				assert.Equal(t, 1, strings.Count(err.Error(), "lease lost"), "%s, %s: %v", name, when, err)
				if own != nil { // else only the release of WithLock knew
					assert.Equal(t, own, err, "it is fn's")
				}
			})
		}
	}

	// The loss of another lease is another loss.
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		err := p.WithLock(t.Context(), "k", time.Second, func(ctx context.Context, _ *leasehold.Lease) error {
			return p.WithLock(t.Context(), "inner", time.Second, func(inner context.Context, _ *leasehold.Lease) error {
				w.M.FlushAll()
				<-ctx.Done()
				<-inner.Done()
				return context.Cause(inner)
			})
		})
		assert.ErrorContains(t, err, `hold "inner": lease lost`)
		assert.ErrorContains(t, err, `hold "k": lease lost`)
		assert.Equal(t, 2, strings.Count(err.Error(), "lease lost"), "%v", err)
	})
}

// A loss that only the release finds out about.
func TestWithLockReportsALossThatItsReleaseFindsOutAbout(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		err := p.WithLock(t.Context(), "k", time.Minute, func(context.Context, *leasehold.Lease) error {
			w.Take("k", time.Minute)
			return nil
		})
		require.ErrorIs(t, err, leasehold.ErrLost)
		assert.Equal(t, locktest.OtherToken, w.Owner("k"))
		assert.Equal(t, []string{"start", "acquired", "lost"}, p.Story())
	})
}

// What fn does to unwind is as much in need of the lock as its work.
func TestWithLockKeepsTheLockWhileFnUnwindsFromACancel(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		cause := errors.New("shutting down")
		parent, cancel := context.WithCancelCause(t.Context())
		stop := func() {}
		err := p.WithLock(parent, "k", 300*time.Millisecond, func(ctx context.Context, x *leasehold.Lease) error {
			stop = w.NobodyGetsIn("k")
			cancel(cause)
			<-ctx.Done()
			assert.Equal(t, cause, context.Cause(ctx))
			time.Sleep(time.Second)
			assert.True(t, x.Valid())
			stop()
			return ctx.Err()
		})
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, leasehold.ErrLost)
		assert.Empty(t, w.Owner("k"), "released in spite of the cancel")
		assert.GreaterOrEqual(t, len(p.Heard("renewed")), 9)
	})
}

func TestWithLockReleasesWhenFnPanicsOrEndsItsGoroutine(t *testing.T) {
	type bomb struct{ n int }
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		value := &bomb{7}
		func() {
			defer func() { assert.Same(t, value, recover(), "the original value") }()
			_ = p.WithLock(t.Context(), "k", time.Minute, func(context.Context, *leasehold.Lease) error { panic(value) })
		}()
		assert.Empty(t, w.Owner("k"))

		// Also if the lock was lost: a panic is not turned into an error.
		func() {
			defer func() { assert.Same(t, value, recover()) }()
			_ = p.WithLock(t.Context(), "k", time.Minute, func(context.Context, *leasehold.Lease) error { w.M.Del("k"); panic(value) })
		}()

		var after atomic.Bool
		var gone sync.WaitGroup
		gone.Go(func() {
			_ = p.WithLock(t.Context(), "k", time.Minute, func(context.Context, *leasehold.Lease) error { runtime.Goexit(); return nil })
			after.Store(true)
		})
		gone.Wait()
		assert.False(t, after.Load())
		assert.Empty(t, w.Owner("k"))
		p.RequireEmpty()
	})
}

func TestWithLockIsNotHeldForLongerThanWithMaxHold(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		begun := time.Now()
		err := p.WithLock(t.Context(), "k", time.Second, func(ctx context.Context, x *leasehold.Lease) error {
			<-ctx.Done()
			assert.Equal(t, 5*time.Second, time.Since(begun))
			time.Sleep(time.Second) // hangs, and does not listen
			assert.Empty(t, w.Owner("k"), "it is renewed although it is lost")
			return nil
		}, leasehold.WithMaxHold(5*time.Second))
		require.ErrorIs(t, err, leasehold.ErrLost)
		require.EqualError(t, err, `leasehold: hold "k": lease lost: held as long as WithMaxHold allows`)
		assert.Equal(t, leasehold.LossMaxHold, p.Heard("lost")[0].Loss)
	})
}

// The work was done under a valid lease: that stands, and the failed release is told to the hooks and the log.
func TestWithLockReturnsFnsResultWhenOnlyTheReleaseFails(t *testing.T) {
	for name, fail := range map[string]func(w *locktest.World, p *locktest.Party){
		"MISCONF": func(w *locktest.World, _ *locktest.Party) { w.M.SetError("MISCONF Errors writing to the AOF file") },
		"READONLY": func(w *locktest.World, _ *locktest.Party) {
			w.M.SetError("READONLY You can't write against a read only replica.")
		},
		"NOPERM":     func(w *locktest.World, _ *locktest.Party) { w.M.SetError("NOPERM no") },
		"no answer":  func(_ *locktest.World, p *locktest.Party) { p.Wire.BlackHole() },
		"no network": func(_ *locktest.World, p *locktest.Party) { p.Fault.Every(nil).Fail(locktest.ErrNetwork) },
	} {
		for _, result := range []error{nil, locktest.ErrWork} {
			locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
				p := w.Party()
				var x *leasehold.Lease
				err := p.WithLock(t.Context(), "k", time.Minute, func(_ context.Context, lease *leasehold.Lease) error {
					x = lease
					fail(w, p)
					return result
				})
				assert.Equal(t, result, err, name)
				released := p.Heard("released")
				require.Len(t, released, 1)
				assert.False(t, released[0].Clean)
				require.Error(t, released[0].Err)
				assert.Contains(t, p.Logged(), "release failed")
				assert.False(t, x.Valid())
				assert.Equal(t, x.Token(), w.Owner("k"))

				// It is heard of again when a repetition comes through.
				w.M.SetError("")
				p.Fault.Clear()
				p.Wire.Pass()
				if name != "NOPERM" { // which no repetition can cure
					time.Sleep(10 * time.Second)
					assert.Empty(t, w.Owner("k"))
				}
			})
		}
	}
}

func TestWithLockWaitsForItsReleaseThoughItsContextEnds(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		ctx, cancel := context.WithCancel(t.Context())
		slow := p.Fault.Next(1, locktest.RunOf(locktest.ReleaseScript)).Hold()
		done := make(chan error, 1)
		go func() {
			done <- p.WithLock(ctx, "k", time.Minute, locktest.Idle)
		}()
		<-slow.Arrived()
		cancel()
		synctest.Wait()
		assert.Empty(t, done, "it left its lock behind")
		slow.Release()
		require.NoError(t, <-done)
		assert.Empty(t, w.Owner("k"))
	})
}

func TestWithLocksFunctionMayReleaseByItself(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		err := p.WithLock(t.Context(), "k", time.Minute, func(ctx context.Context, x *leasehold.Lease) error {
			require.NoError(t, x.Release(ctx))
			assert.ErrorIs(t, context.Cause(ctx), leasehold.ErrReleased)
			time.Sleep(time.Hour)
			return nil
		})
		require.NoError(t, err)
		assert.Len(t, p.Heard("released"), 1)
		assert.Len(t, p.Fault.Sent(), 2)
	})
}

func TestWithLocksLeaseIsOverWhenItReturns(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		var kept *leasehold.Lease
		var ctx context.Context
		require.NoError(t, p.WithLock(t.Context(), "k", time.Minute, func(c context.Context, x *leasehold.Lease) error {
			kept, ctx = x, c
			return nil
		}))
		assert.False(t, kept.Valid())
		require.ErrorIs(t, kept.Err(), leasehold.ErrReleased)
		require.ErrorIs(t, kept.Renew(t.Context()), leasehold.ErrReleased)
		assert.Error(t, ctx.Err())
		time.Sleep(time.Hour)
		assert.Len(t, p.Fault.Sent(), 2, "it is renewed")
	})
}

// Two Lockers, one counter: with the lock nothing is lost, and the order of fencing tokens is that of the holders.
func TestWithLockExcludes(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		var inside atomic.Int32
		var fences []int64 // guarded by the lock
		var all sync.WaitGroup
		for _, p := range []*locktest.Party{w.Party(), w.Party()} {
			for range 10 {
				all.Go(func() {
					for range 5 {
						err := p.WithLock(t.Context(), "k", time.Second, func(_ context.Context, x *leasehold.Lease) error {
							assert.EqualValues(t, 1, inside.Add(1))
							time.Sleep(7 * time.Millisecond)
							fences = append(fences, x.FencingToken())
							inside.Add(-1)
							return nil
						})
						assert.NoError(t, err)
					}
				})
			}
		}
		begun := time.Now()
		all.Wait()
		assert.Len(t, fences, 100)
		assert.IsIncreasing(t, fences)
		assert.LessOrEqual(t, time.Since(begun), 100*7*time.Millisecond+3*time.Second)
	})
}

func TestWithLockOnARealServer(t *testing.T) {
	t.Parallel()
	server := redistest.Server(t)
	var lockers []*locktest.Party
	for range 2 {
		p := &locktest.Party{T: t, Real: true}
		p.Start(server.Client(), nil)
		lockers = append(lockers, p)
	}
	var last int64
	inside, n := 0, 0 // guarded by the lock, as the race detector sees
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() {
			for range 10 {
				assert.NoError(t, lockers[i%2].WithLock(t.Context(), "k", 2*time.Second, func(_ context.Context, x *leasehold.Lease) error {
					inside++
					assert.Equal(t, 1, inside)
					assert.Greater(t, x.FencingToken(), last)
					last = x.FencingToken()
					n++
					inside--
					return nil
				}))
			}
		})
	}
	all.Wait()
	assert.Equal(t, 100, n)
}
