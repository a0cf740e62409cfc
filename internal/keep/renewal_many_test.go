package keep_test

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/inside"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestManyLeasesAreRenewedWithoutAGoroutineEachAndSpreadInTime(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		n, ttl := locktest.Many, 9*time.Second
		l, s, leases := w.OnPaper(n, ttl)
		time.Sleep(time.Second)
		assert.Empty(t, locktest.Goroutines())
		time.Sleep(20 * time.Second)
		s.Take()
		time.Sleep(12 * time.Second)
		renewals, trips := s.Take()
		assert.InDelta(t, float64(n)*12/2.85, len(renewals), float64(n)/2)
		assert.Less(t, float64(trips)/float64(len(renewals)), 0.05, "round trips for each")
		per := map[int64]int{}
		for _, r := range renewals {
			per[r.At.UnixMilli()/100]++
		}
		for _, in100ms := range per {
			assert.LessOrEqual(t, in100ms, n/5, "a burst") // evenly it were n/30
		}
		for _, x := range leases {
			assert.True(t, x.Valid())
		}
		assert.Zero(t, l.Stats().RenewalsFailed)
	})
}

func TestRedisStoppedForHalfATTLLosesNothing(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		n, ttl := locktest.Many, 9*time.Second
		var mu sync.Mutex
		jeopardy, back := map[string]int{}, map[string]bool{}
		l, s, leases := w.OnPaper(n, ttl, leasehold.WithHooks(leasehold.Hooks{
			Jeopardy: func(e leasehold.Event) { mu.Lock(); jeopardy[e.Key]++; back[e.Key] = false; mu.Unlock() },
			Renewed:  func(e leasehold.Event) { mu.Lock(); back[e.Key] = true; mu.Unlock() },
		}))
		time.Sleep(10 * time.Second)
		again := s.Stop()
		time.Sleep(ttl / 2)
		again()
		s.Take()
		time.Sleep(3 * time.Second)
		renewals, _ := s.Take()
		mu.Lock()
		defer mu.Unlock()
		for _, x := range leases {
			assert.True(t, x.Valid())
			assert.True(t, back[x.Key()], "still in jeopardy")
		}
		for key, times := range jeopardy {
			assert.Equal(t, 1, times, key)
		}
		assert.Zero(t, l.Stats().Lost)
		assert.LessOrEqual(t, len(renewals), 3*n, "no storm afterwards")
	})
}

func TestRedisStoppedForLongerThanATTLIsToldToEveryHolderAtItsOwnDeadline(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		n, ttl := locktest.Many, 9*time.Second
		var mu sync.Mutex
		told := map[string]time.Time{}
		l, s, leases := w.OnPaper(n, ttl, leasehold.WithHooks(leasehold.Hooks{Lost: func(e leasehold.Event) { mu.Lock(); told[e.Key] = time.Now(); mu.Unlock() }}))
		time.Sleep(10 * time.Second)
		again := s.Stop()
		time.Sleep(ttl * 3 / 2)
		again()
		mu.Lock()
		defer mu.Unlock()
		for _, x := range leases {
			late := told[x.Key()].Sub(x.ValidUntil())
			assert.True(t, late >= 0 && late <= 50*time.Millisecond, "told %v after its deadline", late)
			assert.ErrorIs(t, x.Err(), leasehold.ErrLost)
		}
		time.Sleep(10 * time.Second)
		assert.Equal(t, leasehold.Stats{Acquired: int64(n), AcquiredAtOnce: int64(n), Lost: int64(n)},
			func() leasehold.Stats { s := l.Stats(); s.Renewed, s.RenewalsFailed = 0, 0; return s }())
		left, renewing := locktest.Kept(l)
		assert.Zero(t, left)
		assert.Zero(t, renewing)
	})
}

// Many more than there is room for are due while Redis is away, and most of them are lost meanwhile. What is left is renewed
// when it is back.
func TestARenewalThatFoundNoRoomIsMadeUpForThoughThoseBeforeItAreGone(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		l, s, short := w.OnPaper(2*locktest.Many, 3*time.Second)
		var long []*leasehold.Lease
		for i := range 50 {
			x, err := l.TryAcquire(t.Context(), fmt.Sprint("long ", i), 20*time.Second, leasehold.WithAutoRenew(true), leasehold.WithRenewEvery(2*time.Second))
			require.NoError(t, err)
			long = append(long, x)
		}
		again := s.Stop()
		time.Sleep(10 * time.Second)
		again()
		for _, x := range short {
			assert.False(t, x.Valid())
		}
		time.Sleep(30 * time.Second)
		for _, x := range long {
			assert.True(t, x.Valid(), "%s: %v", x.Key(), x.Err())
		}
	})
}

func TestOneSlowKeyDoesNotDelayTheOthersPastTheirTime(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		n, ttl := locktest.Many/4, 3*time.Second
		l, s, leases := w.OnPaper(n, ttl)
		s.Mu.Lock()
		s.Slow = "0"
		s.Mu.Unlock()
		time.Sleep(12 * time.Second)
		for _, x := range leases[1:] {
			assert.True(t, x.Valid(), x.Key())
		}
		assert.LessOrEqual(t, l.Stats().Lost, int64(1))
		s.Mu.Lock()
		s.Slow = "" // or the releases of Close that share its round trip come too late
		s.Mu.Unlock()
	})
}

func TestCyclesLeaveNothingBehind(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		l, _, leases := w.OnPaper(1, 100*time.Millisecond)
		cycles := func(n int) {
			for i := range n {
				x, err := l.TryAcquire(t.Context(), fmt.Sprint("k", i), 60*time.Millisecond, leasehold.WithAutoRenew(true))
				require.NoError(t, err)
				ctx, cancel := x.Context(t.Context())
				if i%10 == 0 {
					time.Sleep(25 * time.Millisecond) // over a renewal
				}
				require.NoError(t, x.Release(t.Context()))
				<-ctx.Done()
				cancel()
			}
		}
		measure := func() (goroutines int, heap uint64) {
			synctest.Wait()
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			return runtime.NumGoroutine(), m.HeapAlloc
		}
		cycles(200)
		goroutines, heap := measure()
		cycles(2000)
		after, grown := measure()
		assert.LessOrEqual(t, after, goroutines+1)
		assert.Less(t, int64(grown)-int64(heap), int64(500<<10))
		left, renewing := locktest.Kept(l)
		assert.Equal(t, 1, left)
		assert.LessOrEqual(t, renewing, 1)
		assert.True(t, leases[0].Valid())
		require.NoError(t, leases[0].Release(t.Context()))
		left, _ = locktest.Kept(l)
		assert.Zero(t, left)
	})
}

func TestAnOutageIsFollowedByNoStorm(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		before, after, _ := w.Outage(locktest.Many, 9*time.Second, 4500*time.Millisecond)
		usual := 0
		for _, renewals := range before {
			usual += renewals
		}
		usual /= len(before)
		assert.LessOrEqual(t, slices.Max(after), 2*usual, "before %v, after %v", before, after)
		assert.LessOrEqual(t, slices.Max(after[12:]), usual*5/4, "the herd stays together: %v", after)
	})
}

// What waits in a lane goes with its lease, although nobody is left who would earn it a turn.
func TestALeaseThatIsReleasedLeavesItsLane(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		l, _, leases := w.OnPaper(locktest.Many, time.Hour)
		time.Sleep(20 * time.Minute)
		_, queued, _ := inside.Of(l).Keeper.Load()
		require.Greater(t, queued, locktest.Many/8)
		for _, x := range leases {
			require.NoError(t, x.Release(t.Context()))
		}
		time.Sleep(time.Second)
		_, queued, underWay := inside.Of(l).Keeper.Load()
		assert.Zero(t, queued+underWay)
	})
}

// Most of those that fall due in an outage are never sent, as few are under way at a time. They are in no less danger.
func TestALeaseWhoseRenewalIsNotSentInTimeIsInJeopardy(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		_, _, jeopardy := w.Outage(locktest.Many, 9*time.Second, 5*time.Second)
		assert.Greater(t, len(jeopardy), locktest.Many*9/10)
	})
}
