package roundtrip

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold/internal/redistest"
)

func TestANodeOfAClusterHasASenderOfItsOwn(t *testing.T) {
	m, _ := redistest.Mini(t) // it says that it has all slots
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{m.Addr()}})
	t.Cleanup(func() { _ = cluster.Close() })
	node, err := cluster.MasterForKey(t.Context(), "k")
	require.NoError(t, err)
	c := NewClient(cluster)
	for i := range 3 {
		reply, n, err := c.Do(t.Context(), runOf(takeScript, fmt.Sprint("k", i)), enough)
		require.NoError(t, err)
		assert.EqualValues(t, 1, reply)
		assert.Equal(t, 1, n)
	}
	require.Len(t, c.nodes, 1)
	assert.NotNil(t, c.nodes[node])

	// Those of nodes that have left are forgotten when a new one comes.
	_, gone := redistest.Mini(t)
	c.nodes = map[*redis.Client]*sender{gone: newSender(cluster, c.topology)}
	_, _, err = c.Do(t.Context(), runOf(takeScript, "k"), enough)
	require.NoError(t, err)
	require.Len(t, c.nodes, 1)
	assert.NotNil(t, c.nodes[node])
	assert.True(t, c.Close(t.Context()))
}
