package gocronlock_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/gocronlock"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

func TestALockRestsOnARealServerAfterItsRun(t *testing.T) {
	t.Parallel()
	const ttl = time.Second
	server := redistest.Server(t)
	one, two := leasehold.New(server.Client()), leasehold.New(server.Client())
	defer two.Close()
	begun := time.Now()
	lock, err := gocronlock.NewLocker(one, ttl).Lock(t.Context(), "report")
	require.NoError(t, err)
	require.NoError(t, lock.Unlock(t.Context()))
	require.NoError(t, one.Close(), "a deploy does not end the rest")
	require.Eventually(t, func() bool {
		lock, err = gocronlock.NewLocker(two, ttl).Lock(t.Context(), "report")
		return err == nil
	}, 15*time.Second, 5*time.Millisecond)
	assert.GreaterOrEqual(t, time.Since(begun), ttl/2)
	require.NoError(t, lock.Unlock(t.Context()))
}

func TestSchedulersOnARealServerRunAJobOneAtATime(t *testing.T) {
	t.Parallel()
	server := redistest.Server(t)
	var running, together, runs atomic.Int64
	for i := range 2 {
		locker := leasehold.New(server.Client())
		s, err := gocron.NewScheduler(gocron.WithDistributedLocker(gocronlock.NewLocker(locker, 200*time.Millisecond)))
		require.NoError(t, err)
		_, err = s.NewJob(gocron.DurationJob(50*time.Millisecond), gocron.NewTask(func() {
			if running.Add(1) > 1 {
				together.Add(1)
			}
			<-time.After(20 * time.Millisecond)
			running.Add(-1)
			runs.Add(1)
		}), gocron.WithName("report"), gocron.WithTags(fmt.Sprint(i)))
		require.NoError(t, err)
		s.Start()
		t.Cleanup(func() {
			assert.NoError(t, s.Shutdown())
			assert.NoError(t, locker.Close())
		})
	}
	require.Eventually(t, func() bool { return runs.Load() >= 5 }, 15*time.Second, 5*time.Millisecond)
	assert.Zero(t, together.Load())
}
