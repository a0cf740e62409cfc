package leasehold_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/inside"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestALeaseIsRenewedEveryThirdOfItsTTL(t *testing.T) {
	for _, tt := range []struct {
		opts  []leasehold.Option
		every time.Duration
	}{
		{nil, time.Second},
		{[]leasehold.Option{leasehold.WithRenewEvery(1500 * time.Millisecond)}, 1500 * time.Millisecond},
		{[]leasehold.Option{leasehold.WithRenewEvery(100 * time.Millisecond)}, 100 * time.Millisecond},
	} {
		locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
			p := w.Party()
			last := time.Now()
			x := p.Keeps("k", 3*time.Second, tt.opts...)
			time.Sleep(60 * tt.every)
			assert.True(t, x.Valid())
			renewed := p.Heard("renewed")
			assert.GreaterOrEqual(t, len(renewed), 59)
			pauses := map[time.Duration]bool{}
			for _, h := range renewed {
				pause := h.At.Sub(last)
				last = h.At
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
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.Acquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		locktest.AwaitEnd(x)
		assert.Len(t, p.Fault.Sent(), 1)

		p = w.Party(leasehold.WithAutoRenew(true)) // of the Locker; the call has the last word
		x, err = p.TryAcquire(t.Context(), "a", time.Second)
		require.NoError(t, err)
		y, err := p.TryAcquire(t.Context(), "b", time.Second, leasehold.WithAutoRenew(false))
		require.NoError(t, err)
		time.Sleep(10 * time.Second)
		assert.True(t, x.Valid())
		assert.False(t, y.Valid())
	})
}

// due is when the lease is to be renewed next.
func due(x *leasehold.Lease) time.Time {
	plan := inside.State(x).Schedule
	return plan.Due()
}

// An error is not a loss: it is tried again soon, and the lease is in jeopardy, once, until it is held again.
func TestAFailedRenewalIsTriedAgainWellInsideTheDeadline(t *testing.T) {
	for name, fail := range map[string]func(p *locktest.Party, n int){
		"failed": func(p *locktest.Party, n int) {
			p.Fault.Next(n, locktest.RunOf(locktest.RenewScript)).Fail(locktest.ErrNetwork)
		},
		"lost": func(p *locktest.Party, n int) {
			p.Fault.Next(n, locktest.RunOf(locktest.RenewScript)).Lose(locktest.ErrNetwork)
		},
	} {
		for _, n := range []int{1, 5} {
			locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
				p := w.Party()
				x := p.Keeps("k", 3*time.Second)
				time.Sleep(3100 * time.Millisecond)
				fail(p, n)
				time.Sleep(3 * time.Second)
				assert.True(t, x.Valid())
				jeopardy := p.Heard("jeopardy")
				require.Len(t, jeopardy, 1, name)
				require.ErrorIs(t, jeopardy[0].Err, locktest.ErrNetwork)
				assert.Equal(t, x.FencingToken(), jeopardy[0].FencingToken)
				for _, h := range p.Heard("renewed") {
					if h.At.After(jeopardy[0].At) {
						again := h.At.Sub(jeopardy[0].At)
						assert.LessOrEqual(t, again, map[int]time.Duration{1: 50 * time.Millisecond, 5: 1300 * time.Millisecond}[n])
						break
					}
				}
				assert.EqualValues(t, n, p.Stats().RenewalsFailed)
				assert.Contains(t, p.Logged(), "lease in jeopardy")
			})
		}
	}
}

func TestTriesDoNotSpinWhileRedisIsAway(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x := p.Keeps("k", 30*time.Second)
		p.Fault.Every(nil).Fail(locktest.ErrNetwork)
		locktest.AwaitEnd(x)
		assert.Less(t, p.Stats().RenewalsFailed, int64(60))
		assert.Equal(t, []string{"start", "acquired", "jeopardy", "lost"}, p.Story())
		failed := p.Stats().RenewalsFailed
		time.Sleep(time.Hour)
		assert.Equal(t, failed, p.Stats().RenewalsFailed, "a lost lease is renewed no more")
	})
}

// The first "not yours" is final, and the last command about it.
func TestARenewalThatIsToldNotYoursEndsTheLeaseAtOnce(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x := p.Keeps("k", 3*time.Second)
		time.Sleep(1500 * time.Millisecond)
		w.Take("k", time.Hour)
		stolen := time.Now()
		locktest.AwaitEnd(x)
		assert.LessOrEqual(t, time.Since(stolen), time.Second)
		require.ErrorIs(t, x.Err(), leasehold.ErrLost)
		sent := len(p.Fault.Sent())
		time.Sleep(time.Minute)
		assert.Len(t, p.Fault.Sent(), sent)
		assert.Empty(t, p.Heard("jeopardy"))
		assert.Equal(t, locktest.OtherToken, w.Owner("k"))
		assert.InDelta(t, time.Hour-time.Minute, w.M.TTL("k"), float64(time.Second))
	})
}

// At every point at which a renewal can be when Release is called.
func TestNoRenewalFollowsARelease(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		points := map[string]func(p *locktest.Party, x *leasehold.Lease) (then func()){
			"not due": func(*locktest.Party, *leasehold.Lease) func() { return func() {} },
			"queued": func(p *locktest.Party, x *leasehold.Lease) func() {
				busy := p.Fault.Next(2, locktest.RunOf(locktest.InspectScript)).Hold() // both round trips that a Locker has at once
				for range locktest.FreeFlights {
					go func() { _, _ = p.Inspect(context.Background(), "other") }()
					synctest.Wait() // or they would share one
				}
				time.Sleep(time.Until(due(x)) + time.Millisecond)
				return busy.Release
			},
			"not sent": func(p *locktest.Party, x *leasehold.Lease) func() {
				renewal := p.Fault.Next(1, locktest.RunOf(locktest.RenewScript)).Hold()
				<-renewal.Arrived()
				return renewal.Release
			},
			"not answered": func(p *locktest.Party, x *leasehold.Lease) func() {
				renewal := p.Fault.Next(1, locktest.RunOf(locktest.RenewScript)).HoldReply()
				<-renewal.Arrived()
				return renewal.Release
			},
			"failed": func(p *locktest.Party, x *leasehold.Lease) func() {
				p.Fault.Every(locktest.RunOf(locktest.RenewScript)).Fail(locktest.ErrNetwork)
				time.Sleep(time.Until(due(x)) + time.Millisecond)
				return p.Fault.Clear
			},
		}
		for point, reach := range points {
			p := w.Party()
			x := p.Keeps("k", 3*time.Second)
			then := reach(p, x)
			require.NoError(t, x.Release(t.Context()), point)
			before := map[string]int{"not answered": 1}[point]
			commands := slices.DeleteFunc(p.Fault.Sent(), func(name string) bool { return name == "ping" }) // of scouts
			assert.Len(t, commands, 2+before, "%s: a renewal was sent after Release was called", point)
			_, err := w.Party().TryAcquire(t.Context(), "k", time.Hour)
			require.NoError(t, err)
			then()
			synctest.Wait()
			assert.Equal(t, time.Hour, w.M.TTL("k"), "%s: it touched the next one's lease", point)
			sent := len(p.Fault.Sent())
			time.Sleep(time.Minute)
			assert.Len(t, p.Fault.Sent(), sent, point)
			assert.Empty(t, p.Heard("lost"), point)
			_, renewing := locktest.Kept(p.Locker)
			assert.Zero(t, renewing, point)
			p.RequireEmpty()
			w.M.Del("k")
		}
	})
}

func TestNoRenewalFollowsAReleaseThatFailed(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x := p.Keeps("k", 3*time.Second)
		w.M.SetError("NOPERM no")
		require.Error(t, x.Release(t.Context()))
		w.M.SetError("")
		sent := p.Fault.Sent()
		time.Sleep(2900 * time.Millisecond)
		assert.Equal(t, sent, p.Fault.Sent())
		time.Sleep(time.Second)
		assert.Empty(t, w.Owner("k"))
	})
}

func TestALateAnswerToARenewalIsTakenInOnce(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		// A yes that comes in time counts, though the renewal was given up as late.
		p := w.Party()
		x := p.Keeps("a", 3*time.Second)
		p.Fault.Next(1, locktest.RunOf(locktest.RenewScript)).DelayReply(800 * time.Millisecond)
		p.Fault.Next(2, locktest.RunOf(locktest.RenewScript)).Fail(locktest.ErrNetwork)
		time.Sleep(2 * time.Second)
		assert.True(t, x.Valid())
		assert.Equal(t, "jeopardy", p.Story()[2])
		assert.Len(t, p.Heard("jeopardy"), 1)
		require.NoError(t, x.Release(t.Context()))

		// A failure that was counted when it was late does not put the lease back into jeopardy.
		q := w.Party()
		y := q.Keeps("b", 3*time.Second)
		late := q.Fault.Next(1, locktest.RunOf(locktest.RenewScript))
		held := late.Hold()
		late.Fail(locktest.ErrNetwork)
		<-held.Arrived()
		time.Sleep(700 * time.Millisecond) // late, and tried again
		require.NotEmpty(t, q.Heard("renewed"))
		held.Release()
		synctest.Wait()
		assert.Len(t, q.Heard("jeopardy"), 1)
		assert.EqualValues(t, 1, q.Stats().RenewalsFailed)
		require.NoError(t, y.Release(t.Context()))

		// And "not yours", which came too late to be waited for, is as true as ever.
		z := q.Keeps("c", 3*time.Second)
		held = q.Fault.Next(1, locktest.RunOf(locktest.RenewScript)).HoldReply()
		time.Sleep(100 * time.Millisecond)
		w.Take("c", time.Second)
		<-held.Arrived()
		time.Sleep(500*time.Millisecond - time.Nanosecond)
		held.Release()
		synctest.Wait()
		require.ErrorIs(t, z.Err(), leasehold.ErrLost)
	})
}

func TestARenewalByHandAndTheAutomaticOnesGoTogether(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x := p.Keeps("k", 3*time.Second)
		last := x.ValidUntil()
		for range 200 {
			time.Sleep(70 * time.Millisecond)
			require.NoError(t, x.Renew(t.Context()))
			assert.False(t, x.ValidUntil().Before(last))
			last = x.ValidUntil()
		}
		p.Fault.Every(nil).Fail(locktest.ErrNetwork)
		require.ErrorIs(t, x.Renew(t.Context()), locktest.ErrNetwork)
		time.Sleep(2 * time.Second)
		assert.Len(t, p.Heard("jeopardy"), 1)
		p.Fault.Clear()
		require.NoError(t, x.Renew(t.Context()))
		time.Sleep(10 * time.Second)
		assert.True(t, x.Valid())
		require.NoError(t, x.Release(t.Context()))
	})
}

// Answers may overtake each other.
func TestAnOlderRenewalDoesNotMoveTheDeadlineBack(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x := p.Keeps("k", 3*time.Second)
		older := p.Fault.Next(1, nil).HoldReply()
		<-older.Arrived()
		time.Sleep(300 * time.Millisecond)
		require.NoError(t, x.Renew(t.Context()))
		until := x.ValidUntil()
		older.Release()
		synctest.Wait()
		require.Len(t, p.Heard("renewed"), 2)
		assert.Equal(t, until, x.ValidUntil())
	})
}

func TestAnEntryThatGoesWrongHarmsNoOther(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		bad := leasehold.WithHooks(leasehold.Hooks{Renewed: func(leasehold.Event) { panic("a hook of the user's") }})
		var good []*leasehold.Lease
		for i := range 20 {
			good = append(good, p.Keeps(fmt.Sprint("good ", i), 3*time.Second))
		}
		panics := p.Keeps("panics", 3*time.Second, bad)
		refused := p.Keeps("refused", 3*time.Second)
		renewals := locktest.RunOf(locktest.RenewScript)
		p.Fault.Every(func(cmd redis.Cmder) bool { return renewals(cmd) && slices.Contains(cmd.Args(), any("refused")) }).Answer(locktest.ServerSays("ERR no"))

		locktest.AwaitEnd(refused)
		require.ErrorIs(t, refused.Err(), leasehold.ErrLost)
		require.ErrorContains(t, refused.Err(), "ERR no")
		time.Sleep(10 * time.Second)
		for _, x := range append(good, panics) {
			assert.True(t, x.Valid(), x.Key())
		}
		assert.Len(t, p.Heard("jeopardy"), 1)
		assert.Contains(t, p.Logged(), `panic="a hook of the user's"`)
	})
}

// The tick is one for all: while it is held up, what it has in hand is still known, and deadlines hold all the same.
func TestAHookThatHoldsTheTickUpHidesNoLease(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		gate, in := make(chan struct{}), make(chan struct{}, 1)
		p := w.Party()
		slow, err := p.TryAcquire(t.Context(), "slow", time.Second, leasehold.WithHooks(leasehold.Hooks{Lost: func(leasehold.Event) { in <- struct{}{}; <-gate }}))
		require.NoError(t, err)
		x, err := p.TryAcquire(t.Context(), "x", time.Second)
		require.NoError(t, err)
		y, err := p.TryAcquire(t.Context(), "y", time.Hour)
		require.NoError(t, err)
		ctx, cancel := y.Context(t.Context())
		defer cancel()
		<-in // the tick is held up, with x and perhaps y in hand
		assert.ErrorIs(t, slow.Err(), leasehold.ErrLost)
		assert.False(t, x.Valid(), "judged by the clock")
		assert.Equal(t, 1, p.Stats().Held)

		closed := make(chan error, 1)
		go func() { closed <- p.Close() }()
		<-ctx.Done()
		assert.ErrorIs(t, context.Cause(ctx), leasehold.ErrClosed)
		time.Sleep(time.Second)
		assert.Empty(t, w.Owner("y"), "it was not released")
		close(gate)
		require.NoError(t, <-closed)
	})
}

func TestAfterASuspendEveryLeaseIsJudgedAtTheNextTick(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		var leases []*leasehold.Lease
		for i := range 20 {
			x, err := p.TryAcquire(t.Context(), fmt.Sprint(i), time.Hour)
			require.NoError(t, err)
			leases = append(leases, x)
		}
		kept := p.Keeps("kept", 3*time.Second)
		long, err := p.TryAcquire(t.Context(), "long", 24*time.Hour)
		require.NoError(t, err)
		time.Sleep(10 * time.Second)
		p.Skew.Store(int64(2 * time.Hour))
		select {
		case <-leases[19].Done():
			assert.Fail(t, "nobody has looked yet")
		default:
		}
		locktest.AwaitEnd(kept)
		for _, x := range leases {
			locktest.AwaitEnd(x)
		}
		assert.LessOrEqual(t, time.Since(inside.State(kept).Begun.Time), 11*time.Second)
		assert.Len(t, p.Heard("lost"), 21)
		assert.True(t, long.Valid())
	})
}

func TestALeaseIsNotRenewedBeyondWithMaxHold(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		begun := time.Now()
		x := p.Keeps("k", 3*time.Second, leasehold.WithMaxHold(10*time.Second))
		time.Sleep(9 * time.Second)
		assert.Equal(t, 10*time.Second, x.ValidUntil().Sub(begun), "the deadline stops there")
		sent := len(p.Fault.Sent())
		locktest.AwaitEnd(x)
		assert.Equal(t, 10*time.Second, time.Since(begun))
		assert.Len(t, p.Fault.Sent(), sent)

		// By hand it cannot be moved either.
		y, err := p.TryAcquire(t.Context(), "y", 3*time.Second, leasehold.WithMaxHold(time.Second))
		require.NoError(t, err)
		assert.Equal(t, time.Second, time.Until(y.ValidUntil()))
		require.NoError(t, y.Renew(t.Context()))
		assert.Equal(t, time.Second, time.Until(y.ValidUntil()))
		require.Error(t, y.EnsureFor(t.Context(), 2*time.Second))
	})
}

func TestRedisMayForgetTheScriptsAtAnyTime(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		var leases []*leasehold.Lease
		for i := range 20 {
			leases = append(leases, p.Keeps(fmt.Sprint(i), time.Second))
		}
		for range 60 {
			require.NoError(t, w.Raw.ScriptFlush(t.Context()).Err())
			time.Sleep(50 * time.Millisecond)
		}
		assert.Zero(t, p.Stats().RenewalsFailed)
		for _, x := range leases {
			assert.True(t, x.Valid())
			require.NoError(t, w.Raw.ScriptFlush(t.Context()).Err())
			require.NoError(t, x.Release(t.Context()))
		}
		for _, h := range p.Heard("released") {
			assert.True(t, h.Clean)
		}
	})
}

// twoServers keeps the keys with an odd last digit on another server than the rest.
type twoServers struct {
	backend.Backend
	odd backend.Backend
}

func (s *twoServers) Tenure(r backend.Request) backend.Tenure {
	if strings.ContainsAny(r.Key[len(r.Key)-1:], "13579") {
		return s.odd.Tenure(r)
	}
	return s.Backend.Tenure(r)
}

func (s *twoServers) Flush() {
	s.Backend.Flush()
	s.odd.Flush()
}

func TestASilentServerDelaysNoRenewalOnAnother(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		even, odd := &locktest.Paper{Latency: time.Millisecond}, &locktest.Paper{Latency: time.Millisecond}
		client, other := w.Dial(), w.Dial()
		client.AddHook(even)
		other.AddHook(odd)
		l := leasehold.NewOn(&twoServers{leasehold.NewStore(client), leasehold.NewStore(other)})
		defer func() { assert.NoError(t, l.Close()) }()
		leases := make([]*leasehold.Lease, 2*locktest.Many)
		for i := range leases {
			var err error
			leases[i], err = l.TryAcquire(t.Context(), fmt.Sprint(i), 9*time.Second, leasehold.WithAutoRenew(true))
			require.NoError(t, err)
		}
		time.Sleep(10 * time.Second)
		again := odd.Stop()
		time.Sleep(12 * time.Second)
		again()
		for i, x := range leases {
			assert.Equal(t, i%2 == 0, x.Valid(), "%d: %v", i, x.Err())
		}
		for i := 1; i < len(leases); i += 2 {
			_ = leases[i].Release(t.Context())
		}
	})
}
