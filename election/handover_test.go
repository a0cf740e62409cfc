package election_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/election"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/go-leasehold/leasehold/leaseholdtest"
)

func TestAResignationElectsTheFirstWhoWaitsAndStandsAgain(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		var b book
		ctx, cancel := context.WithCancel(t.Context())
		resign := func(context.Context, *leasehold.Lease) error {
			time.Sleep(time.Minute)
			return fmt.Errorf("my minute is over: %w", election.ErrResign)
		}
		first := stand(ctx, env.Locker(), b.lead("a", resign))
		synctest.Wait()
		second := stand(ctx, env.Locker(), b.lead("b", resign))
		time.Sleep(5*time.Minute + 30*time.Second)
		cancel()
		require.ErrorIs(t, <-first, context.Canceled)
		require.ErrorIs(t, <-second, context.Canceled)

		entries := b.read()
		require.Len(t, entries, 6)
		for i, e := range entries {
			assert.Equal(t, []string{"a", "b"}[i%2], e.who)
			if i > 0 {
				assert.Equal(t, entries[i-1].left, e.begun, "by the release itself")
				assert.Greater(t, e.term, entries[i-1].term)
			}
		}
	})
}

// A lone candidate that resigns at once must not keep Redis busy with it.
func TestALoneCandidateThatResignsPausesBeforeItStandsAgain(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		var b book
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := election.Run(ctx, env.Locker(), "k", ttl, b.lead("a", func(context.Context, *leasehold.Lease) error { return election.ErrResign }))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Less(t, len(b.read()), 121)
		assert.Greater(t, len(b.read()), 59)
	})
}

// The release is repeated, and the failed one has not made the candidate forget what it held.
func TestAResignationThatRedisDoesNotHearIsRepeated(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		var b book
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan error, 1)
		go func() {
			first <- election.Run(ctx, env.Locker(), "k", time.Hour, b.lead("a", func(context.Context, *leasehold.Lease) error {
				env.Outage()
				return election.ErrResign
			}))
		}()
		synctest.Wait()
		second := stand(ctx, env.Locker(), b.lead("b", untilEnd))
		time.Sleep(5 * time.Second)
		env.Back()
		time.Sleep(5 * time.Second)
		require.Len(t, b.read(), 2, "nobody waits for the whole TTL")
		cancel()
		<-first
		<-second
	})
}

func TestALeaderThatIsToldToStopLeadsUntilItHasUnwound(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		var b book
		ctx, cancel := context.WithCancel(t.Context())
		old := stand(ctx, env.Locker(), b.lead("old", func(ctx context.Context, term *leasehold.Lease) error {
			<-ctx.Done()
			time.Sleep(3 * ttl) // it unwinds
			assert.True(t, term.Valid())
			return ctx.Err()
		}))
		synctest.Wait()
		next, stop := context.WithCancel(t.Context())
		defer stop()
		fresh := stand(next, env.Locker(), b.lead("new", untilEnd))
		time.Sleep(time.Minute)
		cancel()
		err := <-old
		require.ErrorIs(t, err, context.Canceled)
		var of *election.TermError
		require.ErrorAs(t, err, &of)
		synctest.Wait()

		entries := b.read()
		require.Len(t, entries, 2)
		assert.Equal(t, 3*ttl, entries[0].left.Sub(entries[0].told))
		assert.Equal(t, entries[0].left, entries[1].begun, "by the release itself, though its context had ended")
		stop()
		<-fresh
	})
}

func TestALeaderHandsOverWhenTheNextProcessStands(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		var b book
		old := stand(t.Context(), env.Locker(), b.lead("old", func(ctx context.Context, term *leasehold.Lease) error {
			select {
			case <-term.Contended():
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}))
		time.Sleep(time.Hour)
		require.Empty(t, old, "alone, it goes on")
		ctx, cancel := context.WithCancel(t.Context())
		begun := time.Now()
		fresh := stand(ctx, env.Locker(), b.lead("new", untilEnd))
		require.NoError(t, <-old)
		synctest.Wait()
		entries := b.read()
		require.Len(t, entries, 2)
		assert.Equal(t, entries[0].left, entries[1].begun)
		assert.LessOrEqual(t, entries[1].begun.Sub(begun), ttl/3)
		cancel()
		require.ErrorIs(t, <-fresh, context.Canceled)
		assert.Len(t, b.read(), 2, "they do not take turns")
	})
}

func TestAProcessIsNotElectedByTheLeaseOfItsFormerLife(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		// It crashed: nobody renews its lease, and nobody releases it.
		former, err := env.Locker(leasehold.WithOwner("worker-1")).TryAcquire(t.Context(), "k", ttl)
		require.NoError(t, err)
		begun := time.Now()
		var b book
		err = election.Run(t.Context(), env.Locker(), "k", ttl, b.lead("worker-1", func(context.Context, *leasehold.Lease) error { return nil }),
			leasehold.WithOwner("worker-1"))
		require.NoError(t, err)
		entries := b.read()
		require.Len(t, entries, 1)
		assert.GreaterOrEqual(t, entries[0].begun.Sub(begun), ttl)
		assert.Less(t, entries[0].begun.Sub(begun), ttl+time.Second)
		assert.Greater(t, entries[0].term, former.FencingToken())
	})
}

func TestAnOutageOfHalfATTLEndsNoTerm(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		var b book
		ctx, cancel := context.WithCancel(t.Context())
		done := stand(ctx, env.Locker(), b.lead("a", untilEnd))
		synctest.Wait()
		for range 5 {
			env.Outage()
			time.Sleep(ttl / 2)
			env.Back()
			time.Sleep(time.Minute)
		}
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		assert.Len(t, b.read(), 1)
	})
}

// Both are real candidates, and only the leader is cut off. It must have been told before the other begins, though no call of
// its returns anything.
func TestALeaderThatIsCutOffIsToldBeforeAnotherIsElected(t *testing.T) {
	faults := map[string]func(*redistest.DialFault){"refused": func(w *redistest.DialFault) { w.Refuse() }, "silent": func(w *redistest.DialFault) { w.BlackHole() }}
	for name, cut := range faults {
		t.Run(name, func(t *testing.T) {
			redistest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, dial func(...func(*redis.Options)) *redis.Client) {
				var wire *redistest.DialFault
				near := leasehold.New(dial(func(o *redis.Options) {
					wire = redistest.FaultyDialer(o.Dialer)
					o.Dialer = wire.Dial
				}))
				far := leasehold.New(dial())
				t.Cleanup(func() { wire.Pass(); _, _ = near.Close(), far.Close() })

				var b book
				ctx, cancel := context.WithCancel(t.Context())
				first := stand(ctx, near, b.lead("near", untilEnd))
				synctest.Wait()
				second := stand(ctx, far, b.lead("far", untilEnd))
				time.Sleep(time.Minute)
				cut(wire)
				time.Sleep(2 * ttl)
				entries := b.read()
				require.Len(t, entries, 2)
				require.False(t, entries[0].told.IsZero())
				assert.True(t, entries[0].told.Before(entries[1].begun), "told at %v, the other began at %v", entries[0].told, entries[1].begun)
				assert.Less(t, entries[1].begun.Sub(entries[0].told), time.Second)

				wire.Pass()
				time.Sleep(time.Minute)
				require.Len(t, b.read(), 2, "the former leader stands, and waits")
				cancel()
				<-first
				<-second
			})
		})
	}
}

func TestALeaderThatHangsIsBoundedByMaxHold(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		var b book
		ctx, cancel := context.WithCancel(t.Context())
		stuck := make(chan struct{})
		first := stand(ctx, env.Locker(), b.lead("a", func(context.Context, *leasehold.Lease) error { <-stuck; return nil }), leasehold.WithMaxHold(time.Hour))
		synctest.Wait()
		second := stand(ctx, env.Locker(), b.lead("b", untilEnd))
		time.Sleep(61 * time.Minute)
		entries := b.read()
		require.Len(t, entries, 2)
		assert.Equal(t, time.Hour, entries[0].told.Sub(entries[0].begun))
		close(stuck)
		cancel()
		require.ErrorIs(t, <-first, context.Canceled)
		<-second
	})
}

func TestAPanicOfTheFunctionGivesTheTermUp(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		require.PanicsWithValue(t, "at the disk", func() {
			_ = election.Run(t.Context(), env.Locker(), "k", ttl, func(context.Context, *leasehold.Lease) error { panic("at the disk") })
		})
		env.Hold("k")
	})
}

func TestALockerThatClosesEndsRunAndLeavesTheLeaderTimeToUnwind(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		locker := env.Locker()
		var b book
		done := stand(t.Context(), locker, b.lead("a", func(ctx context.Context, term *leasehold.Lease) error {
			<-ctx.Done()
			assert.ErrorIs(t, context.Cause(ctx), leasehold.ErrClosed)
			time.Sleep(time.Second)
			assert.True(t, term.Valid())
			return election.ErrResign // there is no standing again
		}))
		synctest.Wait()
		require.NoError(t, locker.Close())
		require.ErrorIs(t, <-done, leasehold.ErrClosed)
		assert.Len(t, b.read(), 1)
	})
}

func TestAContextThatEndsAfterALossEndsRun(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		ctx, cancel := context.WithCancelCause(t.Context())
		begun := time.Now()
		err := election.Run(ctx, env.Locker(), "k", ttl, func(_ context.Context, term *leasehold.Lease) error {
			env.Lose(term)
			time.AfterFunc(time.Millisecond, func() { cancel(errDisk) })
			return nil
		})
		require.ErrorIs(t, err, errDisk)
		assert.Equal(t, time.Millisecond, time.Since(begun))
	})
}
