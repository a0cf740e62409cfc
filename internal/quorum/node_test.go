package quorum

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/quorum/quorumtest"
)

func TestDoesNotMeetItsOwnLastLease(t *testing.T) {
	bubble(t, 3, func(t *testing.T, _ []*quorumtest.Node, join func() *process) {
		q := join()
		x, err := q.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		synctest.Wait()
		slow := q.Hooks[2].Next(1, runs("release")).Hold()
		require.NoError(t, x.Release(t.Context()))
		y, err := q.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		<-slow.Arrived()
		require.Equal(t, []string{"acquire"}, q.Spies[2].Took(), "the next one waits behind it")
		slow.Release()
		synctest.Wait()
		require.Equal(t, []string{y.Token(), y.Token(), y.Token()}, q.Holders("k"))

		// Given up meanwhile, it is not sent at all.
		slow = q.Hooks[2].Next(1, runs("release")).Hold()
		require.NoError(t, y.Release(t.Context()))
		<-slow.Arrived()
		q.Spies[2].Took()
		y, err = q.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		require.NoError(t, y.Release(t.Context()))
		slow.Release()
		synctest.Wait()
		require.Equal(t, []string{"release"}, q.Spies[2].Took())
		require.Equal(t, []string{"", "", ""}, q.Holders("k"))
		require.Empty(t, q.nodes[2].queues)
	})
}

func TestGivesASilentNodeNoMoreThanItCanForget(t *testing.T) {
	bubble(t, 3, func(t *testing.T, _ []*quorumtest.Node, join func() *process) {
		q := join()
		n := q.nodes[0]
		n.mu.Lock()
		n.calls += maxCalls // as if so many were under way
		n.mu.Unlock()
		x, err := q.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		require.NoError(t, x.Release(t.Context()))
		synctest.Wait()
		require.Empty(t, q.Spies[0].Took())
		q.Hooks[1].Next(1, nil).Fail(errBroken)
		_, err = q.TryAcquire(t.Context(), "k", time.Minute)
		require.ErrorIs(t, err, errCrowded)
		require.True(t, fault.Transient(err))
		n.mu.Lock()
		n.calls -= maxCalls
		n.mu.Unlock()
	})
}

// A round over N nodes needs no goroutine of its own: what an idle Locker leaves is nothing.
func TestLeavesNoGoroutineBehind(t *testing.T) {
	bubble(t, 5, func(t *testing.T, _ []*quorumtest.Node, join func() *process) {
		q := join()
		for range 20 {
			x, err := q.TryAcquire(t.Context(), "k", time.Minute)
			require.NoError(t, err)
			require.NoError(t, x.Renew(t.Context()))
			require.NoError(t, x.Release(t.Context()))
			synctest.Wait()
			for _, n := range q.nodes {
				require.Zero(t, n.calls)
				require.Empty(t, n.releases.list)
				require.Nil(t, n.releases.retry)
			}
		}
	})
}
