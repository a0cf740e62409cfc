package roundtrip

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestStuckRoundTripsDoNotHoldUpOthers(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		release := b.trips.Hold(2)
		dead := b.sendMany(2)
		for i := range 5 {
			out := <-b.send(t.Context(), fmt.Sprint("other", i), enough)
			requireGranted(t, out)
			assert.LessOrEqual(t, out.took, 2*stall)
			time.Sleep(time.Duration(i) * stall / 2)
		}
		release()
		for _, out := range dead {
			requireGranted(t, <-out)
		}
	})
}

func TestRoundTripsAreBoundedWhenAllAreStuck(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		release := b.trips.Hold(-1)
		var all []<-chan outcome
		for i := range 2 * maxTrips {
			all = append(all, b.send(t.Context(), fmt.Sprint("k", i), enough))
			time.Sleep(stall + 2*time.Millisecond)
		}
		assert.Equal(t, maxTrips, b.trips.Peak())
		release()
		for _, out := range all {
			requireGranted(t, <-out)
		}
		assert.Len(t, b.trips.Sizes, maxTrips+1)
	})
}

// Two dead connections, or a hook that hangs, would otherwise make every later call wait for a third round trip, and sixteen would
// be the end.
func TestRoundTripsThatAreStuckForEverDoNotCountForEver(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		const dead = 2 * maxTrips
		release := b.trips.Hold(dead)
		var hang []<-chan outcome
		for i := range dead {
			hang = append(hang, b.send(t.Context(), fmt.Sprint("dead", i), time.Hour))
			time.Sleep(overdue / maxTrips)
		}
		require.Equal(t, dead, b.trips.Peak())
		time.Sleep(overdue)
		for i := range 3 {
			out := <-b.send(t.Context(), fmt.Sprint("k", i), enough)
			requireGranted(t, out)
			assert.LessOrEqual(t, out.took, lead, "it waited for those that are stall")
		}
		assert.False(t, b.c.sender.isIdle())
		release()
		for _, out := range hang {
			requireGranted(t, <-out)
		}
		synctest.Wait()
		assert.True(t, b.c.sender.isIdle())

		// They are bounded all the same.
		release = b.trips.Hold(-1)
		for i := range 20 * maxTrips {
			hang = append(hang, b.send(t.Context(), fmt.Sprint("more", i), time.Hour))
			time.Sleep(overdue / maxTrips)
		}
		assert.Equal(t, maxTrips+maxOverdue, b.trips.Peak())
		release()
		for _, out := range hang[dead:] {
			requireGranted(t, <-out)
		}
	}, func(o *redis.Options) { o.PoolSize = 1000 })
}
