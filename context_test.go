package leasehold

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// refusesNested checks that no call with that context takes the key, and that none waits for it.
func (p *party) refusesNested(ctx context.Context, key string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Hour) // or a wait would go on for ever
	defer cancel()
	begun, sent, told := time.Now(), len(p.fault.Sent()), len(p.story())
	for _, e := range entryPointsOf(ctx) {
		if !e.ttl {
			continue
		}
		err := e.call(p.Locker, key, time.Second)
		require.ErrorIs(p.t, err, ErrInvalid, e.name)
		require.ErrorContains(p.t, err, fmt.Sprintf("%q: invalid argument: held by the lease of this context: pass it", p.defaults.prefix+key))
	}
	assert.Zero(p.t, time.Since(begun))
	assert.Len(p.t, p.fault.Sent(), sent)
	assert.Len(p.t, p.story(), told, "what is refused before anything is sent is no attempt")
}

// Whoever waits for a lock that their own caller holds waits for ever.
func TestAnAcquireWithAContextOfTheLeaseThatHoldsTheKeyIsRefused(t *testing.T) {
	type word string
	nothing := func() {}
	for name, derive := range map[string]func(ctx context.Context, p *party) (context.Context, context.CancelFunc){
		"fn's context": func(ctx context.Context, _ *party) (context.Context, context.CancelFunc) { return ctx, nothing },
		"one with a value": func(ctx context.Context, _ *party) (context.Context, context.CancelFunc) {
			return context.WithValue(ctx, word("a"), 1), nothing
		},
		"one with a timeout": func(ctx context.Context, _ *party) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Hour)
		},
		"one that nothing ends": func(ctx context.Context, _ *party) (context.Context, context.CancelFunc) {
			return context.WithoutCancel(ctx), nothing
		},
		"one of another lease inside": func(ctx context.Context, p *party) (context.Context, context.CancelFunc) {
			x, err := p.TryAcquire(ctx, fmt.Sprint("between ", p.Stats().Acquired), time.Minute)
			require.NoError(p.t, err)
			return x.Context(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				p := w.party(WithKeyPrefix("p:"))
				require.NoError(t, p.WithLock(t.Context(), "k", time.Minute, func(ctx context.Context, _ *Lease) error {
					inner, cancel := derive(ctx, p)
					defer cancel()
					p.refusesNested(inner, "k")
					return nil
				}))
				x, err := p.TryAcquire(t.Context(), "k", time.Minute)
				require.NoError(t, err)
				ctx, cancel := x.Context(t.Context())
				defer cancel()
				inner, cancel := derive(ctx, p)
				defer cancel()
				p.refusesNested(inner, "k")
			})
		})
	}
	quorumBubble(t, 3, func(t *testing.T, _ []*fakeNode, join joinFunc) {
		q := join()
		require.NoError(t, q.WithLock(t.Context(), "k", time.Minute, func(ctx context.Context, _ *Lease) error {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			for _, e := range entryPointsOf(ctx) {
				if e.ttl {
					require.ErrorIs(t, e.call(q.Locker, "k", time.Second), ErrInvalid, e.name)
				}
			}
			return nil
		}))
	})
}

// Another Locker of the same Redis is told by the fencing token of the lease that holds the lock: nothing else says that
// two clients reach one Redis.
func TestAWaitOfAnotherLockerForTheLeaseOfItsContextIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p, q := w.party(WithKeyPrefix("p:")), w.party()
		require.NoError(t, p.WithLock(t.Context(), "k", time.Minute, func(ctx context.Context, _ *Lease) error {
			ctx, cancel := context.WithTimeout(ctx, time.Hour)
			defer cancel()
			begun := time.Now()
			_, err := q.Acquire(ctx, "p:k", time.Minute)
			require.ErrorIs(t, err, ErrInvalid)
			require.EqualError(t, err, `leasehold: acquire "p:k": invalid argument: held by the lease of this context: pass it`)
			require.ErrorIs(t, q.WithLock(ctx, "p:k", time.Minute, idle), ErrInvalid)
			assert.Zero(t, time.Since(begun))
			synctest.Wait()
			assert.Empty(t, w.line("p:k"), "it stands in the line")

			// What is no wait is no fault either.
			_, err = q.TryAcquire(ctx, "p:k", time.Minute)
			require.ErrorIs(t, err, ErrHeld)
			return q.WithLock(ctx, "k", time.Minute, idle) // the key of another name
		}))
		require.NoError(t, q.WithLock(t.Context(), "p:k", time.Minute, idle))
	})
}

func TestOnlyALeaseThatIsHeldRefusesAnotherOfItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		require.NoError(t, p.WithLock(t.Context(), "k", time.Minute, func(ctx context.Context, x *Lease) error {
			on := context.WithoutCancel(ctx)
			require.NoError(t, p.WithLock(ctx, "other", time.Minute, func(ctx context.Context, _ *Lease) error {
				p.refusesNested(ctx, "k")
				p.refusesNested(ctx, "other")
				return nil
			}))
			require.NoError(t, x.Release(ctx))
			return p.WithLock(on, "k", time.Minute, idle)
		}))

		err := p.WithLock(t.Context(), "k", time.Minute, func(ctx context.Context, x *Lease) error {
			w.m.Del("k")
			require.ErrorIs(t, x.Renew(ctx), ErrLost)
			return p.WithLock(context.WithoutCancel(ctx), "k", time.Minute, idle)
		})
		require.ErrorIs(t, err, ErrLost)
	})
}

func TestFromContextReturnsTheInnermostLease(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		is := func(ctx context.Context, want *Lease) {
			t.Helper()
			x, ok := FromContext(ctx)
			require.Equal(t, want != nil, ok)
			require.Same(t, want, x)
		}
		is(t.Context(), nil)
		var kept context.Context
		var lease *Lease
		require.NoError(t, p.WithLock(t.Context(), "a", time.Minute, func(a context.Context, x *Lease) error {
			is(a, x)
			child, cancel := context.WithTimeout(a, time.Second)
			defer cancel()
			is(child, x)
			require.NoError(t, p.WithLock(child, "b", time.Minute, func(b context.Context, y *Lease) error {
				is(b, y)
				is(a, x)
				return nil
			}))
			kept, lease = a, x
			return nil
		}))
		is(kept, lease)
		require.ErrorIs(t, lease.Err(), ErrReleased, "it says so itself")

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
		require.ErrorIs(t, context.Cause(over), ErrReleased)
	})
}
