package guarantees_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/leaseholdtest"
)

// The cron job of docs/recipes.md, on three machines whose clocks are 0, +300 and -400 ms off. Each machine gets a new process
// right after the job of every second hour: a deploy.
func TestACronJobRunsOnceOnMachinesWhoseClocksDiffer(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		const hours = 6
		begun := time.Now().Truncate(time.Hour)
		var mu sync.Mutex
		runs := map[time.Time]int{}
		run := func(l *leasehold.Locker, clock time.Time) error {
			planned := clock.Round(time.Hour).UTC()
			lease, err := l.TryAcquire(t.Context(), "report:"+planned.Format(time.RFC3339), 10*time.Minute, leasehold.WithAutoRenew(true))
			if err != nil {
				return err
			}
			defer lease.Detach()
			mu.Lock()
			runs[planned]++
			mu.Unlock()
			time.Sleep(5 * time.Millisecond) // the job is done before the other machines look
			return nil
		}
		var machines sync.WaitGroup
		for _, off := range []time.Duration{0, 300 * time.Millisecond, -400 * time.Millisecond} {
			machines.Go(func() {
				l := env.Locker()
				for hour := 1; hour <= hours; hour++ {
					due := begun.Add(time.Duration(hour) * time.Hour)
					time.Sleep(time.Until(due.Add(-off)))
					if err := run(l, time.Now().Add(off)); !errors.Is(err, leasehold.ErrHeld) {
						assert.NoError(t, err)
					}
					if hour%2 == 0 {
						assert.NoError(t, l.Close())
						l = env.Locker()
					}
				}
			})
		}
		machines.Wait()
		require.Len(t, runs, hours)
		for planned, n := range runs {
			assert.Equal(t, 1, n, "%v", planned)
		}
	})
}
