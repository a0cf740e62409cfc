package line_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

func TestWithWaitEndsAWaitForAHolderWithErrHeld(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		w.Take("k", time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		acquire := func() (*leasehold.Lease, error) {
			return p.Acquire(ctx, "k", time.Minute, leasehold.WithWait(3500*time.Millisecond))
		}
		inLine := locktest.Beside(acquire)
		synctest.Wait()
		inGate := locktest.Beside(acquire)
		synctest.Wait()
		assert.Len(t, w.Line("k"), 1)
		assert.Equal(t, 2, p.Stats().Waiting)
		for _, waiting := range []<-chan locktest.Result{inLine, inGate} {
			r := <-waiting
			assert.Equal(t, []string{"held"}, locktest.KindsOf(r.Err), "no context has ended")
			require.EqualError(t, r.Err, `leasehold: acquire "k": held by another: WithWait(3.5s) is over`)
			assert.Equal(t, 3500*time.Millisecond, r.Took)
		}
		synctest.Wait()
		assert.Empty(t, w.Line("k"))
	})
}

// A waiter whose time is over does the same as one whose context has ended, and leaves the same behind.
func TestAWaitThatIsOverLeavesTheLineAsACancelledOne(t *testing.T) {
	leave := func(bound func(ctx context.Context) (context.Context, context.CancelFunc, []leasehold.Option)) (sent, keys []string) {
		locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
			p := w.Party()
			w.Take("k", time.Hour)
			ctx, cancel, opts := bound(t.Context())
			defer cancel()
			_, err := p.Acquire(ctx, "k", time.Minute, opts...)
			require.ErrorIs(t, err, leasehold.ErrHeld)
			synctest.Wait()
			sent, keys = p.Fault.Sent(), w.M.Keys()
		})
		return sent, keys
	}
	sentByContext, keysOfContext := leave(func(ctx context.Context) (context.Context, context.CancelFunc, []leasehold.Option) {
		ctx, cancel := context.WithTimeout(ctx, 400*time.Millisecond)
		return ctx, cancel, nil
	})
	sent, keys := leave(func(ctx context.Context) (context.Context, context.CancelFunc, []leasehold.Option) {
		return ctx, func() {}, []leasehold.Option{leasehold.WithWait(400 * time.Millisecond)}
	})
	assert.Equal(t, sentByContext, sent)
	assert.Equal(t, keysOfContext, keys)
}

func TestWithWaitSaysThatRedisIsUnavailableIfItHasNotAnswered(t *testing.T) {
	for name, trouble := range locktest.Trouble {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
				p := w.Party()
				_, err := p.Inspect(t.Context(), "k")
				require.NoError(t, err)
				trouble.Begin(w, p)
				defer trouble.End(w, p)
				for _, d := range []time.Duration{1, 50 * time.Millisecond, 5 * time.Second} {
					begun := time.Now()
					err := p.WithLock(t.Context(), "k", time.Minute, locktest.Idle, leasehold.WithWait(d))
					assert.Equal(t, []string{"unavailable"}, locktest.KindsOf(err), "after %v: %v", d, err)
					assert.Equal(t, d, time.Since(begun))
				}
			})
		})
	}
}

func TestWithWaitOfZeroTriesOnceAsTryAcquire(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party(leasehold.WithWait(0))
		w.Take("k", time.Hour)
		begun := time.Now()
		for _, e := range locktest.EntryPoints(t)[:4] {
			err := e.Call(p.Locker, "k", time.Minute)
			require.EqualError(t, err, `leasehold: acquire "k": held by another`, e.Name)
		}
		assert.Zero(t, time.Since(begun))
		assert.Len(t, p.Fault.Sent(), 4)
		assert.Empty(t, w.Line("k"))
		_, err := p.Acquire(t.Context(), "k", time.Minute, leasehold.WithWait(time.Second)) // a call knows better than New
		require.ErrorIs(t, err, leasehold.ErrHeld)
		assert.Equal(t, time.Second, time.Since(begun))
		_, err = p.TryAcquire(t.Context(), "k", time.Minute, leasehold.WithWait(time.Second))
		require.ErrorIs(t, err, leasehold.ErrHeld)
		assert.Equal(t, time.Second, time.Since(begun), "a try does not wait")
	})
}

func TestWithWaitDoesNotBoundTheWork(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		w.Take("k", 500*time.Millisecond)
		begun := time.Now()
		err := p.WithLock(t.Context(), "k", time.Minute, func(ctx context.Context, _ *leasehold.Lease) error {
			assert.Less(t, time.Since(begun), time.Second)
			_, bounded := ctx.Deadline()
			assert.False(t, bounded)
			time.Sleep(time.Hour)
			return ctx.Err()
		}, leasehold.WithWait(time.Second))
		require.NoError(t, err)
	})
}

func TestAContextThatEndsBeforeWithWaitIsOverEndsTheWait(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		w.Take("k", time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := p.Acquire(ctx, "k", time.Minute, leasehold.WithWait(time.Minute))
		assert.Equal(t, []string{"held", "deadline"}, locktest.KindsOf(err))

		waiting := locktest.Beside(func() (*leasehold.Lease, error) {
			return p.Acquire(t.Context(), "k", time.Minute, leasehold.WithWait(time.Minute))
		})
		time.Sleep(time.Second)
		require.NoError(t, p.Close())
		assert.Equal(t, []string{"held", "closed"}, locktest.KindsOf((<-waiting).Err))
	})
}

func TestWithWaitBoundsAWaitForAQuorum(t *testing.T) {
	locktest.QuorumBubble(t, 3, func(t *testing.T, _ []*locktest.FakeNode, join locktest.JoinFunc) {
		holder, q := join(), join()
		x := locktest.Taken(t, holder, time.Hour)
		begun := time.Now()
		_, err := q.Acquire(t.Context(), "k", time.Minute, leasehold.WithWait(3*time.Second))
		assert.Equal(t, []string{"held"}, locktest.KindsOf(err), "%v", err)
		assert.Equal(t, 3*time.Second, time.Since(begun))
		require.NoError(t, x.Release(t.Context()))

		begun = time.Now()
		q.Wires[0].BlackHole()
		q.Wires[1].Refuse()
		_, err = q.Acquire(t.Context(), "k", time.Minute, leasehold.WithWait(3*time.Second))
		assert.Equal(t, []string{"no quorum", "unavailable"}, locktest.KindsOf(err), "%v", err)
		assert.Equal(t, 3*time.Second, time.Since(begun))
	})
}

func TestWithWaitOnARealServer(t *testing.T) {
	t.Parallel()
	client := redistest.Server(t).Client(func(o *redis.Options) { o.MaxRetries = -1 })
	p := &locktest.Party{T: t, Real: true}
	p.Start(client, nil)
	x, err := p.TryAcquire(t.Context(), "k", time.Minute)
	require.NoError(t, err)
	begun := time.Now()
	// Long enough for an answer on a machine that does much else; the tests in a bubble know when exactly the wait ends.
	err = p.WithLock(t.Context(), "k", time.Minute, locktest.Idle, leasehold.WithWait(time.Second))
	assert.Equal(t, []string{"held"}, locktest.KindsOf(err))
	assert.GreaterOrEqual(t, time.Since(begun), time.Second)
	waiting := locktest.Beside(func() (*leasehold.Lease, error) {
		return p.Acquire(t.Context(), "k", time.Minute, leasehold.WithWait(10*time.Second))
	})
	require.Eventually(t, func() bool { s, err := p.Inspect(t.Context(), "k"); return err == nil && s.Waiters == 1 }, 5*time.Second, time.Millisecond)
	require.NoError(t, x.Release(t.Context()))
	r := <-waiting
	require.NoError(t, r.Err)
	require.NoError(t, r.Lease.Release(t.Context()))
}
