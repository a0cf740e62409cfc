package election_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/election"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/go-leasehold/leasehold/leaseholdtest"
)

// news is what an observer told, and when.
type news struct {
	leader election.Leader
	err    error
	at     time.Time
}

// observer ranges over Observe beside the test.
type observer struct {
	mu    sync.Mutex
	heard []news
	done  chan struct{} // closed when the sequence has ended
}

func observe(ctx context.Context, l *leasehold.Locker, key string) *observer {
	o := &observer{done: make(chan struct{})}
	go func() {
		defer close(o.done)
		for leader, err := range election.Observe(ctx, l, key) {
			o.mu.Lock()
			o.heard = append(o.heard, news{leader, err, time.Now()})
			o.mu.Unlock()
		}
	}()
	return o
}

func (o *observer) read() []news {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]news(nil), o.heard...)
}

// watched is a bubble in which somebody observes; looks counts the commands that it has sent.
func watched(t *testing.T, test func(t *testing.T, env *leaseholdtest.Env, o *observer, looks func() int)) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		options := *env.Client().Options()
		client := redis.NewClient(&options)
		fault := redistest.Faulty(client)
		locker := leasehold.New(client)
		t.Cleanup(func() { _, _ = locker.Close(), client.Close() })
		ctx, cancel := context.WithCancel(t.Context())
		o := observe(ctx, locker, "k")
		synctest.Wait()
		test(t, env, o, func() int { return len(fault.Sent()) })
		cancel()
		<-o.done
	})
}

func TestAnObserverTellsEveryChangeInTimeAndNothingElse(t *testing.T) {
	for _, ttl := range []time.Duration{500 * time.Millisecond, 3 * time.Second, 10 * time.Second, time.Minute} {
		watched(t, func(t *testing.T, env *leaseholdtest.Env, o *observer, looks func() int) {
			require.Len(t, o.read(), 1)
			require.Equal(t, news{at: time.Now()}, o.read()[0], "nobody leads, which is told at once")
			other := leasehold.New(env.Client(), leasehold.WithOwner("a")) // it renews, as a leader does
			defer other.Close()
			time.Sleep(time.Minute)
			most := max(min(ttl/3, 5*time.Second), 250*time.Millisecond)
			heard := 1
			for range 8 {
				lease, err := other.TryAcquire(t.Context(), "k", ttl, leasehold.WithAutoRenew(true))
				require.NoError(t, err)
				begun := time.Now()
				time.Sleep(time.Second)
				heard++
				all := o.read()
				require.Len(t, all, heard, "ttl %v", ttl)
				assert.Equal(t, election.Leader{Owner: "a", Term: lease.FencingToken()}, all[heard-1].leader)
				assert.LessOrEqual(t, all[heard-1].at.Sub(begun), time.Second)

				time.Sleep(17 * time.Second)
				begun = time.Now()
				require.NoError(t, lease.Release(t.Context()))
				time.Sleep(most)
				heard++
				all = o.read()
				require.Len(t, all, heard, "ttl %v", ttl)
				assert.Zero(t, all[heard-1].leader)
				assert.LessOrEqual(t, all[heard-1].at.Sub(begun), most)
			}
			for _, n := range o.read() {
				assert.NoError(t, n.err)
			}
		})
	}
}

func TestAnObserverTellsThatACrashedLeaderHasASuccessor(t *testing.T) {
	watched(t, func(t *testing.T, env *leaseholdtest.Env, o *observer, looks func() int) {
		crashed, err := env.Locker(leasehold.WithOwner("a")).TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var b book
		done := stand(ctx, env.Locker(leasehold.WithOwner("b")), b.lead("b", untilEnd))
		time.Sleep(61 * time.Second)
		all, led := o.read(), b.read()
		require.Len(t, led, 1)
		require.Len(t, all, 3)
		assert.Equal(t, election.Leader{Owner: "a", Term: crashed.FencingToken()}, all[1].leader)
		assert.Equal(t, election.Leader{Owner: "b", Term: led[0].term}, all[2].leader)
		assert.LessOrEqual(t, all[2].at.Sub(led[0].begun), 250*time.Millisecond, "near the expiry it looks more often")
		cancel()
		<-done
	})
}

func TestAnObserverIsNoBusyPoller(t *testing.T) {
	for name, tt := range map[string]struct {
		ttl         time.Duration
		least, most float64 // commands in a second
	}{
		"nobody":       {0, 1, 1.3},
		"a short ttl":  {500 * time.Millisecond, 4, 5},
		"a usual one":  {10 * time.Second, 0.3, 0.5},
		"a long one":   {time.Hour, 0.2, 0.25},
		"one for ever": {-1, 0.2, 0.25},
	} {
		t.Run(name, func(t *testing.T) {
			watched(t, func(t *testing.T, env *leaseholdtest.Env, o *observer, looks func() int) {
				switch {
				case tt.ttl > 0:
					_, err := env.Locker().TryAcquire(t.Context(), "k", tt.ttl, leasehold.WithAutoRenew(true))
					require.NoError(t, err)
				case tt.ttl < 0:
					require.NoError(t, env.Client().Set(t.Context(), "k", "somebody's", 0).Err())
					defer env.Client().Del(context.Background(), "k")
				}
				time.Sleep(time.Minute)
				before := looks()
				time.Sleep(5 * time.Minute)
				rate := float64(looks()-before) / 300
				assert.GreaterOrEqual(t, rate, tt.least)
				assert.LessOrEqual(t, rate, tt.most)
			})
		})
	}
}

func TestAnObserverTellsAnOutageOnceAndThenWhoLeadsThough(t *testing.T) {
	watched(t, func(t *testing.T, env *leaseholdtest.Env, o *observer, looks func() int) {
		lease := env.Hold("k", leasehold.WithOwner("a"))
		time.Sleep(10 * time.Second)
		for range 3 {
			env.Outage()
			time.Sleep(10 * time.Minute)
			env.Back()
			begun := time.Now()
			time.Sleep(10 * time.Second)
			all := o.read()
			require.GreaterOrEqual(t, len(all), 4)
			last, before := all[len(all)-1], all[len(all)-2]
			require.Error(t, before.err)
			assert.Zero(t, before.leader)
			require.NoError(t, last.err)
			assert.Equal(t, election.Leader{Owner: "a", Term: lease.FencingToken()}, last.leader)
			assert.Less(t, last.at.Sub(begun), 8*time.Second) // a pause, and a second in which go-redis dials no more
		}
		assert.Len(t, o.read(), 2+2*3)
	})
}

func TestAnObserverEndsWhereNoLookCanSucceed(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		locker := env.Locker()
		invalid := observe(t.Context(), locker, "")
		<-invalid.done
		require.Len(t, invalid.read(), 1)
		require.ErrorIs(t, invalid.read()[0].err, leasehold.ErrInvalid)

		closed := observe(t.Context(), locker, "k")
		synctest.Wait()
		require.NoError(t, locker.Close())
		<-closed.done
		require.Len(t, closed.read(), 2)
		require.ErrorIs(t, closed.read()[1].err, leasehold.ErrClosed)
	})
}

func TestAnObserverEndsWithItsContextAndWithItsLoop(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		ctx, cancel := context.WithCancel(t.Context())
		o := observe(ctx, env.Locker(), "k")
		time.Sleep(time.Minute)
		begun := time.Now()
		cancel()
		<-o.done
		assert.Zero(t, time.Since(begun))
		assert.Len(t, o.read(), 1, "its end is no news")

		ctx, cancel = context.WithCancel(t.Context())
		held := redistest.Faulty(env.Client()).Next(1, nil).Hold()
		o = observe(ctx, env.Locker(), "k")
		<-held.Arrived()
		cancel()
		<-o.done
		assert.Empty(t, o.read(), "nor is the end of a look that it cuts short")
		held.Release()

		env.Outage()
		for _, err := range election.Observe(t.Context(), env.Locker(), "k") {
			require.Error(t, err)
			break
		}
		for range election.Observe(ctx, env.Locker(), "k") {
			t.Error("its context has ended")
		}
	})
}
