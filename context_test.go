package leasehold_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Whoever waits for a lock that their own caller holds waits for ever.
func TestAnAcquireWithAContextOfTheLeaseThatHoldsTheKeyIsRefused(t *testing.T) {
	type word string
	nothing := func() {}
	for name, derive := range map[string]func(ctx context.Context, p *locktest.Party) (context.Context, context.CancelFunc){
		"fn's context": func(ctx context.Context, _ *locktest.Party) (context.Context, context.CancelFunc) {
			return ctx, nothing
		},
		"one with a value": func(ctx context.Context, _ *locktest.Party) (context.Context, context.CancelFunc) {
			return context.WithValue(ctx, word("a"), 1), nothing
		},
		"one with a timeout": func(ctx context.Context, _ *locktest.Party) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Hour)
		},
		"one that nothing ends": func(ctx context.Context, _ *locktest.Party) (context.Context, context.CancelFunc) {
			return context.WithoutCancel(ctx), nothing
		},
		"one of another lease inside": func(ctx context.Context, p *locktest.Party) (context.Context, context.CancelFunc) {
			x, err := p.TryAcquire(ctx, fmt.Sprint("between ", p.Stats().Acquired), time.Minute)
			require.NoError(p.T, err)
			return x.Context(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
				p := w.Party(leasehold.WithKeyPrefix("p:"))
				require.NoError(t, p.WithLock(t.Context(), "k", time.Minute, func(ctx context.Context, _ *leasehold.Lease) error {
					inner, cancel := derive(ctx, p)
					defer cancel()
					p.RefusesNested(inner, "p:", "k")
					return nil
				}))
				x, err := p.TryAcquire(t.Context(), "k", time.Minute)
				require.NoError(t, err)
				ctx, cancel := x.Context(t.Context())
				defer cancel()
				inner, cancel := derive(ctx, p)
				defer cancel()
				p.RefusesNested(inner, "p:", "k")
			})
		})
	}
	locktest.QuorumBubble(t, 3, func(t *testing.T, _ []*locktest.FakeNode, join locktest.JoinFunc) {
		q := join()
		require.NoError(t, q.WithLock(t.Context(), "k", time.Minute, func(ctx context.Context, _ *leasehold.Lease) error {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			for _, e := range locktest.EntryPointsOf(ctx) {
				if e.Ttl {
					require.ErrorIs(t, e.Call(q.Locker, "k", time.Second), leasehold.ErrInvalid, e.Name)
				}
			}
			return nil
		}))
	})
}

// Another Locker of the same Redis is told by the fencing token of the lease that holds the lock: nothing else says that
// two clients reach one Redis.
func TestAWaitOfAnotherLockerForTheLeaseOfItsContextIsRefused(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, q := w.Party(leasehold.WithKeyPrefix("p:")), w.Party()
		require.NoError(t, p.WithLock(t.Context(), "k", time.Minute, func(ctx context.Context, _ *leasehold.Lease) error {
			ctx, cancel := context.WithTimeout(ctx, time.Hour)
			defer cancel()
			begun := time.Now()
			_, err := q.Acquire(ctx, "p:k", time.Minute)
			require.ErrorIs(t, err, leasehold.ErrInvalid)
			require.EqualError(t, err, `leasehold: acquire "p:k": invalid argument: held by the lease of this context: pass it`)
			require.ErrorIs(t, q.WithLock(ctx, "p:k", time.Minute, locktest.Idle), leasehold.ErrInvalid)
			assert.Zero(t, time.Since(begun))
			synctest.Wait()
			assert.Empty(t, w.Line("p:k"), "it stands in the line")

			// What is no wait is no fault either.
			_, err = q.TryAcquire(ctx, "p:k", time.Minute)
			require.ErrorIs(t, err, leasehold.ErrHeld)
			return q.WithLock(ctx, "k", time.Minute, locktest.Idle) // the key of another name
		}))
		require.NoError(t, q.WithLock(t.Context(), "p:k", time.Minute, locktest.Idle))
	})
}

func TestOnlyALeaseThatIsHeldRefusesAnotherOfItsContext(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		require.NoError(t, p.WithLock(t.Context(), "k", time.Minute, func(ctx context.Context, x *leasehold.Lease) error {
			on := context.WithoutCancel(ctx)
			require.NoError(t, p.WithLock(ctx, "other", time.Minute, func(ctx context.Context, _ *leasehold.Lease) error {
				p.RefusesNested(ctx, "", "k")
				p.RefusesNested(ctx, "", "other")
				return nil
			}))
			require.NoError(t, x.Release(ctx))
			return p.WithLock(on, "k", time.Minute, locktest.Idle)
		}))

		err := p.WithLock(t.Context(), "k", time.Minute, func(ctx context.Context, x *leasehold.Lease) error {
			w.M.Del("k")
			require.ErrorIs(t, x.Renew(ctx), leasehold.ErrLost)
			return p.WithLock(context.WithoutCancel(ctx), "k", time.Minute, locktest.Idle)
		})
		require.ErrorIs(t, err, leasehold.ErrLost)
	})
}

func TestFromContextReturnsTheInnermostLease(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		is := func(ctx context.Context, want *leasehold.Lease) {
			t.Helper()
			x, ok := leasehold.FromContext(ctx)
			require.Equal(t, want != nil, ok)
			require.Same(t, want, x)
		}
		is(t.Context(), nil)
		var kept context.Context
		var lease *leasehold.Lease
		require.NoError(t, p.WithLock(t.Context(), "a", time.Minute, func(a context.Context, x *leasehold.Lease) error {
			is(a, x)
			child, cancel := context.WithTimeout(a, time.Second)
			defer cancel()
			is(child, x)
			require.NoError(t, p.WithLock(child, "b", time.Minute, func(b context.Context, y *leasehold.Lease) error {
				is(b, y)
				is(a, x)
				return nil
			}))
			kept, lease = a, x
			return nil
		}))
		is(kept, lease)
		require.ErrorIs(t, lease.Err(), leasehold.ErrReleased, "it says so itself")

		z, err := p.TryAcquire(t.Context(), "z", time.Minute)
		require.NoError(t, err)
		of, cancel := z.Context(t.Context())
		defer cancel()
		is(of, z)
		assert.Contains(t, fmt.Sprint(of), `.Lease("z")`)
		require.NoError(t, z.Release(t.Context()))
		over, cancel := z.Context(t.Context())
		defer cancel()
		is(over, z)
		require.ErrorIs(t, context.Cause(over), leasehold.ErrReleased)
	})
}
