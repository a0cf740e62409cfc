package gocronlock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jonboulle/clockwork"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/gocronlock"
	"github.com/go-leasehold/leasehold/leaseholdtest"
)

func init() { logging.Disable() } // go-redis writes to stderr about every connection that an outage cuts

const ttl = 10 * time.Second

// skewed is a clock that is wrong by a constant.
type skewed struct {
	clockwork.Clock
	by time.Duration
}

func (c skewed) Now() time.Time                  { return c.Clock.Now().Add(c.by) }
func (c skewed) Since(t time.Time) time.Duration { return c.Now().Sub(t) }
func (c skewed) Until(t time.Time) time.Duration { return t.Sub(c.Now()) }

// log is which scheduler began a run, and when.
type log struct {
	mu   sync.Mutex
	runs []begin
}

type begin struct {
	who string
	at  time.Time
}

func (l *log) note(who string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs = append(l.runs, begin{who, time.Now()})
}

func (l *log) read() []begin {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]begin(nil), l.runs...)
}

// ticks counts the runs of each minute. A run may be early or late by the skew of its scheduler's clock.
func (l *log) ticks() map[time.Time]int {
	ticks := map[time.Time]int{}
	for _, r := range l.read() {
		ticks[r.at.Round(time.Minute)]++
	}
	return ticks
}

// schedule starts a scheduler with one job, each minute, that takes some time.
func schedule(t *testing.T, by, took time.Duration, l *log, who string, distributed gocron.SchedulerOption) gocron.Scheduler {
	t.Helper()
	s, err := gocron.NewScheduler(gocron.WithClock(skewed{clockwork.NewRealClock(), by}), gocron.WithLocation(time.UTC), distributed)
	require.NoError(t, err)
	_, err = s.NewJob(gocron.CronJob("* * * * *", false), gocron.NewTask(func(ctx context.Context) {
		l.note(who)
		select { // gocron does not let the bubble's clock go on while it waits for a job to end
		case <-time.After(took):
		case <-ctx.Done():
		}
	}), gocron.WithName("report"))
	require.NoError(t, err)
	s.Start()
	return s
}

var machines = []time.Duration{0, 300 * time.Millisecond, -400 * time.Millisecond}

func TestAJobRunsOncePerTickOnMachinesWhoseClocksDiffer(t *testing.T) {
	for _, took := range []time.Duration{0, 100 * time.Millisecond, 5 * time.Second, 8 * time.Second, 40 * time.Second} {
		t.Run(fmt.Sprint(took), func(t *testing.T) {
			leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
				var l log
				start := func(who string) (stop []func()) {
					for i, by := range machines {
						locker := leasehold.New(env.Client())
						s := schedule(t, by, took, &l, fmt.Sprint(who, i), gocron.WithDistributedLocker(gocronlock.NewLocker(locker, ttl)))
						stop = append(stop, func() {
							require.NoError(t, s.Shutdown())
							require.NoError(t, locker.Close())
						})
					}
					return stop
				}
				time.Sleep(30 * time.Second)
				old := start("old")
				time.Sleep(10 * time.Minute)

				// The deploy is in the middle of a tick: one machine after the other, while the locks of the tick still rest. The
				// clocks of some machines have come to it, and those of others have not.
				time.Sleep(30*time.Second - 100*time.Millisecond)
				fresh := start("new")
				for _, stop := range old {
					go stop()
				}
				time.Sleep(10*time.Minute + 50*time.Second)
				for _, stop := range fresh {
					stop()
				}
				ticks := l.ticks()
				assert.Len(t, ticks, 21)
				for at, n := range ticks {
					assert.Equal(t, 1, n, "at %v: %v", at, l.read())
				}
			})
		})
	}
}

func TestTheLockOfALongRunIsFreeWhenItHasEnded(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		locker := env.Locker()
		jobs := gocronlock.NewLocker(locker, ttl)
		lock, err := jobs.Lock(t.Context(), "report")
		require.NoError(t, err)
		time.Sleep(time.Hour) // it is renewed
		_, err = jobs.Lock(t.Context(), "report")
		require.ErrorIs(t, err, leasehold.ErrHeld)
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // gocron gives it the context of a job that it has cancelled
		require.NoError(t, lock.Unlock(ctx))

		lock, err = jobs.Lock(t.Context(), "report")
		require.NoError(t, err)
		require.NoError(t, lock.Unlock(t.Context()))
		begun := time.Now()
		require.Eventually(t, func() bool {
			state, err := locker.Inspect(t.Context(), "report")
			return err == nil && !state.Held
		}, time.Hour, time.Millisecond)
		assert.InDelta(t, ttl/2, time.Since(begun), float64(5*time.Millisecond))
		assert.Zero(t, locker.Stats().Lost, "and nobody is told of a loss")
	})
}

func TestALockThatWasLostIsReportedByUnlock(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		lock, err := gocronlock.NewLocker(env.Locker(), ttl).Lock(t.Context(), "report")
		require.NoError(t, err)
		require.NoError(t, env.Client().Del(t.Context(), "report").Err())
		time.Sleep(ttl)
		require.ErrorIs(t, lock.Unlock(t.Context()), leasehold.ErrLost)

		lock, err = gocronlock.NewLocker(env.Locker(), ttl, leasehold.WithMaxHold(time.Second)).Lock(t.Context(), "report")
		require.NoError(t, err)
		time.Sleep(2 * time.Second) // it would be too early to give it back
		require.ErrorIs(t, lock.Unlock(t.Context()), leasehold.ErrLost)
	})
}

func TestWhatLockCannotUseItReports(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		_, err := gocronlock.NewLocker(env.Locker(), 0).Lock(t.Context(), "report")
		require.ErrorIs(t, err, leasehold.ErrInvalid)
		env.Outage()
		_, err = gocronlock.NewLocker(env.Locker(), ttl).Lock(t.Context(), "report")
		require.ErrorIs(t, err, leasehold.ErrUnavailable)
	})
}

func TestOfTwoSchedulersTheLeaderRunsTheJobs(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		var l log
		electors, schedulers := map[string]*gocronlock.Elector{}, map[string]gocron.Scheduler{}
		for _, who := range []string{"a", "b"} {
			electors[who] = gocronlock.NewElector(env.Locker(), "cron", ttl)
			synctest.Wait() // a is the first
			schedulers[who] = schedule(t, 0, time.Second, &l, who, gocron.WithDistributedElector(electors[who]))
		}
		require.NoError(t, electors["a"].IsLeader(t.Context()))
		require.ErrorIs(t, electors["b"].IsLeader(t.Context()), gocronlock.ErrNotLeader)
		time.Sleep(10*time.Minute + 30*time.Second)
		require.NoError(t, schedulers["a"].Shutdown())
		require.NoError(t, electors["a"].Close())
		require.ErrorIs(t, electors["a"].IsLeader(t.Context()), gocronlock.ErrNotLeader)
		time.Sleep(10 * time.Minute)
		require.NoError(t, schedulers["b"].Shutdown())
		require.NoError(t, electors["b"].Close())
		require.NoError(t, electors["b"].Close(), "again")

		runs := l.read()
		require.Len(t, runs, 20)
		for i, r := range runs {
			assert.Equal(t, []string{"a", "b"}[i/10], r.who)
		}
		for _, n := range l.ticks() {
			assert.Equal(t, 1, n)
		}
	})
}

func TestALeaderWhoseTermIsLostIsNoneAtOnceAndStandsAgain(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		e := gocronlock.NewElector(env.Locker(), "cron", ttl)
		defer e.Close()
		synctest.Wait()
		require.NoError(t, e.IsLeader(t.Context()))
		env.Outage()
		time.Sleep(ttl)
		require.ErrorIs(t, e.IsLeader(t.Context()), gocronlock.ErrNotLeader)
		env.Back()
		time.Sleep(ttl)
		require.NoError(t, e.IsLeader(t.Context()))
	})
}

func TestAnElectorThatCannotStandSaysWhy(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		e := gocronlock.NewElector(env.Locker(), "cron", 0)
		synctest.Wait()
		err := e.IsLeader(t.Context())
		require.ErrorIs(t, err, gocronlock.ErrNotLeader)
		require.ErrorIs(t, err, leasehold.ErrInvalid)
		require.ErrorIs(t, e.Close(), leasehold.ErrInvalid)
	})
}
