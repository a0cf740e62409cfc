package leasehold_test

import (
	"context"
	"errors"
	"math"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestACycleIsTwoCommands(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		assert.Equal(t, x.Token(), w.Owner("k"))
		assert.Equal(t, time.Second, w.M.TTL("k"))
		assert.Equal(t, "k", x.Key())
		require.NoError(t, x.Release(t.Context()))
		assert.Empty(t, w.Owner("k"))
		assert.Equal(t, []string{"evalsha", "evalsha"}, p.Fault.Sent())
	})
}

func TestTryAcquireAnswersHeldAtOnceAndLeavesNothingBehind(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		before := w.M.Dump()
		_, err = p.TryAcquire(t.Context(), "k", time.Minute)
		require.ErrorIs(t, err, leasehold.ErrHeld)
		require.NotErrorIs(t, err, redis.Nil)
		synctest.Wait()
		assert.Equal(t, before, w.M.Dump())
		assert.Len(t, p.Fault.Sent(), 2)
		assert.True(t, x.Valid())
	})
}

// What one lease does can never touch another: tokens differ, and no state is shared.
func TestAReleaseThatComesTooLateTouchesNobodyElsesLease(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party() // one Locker for both
		a, err := p.TryAcquire(t.Context(), "k", 100*time.Millisecond)
		require.NoError(t, err)
		time.Sleep(100 * time.Millisecond)
		b, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)

		require.ErrorIs(t, a.Release(t.Context()), leasehold.ErrLost)
		assert.Equal(t, b.Token(), w.Owner("k"))
		assert.True(t, b.Valid())
		assert.Greater(t, b.FencingToken(), a.FencingToken())
		_, err = p.TryAcquire(t.Context(), "k", time.Second)
		require.ErrorIs(t, err, leasehold.ErrHeld)
		require.NoError(t, b.Release(t.Context()))
	})
}

// entries are all the ways to a lease.
var entries = map[string]func(p *locktest.Party, key string, ttl time.Duration, use func(*leasehold.Lease)) error{
	"TryAcquire": func(p *locktest.Party, key string, ttl time.Duration, use func(*leasehold.Lease)) error {
		x, err := p.TryAcquire(context.Background(), key, ttl)
		if err == nil {
			use(x)
			err = x.Release(context.Background())
		}
		return err
	},
	"Acquire": func(p *locktest.Party, key string, ttl time.Duration, use func(*leasehold.Lease)) error {
		x, err := p.Acquire(context.Background(), key, ttl)
		if err == nil {
			use(x)
			err = x.Release(context.Background())
		}
		return err
	},
	"WithLock": func(p *locktest.Party, key string, ttl time.Duration, use func(*leasehold.Lease)) error {
		return p.WithLock(context.Background(), key, ttl, func(_ context.Context, x *leasehold.Lease) error { use(x); return nil })
	},
	"TryWithLock": func(p *locktest.Party, key string, ttl time.Duration, use func(*leasehold.Lease)) error {
		return p.TryWithLock(context.Background(), key, ttl, func(_ context.Context, x *leasehold.Lease) error { use(x); return nil })
	},
	"Adopt": func(p *locktest.Party, key string, ttl time.Duration, use func(*leasehold.Lease)) error {
		first, err := p.TryAcquire(context.Background(), key, locktest.MinTTL)
		if err != nil {
			return err
		}
		x, err := p.Adopt(context.Background(), key, first.Token(), ttl)
		if err == nil {
			use(x)
			err = x.Release(context.Background())
		}
		_ = first.Release(context.Background())
		return err
	},
}

func TestATTLMeansTheSameThroughEveryEntryPoint(t *testing.T) {
	for _, tt := range []struct{ ttl, px, trusted time.Duration }{
		{10 * time.Millisecond, 10 * time.Millisecond, 8 * time.Millisecond},
		{10400 * time.Microsecond, 11 * time.Millisecond, 8400 * time.Microsecond},
		{time.Second, time.Second, 990 * time.Millisecond},
		{time.Second + time.Nanosecond, 1001 * time.Millisecond, 990*time.Millisecond + time.Nanosecond},
		{locktest.MaxTTL, locktest.MaxTTL, locktest.MaxTTL - locktest.MaxTTL/100},
	} {
		locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
			p := w.Party()
			for name, enter := range entries {
				used := false
				require.NoError(t, enter(p, name, tt.ttl, func(x *leasehold.Lease) {
					used = true
					assert.Equal(t, tt.px, w.M.TTL(name), name)
					assert.Equal(t, tt.trusted, time.Until(x.ValidUntil()), name)
				}), name)
				assert.True(t, used, name)
			}
		})
	}
}

func TestATTLThatCannotBeTrustedIsRefusedBeforeAnythingIsSent(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		holder, err := w.Party().TryAcquire(t.Context(), "held", time.Minute)
		require.NoError(t, err)
		for _, ttl := range []time.Duration{
			math.MinInt64, -time.Millisecond, 0, 1, 999 * time.Microsecond, 9999 * time.Microsecond,
			locktest.MaxTTL + 1, math.MaxInt64,
		} {
			for name, call := range map[string]func() error{
				"TryAcquire":  func() error { _, err := p.TryAcquire(t.Context(), "k", ttl); return err },
				"Acquire":     func() error { _, err := p.Acquire(t.Context(), "k", ttl); return err },
				"Adopt":       func() error { _, err := p.Adopt(t.Context(), "held", holder.Token(), ttl); return err },
				"WithLock":    func() error { return p.WithLock(t.Context(), "k", ttl, locktest.Idle) },
				"TryWithLock": func() error { return p.TryWithLock(t.Context(), "k", ttl, locktest.Idle) },
			} {
				require.ErrorIs(t, call(), leasehold.ErrInvalid, "%s with %v", name, ttl)
			}
		}
		assert.Empty(t, p.Fault.Sent())
	})
}

func TestTheMarginIsTakenOff(t *testing.T) {
	for _, tt := range []struct{ ttl, margin time.Duration }{
		{10 * time.Millisecond, 2 * time.Millisecond},
		{200 * time.Millisecond, 2 * time.Millisecond},
		{201 * time.Millisecond, 2010 * time.Microsecond},
		{time.Second, 10 * time.Millisecond},
		{time.Minute, 600 * time.Millisecond},
	} {
		assert.Equal(t, tt.margin, clock.Margin(tt.ttl), tt.ttl)
	}
}

func TestTheDeadlineCountsFromTheFirstSend(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		begun := time.Now()
		p.Fault.Next(1, nil).DelayReply(400 * time.Millisecond)
		x, err := p.TryAcquire(t.Context(), "slow", time.Second)
		require.NoError(t, err)
		assert.Equal(t, 400*time.Millisecond, time.Since(begun))
		assert.Equal(t, 990*time.Millisecond, x.ValidUntil().Sub(begun))

		// go-redis sends it again when the connection breaks; the deadline stays that of the first.
		begun = time.Now()
		p.Wire.DropReplies(1, "evalsha")
		x, err = p.TryAcquire(t.Context(), "lost", time.Second)
		require.NoError(t, err)
		assert.Equal(t, 990*time.Millisecond, x.ValidUntil().Sub(begun))

		// Nor does the time in the line count.
		_, err = p.TryAcquire(t.Context(), "k", 10*time.Second)
		require.NoError(t, err)
		x, err = p.Acquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		assert.InDelta(t, 990*time.Millisecond, time.Until(x.ValidUntil()), float64(5*time.Millisecond))
	})
}

func TestALostReplyDoesNotLoseTheLock(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		p.Wire.DropReplies(1, "evalsha")
		x, err := p.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		s, err := p.Inspect(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, x.FencingToken(), s.FencingToken, "a second one was issued")

		time.Sleep(500 * time.Millisecond)
		p.Wire.DropReplies(1, "evalsha")
		require.NoError(t, x.Renew(t.Context()))
		assert.InDelta(t, time.Second, w.M.TTL("k"), float64(20*time.Millisecond))

		p.Wire.DropReplies(1, "evalsha")
		require.NoError(t, x.Release(t.Context()))
		assert.Empty(t, w.Owner("k"))
		assert.ErrorIs(t, x.Err(), leasehold.ErrReleased)
		last := p.Heard("released")
		require.Len(t, last, 1)
		assert.False(t, last[0].Clean, "the second release answered that nothing was there")
		assert.Error(t, last[0].Err)
		assert.Empty(t, p.Heard("lost"))
	})
}

func TestAnAnswerAfterItsOwnDeadlineIsReleasedAndReportedAsTooSlow(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		late := p.Fault.Next(1, nil).HoldReply()
		_, err := p.TryAcquire(t.Context(), "k", 100*time.Millisecond)
		require.EqualError(t, err, `leasehold: acquire "k": no answer from redis within 98ms`)
		var slow net.Error
		require.ErrorAs(t, err, &slow)
		assert.True(t, slow.Timeout())
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, leasehold.ErrHeld)
		synctest.Wait()
		assert.Empty(t, w.Owner("k"), "it waits out its ttl")
		late.Release()
	})
}

// The machine sleeps while the answer is on its way: only the wall clock shows it.
func TestAnAnswerThatSleptIsNoLease(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		for name, acquire := range map[string]func(p *locktest.Party) (*leasehold.Lease, error){
			"TryAcquire": func(p *locktest.Party) (*leasehold.Lease, error) { return p.TryAcquire(t.Context(), "k", time.Minute) },
			"Adopt": func(p *locktest.Party) (*leasehold.Lease, error) {
				return p.Adopt(t.Context(), "a", "somebody else's token", time.Minute)
			},
		} {
			w.Take("a", time.Minute)
			p := w.Party()
			reply := p.Fault.Next(1, nil).HoldReply()
			got := locktest.Beside(func() (*leasehold.Lease, error) { return acquire(p) })
			<-reply.Arrived()
			p.Skew.Add(int64(time.Hour))
			reply.Release()
			r := <-got
			require.Error(t, r.Err, name)
			require.Nil(t, r.Lease)
			synctest.Wait()
			assert.Empty(t, w.Owner("k"))
			assert.NotEmpty(t, w.Owner("a"), "an adoption that failed must not end the lease")
			assert.Equal(t, []string{"start", "gave up"}, p.Story(), "nobody had it, so nobody lost it")
			assert.NotContains(t, p.Logged(), "lost")
		}
	})
}

// Every step of an acquire at which its caller can stop waiting, for every way to acquire.
func TestACancelledAcquireHasALeaseOrLeavesNothingBehind(t *testing.T) {
	faults := map[string]func(p *locktest.Party, match func(redis.Cmder) bool) *redistest.Held{
		"before it is sent": func(p *locktest.Party, m func(redis.Cmder) bool) *redistest.Held { return p.Fault.Next(1, m).Hold() },
		"after it ran, before its reply comes": func(p *locktest.Party, m func(redis.Cmder) bool) *redistest.Held {
			return p.Fault.Next(1, m).HoldReply()
		},
	}
	calls := map[string]struct {
		held    bool // the key is held meanwhile
		match   func(redis.Cmder) bool
		acquire func(p *locktest.Party, ctx context.Context) (*leasehold.Lease, error)
	}{
		"TryAcquire": {false, locktest.RunOf(locktest.AcquireScript, "try"), func(p *locktest.Party, ctx context.Context) (*leasehold.Lease, error) {
			return p.TryAcquire(ctx, "k", time.Minute)
		}},
		"TryAcquire, held": {true, locktest.RunOf(locktest.AcquireScript, "try"), func(p *locktest.Party, ctx context.Context) (*leasehold.Lease, error) {
			return p.TryAcquire(ctx, "k", time.Minute)
		}},
		"Acquire, free": {false, locktest.RunOf(locktest.AcquireScript, "join"), func(p *locktest.Party, ctx context.Context) (*leasehold.Lease, error) {
			return p.Acquire(ctx, "k", time.Minute)
		}},
		"Acquire, joins": {true, locktest.RunOf(locktest.AcquireScript, "join"), func(p *locktest.Party, ctx context.Context) (*leasehold.Lease, error) {
			return p.Acquire(ctx, "k", time.Minute)
		}},
		"Acquire, looks": {true, locktest.RunOf(locktest.AcquireScript, "poll"), func(p *locktest.Party, ctx context.Context) (*leasehold.Lease, error) {
			return p.Acquire(ctx, "k", time.Minute)
		}},
	}
	for when, fault := range faults {
		for name, call := range calls {
			for _, first := range []string{"the clean-up", "the command"} { // that comes first
				t.Run(name+", "+when+", then "+first, func(t *testing.T) {
					locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
						p := w.Party()
						if call.held {
							w.Take("k", 5*time.Second)
						}
						step := fault(p, call.match)
						ctx, cancel := context.WithCancelCause(t.Context())
						got := locktest.Beside(func() (*leasehold.Lease, error) { return call.acquire(p, ctx) })
						<-step.Arrived()
						var undo *redistest.Held
						if first == "the command" {
							undo = p.Fault.Next(1, locktest.RunOf(locktest.ReleaseScript, "cancel")).Hold()
						}
						cause := errors.New("the user went away")
						cancel(cause)
						r := <-got
						require.ErrorIs(t, r.Err, cause)
						require.ErrorIs(t, r.Err, context.Canceled)
						require.Nil(t, r.Lease)
						assert.Zero(t, time.Since(p.Heard("gave up")[0].At), "it came back late")

						synctest.Wait()
						step.Release()
						synctest.Wait()
						if undo != nil {
							undo.Release()
							synctest.Wait()
						}
						assert.Empty(t, w.Line("k"), "a place in the line is left")
						if call.held {
							assert.Equal(t, locktest.OtherToken, w.Owner("k"))
						} else {
							assert.Empty(t, w.Owner("k"), "a lock is left")
						}
						undone, err := w.M.ZMembers("leasehold:undone:{k}")
						require.NoError(t, err)
						require.Len(t, undone, 1, "a late copy of the command must find a tombstone")
						assert.Equal(t, time.Minute, w.M.TTL("leasehold:undone:{k}"))
					})
				})
			}
		}
	}
}

// The answer and the cancellation at the same instant: either outcome, but nothing in between.
func TestACancelThatMeetsTheAnswerIsOneOrTheOther(t *testing.T) {
	won, lost := 0, 0
	for range 20 {
		locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
			p := w.Party()
			reply := p.Fault.Next(1, nil).HoldReply()
			ctx, cancel := context.WithCancel(t.Context())
			got := locktest.Beside(func() (*leasehold.Lease, error) { return p.Acquire(ctx, "k", time.Minute) })
			<-reply.Arrived()
			go reply.Release()
			cancel()
			r := <-got
			synctest.Wait()
			if r.Err == nil {
				won++
				assert.True(t, r.Lease.Valid())
				assert.Equal(t, r.Lease.Token(), w.Owner("k"))
			} else {
				lost++
				assert.Nil(t, r.Lease)
				assert.Empty(t, w.Owner("k"))
			}
		})
	}
	t.Logf("%d won, %d gave up", won, lost)
}

func TestAContextThatHasEndedSendsNothing(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		cause := errors.New("too late")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		for name, call := range map[string]func() error{
			"TryAcquire":   func() error { _, err := p.TryAcquire(ctx, "k", time.Second); return err },
			"Acquire":      func() error { _, err := p.Acquire(ctx, "k", time.Second); return err },
			"Adopt":        func() error { _, err := p.Adopt(ctx, "k", "t", time.Second); return err },
			"Inspect":      func() error { _, err := p.Inspect(ctx, "k"); return err },
			"ForceRelease": func() error { return p.ForceRelease(ctx, "k") },
			"WithLock":     func() error { return p.WithLock(ctx, "k", time.Second, locktest.Idle) },
		} {
			err := call()
			require.ErrorIs(t, err, cause, name)
			require.ErrorIs(t, err, context.Canceled, name)
			require.NotErrorIs(t, err, leasehold.ErrHeld, name)
		}
		synctest.Wait()
		assert.Empty(t, p.Fault.Sent())
	})
}
