package guarantees_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/leaseholdtest"
)

// The cron job of docs/recipes.md, on three machines whose clocks are 0, +300 and -400 ms off. A deploy replaces the processes in
// the middle of a tick: some machines have come to it, and others have not.
func TestACronJobRunsOnceOnMachinesWhoseClocksDiffer(t *testing.T) {
	for _, took := range []time.Duration{0, 5 * time.Millisecond, 5 * time.Second, 40 * time.Second} {
		t.Run(fmt.Sprint(took), func(t *testing.T) {
			leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
				const ticks, deploy = 8, 4
				begun := time.Now().Truncate(time.Minute)
				due := func(tick int) time.Time { return begun.Add(time.Duration(tick) * time.Minute) }
				var mu sync.Mutex
				runs := map[int]int{}
				var all sync.WaitGroup
				process := func(off time.Duration, from, to int) *leasehold.Locker {
					l := leasehold.New(env.Client())
					for tick := from; tick <= to; tick++ {
						all.Go(func() {
							time.Sleep(time.Until(due(tick).Add(-off)))
							err := l.TryWithLock(t.Context(), "report", 20*time.Second, func(context.Context, *leasehold.Lease) error {
								mu.Lock()
								runs[tick]++
								mu.Unlock()
								time.Sleep(took)
								return nil
							}, leasehold.WithMinHold(30*time.Second))
							if !errors.Is(err, leasehold.ErrHeld) && !errors.Is(err, leasehold.ErrClosed) {
								assert.NoError(t, err)
							}
						})
					}
					return l
				}
				machines := []time.Duration{0, 300 * time.Millisecond, -400 * time.Millisecond}
				var old []*leasehold.Locker
				for _, off := range machines {
					old = append(old, process(off, 1, deploy))
				}
				// The new processes come to every tick that the machine's clock has not passed when they start.
				time.Sleep(time.Until(due(deploy).Add(-100 * time.Millisecond)))
				var fresh []*leasehold.Locker
				for i, off := range machines {
					from := deploy
					if time.Now().Add(off).After(due(deploy)) {
						from++
					}
					fresh = append(fresh, process(off, from, ticks))
					all.Go(func() { assert.NoError(t, old[i].Shutdown(t.Context())) })
				}
				all.Wait()
				for _, l := range fresh {
					require.NoError(t, l.Close())
				}
				require.Len(t, runs, ticks)
				for tick, n := range runs {
					assert.Equal(t, 1, n, "tick %d", tick)
				}
			})
		})
	}
}
