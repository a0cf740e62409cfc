package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCloseBeforeTheFirstUseHasNothingToDo(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		begun := time.Now()
		require.NoError(t, p.Close())
		assert.Zero(t, time.Since(begun))
		assert.Empty(t, p.Fault.Sent())
		require.NoError(t, leasehold.New(nil).Close())
	})
}

func TestEveryCallAfterCloseSaysSo(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		require.NoError(t, p.Close())
		fn := func(context.Context, *leasehold.Lease) error { assert.Fail(t, "fn runs"); return nil }
		for name, call := range map[string]func() error{
			"TryAcquire":   func() error { _, err := p.TryAcquire(t.Context(), "k", time.Second); return err },
			"Acquire":      func() error { _, err := p.Acquire(t.Context(), "k", time.Second); return err },
			"WithLock":     func() error { return p.WithLock(t.Context(), "k", time.Second, fn) },
			"TryWithLock":  func() error { return p.TryWithLock(t.Context(), "k", time.Second, fn) },
			"Adopt":        func() error { _, err := p.Adopt(t.Context(), "k", "t", time.Second); return err },
			"Inspect":      func() error { _, err := p.Inspect(t.Context(), "k"); return err },
			"ForceRelease": func() error { return p.ForceRelease(t.Context(), "k") },
		} {
			require.ErrorIs(t, call(), leasehold.ErrClosed, name)
		}
		assert.Empty(t, p.Fault.Sent())
	})
}

func TestCloseReleasesEverything(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		var leases []*leasehold.Lease
		var contexts []context.Context
		for i := range 100 {
			x, err := p.TryAcquire(t.Context(), fmt.Sprint(i), time.Minute, leasehold.WithAutoRenew(i%2 == 0))
			require.NoError(t, err)
			ctx, cancel := x.Context(t.Context())
			defer cancel()
			leases, contexts = append(leases, x), append(contexts, ctx)
		}
		require.NoError(t, p.Close())
		for i, x := range leases {
			require.ErrorIs(t, context.Cause(contexts[i]), leasehold.ErrClosed)
			require.ErrorIs(t, x.Err(), leasehold.ErrReleased)
			assert.Empty(t, w.Owner(x.Key()))
			require.NoError(t, x.Release(t.Context()))
		}
		synctest.Wait()
		assert.Empty(t, locktest.Goroutines())
		p.RequireEmpty()
		assert.Len(t, p.Heard("released"), 100)
		assert.Zero(t, p.Stats().Held)
	})
}

func TestCloseIsOneForAllWhoCallIt(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		p.Keeps("k", time.Minute)
		p.Fault.Next(1, nil).DelayReply(time.Second)
		begun := time.Now()
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				assert.NoError(t, p.Close())
				assert.Equal(t, time.Second, time.Since(begun), "it came back before all was done")
			})
		}
		all.Wait()
		require.NoError(t, p.Close())
		assert.Len(t, p.Fault.Sent(), 2)
	})
}

func TestCloseEndsEveryWait(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		w.Take("k", time.Hour)
		var waits []<-chan locktest.Result
		for range 5 { // one in the line, four behind the gate
			waits = append(waits, locktest.Beside(func() (*leasehold.Lease, error) { return p.Acquire(t.Context(), "k", time.Minute) }))
		}
		synctest.Wait()
		assert.Len(t, w.Line("k"), 1)
		assert.Equal(t, 5, p.Stats().Waiting)
		before := time.Now()
		require.NoError(t, p.Close())
		assert.Zero(t, time.Since(before))
		for _, wait := range waits {
			r := <-wait
			require.ErrorIs(t, r.Err, leasehold.ErrClosed)
			require.ErrorIs(t, r.Err, leasehold.ErrHeld, "what it waited for")
		}
		assert.Empty(t, w.Line("k"))
		synctest.Wait()
		assert.Empty(t, w.M.PubSubChannels("*"))
	})
}

func TestCloseMeetsAnAcquireThatIsUnderWay(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		for name, acquire := range map[string]func(p *locktest.Party) (*leasehold.Lease, error){
			"TryAcquire": func(p *locktest.Party) (*leasehold.Lease, error) { return p.TryAcquire(t.Context(), "k", time.Minute) },
			"Acquire":    func(p *locktest.Party) (*leasehold.Lease, error) { return p.Acquire(t.Context(), "k", time.Minute) },
			"WithLock": func(p *locktest.Party) (*leasehold.Lease, error) {
				return nil, p.WithLock(t.Context(), "k", time.Minute, func(context.Context, *leasehold.Lease) error {
					assert.Fail(t, "fn runs")
					return nil
				})
			},
		} {
			p := w.Party()
			reply := p.Fault.Next(1, nil).HoldReply()
			got := locktest.Beside(func() (*leasehold.Lease, error) { return acquire(p) })
			<-reply.Arrived()
			closed := p.Closes()
			synctest.Wait()
			assert.Empty(t, closed, "it did not wait for %s", name)
			reply.Release()
			r := <-got
			require.ErrorIs(t, r.Err, leasehold.ErrClosed, name)
			require.NoError(t, <-closed)
			assert.Empty(t, w.Owner("k"), name)
		}
	})
}

// An adopted lease is somebody's; that the adopter closes is no reason to end it.
func TestAnAdoptionThatMeetsCloseLeavesTheLeaseAsItWas(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		x, err := w.Party().TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		p := w.Party()
		reply := p.Fault.Next(1, nil).HoldReply()
		got := locktest.Beside(func() (*leasehold.Lease, error) { return p.Adopt(t.Context(), "k", x.Token(), time.Minute) })
		<-reply.Arrived()
		closed := p.Closes()
		synctest.Wait()
		reply.Release()
		require.ErrorIs(t, (<-got).Err, leasehold.ErrClosed)
		require.NoError(t, <-closed)
		require.NoError(t, x.Renew(t.Context()))
	})
}

func TestCloseWaitsForTheFunctionsOfWithLockAndKeepsTheirLocks(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		running, result := make(chan struct{}), make(chan error, 1)
		go func() {
			result <- p.WithLock(t.Context(), "k", 300*time.Millisecond, func(ctx context.Context, x *leasehold.Lease) error {
				stop := w.NobodyGetsIn("k")
				close(running)
				<-ctx.Done()
				assert.ErrorIs(t, context.Cause(ctx), leasehold.ErrClosed)
				assert.NotErrorIs(t, context.Cause(ctx), leasehold.ErrLost)
				later, cancel := x.Context(context.Background())
				defer cancel()
				assert.ErrorIs(t, context.Cause(later), leasehold.ErrClosed)
				time.Sleep(3 * time.Second) // to unwind
				assert.True(t, x.Valid())
				stop()
				return locktest.ErrWork
			})
		}()
		<-running
		begun := time.Now()
		require.NoError(t, p.Close())
		assert.InDelta(t, 3*time.Second, time.Since(begun), float64(50*time.Millisecond))
		require.Equal(t, locktest.ErrWork, <-result)
		assert.Empty(t, w.Owner("k"))
	})
}

// The lease has ended by then for its holder.
func TestCloseWaitsForAReleaseThatIsUnderWayAndForItsRepetition(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		broken := p.Fault.Next(1, locktest.RunOf(locktest.ReleaseScript))
		broken.Delay(time.Second)
		broken.Fail(locktest.ErrNetwork)
		ended := make(chan struct{})
		go func() {
			assert.NoError(t, p.WithLock(t.Context(), "k", time.Minute, func(_ context.Context, x *leasehold.Lease) error {
				go func() { <-x.Done(); close(ended) }()
				return nil
			}))
		}()
		<-ended
		require.NoError(t, p.Close())
		assert.Empty(t, w.Owner("k"), "it did not wait")
		synctest.Wait()
		assert.Empty(t, locktest.Goroutines())
	})
}

func TestCloseDoesNotWaitForEverForAFunction(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		result := make(chan error, 2)
		for _, key := range []string{"a", "b"} {
			go func() {
				result <- p.WithLock(t.Context(), key, time.Second, func(ctx context.Context, x *leasehold.Lease) error {
					time.Sleep(time.Hour)
					assert.False(t, x.Valid())
					<-x.Done()
					return nil
				})
			}()
		}
		time.Sleep(10 * time.Second)
		begun := time.Now()
		err := p.Close()
		assert.LessOrEqual(t, time.Since(begun), 2*locktest.CloseBound+time.Second)
		require.ErrorContains(t, err, `close "a"`)
		require.ErrorContains(t, err, `close "b"`)
		time.Sleep(time.Second)
		assert.Empty(t, w.Owner("a"), "it goes with its ttl")
		for range 2 {
			require.ErrorIs(t, <-result, leasehold.ErrLost)
		}
		require.Len(t, p.Heard("lost"), 2)
		assert.Equal(t, leasehold.LossClosed, p.Heard("lost")[0].Loss)
	})
}

func TestCloseIsBoundedWhenRedisDoesNotAnswer(t *testing.T) {
	for name, block := range locktest.Blocked {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
				p := w.Party()
				var leases []*leasehold.Lease
				for i := range 100 {
					leases = append(leases, p.Keeps(fmt.Sprint(i), time.Minute))
				}
				w.Take("held", time.Hour)
				wait := locktest.Beside(func() (*leasehold.Lease, error) { return p.Acquire(t.Context(), "held", time.Minute) })
				locktest.Await(t, time.Second, func() bool { return len(w.Line("held")) == 1 })
				time.Sleep(time.Second)
				block(p)
				begun := time.Now()
				err := p.Close()
				assert.LessOrEqual(t, time.Since(begun), locktest.CloseBound+time.Second)
				require.Error(t, err)
				require.ErrorContains(t, err, `"7"`, "it names what may remain")
				require.ErrorIs(t, (<-wait).Err, leasehold.ErrClosed)
				for _, x := range leases { // nobody watches them any more
					locktest.AwaitEnd(x)
					require.ErrorIs(t, x.Err(), leasehold.ErrReleased)
					assert.False(t, x.Valid())
					_ = x.Release(t.Context())
				}
				assert.Len(t, p.Heard("released"), len(leases))
				assert.EqualValues(t, len(leases), p.Stats().ReleasesUnconfirmed)
				p.Wire.Pass()
				time.Sleep(time.Minute)
				assert.Empty(t, w.Owner("7"))
			})
		})
	}
}

// As a client without timeouts of its own does.
func TestCloseIsBoundedWhenTheClientNeverComesBack(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		p.Keeps("k", time.Minute)
		stuck := p.Fault.Every(nil).Hold()
		begun := time.Now()
		err := p.Close()
		assert.LessOrEqual(t, time.Since(begun), locktest.CloseBound+time.Second)
		require.ErrorContains(t, err, "the redis client has not returned from a call")
		stuck.Release()
	})
}

// Outside of a bubble, since a PubSub of go-redis holds a mutex while it connects.
func TestCloseIsBoundedWhenTheSubscriptionNeverComesBack(t *testing.T) {
	t.Parallel()
	m, _ := redistest.Mini(t)
	deaf, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts, nobody answers
	require.NoError(t, err)
	var conns atomic.Int32
	client := redis.NewClient(&redis.Options{
		Addr:        m.Addr(),
		ReadTimeout: -1, // none
		Dialer: func(_ context.Context, network, addr string) (net.Conn, error) {
			if conns.Add(1) > 1 {
				addr = deaf.Addr().String()
			}
			return net.Dial(network, addr)
		},
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	l := leasehold.New(client)
	require.NoError(t, m.Set("k", "somebody else's token"))
	wait := make(chan error, 1)
	go func() {
		_, err := l.Acquire(context.Background(), "k", time.Minute)
		wait <- err
	}()
	require.Eventually(t, func() bool { return conns.Load() == 2 }, 5*time.Second, time.Millisecond)
	closed := make(chan error, 1)
	go func() { closed <- l.Close() }()
	select {
	case <-closed:
	case <-time.After(locktest.CloseBound + 2*time.Second):
		assert.Fail(t, "Close has not returned")
	}
	require.ErrorIs(t, <-wait, leasehold.ErrClosed)
	_ = deaf.Close() // which resets the connection
	_ = client.Close()
}

// A hook may call Close, as "shut down on loss" would, though it runs in the tick that Close waits for.
func TestAHookMayClose(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		closed := make(chan error, 1)
		x, err := p.TryAcquire(t.Context(), "k", time.Second, leasehold.WithHooks(leasehold.Hooks{Lost: func(leasehold.Event) { closed <- p.Close() }}))
		require.NoError(t, err)
		begun := x.ValidUntil()
		require.NoError(t, <-closed)
		assert.LessOrEqual(t, time.Since(begun), locktest.CloseBound+time.Second)
	})
}

func TestAfterCloseNoTimerIsLeft(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		p.Keeps("k", time.Hour)
		require.NoError(t, p.Close())
		sent := len(p.Fault.Sent())
		time.Sleep(24 * time.Hour)
		assert.Len(t, p.Fault.Sent(), sent)
	})
}

// The server answers more slowly than the TTL, so that every grant is too late: a wait must end all the same.
func TestCloseEndsAWaitThatIsAlwaysTooLate(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		p.Fault.Every(locktest.RunOf(locktest.AcquireScript)).DelayReply(100 * time.Millisecond)
		wait := locktest.Beside(func() (*leasehold.Lease, error) { return p.Acquire(t.Context(), "k", 50*time.Millisecond) })
		time.Sleep(time.Second)
		begun := time.Now()
		require.NoError(t, p.Close())
		assert.LessOrEqual(t, time.Since(begun), 200*time.Millisecond)
		r := <-wait
		require.ErrorIs(t, r.Err, leasehold.ErrClosed)
		require.False(t, errors.Is(r.Err, leasehold.ErrLost))
		assert.Empty(t, p.Heard("lost"))
		synctest.Wait()
		assert.Empty(t, w.Owner("k"))
	})
}
