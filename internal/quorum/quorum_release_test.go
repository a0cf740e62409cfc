package quorum_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/quorum"
	"github.com/stretchr/testify/require"
)

func TestQuorumReleaseWithoutAMajorityIsRepeatedAndBounded(t *testing.T) {
	locktest.QuorumBubble(t, 3, func(t *testing.T, _ []*locktest.FakeNode, join locktest.JoinFunc) {
		q := join()
		x, err := q.TryAcquire(t.Context(), "k", 20*time.Second)
		require.NoError(t, err)
		synctest.Wait()
		q.Wires[0].BlackHole()
		q.Wires[1].BlackHole()
		begun := time.Now()
		err = x.Release(t.Context())
		require.ErrorIs(t, err, leasehold.ErrNoQuorum)
		require.NotErrorIs(t, err, leasehold.ErrLost)
		require.LessOrEqual(t, time.Since(begun), quorum.Patience)
		require.False(t, x.Valid())
		q.Wires[0].Pass()
		q.Wires[1].Pass()
		require.Eventually(t, func() bool { return q.Holders("k")[0] == "" && q.Holders("k")[1] == "" }, 10*time.Second, 100*time.Millisecond)
		require.NoError(t, x.Release(t.Context()))
	})
}
