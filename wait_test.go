package leasehold

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// waits has n goroutines wait for the key, one after the other, and reports the order in which they get in. Each holds the
// lock for the time given.
func waits(t *testing.T, n int, hold time.Duration, acquire func(i int) (*Lease, error)) <-chan int {
	in := make(chan int, n)
	for i := range n {
		go func() {
			x, err := acquire(i)
			if err != nil {
				in <- -1
				return
			}
			in <- i
			time.Sleep(hold)
			assert.NoError(t, x.Release(context.Background()))
		}()
		time.Sleep(time.Millisecond)
	}
	return in
}

func TestTwoProcessesGetInInTheOrderOfArrival(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		parties := []*party{w.party(), w.party(), w.party(), w.party(), w.party()}
		x, err := parties[0].TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		in := waits(t, 5, 100*time.Millisecond, func(i int) (*Lease, error) { return parties[i].Acquire(t.Context(), "k", time.Minute) })
		time.Sleep(10 * time.Second) // each goes on being alive
		assert.Len(t, w.line("k"), 5)
		begun := time.Now()
		require.NoError(t, x.Release(t.Context()))
		for i := range 5 {
			assert.Equal(t, i, <-in)
			assert.Equal(t, time.Duration(i)*100*time.Millisecond, time.Since(begun))
		}
	})
}

func TestACancelInTheMiddleOfTheLineLetsTheOthersMoveUp(t *testing.T) {
	for _, shared := range []bool{true, false} { // of one Locker, or of each its own
		inBubble(t, func(t *testing.T, w *world) {
			parties := []*party{w.party(), w.party(), w.party(), w.party(), w.party()}
			if shared {
				for i := range parties {
					parties[i] = parties[0]
				}
			}
			x, err := parties[0].TryAcquire(t.Context(), "k", time.Minute)
			require.NoError(t, err)
			cause := errors.New("no more")
			var cancels []context.CancelCauseFunc
			var ctxs []context.Context
			for range 5 {
				ctx, cancel := context.WithCancelCause(t.Context())
				cancels, ctxs = append(cancels, cancel), append(ctxs, ctx)
			}
			errs := make(chan error, 5)
			in := waits(t, 5, time.Millisecond, func(i int) (*Lease, error) {
				x, err := parties[i].Acquire(ctxs[i], "k", time.Minute)
				if err != nil {
					errs <- err
				}
				return x, err
			})
			time.Sleep(time.Second)
			cancels[2](cause)
			assert.Equal(t, -1, <-in)
			err = <-errs
			require.ErrorIs(t, err, cause)
			require.ErrorIs(t, err, ErrHeld)
			cancels[0](cause) // the head
			assert.Equal(t, -1, <-in)
			synctest.Wait()
			require.NoError(t, x.Release(t.Context()))
			for _, i := range []int{1, 3, 4} {
				assert.Equal(t, i, <-in)
			}
		})
	}
}

func TestTryAcquireDoesNotJumpTheLine(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p, q := w.party(), w.party()
		w.take("k", time.Minute)
		waiting := beside(func() (*Lease, error) { return p.Acquire(t.Context(), "k", time.Minute) })
		await(t, time.Second, func() bool { return len(w.line("k")) == 1 })
		time.Sleep(100 * time.Millisecond)
		w.m.Del("k") // by hand, so that it is free and nobody was told
		begun := time.Now()
		_, err := q.TryAcquire(t.Context(), "k", time.Minute)
		require.ErrorIs(t, err, ErrHeld)
		r := <-waiting
		require.NoError(t, r.err)
		assert.Zero(t, time.Since(begun), "whoever finds a free lock serves the head")
		require.NoError(t, r.lease.Release(t.Context()))
		_, err = q.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
	})
}

func TestAHolderInAHotLoopDoesNotStarveAWaiter(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p, q := w.party(), w.party()
		stop := make(chan struct{})
		turns := 0
		var hot sync.WaitGroup
		hot.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				x, err := p.Acquire(t.Context(), "k", time.Minute)
				if !assert.NoError(t, err) {
					return
				}
				turns++
				time.Sleep(10 * time.Millisecond)
				assert.NoError(t, x.Release(t.Context()))
			}
		})
		time.Sleep(95 * time.Millisecond)
		x, err := q.Acquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		assert.LessOrEqual(t, turns, 11)
		close(stop)
		require.NoError(t, x.Release(t.Context()))
		hot.Wait()
	})
}

// However the lock becomes free, who waits gets in, and within a bound.
func TestAWaiterGetsInHoweverTheLockBecomesFree(t *testing.T) {
	for name, tt := range map[string]struct {
		hold   func(w *world, p *party) // before
		free   func(w *world, p *party) // after 5.5 s
		within time.Duration
		woken  Wake
		looks  int // at most
	}{
		"released": {
			func(w *world, p *party) { p.keeps("k", time.Minute) },
			func(w *world, p *party) {
				assert.NoError(w.t, leases(p.keeper.Live())[0].Release(context.Background()))
			},
			0, WokenByMessage, 9,
		},
		"closed": {
			func(w *world, p *party) { p.keeps("k", time.Minute) },
			func(w *world, p *party) { assert.NoError(w.t, p.Close()) },
			0, WokenByMessage, 9,
		},
		"released by force": {
			func(w *world, p *party) { w.take("k", time.Minute) },
			func(w *world, p *party) { assert.NoError(w.t, p.ForceRelease(context.Background(), "k")) },
			0, WokenByMessage, 9,
		},
		"expired": {
			func(w *world, p *party) { w.take("k", 5500*time.Millisecond) },
			func(*world, *party) {},
			5 * time.Millisecond, WokenByExpiry, 9,
		},
		"deleted": {
			func(w *world, p *party) { w.take("k", time.Minute) },
			func(w *world, p *party) { w.m.Del("k") },
			tick, WokenByPoll, 9,
		},
		"released by a plain client": {
			func(w *world, p *party) { w.plain("k", time.Minute) },
			func(w *world, p *party) { w.m.Del("k") },
			foreignTick, WokenByPoll, 230,
		},
		"expired under a plain client": {
			func(w *world, p *party) { w.plain("k", 5500*time.Millisecond) },
			func(*world, *party) {},
			5 * time.Millisecond, "", 230, // by the expiry, or by a look that meets it
		},
		"deleted, without a TTL": {
			func(w *world, p *party) { require.NoError(w.t, w.m.Set("k", "for ever")) },
			func(w *world, p *party) { w.m.Del("k") },
			foreignTick, WokenByPoll, 230,
		},
		"Redis is flushed": {
			func(w *world, p *party) { w.take("k", time.Minute) },
			func(w *world, p *party) { w.m.FlushAll() },
			tick, WokenAtOnce, 10, // in a new stay
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				p, q := w.party(), w.party()
				tt.hold(w, p)
				freed := time.Now().Add(5500 * time.Millisecond)
				waiting := beside(func() (*Lease, error) { return q.Acquire(t.Context(), "k", time.Minute) })
				time.Sleep(time.Until(freed))
				tt.free(w, p)
				r := <-waiting
				require.NoError(t, r.err)
				assert.LessOrEqual(t, time.Since(freed), tt.within)
				e := q.heard("acquired")[0]
				if tt.woken != "" {
					assert.Equal(t, tt.woken, e.Woken)
				}
				assert.Equal(t, r.took, e.Waited)
				assert.LessOrEqual(t, e.Attempts, tt.looks)
			})
		})
	}
}

func TestAWaiterDoesWithoutMessages(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p, q := w.party(), w.party()
		w.onSubscribe(confirm) // every message is lost
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		waiting := beside(func() (*Lease, error) { return q.Acquire(t.Context(), "k", time.Minute) })
		time.Sleep(10100 * time.Millisecond)
		begun := time.Now()
		require.NoError(t, x.Release(t.Context()))
		r := <-waiting
		require.NoError(t, r.err)
		assert.LessOrEqual(t, time.Since(begun), tick)
		assert.Equal(t, WokenByPoll, q.heard("acquired")[0].Woken)
		assert.InDelta(t, time.Minute-clock.Margin(time.Minute), time.Until(r.lease.ValidUntil()), float64(time.Millisecond))
	})
}

// They vanish without a word, a hundred of them or one: those behind wait for one mark in all.
func TestDeadWaitersDelayTheLivingByOneClaimInAll(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		for range 10 {
			dead := w.party()
			waiting := beside(func() (*Lease, error) { return dead.Acquire(t.Context(), "k", time.Minute) })
			time.Sleep(10 * time.Millisecond)
			dead.wire.Refuse()
			t.Cleanup(func() { <-waiting })
		}
		live := w.party()
		waiting := beside(func() (*Lease, error) { return live.Acquire(t.Context(), "k", time.Minute) })
		time.Sleep(10 * time.Millisecond)
		require.Len(t, w.line("k"), 11)
		begun := time.Now()
		require.NoError(t, x.Release(t.Context()))
		require.NoError(t, (<-waiting).err)
		assert.LessOrEqual(t, time.Since(begun), backend.WaiterTTL+50*time.Millisecond)
	})
}

// Its process pauses for longer than its mark is good: it loses its place, notices, and joins again.
func TestAWaiterThatWasSkippedJoinsAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p, q := w.party(), w.party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		waiting := beside(func() (*Lease, error) { return q.Acquire(t.Context(), "k", time.Minute) })
		await(t, time.Second, func() bool { return len(w.line("k")) == 1 })
		first := w.line("k")[0]
		q.fault.Every(nil).Fail(errNetwork)
		q.wire.Refuse()
		time.Sleep(backend.WaiterTTL + time.Second)
		require.NoError(t, x.Release(t.Context()))
		y, err := p.TryAcquire(t.Context(), "k", 5*time.Second)
		require.NoError(t, err, "the dead are passed over")
		q.fault.Clear()
		q.wire.Pass()
		await(t, 2*time.Second, func() bool { return len(w.line("k")) == 1 })
		assert.NotEqual(t, first, w.line("k")[0], "a stay that was over is never taken up again")
		time.Sleep(2 * time.Second)
		require.NoError(t, y.Release(t.Context()))
		r := <-waiting
		require.NoError(t, r.err)
		assert.True(t, r.lease.Valid())
	})
}

func TestWaitersThatGaveUpTakeNoTurns(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		var waiting []<-chan result
		for range 5 {
			q := w.party()
			for range 20 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				waiting = append(waiting, beside(func() (*Lease, error) { return q.Acquire(ctx, "k", time.Minute) }))
			}
		}
		for _, c := range waiting {
			r := <-c
			require.ErrorIs(t, r.err, ErrHeld)
			assert.Equal(t, time.Second, r.took)
		}
		synctest.Wait()
		assert.Empty(t, w.line("k"))
		require.NoError(t, x.Release(t.Context()))
		assert.Empty(t, w.owner("k"))
	})
}

// A message alone makes a lease that is renewed by itself, until the claim; its first renewal confirms it.
func TestALeaseThatAMessageBroughtIsConfirmedByARenewal(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p, q := w.party(), w.party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() {
			done <- q.WithLock(t.Context(), "k", time.Minute, func(ctx context.Context, y *Lease) error {
				assert.InDelta(t, 12, len(q.fault.Sent()), 1, "the join, a look when the subscription was confirmed, and one a second")
				assert.LessOrEqual(t, time.Until(y.ValidUntil()), backend.WaiterTTL-clock.Margin(backend.WaiterTTL))
				assert.LessOrEqual(t, y.ValidUntil(), time.Now().Add(w.m.TTL("k")))
				time.Sleep(backend.WaiterTTL)
				assert.True(t, y.Valid())
				assert.Greater(t, time.Until(y.ValidUntil()), 50*time.Second)
				assert.Greater(t, w.m.TTL("k"), 50*time.Second)
				return nil
			})
		}()
		time.Sleep(10*time.Second + 100*time.Millisecond)
		require.NoError(t, x.Release(t.Context()))
		require.NoError(t, <-done)
		assert.Equal(t, WokenByMessage, q.heard("acquired")[0].Woken)

		// One that is renewed by hand is confirmed before it is given.
		x, err = p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		waiting := beside(func() (*Lease, error) { return q.Acquire(t.Context(), "k", time.Minute) })
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, x.Release(t.Context()))
		y := (<-waiting).lease
		assert.Equal(t, time.Minute-clock.Margin(time.Minute), time.Until(y.ValidUntil()))
		assert.Equal(t, time.Minute, w.m.TTL("k"))
		assert.Equal(t, WokenByMessage, q.heard("acquired")[1].Woken)
	})
}

// Its hold counts from when it can be held, not from a look long before.
func TestALeaseThatAMessageBroughtIsHeldForAsLongAsWithMaxHoldAllows(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p, q := w.party(), w.party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() {
			done <- q.WithLock(t.Context(), "k", time.Minute, func(ctx context.Context, y *Lease) error {
				assert.True(t, y.Valid())
				assert.InDelta(t, 500*time.Millisecond, time.Until(y.ValidUntil()), float64(time.Millisecond))
				return ctx.Err()
			}, WithMaxHold(500*time.Millisecond))
		}()
		time.Sleep(900 * time.Millisecond)
		require.NoError(t, x.Release(t.Context()))
		require.NoError(t, <-done)
	})
}

func TestWaitingOnARealServer(t *testing.T) {
	t.Parallel()
	server := redistest.Server(t)
	a, b, listening := New(server.Client()), New(server.Client()), server.Client()
	defer func() { assert.NoError(t, a.Close()); assert.NoError(t, b.Close()) }()
	x, err := a.TryAcquire(t.Context(), "k", time.Minute)
	require.NoError(t, err)
	woken := map[Wake]int{}
	var mu sync.Mutex
	count := WithHooks(Hooks{Acquired: func(_ context.Context, e Event) { mu.Lock(); woken[e.Woken]++; mu.Unlock() }})
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			y, err := []*Locker{a, b}[i%2].Acquire(t.Context(), "k", time.Minute, count)
			if assert.NoError(t, err) {
				assert.NoError(t, y.Release(t.Context()))
			}
		})
	}
	require.Eventually(t, func() bool {
		s, err := a.Inspect(t.Context(), "k")
		return err == nil && s.Waiters == 2 && len(listening.PubSubChannels(t.Context(), rediskey.WakeChannel+"*").Val()) == 2
	}, 5*time.Second, time.Millisecond)
	begun := time.Now()
	require.NoError(t, x.Release(t.Context()))
	all.Wait()
	assert.Less(t, time.Since(begun), 5*time.Second)
	assert.Positive(t, woken[WokenByMessage])
	assert.GreaterOrEqual(t, woken[WokenByMessage]+woken[WokenAtOnce], 38, "only the first of each may be told to look: %v", woken)
}

// Whichever of the two is first, the lock is had or handed on.
func TestACancelThatMeetsAHandOverLosesNeither(t *testing.T) {
	for i := range 20 {
		inBubble(t, func(t *testing.T, w *world) {
			p, q, r := w.party(), w.party(), w.party()
			x, err := p.TryAcquire(t.Context(), "k", time.Minute)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			first := beside(func() (*Lease, error) { return q.Acquire(ctx, "k", time.Minute, WithAutoRenew(i%2 == 0)) })
			await(t, time.Second, func() bool { return len(w.line("k")) == 1 })
			second := beside(func() (*Lease, error) { return r.Acquire(t.Context(), "k", time.Minute) })
			time.Sleep(100 * time.Millisecond)
			go cancel()
			require.NoError(t, x.Release(t.Context()))
			begun := time.Now()
			if y := <-first; y.err == nil {
				require.NoError(t, y.lease.Release(t.Context()))
			} else {
				require.ErrorIs(t, y.err, context.Canceled)
			}
			z := <-second
			require.NoError(t, z.err)
			assert.Zero(t, time.Since(begun))
			assert.Equal(t, z.lease.Token(), w.owner("k"))
		})
	}
}

func TestALongWaitCostsALookASecondAndNothingMore(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		require.NoError(t, w.m.Set("k", otherToken)) // for ever
		waiting := beside(func() (*Lease, error) { return p.Acquire(t.Context(), "k", time.Minute) })
		time.Sleep(time.Minute + tick/2)
		keys, sent, routines := w.m.Dump(), len(p.fault.Sent()), len(goroutines())
		time.Sleep(5 * time.Minute)
		assert.InDelta(t, 300, len(p.fault.Sent())-sent, 2)
		assert.Len(t, w.m.Dump(), len(keys))
		assert.LessOrEqual(t, len(goroutines()), routines)
		w.m.Del("k")
		require.NoError(t, (<-waiting).err)
	})
}

func TestNoKeyOutlivesItsUse(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p, q := w.party(), w.party()
		for i := range 20 {
			key := strconv.Itoa(i)
			x, err := p.TryAcquire(t.Context(), key, time.Minute)
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			_, err = q.Acquire(ctx, key, time.Minute)
			require.Error(t, err)
			cancel()
			waiting := beside(func() (*Lease, error) { return q.Acquire(t.Context(), key, time.Minute) })
			time.Sleep(10 * time.Millisecond)
			require.NoError(t, x.Release(t.Context()))
			require.NoError(t, (<-waiting).lease.Release(t.Context()))
		}
		assert.NotEmpty(t, w.m.Keys())
		time.Sleep(8 * 24 * time.Hour)
		assert.Empty(t, w.m.Keys())
	})
}
