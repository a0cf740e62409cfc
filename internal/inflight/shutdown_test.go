package inflight_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/locktest"
)

// begin starts a function under the lock that ends when its context does, or after d.
func begin(p interface {
	WithLock(context.Context, string, time.Duration, func(context.Context, *leasehold.Lease) error, ...leasehold.Option) error
}, key string, d time.Duration) <-chan error {
	running, result := make(chan struct{}), make(chan error, 1)
	go func() {
		result <- p.WithLock(context.Background(), key, time.Second, func(ctx context.Context, x *leasehold.Lease) error {
			close(running)
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(d):
				return x.Err()
			}
		})
	}()
	<-running
	return result
}

func TestShutdownLetsTheFunctionsFinishUnderTheirLeases(t *testing.T) {
	locktest.EachKind(t, func(t *testing.T, l, other *leasehold.Locker, owner func() string) {
		result := begin(l, "k", time.Minute)
		kept, err := l.TryAcquire(t.Context(), "kept", time.Second, leasehold.WithAutoRenew(true))
		require.NoError(t, err)
		ctx, cancel := kept.Context(t.Context())
		defer cancel()
		holder, err := other.TryAcquire(t.Context(), "theirs", time.Hour)
		require.NoError(t, err)
		waiting := locktest.Beside(func() (*leasehold.Lease, error) { return l.Acquire(t.Context(), "theirs", time.Minute) })
		time.Sleep(100 * time.Millisecond)

		begun, done := time.Now(), make(chan error, 1)
		go func() { done <- l.Shutdown(t.Context()) }()
		require.ErrorIs(t, (<-waiting).Err, leasehold.ErrClosed)
		assert.Zero(t, time.Since(begun))
		time.Sleep(30 * time.Second)
		for _, e := range locktest.EntryPoints(t) {
			if e.Ttl {
				require.ErrorIs(t, e.Call(l, "free", time.Second), leasehold.ErrClosed, e.Name)
			}
		}
		assert.True(t, kept.Valid(), "it is renewed")
		require.NoError(t, ctx.Err())
		later, end := kept.Context(t.Context())
		require.NoError(t, later.Err())
		end()
		state, err := l.Inspect(t.Context(), "k")
		require.NoError(t, err)
		assert.True(t, state.Held)

		require.NoError(t, <-result)
		require.NoError(t, <-done)
		assert.InDelta(t, time.Minute, time.Since(begun), float64(200*time.Millisecond))
		assert.ErrorIs(t, context.Cause(ctx), leasehold.ErrClosed)
		require.ErrorIs(t, kept.Err(), leasehold.ErrReleased)
		synctest.Wait()
		assert.Empty(t, owner())
		require.NoError(t, holder.Release(t.Context()))
	})
}

func TestShutdownEndsTheContextsWhenItsOwnEnds(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		for name, end := range map[string]func(p *locktest.Party, cancel func()){
			"its own": func(_ *locktest.Party, cancel func()) { cancel() },
			"another's": func(p *locktest.Party, _ func()) {
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				assert.NoError(t, p.Shutdown(ctx))
			},
			"Close, which has none": func(p *locktest.Party, _ func()) { assert.NoError(t, p.Close()) },
		} {
			p := w.Party()
			result := begin(p, "k", time.Hour)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- p.Shutdown(ctx) }()
			time.Sleep(20 * time.Second)
			assert.Empty(t, result, name)
			ended := time.Now()
			end(p, cancel)
			require.ErrorIs(t, <-result, leasehold.ErrClosed, name)
			require.NoError(t, <-done, name)
			cancel()
			assert.Zero(t, time.Since(ended), name)
			assert.Empty(t, w.Owner("k"))
		}
	})
}

func TestShutdownWithAnEndedContextIsClose(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		result := make(chan error, 1)
		running := make(chan struct{})
		go func() {
			result <- p.WithLock(t.Context(), "k", time.Second, func(context.Context, *leasehold.Lease) error {
				close(running)
				time.Sleep(time.Hour)
				return nil
			})
		}()
		<-running
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		begun := time.Now()
		err := p.Shutdown(ctx)
		require.ErrorContains(t, err, `close "k": WithLock's function has not returned`)
		assert.LessOrEqual(t, time.Since(begun), 2*locktest.CloseBound+time.Second)
		require.Equal(t, err, p.Close())
		require.ErrorIs(t, <-result, leasehold.ErrLost)
	})
}

func TestShutdownOfAnIdleLockerReturnsAtOnce(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		_, err := p.TryAcquire(t.Context(), "k", time.Hour)
		require.NoError(t, err)
		begun := time.Now()
		require.NoError(t, p.Shutdown(t.Context()))
		assert.Zero(t, time.Since(begun))
		assert.Empty(t, w.Owner("k"), "what no function holds is released")
		synctest.Wait()
		assert.Empty(t, locktest.Goroutines())
	})
}
