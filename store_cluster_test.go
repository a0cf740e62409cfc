package leasehold

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

// oneNodeCluster is a cluster client of a miniredis, which says that it has all slots, and the client of that node.
func oneNodeCluster(t *testing.T, opts ...func(*redis.ClusterOptions)) (*redis.ClusterClient, *redis.Client) {
	m, _ := redistest.Mini(t)
	o := &redis.ClusterOptions{Addrs: []string{m.Addr()}}
	for _, opt := range opts {
		opt(o)
	}
	cluster := redis.NewClusterClient(o)
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
	d.nodes = map[*redis.Client]*sender{gone: newSender(cluster, d.topology)}
	_, _, err := d.acquire(t.Context(), testRequest("k"), modeTry, callBound)
	require.NoError(t, err)
	require.Len(t, d.nodes, 1)
	assert.NotNil(t, d.nodes[node])
	assert.True(t, d.close(t.Context()))
}

func TestAClusterWithoutAnyNodeIsServerTrouble(t *testing.T) {
	cluster, _ := oneNodeCluster(t)
	d := storeOn(t, cluster)
	require.NoError(t, cluster.Close())
	for _, o := range []*options{{}, {replicas: 1, replicasIn: time.Second}} {
		r := testRequest("k")
		r.o = o
		d.topology.known.Store(true)
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

// keyOn is a key of one of a cluster's nodes.
func keyOn(cluster *redistest.RedisCluster, node, i int) string {
	for n := 0; ; n++ {
		key := fmt.Sprintf("k%d-%d", i, n)
		if cluster.Shard(rediskey.Slot(key)) == node {
			return key
		}
	}
}

func TestTheNodesOfAClusterDoNotHoldUpEachOther(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	calls := func() (n int) {
		for _, s := range cluster.Nodes {
			for command, stat := range s.Client().InfoMap(t.Context(), "commandstats").Val()["Commandstats"] {
				var count int
				_, err := fmt.Sscanf(stat, "calls=%d,", &count)
				require.NoError(t, err)
				switch strings.TrimPrefix(command, "cmdstat_") {
				case "evalsha", "eval", "cluster|slots", "cluster|shards", "command": // all that a client sends for itself
					n += count
				}
			}
		}
		return n
	}
	l := process(t, cluster.Client())
	section := func(key string) error {
		x, err := l.TryAcquire(t.Context(), key, time.Minute)
		if err == nil {
			err = x.Release(t.Context())
		}
		return err
	}
	for range 2 { // connections, scripts, and go-redis's own questions
		for node := range cluster.Nodes {
			require.NoError(t, section(keyOn(cluster, node, 0)))
		}
	}
	before := calls()
	require.NoError(t, section(keyOn(cluster, 1, 0)))
	assert.Equal(t, before+2, calls(), "an acquire and a release are a round trip each")

	cluster.Nodes[0].Stop()
	var hanging sync.WaitGroup
	for i := range 20 {
		hanging.Go(func() { _ = section(keyOn(cluster, 0, i)) })
	}
	defer hanging.Wait()
	defer cluster.Nodes[0].Cont()
	require.Eventually(t, func() bool { return l.store.(*deployment).isBusy() }, 10*time.Second, time.Millisecond)
	for i := range 50 {
		begun := time.Now()
		require.NoError(t, section(keyOn(cluster, 1+i%2, i)))
		require.Less(t, time.Since(begun), time.Second, "a node that does not answer holds up another")
	}
}

// isBusy reports whether some node has all its free round trips under way.
func (d *deployment) isBusy() bool {
	for _, s := range d.senders() {
		s.mu.Lock()
		busy := s.flights >= freeFlights
		s.mu.Unlock()
		if busy {
			return true
		}
	}
	return false
}

// go-redis looks once a minute where the slots are.
func TestAReplicaThatHasTakenOverIsFoundByTheFirstCall(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	replica := cluster.Replica(1)
	l := process(t, cluster.Client())
	kept, err := l.TryAcquire(t.Context(), keyOn(cluster, 1, 0), time.Minute, WithReplicas(1, 2*time.Second))
	require.NoError(t, err)
	cluster.Nodes[1].Kill()
	require.NoError(t, replica.Client().Do(t.Context(), "CLUSTER", "FAILOVER", "TAKEOVER").Err())
	begun := time.Now()
	x, err := l.TryAcquire(t.Context(), keyOn(cluster, 1, 1), time.Minute)
	require.NoError(t, err)
	t.Logf("found after %v", time.Since(begun))
	require.NoError(t, kept.Renew(t.Context()))
	require.NoError(t, x.Release(t.Context()))
}
