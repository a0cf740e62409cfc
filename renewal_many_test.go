package leasehold

import (
	"context"
	"encoding"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// paper answers the scripts in the place of a server, so that thousands of leases cost next to nothing.
type paper struct {
	mu       sync.Mutex
	latency  time.Duration
	slow     string // a key that holds up its whole round trip
	trips    int    // since the last look
	renewals []renewalAt
	down     chan struct{} // closed when it answers again; nil: it answers
}

type renewalAt struct {
	key string
	at  time.Time
}

func (s *paper) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *paper) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error { return s.run([]redis.Cmder{cmd}) }
}

func (s *paper) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error { return s.run(cmds) }
}

func (s *paper) run(cmds []redis.Cmder) error {
	s.mu.Lock()
	down, pause := s.down, s.latency
	for _, cmd := range cmds {
		if s.slow != "" && cmd.Args()[3] == s.slow {
			pause = 1200 * time.Millisecond
		}
	}
	s.mu.Unlock()
	if down != nil {
		select {
		case <-down:
		case <-time.After(3 * time.Second): // go-redis's own patience
			for _, cmd := range cmds {
				cmd.SetErr(errNetwork)
			}
			return errNetwork
		}
	}
	if pause > 0 {
		time.Sleep(pause)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trips++
	for _, cmd := range cmds {
		reply := int64(1)
		for _, arg := range cmd.Args() {
			if token, ok := arg.(encoding.BinaryMarshaler); ok {
				_, _ = token.MarshalBinary()
			}
		}
		if cmd.Args()[1] == renewScript.Hash {
			s.renewals = append(s.renewals, renewalAt{cmd.Args()[3].(string), time.Now()})
			reply = 0
		}
		cmd.(*redis.Cmd).SetVal(reply)
	}
	return nil
}

// take returns what was renewed since the last call, and in how many round trips.
func (s *paper) take() ([]renewalAt, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	renewals, trips := s.renewals, s.trips
	s.renewals, s.trips = nil, 0
	return renewals, trips
}

func (s *paper) stop() (again func()) {
	down := make(chan struct{})
	s.mu.Lock()
	s.down = down
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		s.down = nil
		s.mu.Unlock()
		close(down)
	}
}

// onPaper is a Locker without a server, with n leases that are renewed.
func (w *world) onPaper(n int, ttl time.Duration, opts ...Option) (*Locker, *paper, []*Lease) {
	client := w.dial()
	s := &paper{latency: time.Millisecond}
	client.AddHook(s)
	l := New(client, opts...)
	w.t.Cleanup(func() { assert.NoError(w.t, l.Close()) })
	leases := make([]*Lease, n)
	var all sync.WaitGroup
	for i := range leases {
		all.Go(func() {
			x, err := l.TryAcquire(context.Background(), fmt.Sprint(i), ttl, WithAutoRenew(true))
			assert.NoError(w.t, err)
			leases[i] = x
		})
	}
	all.Wait()
	return l, s, leases
}

// many is more than may be under way at once.
const many = 2048

func TestManyLeasesAreRenewedWithoutAGoroutineEachAndSpreadInTime(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		n, ttl := many, 9*time.Second
		l, s, leases := w.onPaper(n, ttl)
		time.Sleep(time.Second)
		assert.Empty(t, goroutines())
		time.Sleep(20 * time.Second)
		s.take()
		time.Sleep(12 * time.Second)
		renewals, trips := s.take()
		assert.InDelta(t, float64(n)*12/2.85, len(renewals), float64(n)/2)
		assert.Less(t, float64(trips)/float64(len(renewals)), 0.05, "round trips for each")
		per := map[int64]int{}
		for _, r := range renewals {
			per[r.at.UnixMilli()/100]++
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
	inBubble(t, func(t *testing.T, w *world) {
		n, ttl := many, 9*time.Second
		var mu sync.Mutex
		jeopardy, back := map[string]int{}, map[string]bool{}
		l, s, leases := w.onPaper(n, ttl, WithHooks(Hooks{
			Jeopardy: func(e Event) { mu.Lock(); jeopardy[e.Key]++; back[e.Key] = false; mu.Unlock() },
			Renewed:  func(e Event) { mu.Lock(); back[e.Key] = true; mu.Unlock() },
		}))
		time.Sleep(10 * time.Second)
		again := s.stop()
		time.Sleep(ttl / 2)
		again()
		s.take()
		time.Sleep(3 * time.Second)
		renewals, _ := s.take()
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
	inBubble(t, func(t *testing.T, w *world) {
		n, ttl := many, 9*time.Second
		var mu sync.Mutex
		told := map[string]time.Time{}
		l, s, leases := w.onPaper(n, ttl, WithHooks(Hooks{Lost: func(e Event) { mu.Lock(); told[e.Key] = time.Now(); mu.Unlock() }}))
		time.Sleep(10 * time.Second)
		again := s.stop()
		time.Sleep(ttl * 3 / 2)
		again()
		mu.Lock()
		defer mu.Unlock()
		for _, x := range leases {
			late := told[x.Key()].Sub(x.ValidUntil())
			assert.True(t, late >= 0 && late <= 50*time.Millisecond, "told %v after its deadline", late)
			assert.ErrorIs(t, x.Err(), ErrLost)
		}
		time.Sleep(10 * time.Second)
		assert.Equal(t, Stats{Acquired: int64(n), AcquiredAtOnce: int64(n), Lost: int64(n)},
			func() Stats { s := l.Stats(); s.Renewed, s.RenewalsFailed = 0, 0; return s }())
		left, renewing := kept(l)
		assert.Zero(t, left)
		assert.Zero(t, renewing)
	})
}

// Many more than there is room for are due while Redis is away, and most of them are lost meanwhile. What is left is renewed
// when it is back.
func TestARenewalThatFoundNoRoomIsMadeUpForThoughThoseBeforeItAreGone(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		l, s, short := w.onPaper(2*many, 3*time.Second)
		var long []*Lease
		for i := range 50 {
			x, err := l.TryAcquire(t.Context(), fmt.Sprint("long ", i), 20*time.Second, WithAutoRenew(true), WithRenewEvery(2*time.Second))
			require.NoError(t, err)
			long = append(long, x)
		}
		again := s.stop()
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
	inBubble(t, func(t *testing.T, w *world) {
		n, ttl := many/4, 3*time.Second
		l, s, leases := w.onPaper(n, ttl)
		s.mu.Lock()
		s.slow = "0"
		s.mu.Unlock()
		time.Sleep(12 * time.Second)
		for _, x := range leases[1:] {
			assert.True(t, x.Valid(), x.Key())
		}
		assert.LessOrEqual(t, l.Stats().Lost, int64(1))
		s.mu.Lock()
		s.slow = "" // or the releases of Close that share its round trip come too late
		s.mu.Unlock()
	})
}

func TestCyclesLeaveNothingBehind(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		l, _, leases := w.onPaper(1, 100*time.Millisecond)
		cycles := func(n int) {
			for i := range n {
				x, err := l.TryAcquire(t.Context(), fmt.Sprint("k", i), 60*time.Millisecond, WithAutoRenew(true))
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
		left, renewing := kept(l)
		assert.Equal(t, 1, left)
		assert.LessOrEqual(t, renewing, 1)
		assert.True(t, leases[0].Valid())
		require.NoError(t, leases[0].Release(t.Context()))
		left, _ = kept(l)
		assert.Zero(t, left)
	})
}
