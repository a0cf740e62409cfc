package locktest

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/quorum/quorumtest"
)

// Runs matches the runs of a node's script.
var Runs = quorumtest.Runs

// FakeQuorum is a Locker over nodes in a bubble and the faults on its way to each.
type FakeQuorum struct {
	*leasehold.Locker
	*quorumtest.Reach
}

// FakeNode is a node of a quorum in a bubble.
type FakeNode = quorumtest.Node

// JoinFunc makes a Locker on the nodes of a bubble. Unless an option says so, it has no quarantine.
type JoinFunc func(opts ...leasehold.Option) *FakeQuorum

// QuorumBubble runs fn in a bubble with n nodes.
func QuorumBubble(t *testing.T, n int, fn func(t *testing.T, nodes []*FakeNode, join JoinFunc)) {
	t.Helper()
	quorumtest.Bubble(t, n, func(t *testing.T, nodes []*FakeNode) {
		fn(t, nodes, func(opts ...leasehold.Option) *FakeQuorum { return JoinNodes(t, nodes, nil, opts...) })
	})
}

func JoinNodes(t *testing.T, nodes []*FakeNode, with func(*redis.Options), opts ...leasehold.Option) *FakeQuorum {
	q := &FakeQuorum{}
	if with == nil {
		with = func(*redis.Options) {}
	}
	q.Reach = quorumtest.NewReach(t, nodes, with)
	var err error
	q.Locker, err = leasehold.NewQuorum(q.Clients, append([]leasehold.Option{leasehold.WithRestartQuarantine(0)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = q.Close() })
	return q
}
