package leasehold

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold/internal/redistest"
)

// oneNodeCluster is a cluster client of a miniredis, which says that it has all slots, and the client of that node.
func oneNodeCluster(t *testing.T) (*redis.ClusterClient, *redis.Client) {
	m, _ := redistest.Mini(t)
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{m.Addr()}, MaxRedirects: -1})
	t.Cleanup(func() { _ = cluster.Close() })
	node, err := cluster.MasterForKey(t.Context(), "k")
	require.NoError(t, err)
	return cluster, node
}

func TestANodeOfAClusterHasASenderOfItsOwn(t *testing.T) {
	cluster, node := oneNodeCluster(t)
	d := storeOn(t, cluster)
	for i := range 3 {
		r := testRequest(fmt.Sprint("k", i))
		a, n, err := d.acquire(t.Context(), r, modeTry, callBound)
		require.NoError(t, err)
		assert.Equal(t, granted, a.state)
		assert.EqualValues(t, 1, n)
		state, err := d.inspect(t.Context(), r, callBound)
		require.NoError(t, err)
		assert.True(t, state.Held)
		answered := make(chan int, 1)
		d.renewLater(r, func(_ *call, waiters int, err error) {
			assert.NoError(t, err)
			answered <- waiters
		})
		d.flush()
		assert.Zero(t, <-answered)
		what, _, err := d.release(t.Context(), r, modeRelease, callBound)
		require.NoError(t, err)
		assert.Equal(t, releasedLock, what)
	}
	require.Len(t, d.nodes, 1)
	assert.NotNil(t, d.nodes[node])

	// Those of nodes that have left are forgotten when a new one comes.
	_, gone := redistest.Mini(t)
	d.nodes = map[*redis.Client]*sender{gone: newSender(gone)}
	_, _, err := d.acquire(t.Context(), testRequest("k"), modeTry, callBound)
	require.NoError(t, err)
	require.Len(t, d.nodes, 1)
	assert.NotNil(t, d.nodes[node])
	assert.True(t, d.close(t.Context()))
}

// A node that does not answer may not be the one any more: the cluster's client finds out.
func TestACallThatItsNodeDoesNotRunGoesToTheCluster(t *testing.T) {
	for _, tt := range []struct {
		name   string
		err    error
		lose   bool // after the node has run it
		sent   sent
		passes bool
	}{
		{name: "cut before", err: io.EOF, sent: 1, passes: true},
		{name: "cut after", err: io.EOF, lose: true, sent: 2, passes: true},
		{name: "moved", err: serverSays("MOVED 1 127.0.0.1:1"), lose: true, sent: 1, passes: true},
		{name: "asked elsewhere", err: serverSays("ASK 1 127.0.0.1:1"), lose: true, sent: 1, passes: true},
		{name: "refused", err: serverSays("READONLY You can't write against a read only replica."), lose: true, sent: 1},
		{name: "not allowed", err: serverSays("NOPERM no"), sent: 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cluster, node := oneNodeCluster(t)
			fault := redistest.Faulty(node)
			d := storeOn(t, cluster)
			_, _, err := d.acquire(t.Context(), testRequest("first"), modeTry, callBound)
			require.NoError(t, err)
			if rule := fault.Next(1, redistest.Cmd("evalsha")); tt.lose {
				rule.Lose(tt.err)
			} else {
				rule.Fail(tt.err)
			}
			a, n, err := d.acquire(t.Context(), testRequest("k"), modeTry, callBound)
			assert.Equal(t, tt.sent, n)
			if !tt.passes {
				require.ErrorIs(t, err, tt.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, granted, a.state)
		})
	}
}

func TestAClusterWithoutAnyNodeIsServerTrouble(t *testing.T) {
	cluster, _ := oneNodeCluster(t)
	d := storeOn(t, cluster)
	require.NoError(t, cluster.Close())
	for _, o := range []*options{{}, {replicas: 1, replicasIn: time.Second}} {
		r := testRequest("k")
		r.o = o
		d.known.Store(true)
		_, _, err := d.acquire(t.Context(), r, modeTry, callBound)
		require.ErrorIs(t, err, redis.ErrClosed)
	}
}

// An acquire that wants replicas to know of it is granted only when enough of them do.
func TestReplicasAcknowledgeAnAcquire(t *testing.T) {
	t.Parallel()
	s := redistest.Server(t)
	replica := redistest.Replica(t, s)
	c := s.Client()
	d := storeOn(t, c)
	wants := func(key string, replicas int, within time.Duration) *request {
		r := testRequest(key)
		r.o = &options{replicas: replicas, replicasIn: within}
		return r
	}
	for range 2 { // once with EVAL, once with EVALSHA, and again for the same token
		a, n, err := d.acquire(t.Context(), wants("k", 1, time.Second), modeTry, callBound)
		require.NoError(t, err)
		assert.Equal(t, granted, a.state)
		assert.EqualValues(t, 1, n)
		assert.EqualValues(t, 1, replica.Client().Exists(t.Context(), "k").Val())
	}
	other := wants("k", 1, time.Second)
	other.token = "other"
	a, _, err := d.acquire(t.Context(), other, modeTry, callBound)
	require.NoError(t, err)
	assert.Equal(t, held, a.state)

	replica.Stop()
	_, n, err := d.acquire(t.Context(), wants("k2", 1, 20*time.Millisecond), modeTry, callBound)
	var replicas *replicasError
	require.ErrorAs(t, err, &replicas)
	assert.EqualError(t, err, "0 of the 1 replicas that WithReplicas wants acknowledged within 20ms")
	assert.False(t, transient(err))
	assert.EqualValues(t, 1, n, "there is something to be undone")
	a, _, err = d.acquire(t.Context(), other, modeTry, callBound)
	require.NoError(t, err)
	assert.Equal(t, held, a.state)
	replica.Cont()
}

func TestTooFewReplicasOnMiniredis(t *testing.T) {
	_, c := redistest.Mini(t)
	d := storeOn(t, c)
	r := testRequest("k")
	r.o = &options{replicas: 2, replicasIn: time.Millisecond}
	_, n, err := d.acquire(t.Context(), r, modeTry, callBound)
	assert.EqualError(t, err, "0 of the 2 replicas that WithReplicas wants acknowledged within 1ms")
	assert.EqualValues(t, 1, n)
	r.token = "other"
	a, _, err := d.acquire(t.Context(), r, modeTry, callBound)
	require.NoError(t, err)
	assert.Equal(t, held, a.state)
}
