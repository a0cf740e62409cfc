package leasehold

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold/internal/quorum/quorumtest"
)

// runs matches the runs of a node's script.
var runs = quorumtest.Runs

// fakeQuorum is a Locker over nodes in a bubble and the faults on its way to each.
type fakeQuorum struct {
	*Locker
	*quorumtest.Reach
}

// fakeNode is a node of a quorum in a bubble.
type fakeNode = quorumtest.Node

// joinFunc makes a Locker on the nodes of a bubble. Unless an option says so, it has no quarantine.
type joinFunc func(opts ...Option) *fakeQuorum

// quorumBubble runs fn in a bubble with n nodes.
func quorumBubble(t *testing.T, n int, fn func(t *testing.T, nodes []*fakeNode, join joinFunc)) {
	t.Helper()
	quorumtest.Bubble(t, n, func(t *testing.T, nodes []*fakeNode) {
		fn(t, nodes, func(opts ...Option) *fakeQuorum { return joinNodes(t, nodes, nil, opts...) })
	})
}

func joinNodes(t *testing.T, nodes []*fakeNode, with func(*redis.Options), opts ...Option) *fakeQuorum {
	q := &fakeQuorum{}
	if with == nil {
		with = func(*redis.Options) {}
	}
	q.Reach = quorumtest.NewReach(t, nodes, with)
	var err error
	q.Locker, err = NewQuorum(q.Clients, append([]Option{WithRestartQuarantine(0)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = q.Close() })
	return q
}
