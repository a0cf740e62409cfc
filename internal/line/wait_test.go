package line_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTwoProcessesGetInInTheOrderOfArrival(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		parties := []*locktest.Party{w.Party(), w.Party(), w.Party(), w.Party(), w.Party()}
		x, err := parties[0].TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		in := locktest.Waits(t, 5, 100*time.Millisecond, func(i int) (*leasehold.Lease, error) { return parties[i].Acquire(t.Context(), "k", time.Minute) })
		time.Sleep(10 * time.Second) // each goes on being alive
		assert.Len(t, w.Line("k"), 5)
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
		locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
			parties := []*locktest.Party{w.Party(), w.Party(), w.Party(), w.Party(), w.Party()}
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
			in := locktest.Waits(t, 5, time.Millisecond, func(i int) (*leasehold.Lease, error) {
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
			require.ErrorIs(t, err, leasehold.ErrHeld)
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
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, q := w.Party(), w.Party()
		w.Take("k", time.Minute)
		waiting := locktest.Beside(func() (*leasehold.Lease, error) { return p.Acquire(t.Context(), "k", time.Minute) })
		locktest.Await(t, time.Second, func() bool { return len(w.Line("k")) == 1 })
		time.Sleep(100 * time.Millisecond)
		w.M.Del("k") // by hand, so that it is free and nobody was told
		begun := time.Now()
		_, err := q.TryAcquire(t.Context(), "k", time.Minute)
		require.ErrorIs(t, err, leasehold.ErrHeld)
		r := <-waiting
		require.NoError(t, r.Err)
		assert.Zero(t, time.Since(begun), "whoever finds a free lock serves the head")
		require.NoError(t, r.Lease.Release(t.Context()))
		_, err = q.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
	})
}

func TestAHolderInAHotLoopDoesNotStarveAWaiter(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, q := w.Party(), w.Party()
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
	var held *leasehold.Lease
	for name, tt := range map[string]struct {
		hold   func(w *locktest.World, p *locktest.Party) // before
		free   func(w *locktest.World, p *locktest.Party) // after 5.5 s
		within time.Duration
		woken  leasehold.Wake
		looks  int // at most
	}{
		"released": {
			func(w *locktest.World, p *locktest.Party) { held = p.Keeps("k", time.Minute) },
			func(w *locktest.World, p *locktest.Party) {
				assert.NoError(w.T, held.Release(context.Background()))
			},
			0, leasehold.WokenByMessage, 9,
		},
		"closed": {
			func(w *locktest.World, p *locktest.Party) { p.Keeps("k", time.Minute) },
			func(w *locktest.World, p *locktest.Party) { assert.NoError(w.T, p.Close()) },
			0, leasehold.WokenByMessage, 9,
		},
		"released by force": {
			func(w *locktest.World, p *locktest.Party) { w.Take("k", time.Minute) },
			func(w *locktest.World, p *locktest.Party) {
				assert.NoError(w.T, p.ForceRelease(context.Background(), "k"))
			},
			0, leasehold.WokenByMessage, 9,
		},
		"expired": {
			func(w *locktest.World, p *locktest.Party) { w.Take("k", 5500*time.Millisecond) },
			func(*locktest.World, *locktest.Party) {},
			5 * time.Millisecond, leasehold.WokenByExpiry, 9,
		},
		"deleted": {
			func(w *locktest.World, p *locktest.Party) { w.Take("k", time.Minute) },
			func(w *locktest.World, p *locktest.Party) { w.M.Del("k") },
			locktest.PollInterval, leasehold.WokenByPoll, 9,
		},
		"released by a plain client": {
			func(w *locktest.World, p *locktest.Party) { w.Plain("k", time.Minute) },
			func(w *locktest.World, p *locktest.Party) { w.M.Del("k") },
			locktest.ForeignPollInterval, leasehold.WokenByPoll, 230,
		},
		"expired under a plain client": {
			func(w *locktest.World, p *locktest.Party) { w.Plain("k", 5500*time.Millisecond) },
			func(*locktest.World, *locktest.Party) {},
			5 * time.Millisecond, "", 230, // by the expiry, or by a look that meets it
		},
		"deleted, without a TTL": {
			func(w *locktest.World, p *locktest.Party) { require.NoError(w.T, w.M.Set("k", "for ever")) },
			func(w *locktest.World, p *locktest.Party) { w.M.Del("k") },
			locktest.ForeignPollInterval, leasehold.WokenByPoll, 230,
		},
		"Redis is flushed": {
			func(w *locktest.World, p *locktest.Party) { w.Take("k", time.Minute) },
			func(w *locktest.World, p *locktest.Party) { w.M.FlushAll() },
			locktest.PollInterval, leasehold.WokenAtOnce, 10, // in a new stay
		},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
				p, q := w.Party(), w.Party()
				tt.hold(w, p)
				freed := time.Now().Add(5500 * time.Millisecond)
				waiting := locktest.Beside(func() (*leasehold.Lease, error) { return q.Acquire(t.Context(), "k", time.Minute) })
				time.Sleep(time.Until(freed))
				tt.free(w, p)
				r := <-waiting
				require.NoError(t, r.Err)
				assert.LessOrEqual(t, time.Since(freed), tt.within)
				e := q.Heard("acquired")[0]
				if tt.woken != "" {
					assert.Equal(t, tt.woken, e.Woken)
				}
				assert.Equal(t, r.Took, e.Waited)
				assert.LessOrEqual(t, e.Attempts, tt.looks)
			})
		})
	}
}

func TestAWaiterDoesWithoutMessages(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, q := w.Party(), w.Party()
		w.OnSubscribe(confirm) // every message is lost
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		waiting := locktest.Beside(func() (*leasehold.Lease, error) { return q.Acquire(t.Context(), "k", time.Minute) })
		time.Sleep(10100 * time.Millisecond)
		begun := time.Now()
		require.NoError(t, x.Release(t.Context()))
		r := <-waiting
		require.NoError(t, r.Err)
		assert.LessOrEqual(t, time.Since(begun), locktest.PollInterval)
		assert.Equal(t, leasehold.WokenByPoll, q.Heard("acquired")[0].Woken)
		assert.InDelta(t, time.Minute-clock.Margin(time.Minute), time.Until(r.Lease.ValidUntil()), float64(time.Millisecond))
	})
}

// They vanish without a word, a hundred of them or one: those behind wait for one mark in all.
func TestDeadWaitersDelayTheLivingByOneTimeToLiveInAll(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		for range 10 {
			dead := w.Party()
			waiting := locktest.Beside(func() (*leasehold.Lease, error) { return dead.Acquire(t.Context(), "k", time.Minute) })
			time.Sleep(10 * time.Millisecond)
			dead.Wire.Refuse()
			t.Cleanup(func() { <-waiting })
		}
		live := w.Party()
		waiting := locktest.Beside(func() (*leasehold.Lease, error) { return live.Acquire(t.Context(), "k", time.Minute) })
		time.Sleep(10 * time.Millisecond)
		require.Len(t, w.Line("k"), 11)
		begun := time.Now()
		require.NoError(t, x.Release(t.Context()))
		require.NoError(t, (<-waiting).Err)
		assert.LessOrEqual(t, time.Since(begun), backend.WaiterTTL+50*time.Millisecond)
	})
}

// Its process pauses for longer than its mark is good: it loses its place, notices, and joins again.
func TestAWaiterThatWasSkippedJoinsAgain(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, q := w.Party(), w.Party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		waiting := locktest.Beside(func() (*leasehold.Lease, error) { return q.Acquire(t.Context(), "k", time.Minute) })
		locktest.Await(t, time.Second, func() bool { return len(w.Line("k")) == 1 })
		first := w.Line("k")[0]
		q.Fault.Every(nil).Fail(locktest.ErrNetwork)
		q.Wire.Refuse()
		time.Sleep(backend.WaiterTTL + time.Second)
		require.NoError(t, x.Release(t.Context()))
		y, err := p.TryAcquire(t.Context(), "k", 5*time.Second)
		require.NoError(t, err, "the dead are passed over")
		q.Fault.Clear()
		q.Wire.Pass()
		locktest.Await(t, 2*time.Second, func() bool { return len(w.Line("k")) == 1 })
		assert.NotEqual(t, first, w.Line("k")[0], "a stay that was over is never taken up again")
		time.Sleep(2 * time.Second)
		require.NoError(t, y.Release(t.Context()))
		r := <-waiting
		require.NoError(t, r.Err)
		assert.True(t, r.Lease.Valid())
	})
}

func TestWaitersThatGaveUpTakeNoTurns(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		var waiting []<-chan locktest.Result
		for range 5 {
			q := w.Party()
			for range 20 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				waiting = append(waiting, locktest.Beside(func() (*leasehold.Lease, error) { return q.Acquire(ctx, "k", time.Minute) }))
			}
		}
		for _, c := range waiting {
			r := <-c
			require.ErrorIs(t, r.Err, leasehold.ErrHeld)
			assert.Equal(t, time.Second, r.Took)
		}
		synctest.Wait()
		assert.Empty(t, w.Line("k"))
		require.NoError(t, x.Release(t.Context()))
		assert.Empty(t, w.Owner("k"))
	})
}

// A message alone makes a lease that is renewed by itself, until the claim; its first renewal confirms it.
func TestALeaseThatAMessageBroughtIsConfirmedByARenewal(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, q := w.Party(), w.Party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() {
			done <- q.WithLock(t.Context(), "k", time.Minute, func(ctx context.Context, y *leasehold.Lease) error {
				assert.InDelta(t, 12, len(q.Fault.Sent()), 1, "the join, a look when the subscription was confirmed, and one a second")
				assert.LessOrEqual(t, time.Until(y.ValidUntil()), backend.WaiterTTL-clock.Margin(backend.WaiterTTL))
				assert.LessOrEqual(t, y.ValidUntil(), time.Now().Add(w.M.TTL("k")))
				time.Sleep(backend.WaiterTTL)
				assert.True(t, y.Valid())
				assert.Greater(t, time.Until(y.ValidUntil()), 50*time.Second)
				assert.Greater(t, w.M.TTL("k"), 50*time.Second)
				return nil
			})
		}()
		time.Sleep(10*time.Second + 100*time.Millisecond)
		require.NoError(t, x.Release(t.Context()))
		require.NoError(t, <-done)
		assert.Equal(t, leasehold.WokenByMessage, q.Heard("acquired")[0].Woken)

		// One that is renewed by hand is confirmed before it is given.
		x, err = p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		waiting := locktest.Beside(func() (*leasehold.Lease, error) { return q.Acquire(t.Context(), "k", time.Minute) })
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, x.Release(t.Context()))
		y := (<-waiting).Lease
		assert.Equal(t, time.Minute-clock.Margin(time.Minute), time.Until(y.ValidUntil()))
		assert.Equal(t, time.Minute, w.M.TTL("k"))
		assert.Equal(t, leasehold.WokenByMessage, q.Heard("acquired")[1].Woken)
	})
}

// Its hold counts from when it can be held, not from a look long before.
func TestALeaseThatAMessageBroughtIsHeldForAsLongAsWithMaxHoldAllows(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, q := w.Party(), w.Party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() {
			done <- q.WithLock(t.Context(), "k", time.Minute, func(ctx context.Context, y *leasehold.Lease) error {
				assert.True(t, y.Valid())
				assert.InDelta(t, 500*time.Millisecond, time.Until(y.ValidUntil()), float64(time.Millisecond))
				return ctx.Err()
			}, leasehold.WithMaxHold(500*time.Millisecond))
		}()
		time.Sleep(900 * time.Millisecond)
		require.NoError(t, x.Release(t.Context()))
		require.NoError(t, <-done)
	})
}

func TestWaitingOnARealServer(t *testing.T) {
	t.Parallel()
	server := redistest.Server(t)
	a, b, listening := leasehold.New(server.Client()), leasehold.New(server.Client()), server.Client()
	defer func() { assert.NoError(t, a.Close()); assert.NoError(t, b.Close()) }()
	x, err := a.TryAcquire(t.Context(), "k", time.Minute)
	require.NoError(t, err)
	woken := map[leasehold.Wake]int{}
	var mu sync.Mutex
	count := leasehold.WithHooks(leasehold.Hooks{Acquired: func(_ context.Context, e leasehold.Event) { mu.Lock(); woken[e.Woken]++; mu.Unlock() }})
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			y, err := []*leasehold.Locker{a, b}[i%2].Acquire(t.Context(), "k", time.Minute, count)
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
	assert.Positive(t, woken[leasehold.WokenByMessage])
	assert.GreaterOrEqual(t, woken[leasehold.WokenByMessage]+woken[leasehold.WokenAtOnce], 38, "only the first of each may be told to look: %v", woken)
}

// Whichever of the two is first, the lock is had or handed on.
func TestACancelThatMeetsAHandOverLosesNeither(t *testing.T) {
	for i := range 20 {
		locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
			p, q, r := w.Party(), w.Party(), w.Party()
			x, err := p.TryAcquire(t.Context(), "k", time.Minute)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			first := locktest.Beside(func() (*leasehold.Lease, error) {
				return q.Acquire(ctx, "k", time.Minute, leasehold.WithAutoRenew(i%2 == 0))
			})
			locktest.Await(t, time.Second, func() bool { return len(w.Line("k")) == 1 })
			second := locktest.Beside(func() (*leasehold.Lease, error) { return r.Acquire(t.Context(), "k", time.Minute) })
			time.Sleep(100 * time.Millisecond)
			go cancel()
			require.NoError(t, x.Release(t.Context()))
			begun := time.Now()
			if y := <-first; y.Err == nil {
				require.NoError(t, y.Lease.Release(t.Context()))
			} else {
				require.ErrorIs(t, y.Err, context.Canceled)
			}
			z := <-second
			require.NoError(t, z.Err)
			assert.Zero(t, time.Since(begun))
			assert.Equal(t, z.Lease.Token(), w.Owner("k"))
		})
	}
}

func TestALongWaitCostsAPollASecondAndNothingMore(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		require.NoError(t, w.M.Set("k", locktest.OtherToken)) // for ever
		waiting := locktest.Beside(func() (*leasehold.Lease, error) { return p.Acquire(t.Context(), "k", time.Minute) })
		time.Sleep(time.Minute + locktest.PollInterval/2)
		keys, sent, routines := w.M.Dump(), len(p.Fault.Sent()), len(locktest.Goroutines())
		time.Sleep(5 * time.Minute)
		assert.InDelta(t, 300, len(p.Fault.Sent())-sent, 2)
		assert.Len(t, w.M.Dump(), len(keys))
		assert.LessOrEqual(t, len(locktest.Goroutines()), routines)
		w.M.Del("k")
		require.NoError(t, (<-waiting).Err)
	})
}

func TestNoKeyOutlivesItsUse(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, q := w.Party(), w.Party()
		for i := range 20 {
			key := strconv.Itoa(i)
			x, err := p.TryAcquire(t.Context(), key, time.Minute)
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			_, err = q.Acquire(ctx, key, time.Minute)
			require.Error(t, err)
			cancel()
			waiting := locktest.Beside(func() (*leasehold.Lease, error) { return q.Acquire(t.Context(), key, time.Minute) })
			time.Sleep(10 * time.Millisecond)
			require.NoError(t, x.Release(t.Context()))
			require.NoError(t, (<-waiting).Lease.Release(t.Context()))
		}
		assert.NotEmpty(t, w.M.Keys())
		time.Sleep(8 * 24 * time.Hour)
		assert.Empty(t, w.M.Keys())
	})
}
