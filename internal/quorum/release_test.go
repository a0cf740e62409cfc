package quorum

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold/internal/quorum/quorumtest"
)

func TestReleaseDoesNotWaitForADeadNode(t *testing.T) {
	bubble(t, 5, func(t *testing.T, nodes []*quorumtest.Node, join func() *process) {
		q := join()
		x, err := q.TryAcquire(t.Context(), "k", 20*time.Second)
		require.NoError(t, err)
		synctest.Wait()
		q.Wires[0].BlackHole()
		q.Wires[1].Refuse()
		begun := time.Now()
		require.NoError(t, x.Release(t.Context()))
		require.Zero(t, time.Since(begun))
		synctest.Wait()
		require.Equal(t, []string{x.Token(), x.Token(), "", "", ""}, q.Holders("k"))

		// It is seen to when they are back, also by then that go-redis has long given up.
		q.Wires[0].Pass()
		time.Sleep(6 * time.Second)
		require.Equal(t, []string{"", x.Token(), "", "", ""}, q.Holders("k"))
		q.Wires[1].Pass()
		time.Sleep(2 * time.Second)
		require.Equal(t, []string{"", "", "", "", ""}, q.Holders("k"))
	})
}

func TestReleaseTellsALeaseThatWasLost(t *testing.T) {
	bubble(t, 3, func(t *testing.T, nodes []*quorumtest.Node, join func() *process) {
		q := join()
		take := func() *lease {
			x, err := q.TryAcquire(t.Context(), "k", time.Second)
			require.NoError(t, err)
			synctest.Wait()
			return x
		}
		x := take()
		nodes[1].Del("k") // one node proves nothing
		require.NoError(t, x.Release(t.Context()))
		x = take()
		nodes[0].Del("k")
		nodes[1].Del("k")
		require.ErrorIs(t, x.Release(t.Context()), errLost)
	})
}

func TestLateGrantOfAReleasedLeaseIsReleased(t *testing.T) {
	bubble(t, 3, func(t *testing.T, _ []*quorumtest.Node, join func() *process) {
		q := join()
		for _, fate := range []string{"not sent", "not answered"} {
			var late interface{ Release() }
			if fate == "not sent" {
				late = q.Hooks[2].Next(1, nil).Hold()
			} else {
				late = q.Hooks[2].Next(1, nil).HoldReply()
			}
			x, err := q.TryAcquire(t.Context(), "k", time.Second)
			require.NoError(t, err)
			begun := time.Now()
			require.NoError(t, x.Release(t.Context()))
			require.Zero(t, time.Since(begun), "it does not wait for the third")
			late.Release()
			synctest.Wait()
			require.Equal(t, []string{"", "", ""}, q.Holders("k"), fate)
		}
	})
}

// The releases that a node has missed do not grow without a bound while the node is away.
func TestPendingReleasesAreDroppedWhenTheTTLHasDoneTheirWork(t *testing.T) {
	bubble(t, 3, func(t *testing.T, _ []*quorumtest.Node, join func() *process) {
		q := join()
		n := q.nodes[0]
		for i := range 20 {
			x, err := q.TryAcquire(t.Context(), strconv.Itoa(i), time.Second)
			require.NoError(t, err)
			synctest.Wait()
			q.Hooks[0].Every(nil).Fail(errBroken)
			require.NoError(t, x.Release(t.Context()))
			synctest.Wait()
			q.Hooks[0].Clear()
		}
		q.Hooks[0].Every(nil).Fail(errBroken)
		pending := func() int { n.mu.Lock(); defer n.mu.Unlock(); return len(n.releases.list) }
		require.Positive(t, pending())
		time.Sleep(3 * time.Second)
		require.Zero(t, pending())
		require.Nil(t, n.releases.retry)
		require.Empty(t, n.queues)
	})
}

// The release of a grant in quarantine says nothing of the release of the lease, which has got that node by a refill since.
func TestReleaseOfANodeThatWasRefilledTellsALoss(t *testing.T) {
	bubble(t, 3, func(t *testing.T, nodes []*quorumtest.Node, _ func() *process) {
		q := newProcess(t, nodes, Config{Quarantine: 10 * time.Second})
		x, err := q.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		synctest.Wait()
		require.NoError(t, x.Release(t.Context()))
		synctest.Wait()
		nodes[2].Rerun()
		x, err = q.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, []string{x.Token(), x.Token(), ""}, q.Holders("k"), "what the third node granted is given back")
		time.Sleep(11 * time.Second)
		require.NoError(t, x.Renew(t.Context()))
		synctest.Wait()
		require.Equal(t, x.Token(), q.Holders("k")[2])

		nodes[1].Del("k")
		nodes[2].Del("k")
		require.ErrorIs(t, x.Release(t.Context()), errLost)
	})
}
