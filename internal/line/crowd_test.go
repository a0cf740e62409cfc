package line_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

// A line of very many who are dead, as an accident or an attack leaves it.

func TestTryAcquireIsNotRefusedForTheSakeOfManyDead(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		w.Crowd("k", 1100)
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		assert.Len(t, p.Fault.Sent(), 5, "each clears 256 away")
		assert.Equal(t, 5, p.Heard("acquired")[0].Attempts)
		require.NoError(t, x.Release(t.Context()))
	})
}

func TestTryAcquirePassesNobodyWhoLivesBehindManyDead(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, q := w.Party(), w.Party()
		w.Take("k", time.Minute)
		waiting := locktest.Beside(func() (*leasehold.Lease, error) { return q.Acquire(t.Context(), "k", time.Minute) })
		locktest.Await(t, time.Second, func() bool { return len(w.Line("k")) == 1 })
		w.Crowd("k", 1100)
		w.M.Del("k")
		_, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.ErrorIs(t, err, leasehold.ErrHeld)
		require.NoError(t, (<-waiting).Err)
	})
}

// Its release has cleared some away. The first who looks goes on.
func TestAWaiterBehindManyDeadGetsInAtItsNextPoll(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, q := w.Party(), w.Party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		waiting := locktest.Beside(func() (*leasehold.Lease, error) { return q.Acquire(t.Context(), "k", time.Minute) })
		locktest.Await(t, time.Second, func() bool { return len(w.Line("k")) == 1 })
		w.Crowd("k", 1500)
		begun := time.Now()
		require.NoError(t, x.Release(t.Context()))
		assert.Len(t, w.Line("k"), 1501-256)
		assert.Empty(t, w.Owner("k"))
		require.NoError(t, (<-waiting).Err)
		assert.Less(t, time.Since(begun), locktest.PollInterval+50*time.Millisecond)
	})
}

// With a bound of its own that is over before the line is cleared, a try says that, and not that the lock is held.
func TestATryThatCannotClearTheLineInTimeSaysSo(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		w.Crowd("k", 1100)
		p.Fault.Every(locktest.RunOf(locktest.AcquireScript)).Delay(30 * time.Millisecond)
		_, err := p.TryAcquire(t.Context(), "k", 100*time.Millisecond)
		require.NotErrorIs(t, err, leasehold.ErrHeld)
		require.ErrorAs(t, err, new(*fault.NoAnswer))
		assert.Positive(t, len(w.Line("k")))
		p.Fault.Clear()
	})
}

// How long Redis does nothing else cannot be told from a busy machine's; how much it does at a time can.
func TestNoScriptRunWorksOffALongLineOnARealServer(t *testing.T) {
	t.Parallel()
	c := redistest.Server(t).Client()
	ctx, l, names := t.Context(), leasehold.New(c), locktest.ScriptKeys("k")
	defer l.Close()
	x, err := l.TryAcquire(ctx, "k", time.Minute)
	require.NoError(t, err)
	const n = 100_000
	pipe := c.Pipeline()
	for i := range n {
		pipe.ZAdd(ctx, names["Q"], redis.Z{Score: float64(i), Member: i})
		pipe.HSet(ctx, names["G"], i, 1)
	}
	pipe.Append(ctx, names["F"], "+") // as who joins the line does
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
