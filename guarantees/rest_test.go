package guarantees_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/inside"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

// restsUntil requires that the lock rests until that instant and is free from then on.
func restsUntil(t *testing.T, p *locktest.Party, until time.Time) {
	t.Helper()
	s, err := p.Inspect(t.Context(), "k")
	require.NoError(t, err)
	assert.True(t, s.Held && s.Resting, "%+v", s)
	assert.WithinDuration(t, until, time.Now().Add(s.TTL), 5*time.Millisecond)
	time.Sleep(time.Until(until) - 5*time.Millisecond)
	_, err = p.TryAcquire(t.Context(), "k", time.Second)
	require.ErrorIs(t, err, leasehold.ErrHeld)
	time.Sleep(10 * time.Millisecond)
	s, err = p.Inspect(t.Context(), "k")
	require.NoError(t, err)
	assert.False(t, s.Held || s.Resting, "%+v", s)
}

// However a lease ends that was not lost, the lock rests until ten seconds after it was won, by the clock of Redis.
func TestALockRestsUntilItsTimeAfterItWasWon(t *testing.T) {
	rests := leasehold.WithMinHold(10 * time.Second)
	for name, hold := range map[string]func(p *locktest.Party){
		"Release": func(p *locktest.Party) {
			x := locktest.Take(p.T, p.Locker, time.Minute, rests)
			time.Sleep(2 * time.Second)
			require.NoError(p.T, x.Release(p.T.Context()))
			require.NoError(p.T, x.Release(p.T.Context()), "again")
		},
		"Release of a lease with little time left": func(p *locktest.Party) {
			x := locktest.Take(p.T, p.Locker, time.Second, rests)
			time.Sleep(900 * time.Millisecond)
			require.NoError(p.T, x.Release(p.T.Context()))
		},
		"Release of a lease whose token others know": func(p *locktest.Party) {
			x := locktest.Take(p.T, p.Locker, time.Minute, rests)
			_ = x.Token()
			require.NoError(p.T, x.Release(p.T.Context()))
		},
		"Release under a lock delay": func(p *locktest.Party) {
			x := locktest.Take(p.T, p.Locker, time.Minute, rests, leasehold.WithLockDelay(time.Minute))
			require.NoError(p.T, x.Release(p.T.Context()))
		},
		"WithLock": func(p *locktest.Party) {
			require.NoError(p.T, p.WithLock(p.T.Context(), "k", time.Minute, locktest.Idle, rests))
		},
		"WithLock, and a panic": func(p *locktest.Party) {
			defer func() { assert.NotNil(p.T, recover()) }()
			_ = p.WithLock(p.T.Context(), "k", time.Minute, func(context.Context, *leasehold.Lease) error { panic("no") }, rests)
		},
		"Close": func(p *locktest.Party) {
			locktest.Take(p.T, p.Locker, time.Minute, rests)
			require.NoError(p.T, p.Close())
		},
		"Shutdown": func(p *locktest.Party) {
			locktest.Take(p.T, p.Locker, time.Minute, rests)
			require.NoError(p.T, p.Shutdown(p.T.Context()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
				p, won := w.Party(leasehold.WithOwner("worker 7")), time.Now()
				hold(p)
				restsUntil(t, w.Party(), won.Add(10*time.Second))
				assert.Equal(t, []string{"start", "acquired", "released"}, p.Story())
				assert.True(t, p.Heard("released")[0].Clean)
			})
		})
	}
}

func TestAfterALongEnoughLeaseTheLockDoesNotRest(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party(leasehold.WithMinHold(10 * time.Second))
		x := p.Keeps("k", 3*time.Second)
		time.Sleep(11 * time.Second)
		require.NoError(t, x.Release(t.Context()))
		assert.Empty(t, w.Owner("k"))
	})
}

// The work of a lease that was lost may not be done.
func TestALockWhoseLeaseWasLostDoesNotRest(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party(leasehold.WithMinHold(10*time.Second), leasehold.WithMaxHold(time.Second))
		x := p.Keeps("k", 5*time.Second)
		locktest.AwaitEnd(x)
		require.ErrorIs(t, x.Release(t.Context()), leasehold.ErrLost)
		assert.Empty(t, w.Owner("k"))
	})
}

func TestInspectSaysWhoseLeaseTheLockRestsFrom(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party(leasehold.WithOwner("worker 7"), leasehold.WithMinHold(10*time.Second))
		x := locktest.Take(t, p.Locker, time.Minute)
		require.NoError(t, x.Release(t.Context()))
		s, err := p.Inspect(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, leasehold.LockState{
			Key: "k", Held: true, Owner: "worker 7", TTL: 10 * time.Second, FencingToken: x.FencingToken(), Resting: true,
		}, s)
	})
}

func TestForceReleaseEndsARest(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party(leasehold.WithMinHold(time.Hour))
		require.NoError(t, p.WithLock(t.Context(), "k", time.Minute, locktest.Idle))
		require.NoError(t, p.ForceRelease(t.Context(), "k"))
		locktest.Take(t, p.Locker, time.Minute)
		require.NoError(t, p.Close())
		next := w.Party()
		waiting := locktest.Beside(func() (*leasehold.Lease, error) { return next.Acquire(t.Context(), "k", time.Minute) })
		time.Sleep(time.Minute)
		require.NoError(t, next.ForceRelease(t.Context(), "k"))
		r := <-waiting
		require.NoError(t, r.Err)
		assert.Equal(t, time.Minute, r.Took)
		assert.Empty(t, p.Heard("lost"))
	})
}

// The waiters have seen the TTL of the lease, which is longer than the rest.
func TestWaitersGetTheLockWhenItsRestEnds(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, q := w.Party(leasehold.WithMinHold(1100*time.Millisecond)), w.Party(leasehold.WithMinHold(time.Second))
		x := locktest.Take(t, p.Locker, time.Minute)
		var waiting []<-chan locktest.Result
		for range 3 {
			waiting = append(waiting, locktest.Beside(func() (*leasehold.Lease, error) {
				return q.Acquire(t.Context(), "k", time.Minute, leasehold.WithAutoRenew(true))
			}))
			synctest.Wait()
		}
		time.Sleep(time.Second)
		require.NoError(t, x.Release(t.Context()))
		at := 1100 * time.Millisecond
		for _, one := range waiting {
			r := <-one
			require.NoError(t, r.Err)
			assert.InDelta(t, at, r.Took, float64(5*time.Millisecond), "not at the next poll")
			require.NoError(t, r.Lease.Release(t.Context()))
			at = r.Took + time.Second
		}
		assert.EqualValues(t, 3, q.Stats().AcquiredByExpiry)
	})
}

// The first copy has done the work, and the second finds that.
func TestAReleaseThatIsSentAgainFindsTheLockResting(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, won := w.Party(leasehold.WithMinHold(10*time.Second)), time.Now()
		x := locktest.Take(t, p.Locker, time.Minute)
		time.Sleep(time.Second)
		p.Wire.DropReplies(1, "evalsha")
		require.NoError(t, x.Release(t.Context()))
		assert.True(t, p.Heard("released")[0].Clean, "unlike a lock that is free, this one says who had it")
		restsUntil(t, w.Party(), won.Add(10*time.Second))
	})
}

// A copy of the acquire that comes after the rest must not take the lock for nobody.
func TestALateCopyOfTheAcquireFindsALockThatHasRested(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, won := w.Party(leasehold.WithMinHold(10*time.Second)), time.Now()
		p.Wire.DropReplies(1, "evalsha")
		x := locktest.Take(t, p.Locker, time.Minute)
		token := inside.State(x).Token
		require.NoError(t, x.Release(t.Context()))
		restsUntil(t, w.Party(), won.Add(10*time.Second))
		keys := rediskey.Lock("", "k")
		args := slices.Concat([]any{"eval", locktest.AcquireScript.Src, len(keys)}, keys[:], []any{token, 60_000, "try"})
		got, err := w.Raw.Do(t.Context(), args...).Result()
		require.NoError(t, err)
		assert.Equal(t, []any{"GONE"}, got)
	})
}

// Then the fencing token does not say when the lock was won. The holder knows how long it has had it, at least.
func TestALockRestsNoLongerThoughItsCounterIsAheadOfTheClock(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		w.Put(string(rediskey.Derive(nil, "", rediskey.Counter, "k")), fmt.Sprint(time.Now().Add(time.Hour).UnixMicro()), 8*24*time.Hour)
		p, won := w.Party(leasehold.WithMinHold(10*time.Second)), time.Now()
		x := locktest.Take(t, p.Locker, time.Minute)
		time.Sleep(4 * time.Second)
		require.NoError(t, x.Release(t.Context()))
		restsUntil(t, w.Party(), won.Add(10*time.Second))

		won = time.Now()
		x = p.Keeps("k", time.Minute)
		time.Sleep(11 * time.Second)
		require.NoError(t, x.Release(t.Context()))
		assert.Empty(t, w.Owner("k"), "it was held for %v", time.Since(won))
	})
}

// A lease that was passed on is a new one: it rests as its adopter says, from the adoption on.
func TestAnAdoptedLeaseRestsAsItsAdopterSays(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, q := w.Party(leasehold.WithMinHold(time.Hour)), w.Party()
		x := locktest.Take(t, p.Locker, time.Minute)
		time.Sleep(time.Second)
		y, err := q.Adopt(t.Context(), "k", x.Detach(), time.Minute, leasehold.WithMinHold(10*time.Second))
		require.NoError(t, err)
		won := time.Now()
		require.NoError(t, y.Release(t.Context()))
		restsUntil(t, w.Party(), won.Add(10*time.Second))
	})
}

func TestAPlainClientFindsARestingLockTaken(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party(leasehold.WithMinHold(10 * time.Second))
		require.NoError(t, p.WithLock(t.Context(), "k", time.Minute, locktest.Idle))
		set := w.Raw.SetNX(t.Context(), "k", "mine", time.Second)
		assert.False(t, set.Val())
		time.Sleep(10*time.Second + time.Millisecond)
		assert.True(t, w.Raw.SetNX(t.Context(), "k", "mine", time.Second).Val())
	})
}

func TestALockRestsOnARealServer(t *testing.T) {
	t.Parallel()
	const d = 500 * time.Millisecond
	s := redistest.Server(t)
	p, next := leasehold.New(s.Client()), leasehold.New(s.Client())
	defer next.Close()
	begun := time.Now()
	x, err := p.TryAcquire(t.Context(), "k", time.Minute, leasehold.WithMinHold(d))
	require.NoError(t, err)
	time.Sleep(d / 5)
	require.NoError(t, p.Close())
	require.ErrorIs(t, x.Err(), leasehold.ErrReleased)
	state, err := next.Inspect(t.Context(), "k")
	require.NoError(t, err)
	assert.True(t, state.Resting || time.Since(begun) > d, "%+v", state)
	y, err := next.Acquire(t.Context(), "k", time.Minute)
	require.NoError(t, err)
	// The fencing tokens are the server's times: the lock was never free in between.
	assert.GreaterOrEqual(t, y.FencingToken()-x.FencingToken(), d.Microseconds())
	require.NoError(t, y.Release(t.Context()))
}

// counterTTL is how long the fencing counter of k has to live.
func counterTTL(w *locktest.World) time.Duration {
	return w.M.TTL(string(rediskey.Derive(nil, "", rediskey.Counter, "k")))
}

func TestACounterIsForgottenSoonerIfTheOptionsOfItsLeasesSaySo(t *testing.T) {
	const week = 7 * 24 * time.Hour
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, q := w.Party(leasehold.WithCounterLife(10*time.Minute)), w.Party()
		for range 3 {
			x := locktest.Take(t, p.Locker, time.Minute)
			assert.Equal(t, week, counterTTL(w), "a lease that is not released keeps it")
			time.Sleep(time.Second)
			require.NoError(t, x.Release(t.Context()))
			assert.Equal(t, 10*time.Minute, counterTTL(w))
			time.Sleep(time.Second)
		}
		assert.EqualValues(t, 3, p.Stats().Released)

		// Those without the option have what they are promised.
		x := locktest.Take(t, q.Locker, time.Minute)
		assert.Equal(t, week, counterTTL(w))
		require.NoError(t, x.Release(t.Context()))
		assert.Equal(t, week, counterTTL(w))

		// So has who waits.
		x = locktest.Take(t, p.Locker, time.Minute)
		waiting := locktest.Beside(func() (*leasehold.Lease, error) { return q.Acquire(t.Context(), "k", time.Minute) })
		synctest.Wait()
		require.NoError(t, x.Release(t.Context()))
		require.NoError(t, (<-waiting).Err)
		assert.Greater(t, counterTTL(w), 6*24*time.Hour)
	})
}

// The last lease and the next: in between the counter has been forgotten, and the server's clock is set back.
func TestWithAShortCounterLifeFencingTokensFallOnlyIfTheClockIsSetBackByMore(t *testing.T) {
	for _, back := range []time.Duration{0, 9 * time.Minute, 11 * time.Minute, time.Hour} {
		for _, opts := range [][]leasehold.Option{nil, {leasehold.WithCounterLife(10 * time.Minute)}} {
			locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
				p := w.Party(opts...)
				x := locktest.Take(t, p.Locker, time.Minute)
				require.NoError(t, x.Release(t.Context()))
				time.Sleep(10*time.Minute + time.Millisecond)
				assert.Equal(t, opts == nil, w.Raw.Exists(t.Context(), string(rediskey.Derive(nil, "", rediskey.Counter, "k"))).Val() == 1)
				w.M.SetTime(time.Now().Add(-back))
				y := locktest.Take(t, p.Locker, time.Minute)
				falls := opts != nil && back > 10*time.Minute
				assert.Equal(t, falls, y.FencingToken() < x.FencingToken(), "set back by %v, with the option: %v", back, opts != nil)
			})
		}
	}
}

func TestACounterIsForgottenSoonerOnARealServer(t *testing.T) {
	t.Parallel()
	s := redistest.Server(t)
	l := locktest.Process(t, s.Client(), leasehold.WithCounterLife(time.Minute))
	counter := string(rediskey.Derive(nil, "", rediskey.Counter, "k"))
	for range 2 {
		x := locktest.Take(t, l, time.Minute)
		assert.Greater(t, s.Client().TTL(t.Context(), counter).Val(), 24*time.Hour)
		require.NoError(t, x.Release(t.Context()))
		assert.LessOrEqual(t, s.Client().TTL(t.Context(), counter).Val(), time.Minute)
	}
}
