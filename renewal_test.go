package leasehold

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// keeps is an acquire with automatic renewal.
func (p *party) keeps(key string, ttl time.Duration, opts ...Option) *Lease {
	p.t.Helper()
	x, err := p.TryAcquire(context.Background(), key, ttl, append([]Option{WithAutoRenew(true)}, opts...)...)
	require.NoError(p.t, err)
	return x
}

func TestALeaseIsRenewedEveryThirdOfItsTTL(t *testing.T) {
	for _, tt := range []struct {
		opts  []Option
		every time.Duration
	}{
		{nil, time.Second},
		{[]Option{WithRenewEvery(1500 * time.Millisecond)}, 1500 * time.Millisecond},
		{[]Option{WithRenewEvery(100 * time.Millisecond)}, 100 * time.Millisecond},
	} {
		inBubble(t, func(t *testing.T, w *world) {
			p := w.party()
			last := time.Now()
			x := p.keeps("k", 3*time.Second, tt.opts...)
			time.Sleep(60 * tt.every)
			assert.True(t, x.Valid())
			renewed := p.heard("renewed")
			assert.GreaterOrEqual(t, len(renewed), 59)
			pauses := map[time.Duration]bool{}
			for _, h := range renewed {
				pause := h.at.Sub(last)
				last = h.at
				pauses[pause] = true
				assert.LessOrEqual(t, pause, tt.every)
				assert.GreaterOrEqual(t, pause, tt.every*9/10-time.Nanosecond)
			}
			assert.Greater(t, len(pauses), len(renewed)/2, "by chance, so that leases do not keep step")
			assert.GreaterOrEqual(t, time.Until(x.ValidUntil()), 3*time.Second-clock.Margin(3*time.Second)-tt.every)
		})
	}
}

func TestALeaseIsNotRenewedUnlessAsked(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x, err := p.Acquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		awaitEnd(x)
		assert.Len(t, p.fault.Sent(), 1)

		p = w.party(WithAutoRenew(true)) // of the Locker; the call has the last word
		x, err = p.TryAcquire(t.Context(), "a", time.Second)
		require.NoError(t, err)
		y, err := p.TryAcquire(t.Context(), "b", time.Second, WithAutoRenew(false))
		require.NoError(t, err)
		time.Sleep(10 * time.Second)
		assert.True(t, x.Valid())
		assert.False(t, y.Valid())
	})
}

// due is when the lease is to be renewed next.
func due(x *Lease) time.Time {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.schedule.Due()
}

// An error is not a loss: it is tried again soon, and the lease is in jeopardy, once, until it is held again.
func TestAFailedRenewalIsTriedAgainWellInsideTheDeadline(t *testing.T) {
	for name, fail := range map[string]func(p *party, n int){
		"failed": func(p *party, n int) { p.fault.Next(n, runOf(renewScript)).Fail(errNetwork) },
		"lost":   func(p *party, n int) { p.fault.Next(n, runOf(renewScript)).Lose(errNetwork) },
	} {
		for _, n := range []int{1, 5} {
			inBubble(t, func(t *testing.T, w *world) {
				p := w.party()
				x := p.keeps("k", 3*time.Second)
				time.Sleep(3100 * time.Millisecond)
				fail(p, n)
				time.Sleep(3 * time.Second)
				assert.True(t, x.Valid())
				jeopardy := p.heard("jeopardy")
				require.Len(t, jeopardy, 1, name)
				require.ErrorIs(t, jeopardy[0].Err, errNetwork)
				assert.Equal(t, x.FencingToken(), jeopardy[0].FencingToken)
				for _, h := range p.heard("renewed") {
					if h.at.After(jeopardy[0].at) {
						again := h.at.Sub(jeopardy[0].at)
						assert.LessOrEqual(t, again, map[int]time.Duration{1: 50 * time.Millisecond, 5: 1300 * time.Millisecond}[n])
						break
					}
				}
				assert.EqualValues(t, n, p.Stats().RenewalsFailed)
				assert.Contains(t, p.logged(), "lease in jeopardy")
			})
		}
	}
}

func TestTriesDoNotSpinWhileRedisIsAway(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x := p.keeps("k", 30*time.Second)
		p.fault.Every(nil).Fail(errNetwork)
		awaitEnd(x)
		assert.Less(t, p.Stats().RenewalsFailed, int64(60))
		assert.Equal(t, []string{"start", "acquired", "jeopardy", "lost"}, p.story())
		failed := p.Stats().RenewalsFailed
		time.Sleep(time.Hour)
		assert.Equal(t, failed, p.Stats().RenewalsFailed, "a lost lease is renewed no more")
	})
}

// The first "not yours" is final, and the last command about it.
func TestARenewalThatIsToldNotYoursEndsTheLeaseAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x := p.keeps("k", 3*time.Second)
		time.Sleep(1500 * time.Millisecond)
		w.take("k", time.Hour)
		stolen := time.Now()
		awaitEnd(x)
		assert.LessOrEqual(t, time.Since(stolen), time.Second)
		require.ErrorIs(t, x.Err(), ErrLost)
		sent := len(p.fault.Sent())
		time.Sleep(time.Minute)
		assert.Len(t, p.fault.Sent(), sent)
		assert.Empty(t, p.heard("jeopardy"))
		assert.Equal(t, otherToken, w.owner("k"))
		assert.InDelta(t, time.Hour-time.Minute, w.m.TTL("k"), float64(time.Second))
	})
}

// At every point at which a renewal can be when Release is called.
func TestNoRenewalFollowsARelease(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		points := map[string]func(p *party, x *Lease) (then func()){
			"not due": func(*party, *Lease) func() { return func() {} },
			"queued": func(p *party, x *Lease) func() {
				busy := p.fault.Next(2, runOf(inspectScript)).Hold() // both round trips that a Locker has at once
				for range freeFlights {
					go func() { _, _ = p.Inspect(context.Background(), "other") }()
					synctest.Wait() // or they would share one
				}
				time.Sleep(time.Until(due(x)) + time.Millisecond)
				return busy.Release
			},
			"not sent": func(p *party, x *Lease) func() {
				renewal := p.fault.Next(1, runOf(renewScript)).Hold()
				<-renewal.Arrived()
				return renewal.Release
			},
			"not answered": func(p *party, x *Lease) func() {
				renewal := p.fault.Next(1, runOf(renewScript)).HoldReply()
				<-renewal.Arrived()
				return renewal.Release
			},
			"failed": func(p *party, x *Lease) func() {
				p.fault.Every(runOf(renewScript)).Fail(errNetwork)
				time.Sleep(time.Until(due(x)) + time.Millisecond)
				return p.fault.Clear
			},
		}
		for point, reach := range points {
			p := w.party()
			x := p.keeps("k", 3*time.Second)
			then := reach(p, x)
			require.NoError(t, x.Release(t.Context()), point)
			before := map[string]int{"not answered": 1}[point]
			commands := slices.DeleteFunc(p.fault.Sent(), func(name string) bool { return name == "ping" }) // of scouts
			assert.Len(t, commands, 2+before, "%s: a renewal was sent after Release was called", point)
			_, err := w.party().TryAcquire(t.Context(), "k", time.Hour)
			require.NoError(t, err)
			then()
			synctest.Wait()
			assert.Equal(t, time.Hour, w.m.TTL("k"), "%s: it touched the next one's lease", point)
			sent := len(p.fault.Sent())
			time.Sleep(time.Minute)
			assert.Len(t, p.fault.Sent(), sent, point)
			assert.Empty(t, p.heard("lost"), point)
			_, renewing := kept(p.Locker)
			assert.Zero(t, renewing, point)
			p.requireEmpty()
			w.m.Del("k")
		}
	})
}

func TestNoRenewalFollowsAReleaseThatFailed(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x := p.keeps("k", 3*time.Second)
		w.m.SetError("NOPERM no")
		require.Error(t, x.Release(t.Context()))
		w.m.SetError("")
		time.Sleep(2900 * time.Millisecond)
		assert.Len(t, p.fault.Sent(), 2)
		time.Sleep(time.Second)
		assert.Empty(t, w.owner("k"))
	})
}

func TestALateAnswerToARenewalIsTakenInOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		// A yes that comes in time counts, though the renewal was given up as late.
		p := w.party()
		x := p.keeps("a", 3*time.Second)
		p.fault.Next(1, runOf(renewScript)).DelayReply(800 * time.Millisecond)
		p.fault.Next(2, runOf(renewScript)).Fail(errNetwork)
		time.Sleep(2 * time.Second)
		assert.True(t, x.Valid())
		assert.Equal(t, "jeopardy", p.story()[2])
		assert.Len(t, p.heard("jeopardy"), 1)
		require.NoError(t, x.Release(t.Context()))

		// A failure that was counted when it was late does not put the lease back into jeopardy.
		q := w.party()
		y := q.keeps("b", 3*time.Second)
		late := q.fault.Next(1, runOf(renewScript))
		held := late.Hold()
		late.Fail(errNetwork)
		<-held.Arrived()
		time.Sleep(700 * time.Millisecond) // late, and tried again
		require.NotEmpty(t, q.heard("renewed"))
		held.Release()
		synctest.Wait()
		assert.Len(t, q.heard("jeopardy"), 1)
		assert.EqualValues(t, 1, q.Stats().RenewalsFailed)
		require.NoError(t, y.Release(t.Context()))

		// And "not yours", which came too late to be waited for, is as true as ever.
		z := q.keeps("c", 3*time.Second)
		held = q.fault.Next(1, runOf(renewScript)).HoldReply()
		time.Sleep(100 * time.Millisecond)
		w.take("c", time.Second)
		<-held.Arrived()
		time.Sleep(500*time.Millisecond - time.Nanosecond)
		held.Release()
		synctest.Wait()
		require.ErrorIs(t, z.Err(), ErrLost)
	})
}

func TestARenewalByHandAndTheAutomaticOnesGoTogether(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x := p.keeps("k", 3*time.Second)
		last := x.ValidUntil()
		for range 200 {
			time.Sleep(70 * time.Millisecond)
			require.NoError(t, x.Renew(t.Context()))
			assert.False(t, x.ValidUntil().Before(last))
			last = x.ValidUntil()
		}
		p.fault.Every(nil).Fail(errNetwork)
		require.ErrorIs(t, x.Renew(t.Context()), errNetwork)
		time.Sleep(2 * time.Second)
		assert.Len(t, p.heard("jeopardy"), 1)
		p.fault.Clear()
		require.NoError(t, x.Renew(t.Context()))
		time.Sleep(10 * time.Second)
		assert.True(t, x.Valid())
		require.NoError(t, x.Release(t.Context()))
	})
}

// Answers may overtake each other.
func TestAnOlderRenewalDoesNotMoveTheDeadlineBack(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x := p.keeps("k", 3*time.Second)
		older := p.fault.Next(1, nil).HoldReply()
		<-older.Arrived()
		time.Sleep(300 * time.Millisecond)
		require.NoError(t, x.Renew(t.Context()))
		until := x.ValidUntil()
		older.Release()
		synctest.Wait()
		require.Len(t, p.heard("renewed"), 2)
		assert.Equal(t, until, x.ValidUntil())
	})
}

func TestAnEntryThatGoesWrongHarmsNoOther(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		bad := WithHooks(Hooks{Renewed: func(Event) { panic("a hook of the user's") }})
		var good []*Lease
		for i := range 20 {
			good = append(good, p.keeps(fmt.Sprint("good ", i), 3*time.Second))
		}
		panics := p.keeps("panics", 3*time.Second, bad)
		refused := p.keeps("refused", 3*time.Second)
		refused.mu.Lock()
		refused.tenure.(*tenureOfOne).PX = 0 // the server answers an error to its renewals
		refused.mu.Unlock()

		awaitEnd(refused)
		require.ErrorIs(t, refused.Err(), ErrLost)
		require.ErrorContains(t, refused.Err(), "renew wants a token and whole milliseconds")
		time.Sleep(10 * time.Second)
		for _, x := range append(good, panics) {
			assert.True(t, x.Valid(), x.Key())
		}
		assert.Len(t, p.heard("jeopardy"), 1)
		assert.Contains(t, p.logged(), `panic="a hook of the user's"`)
	})
}

// The tick is one for all: while it is held up, what it has in hand is still known, and deadlines hold all the same.
func TestAHookThatHoldsTheTickUpHidesNoLease(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		gate, in := make(chan struct{}), make(chan struct{}, 1)
		p := w.party()
		slow, err := p.TryAcquire(t.Context(), "slow", time.Second, WithHooks(Hooks{Lost: func(Event) { in <- struct{}{}; <-gate }}))
		require.NoError(t, err)
		x, err := p.TryAcquire(t.Context(), "x", time.Second)
		require.NoError(t, err)
		y, err := p.TryAcquire(t.Context(), "y", time.Hour)
		require.NoError(t, err)
		ctx, cancel := y.Context(t.Context())
		defer cancel()
		<-in // the tick is held up, with x and perhaps y in hand
		assert.ErrorIs(t, slow.Err(), ErrLost)
		assert.False(t, x.Valid(), "judged by the clock")
		assert.Equal(t, 1, p.Stats().Held)

		closed := make(chan error, 1)
		go func() { closed <- p.Close() }()
		<-ctx.Done()
		assert.ErrorIs(t, context.Cause(ctx), ErrClosed)
		time.Sleep(time.Second)
		assert.Empty(t, w.owner("y"), "it was not released")
		close(gate)
		require.NoError(t, <-closed)
	})
}

func TestAfterASuspendEveryLeaseIsJudgedAtTheNextTick(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		var leases []*Lease
		for i := range 20 {
			x, err := p.TryAcquire(t.Context(), fmt.Sprint(i), time.Hour)
			require.NoError(t, err)
			leases = append(leases, x)
		}
		kept := p.keeps("kept", 3*time.Second)
		long, err := p.TryAcquire(t.Context(), "long", 24*time.Hour)
		require.NoError(t, err)
		time.Sleep(10 * time.Second)
		p.skew.Store(int64(2 * time.Hour))
		select {
		case <-leases[19].Done():
			assert.Fail(t, "nobody has looked yet")
		default:
		}
		awaitEnd(kept)
		for _, x := range leases {
			awaitEnd(x)
		}
		assert.LessOrEqual(t, time.Since(kept.begun.Time), 11*time.Second)
		assert.Len(t, p.heard("lost"), 21)
		assert.True(t, long.Valid())
	})
}

func TestALeaseIsNotRenewedBeyondWithMaxHold(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		begun := time.Now()
		x := p.keeps("k", 3*time.Second, WithMaxHold(10*time.Second))
		time.Sleep(9 * time.Second)
		assert.Equal(t, 10*time.Second, x.ValidUntil().Sub(begun), "the deadline stops there")
		sent := len(p.fault.Sent())
		awaitEnd(x)
		assert.Equal(t, 10*time.Second, time.Since(begun))
		assert.Len(t, p.fault.Sent(), sent)

		// By hand it cannot be moved either.
		y, err := p.TryAcquire(t.Context(), "y", 3*time.Second, WithMaxHold(time.Second))
		require.NoError(t, err)
		assert.Equal(t, time.Second, time.Until(y.ValidUntil()))
		require.NoError(t, y.Renew(t.Context()))
		assert.Equal(t, time.Second, time.Until(y.ValidUntil()))
		require.Error(t, y.EnsureFor(t.Context(), 2*time.Second))
	})
}

func TestRedisMayForgetTheScriptsAtAnyTime(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		var leases []*Lease
		for i := range 20 {
			leases = append(leases, p.keeps(fmt.Sprint(i), time.Second))
		}
		for range 60 {
			require.NoError(t, w.raw.ScriptFlush(t.Context()).Err())
			time.Sleep(50 * time.Millisecond)
		}
		assert.Zero(t, p.Stats().RenewalsFailed)
		for _, x := range leases {
			assert.True(t, x.Valid())
			require.NoError(t, w.raw.ScriptFlush(t.Context()).Err())
			require.NoError(t, x.Release(t.Context()))
		}
		for _, h := range p.heard("released") {
			assert.True(t, h.Clean)
		}
	})
}
