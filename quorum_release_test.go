package leasehold

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestQuorumReleaseDoesNotWaitForADeadNode(t *testing.T) {
	quorumBubble(t, 5, func(t *testing.T, nodes []*fakeNode, join joinFunc) {
		q := join()
		x, err := q.TryAcquire(t.Context(), "k", 20*time.Second)
		require.NoError(t, err)
		synctest.Wait()
		q.wires[0].BlackHole()
		q.wires[1].Refuse()
		begun := time.Now()
		require.NoError(t, x.Release(t.Context()))
		require.Zero(t, time.Since(begun))
		synctest.Wait()
		require.Equal(t, []string{x.Token(), x.Token(), "", "", ""}, q.holders("k"))

		// It is seen to when they are back, also by then that go-redis has long given up.
		q.wires[0].Pass()
		time.Sleep(6 * time.Second)
		require.Equal(t, []string{"", x.Token(), "", "", ""}, q.holders("k"))
		q.wires[1].Pass()
		time.Sleep(2 * time.Second)
		require.Equal(t, []string{"", "", "", "", ""}, q.holders("k"))
	})
}

func TestQuorumReleaseWithoutAMajorityIsRepeatedAndBounded(t *testing.T) {
	quorumBubble(t, 3, func(t *testing.T, _ []*fakeNode, join joinFunc) {
		q := join()
		x, err := q.TryAcquire(t.Context(), "k", 20*time.Second)
		require.NoError(t, err)
		synctest.Wait()
		q.wires[0].BlackHole()
		q.wires[1].BlackHole()
		begun := time.Now()
		err = x.Release(t.Context())
		require.ErrorIs(t, err, ErrNoQuorum)
		require.NotErrorIs(t, err, ErrLost)
		require.LessOrEqual(t, time.Since(begun), nodePatience)
		require.False(t, x.Valid())
		q.wires[0].Pass()
		q.wires[1].Pass()
		require.Eventually(t, func() bool { return q.holders("k")[0] == "" && q.holders("k")[1] == "" }, 10*time.Second, 100*time.Millisecond)
		require.NoError(t, x.Release(t.Context()))
	})
}

func TestQuorumReleaseTellsALeaseThatWasLost(t *testing.T) {
	quorumBubble(t, 3, func(t *testing.T, nodes []*fakeNode, join joinFunc) {
		q := join()
		take := func() *Lease {
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
		require.ErrorIs(t, x.Release(t.Context()), ErrLost)
	})
}

func TestQuorumSendsNoRefillForALeaseThatIsOver(t *testing.T) {
	quorumBubble(t, 3, func(t *testing.T, nodes []*fakeNode, join joinFunc) {
		q := join()
		x, err := q.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		synctest.Wait()
		nodes[2].Del("k")
		slow := q.hooks[1].Next(1, runs(renewNodeScript)).HoldReply() // says yes, after the deadline
		require.ErrorIs(t, x.Renew(t.Context()), ErrNoQuorum)
		time.Sleep(time.Until(x.ValidUntil()))
		slow.Release()
		synctest.Wait()
		require.ErrorIs(t, x.Err(), ErrLost)
		require.Equal(t, []string{"acquire", "renew"}, q.spies[2].took())

		// The majority was in time, and the node that has no key is late.
		x, err = q.Acquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		synctest.Wait()
		q.spies[2].took()
		nodes[2].Del("k")
		slow = q.hooks[2].Next(1, runs(renewNodeScript)).HoldReply()
		require.NoError(t, x.Renew(t.Context()))
		time.Sleep(time.Until(x.ValidUntil()))
		slow.Release()
		synctest.Wait()
		require.Equal(t, []string{"renew"}, q.spies[2].took())
	})
}

func TestQuorumSendsNoRefillAfterRelease(t *testing.T) {
	quorumBubble(t, 3, func(t *testing.T, nodes []*fakeNode, join joinFunc) {
		q := join()
		x, err := q.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		synctest.Wait()
		nodes[2].Del("k")
		slow := q.hooks[2].Next(1, runs(renewNodeScript)).HoldReply()
		require.NoError(t, x.Renew(t.Context()))
		require.NoError(t, x.Release(t.Context()))
		slow.Release() // "absent", behind a round that a majority confirmed
		synctest.Wait()
		require.NotContains(t, q.spies[2].took(), "refill")
		require.Equal(t, []string{"", "", ""}, q.holders("k"))

		// One that is under way is followed by the release of its node.
		x, err = q.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		synctest.Wait()
		nodes[2].Del("k")
		refill := q.hooks[2].Next(1, runs(refillNodeScript)).Hold()
		require.NoError(t, x.Renew(t.Context()))
		<-refill.Arrived()
		require.NoError(t, x.Release(t.Context()))
		refill.Release()
		synctest.Wait()
		require.Equal(t, []string{"", "", ""}, q.holders("k"))
	})
}
