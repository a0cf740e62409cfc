package leasehold

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestStatsAddUp(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p, q := w.party(), w.party()
		assert.Zero(t, p.Stats())
		a := p.keeps("a", 30*time.Second)
		b, err := p.TryAcquire(t.Context(), "b", time.Minute)
		require.NoError(t, err)
		assert.Equal(t, Stats{Held: 2, Acquired: 2, AcquiredAtOnce: 2}, p.Stats())

		w.take("c", time.Minute)
		_, err = p.TryAcquire(t.Context(), "c", time.Minute)
		require.ErrorIs(t, err, ErrHeld)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wait := beside(func() (*Lease, error) { return p.Acquire(ctx, "c", time.Minute) })
		time.Sleep(500 * time.Millisecond)
		assert.Equal(t, Stats{Held: 2, Waiting: 1, Acquired: 2, GaveUp: 1, AcquiredAtOnce: 2}, p.Stats())
		require.Error(t, (<-wait).err)
		assert.Equal(t, Stats{Held: 2, Acquired: 2, GaveUp: 2, AcquiredAtOnce: 2}, p.Stats())

		require.NoError(t, b.Renew(t.Context()))
		p.fault.Next(1, nil).Fail(errNetwork)
		require.Error(t, b.Renew(t.Context()))
		assert.Equal(t, Stats{Held: 2, Acquired: 2, GaveUp: 2, Renewed: 1, RenewalsFailed: 1, AcquiredAtOnce: 2}, p.Stats())

		// Each way to be woken.
		x, err := q.TryAcquire(t.Context(), "d", time.Minute)
		require.NoError(t, err)
		message := beside(func() (*Lease, error) { return p.Acquire(t.Context(), "d", time.Minute) })
		w.take("e", 1500*time.Millisecond)
		expiry := beside(func() (*Lease, error) { return p.Acquire(t.Context(), "e", time.Minute) })
		w.take("f", time.Minute)
		tick := beside(func() (*Lease, error) { return p.Acquire(t.Context(), "f", time.Minute) })
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, x.Release(t.Context()))
		w.m.Del("f")
		d := (<-message).lease
		require.NoError(t, (<-expiry).err)
		require.NoError(t, (<-tick).err)
		s := p.Stats()
		assert.Equal(t, []int64{5, 2, 1, 1, 1}, []int64{s.Acquired, s.AcquiredAtOnce, s.AcquiredByMessage, s.AcquiredByExpiry, s.AcquiredByPoll})
		assert.Equal(t, 5, s.Held)

		// Each way to end.
		require.NoError(t, d.Release(t.Context()))
		w.m.Del("a")
		awaitEnd(a)
		p.wire.DropReplies(1, "evalsha")
		require.NoError(t, b.Release(t.Context()))
		s = p.Stats()
		assert.Equal(t, 2, s.Held)
		assert.Equal(t, []int64{1, 1, 1}, []int64{s.Released, s.Lost, s.ReleasesUnconfirmed})
		x, err = p.TryAcquire(t.Context(), "given away", time.Minute)
		require.NoError(t, err)
		require.NotEmpty(t, x.Detach())
		s = p.Stats()
		assert.EqualValues(t, 1, s.Detached)
		assert.EqualValues(t, s.Held, s.Acquired-s.Released-s.Lost-s.ReleasesUnconfirmed-s.Detached)
	})
}

// A lost lease that is released for the sake of others has ended once.
func TestALeaseEndsOnceInTheStats(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute, WithMaxHold(time.Second))
		require.NoError(t, err)
		awaitEnd(x)
		require.ErrorIs(t, x.Release(t.Context()), ErrLost)
		assert.Equal(t, Stats{Acquired: 1, AcquiredAtOnce: 1, Lost: 1}, p.Stats())
		assert.Equal(t, []string{"start", "acquired", "lost"}, p.story())
	})
}
