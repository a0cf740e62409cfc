package line_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Whatever the client's own timeouts are.
func TestEveryCallReturnsWithItsContext(t *testing.T) {
	const patience = 150 * time.Millisecond
	for how, block := range locktest.Blocked {
		t.Run(how, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
				p := w.Party()
				x, err := p.TryAcquire(t.Context(), "mine", time.Minute)
				require.NoError(t, err)
				y, err := p.TryAcquire(t.Context(), "other", time.Minute)
				require.NoError(t, err)
				time.Sleep(time.Second)
				block(p)
				for name, call := range map[string]func(ctx context.Context) error{
					"TryAcquire":   func(ctx context.Context) error { _, err := p.TryAcquire(ctx, "a", time.Minute); return err },
					"Acquire":      func(ctx context.Context) error { _, err := p.Acquire(ctx, "b", time.Minute); return err },
					"Adopt":        func(ctx context.Context) error { _, err := p.Adopt(ctx, "c", "t", time.Minute); return err },
					"WithLock":     func(ctx context.Context) error { return p.WithLock(ctx, "d", time.Minute, locktest.Idle) },
					"Inspect":      func(ctx context.Context) error { _, err := p.Inspect(ctx, "e"); return err },
					"ForceRelease": func(ctx context.Context) error { return p.ForceRelease(ctx, "f") },
					"Renew":        func(ctx context.Context) error { return x.Renew(ctx) },
					"EnsureFor":    func(ctx context.Context) error { return x.EnsureFor(ctx, 59*time.Second) },
					"Release":      func(ctx context.Context) error { return y.Release(ctx) },
				} {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					begun := time.Now()
					err := call(ctx)
					took := time.Since(begun)
					cancel()
					require.Error(t, err, name)
					require.NotErrorIs(t, err, leasehold.ErrHeld, name)
					require.NotErrorIs(t, err, leasehold.ErrLost, name)
					assert.LessOrEqual(t, took, patience, name)
				}
				assert.True(t, x.Valid())
			})
		})
	}
}

func TestEveryCallHasABoundOfItsOwn(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "mine", time.Minute)
		require.NoError(t, err)
		y, err := p.TryAcquire(t.Context(), "other", time.Minute)
		require.NoError(t, err)
		p.Wire.BlackHole()
		for name, call := range map[string]func() error{
			"TryAcquire":   func() error { _, err := p.TryAcquire(t.Context(), "a", time.Minute); return err },
			"TryWithLock":  func() error { return p.TryWithLock(t.Context(), "a", time.Minute, locktest.Idle) },
			"Adopt":        func() error { _, err := p.Adopt(t.Context(), "c", "t", time.Minute); return err },
			"Inspect":      func() error { _, err := p.Inspect(t.Context(), "e"); return err },
			"ForceRelease": func() error { return p.ForceRelease(t.Context(), "f") },
			"Renew":        func() error { return x.Renew(t.Context()) },
			"Release":      func() error { return y.Release(t.Context()) },
		} {
			begun := time.Now()
			err := call()
			require.Error(t, err, name)
			assert.Contains(t, err.Error(), "no answer from redis within", name)
			require.NotErrorIs(t, err, context.DeadlineExceeded, "%s: it is not the caller's deadline", name)
			assert.LessOrEqual(t, time.Since(begun), backend.CallBound, name)
		}
	})
}

func TestTroubleThatTimeCannotCureEndsAnAcquireAtOnce(t *testing.T) {
	for _, msg := range []string{
		"NOAUTH Authentication required.",
		"NOPERM User app has no permissions to run the 'evalsha' command",
		"ERR unknown command 'evalsha'",
		"WRONGPASS invalid username-password pair or user is disabled.",
		"CROSSSLOT Keys in request don't hash to the same slot",
	} {
		locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
			p := w.Party()
			_, err := p.Inspect(t.Context(), "k") // a connection from before
			require.NoError(t, err)
			w.M.SetError(msg)
			begun := time.Now()
			_, err = p.Acquire(t.Context(), "k", time.Second)
			w.M.SetError("")
			assert.Zero(t, time.Since(begun))
			var server redis.Error
			require.ErrorAs(t, err, &server)
			assert.Equal(t, msg, server.Error())
			require.NotErrorIs(t, err, leasehold.ErrHeld)
			assert.LessOrEqual(t, len(p.Fault.Sent()), 3, "it was tried again")
		})
	}
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		for key, make := range map[string]func(){
			"a list": func() { w.M.Lpush("a list", "v") },
			"a hash": func() { w.M.HSet("a hash", "f", "v") },
			"a set":  func() { w.M.SAdd("a set", "v") },
		} {
			make()
			w.M.SetTTL(key, time.Hour)
			_, err := p.Acquire(t.Context(), key, time.Second)
			assert.ErrorContains(t, err, "WRONGTYPE", key)
			_, err = p.TryAcquire(t.Context(), key, time.Second)
			assert.ErrorContains(t, err, "WRONGTYPE", key)
			synctest.Wait()
			assert.Equal(t, map[string]string{"a list": "list", "a hash": "hash", "a set": "set"}[key], w.M.Type(key))
			assert.Equal(t, time.Hour, w.M.TTL(key), "it was changed")
		}
	})
}

func TestTroubleThatPassesIsWaitedOutByAcquireOnly(t *testing.T) {
	for name, trouble := range locktest.Trouble {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
				p := w.Party()
				_, err := p.Inspect(t.Context(), "k")
				require.NoError(t, err)
				trouble.Begin(w, p)
				sent := len(p.Fault.Sent())
				_, err = p.TryAcquire(t.Context(), "try", time.Minute)
				require.Error(t, err)
				require.NotErrorIs(t, err, leasehold.ErrHeld)

				got := locktest.Beside(func() (*leasehold.Lease, error) { return p.Acquire(t.Context(), "k", time.Minute) })
				time.Sleep(10 * time.Second)
				assert.Empty(t, got)
				assert.Less(t, len(p.Fault.Sent())-sent, 60, "errors must not spin")
				trouble.End(w, p)
				time.Sleep(20 * time.Second) // go-redis dials once a second, and gives up a call after many
				r := <-got
				require.NoError(t, r.Err)
				assert.LessOrEqual(t, r.Took, 17*time.Second)
			})
		})
	}
}

func TestAWaitThatEndsNamesItsReasonAndItsEnd(t *testing.T) {
	for name, trouble := range locktest.Trouble {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
				p := w.Party()
				_, err := p.Inspect(t.Context(), "k")
				require.NoError(t, err)
				trouble.Begin(w, p)
				cause := errors.New("the request is over")
				ctx, cancel := context.WithTimeoutCause(t.Context(), 5*time.Second, cause)
				defer cancel()
				begun := time.Now()
				_, err = p.Acquire(ctx, "k", time.Minute)
				trouble.End(w, p)
				assert.Equal(t, 5*time.Second, time.Since(begun))
				require.ErrorIs(t, err, cause)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.NotErrorIs(t, err, leasehold.ErrHeld)
				switch name {
				case "refused":
					assert.ErrorContains(t, err, "no answer from redis within 1s: dial tcp: connection refused: the request is over")
				case "black hole":
					assert.ErrorContains(t, err, "no answer from redis within 1s: the request is over")
				case "failed":
					require.ErrorIs(t, err, locktest.ErrNetwork)
				default:
					var server redis.Error
					require.ErrorAs(t, err, &server)
				}
			})
		})
	}
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		w.Take("k", time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := p.Acquire(ctx, "k", time.Minute)
		require.ErrorIs(t, err, leasehold.ErrHeld)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.EqualError(t, err, fmt.Sprintf("leasehold: acquire %q: held by another: context deadline exceeded", "k"))
	})
}

func TestManyCallsToAServerThatDoesNotAnswerReturnOnTime(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		_, err := p.Inspect(t.Context(), "k")
		require.NoError(t, err)
		p.Wire.BlackHole()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		var calls []<-chan locktest.Result
		for i := range 200 {
			calls = append(calls, locktest.Beside(func() (*leasehold.Lease, error) { return p.Acquire(ctx, strconv.Itoa(i), time.Minute) }))
		}
		synctest.Wait()
		for _, call := range calls {
			r := <-call
			require.ErrorIs(t, r.Err, context.DeadlineExceeded)
			assert.Equal(t, 100*time.Millisecond, r.Took)
		}
		assert.LessOrEqual(t, len(locktest.Goroutines()), 200+locktest.MaxFlights, "the clean-ups, and the round trips that are stuck")
		p.Wire.Pass()
		time.Sleep(time.Minute)
		assert.Empty(t, locktest.Goroutines())
	})
}

// go-redis sends a command again when the first copy has no answer. The copy may be on its way for longer than the answer to the
// second: it must not take, for nobody, what that answer refused.
func TestACopyThatComesAfterTheRefusalTakesNothing(t *testing.T) {
	for name, tt := range map[string]struct {
		holder, after string // of the key, at the refusal and after it
		call          func(l *leasehold.Locker) (*leasehold.Lease, error)
		want          error
	}{
		"of a try": {"other", "", func(l *leasehold.Locker) (*leasehold.Lease, error) {
			return l.TryAcquire(context.Background(), "k", time.Minute)
		}, leasehold.ErrHeld},
		"of an adoption, whose lease another adopter gives back": {"other", "former", func(l *leasehold.Locker) (*leasehold.Lease, error) {
			return l.Adopt(context.Background(), "k", "former", time.Minute)
		}, leasehold.ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
				var wire *redistest.DialFault
				l := leasehold.New(w.Dial(func(o *redis.Options) {
					wire = redistest.FaultyDialer(o.Dialer)
					o.Dialer, o.ReadTimeout = wire.Dial, 50*time.Millisecond
				}))
				t.Cleanup(func() { assert.NoError(t, l.Close()) })
				_, err := l.Inspect(t.Context(), "k") // there is a connection
				require.NoError(t, err)

				w.Put("k", tt.holder, time.Hour)
				wire.Delay(time.Second)
				time.AfterFunc(10*time.Millisecond, func() { wire.Delay(0) })
				begun := time.Now()
				_, err = tt.call(l)
				require.ErrorIs(t, err, tt.want)
				require.Less(t, time.Since(begun), time.Second, "the second copy's answer")
				synctest.Wait()
				w.M.Del("k")
				if tt.after != "" {
					w.Put("k", tt.after, time.Hour)
				}
				time.Sleep(2 * time.Second)
				require.Equal(t, tt.after, w.Owner("k"))
			})
		})
	}
}
