package leasehold

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

// A line of very many who are dead, as an accident or an attack leaves it.

// crowd puts so many dead waiters in front of the line.
func (w *world) crowd(key string, n int) {
	names := scriptKeys(key)
	for i := range n {
		_, err := w.m.ZAdd(names["Q"], float64(i), fmt.Sprint("dead", i))
		require.NoError(w.t, err)
	}
	w.m.SetTTL(names["Q"], time.Minute)
}

func TestTryAcquireIsNotRefusedForTheSakeOfManyDead(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		w.crowd("k", 1100)
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		assert.Len(t, p.fault.Sent(), 5, "each clears 256 away")
		assert.Equal(t, 5, p.heard("acquired")[0].Attempts)
		require.NoError(t, x.Release(t.Context()))
	})
}

func TestTryAcquirePassesNobodyWhoLivesBehindManyDead(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p, q := w.party(), w.party()
		w.take("k", time.Minute)
		waiting := beside(func() (*Lease, error) { return q.Acquire(t.Context(), "k", time.Minute) })
		await(t, time.Second, func() bool { return len(w.line("k")) == 1 })
		w.crowd("k", 1100)
		w.m.Del("k")
		_, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.ErrorIs(t, err, ErrHeld)
		require.NoError(t, (<-waiting).err)
	})
}

// Its release has cleared some away. The first who looks goes on.
func TestAWaiterBehindManyDeadGetsInAtItsNextLook(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p, q := w.party(), w.party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		waiting := beside(func() (*Lease, error) { return q.Acquire(t.Context(), "k", time.Minute) })
		await(t, time.Second, func() bool { return len(w.line("k")) == 1 })
		w.crowd("k", 1500)
		begun := time.Now()
		require.NoError(t, x.Release(t.Context()))
		assert.Len(t, w.line("k"), 1501-256)
		assert.Empty(t, w.owner("k"))
		require.NoError(t, (<-waiting).err)
		assert.Less(t, time.Since(begun), tick+50*time.Millisecond)
	})
}

// With a bound of its own that is over before the line is cleared, a try says that, and not that the lock is held.
func TestATryThatCannotClearTheLineInTimeSaysSo(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		w.crowd("k", 1100)
		p.fault.Every(runOf(acquireScript)).Delay(30 * time.Millisecond)
		_, err := p.TryAcquire(t.Context(), "k", 100*time.Millisecond)
		require.NotErrorIs(t, err, ErrHeld)
		require.ErrorAs(t, err, new(*fault.NoAnswer))
		assert.Positive(t, len(w.line("k")))
		p.fault.Clear()
	})
}

// How long Redis does nothing else cannot be told from a busy machine's; how much it does at a time can.
func TestNoScriptRunWorksOffALongLineOnARealServer(t *testing.T) {
	t.Parallel()
	c := redistest.Server(t).Client()
	ctx, l, names := t.Context(), New(c), scriptKeys("k")
	defer l.Close()
	x, err := l.TryAcquire(ctx, "k", time.Minute)
	require.NoError(t, err)
	const n = 100_000
	pipe := c.Pipeline()
	for i := range n {
		pipe.ZAdd(ctx, names["Q"], redis.Z{Score: float64(i), Member: i})
		pipe.HSet(ctx, names["G"], i, 1)
	}
	pipe.PExpire(ctx, names["Q"], time.Minute)
	pipe.PExpire(ctx, names["G"], time.Minute)
	_, err = pipe.Exec(ctx)
	require.NoError(t, err)

	s, err := l.Inspect(ctx, "k")
	require.NoError(t, err)
	assert.Equal(t, n-1000, s.Waiters)
	require.NoError(t, x.Release(ctx))
	assert.EqualValues(t, n-256, c.ZCard(ctx, names["Q"]).Val())
	assert.EqualValues(t, n-256, c.HLen(ctx, names["G"]).Val())
	x, err = l.Acquire(ctx, "k", time.Minute)
	require.NoError(t, err)
	assert.Zero(t, c.Exists(ctx, names["Q"], names["G"]).Val())
	require.NoError(t, x.Release(ctx))
}
