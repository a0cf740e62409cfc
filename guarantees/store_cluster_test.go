package guarantees_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/locktest"
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

func TestTheScriptsRunOnANodeOfACluster(t *testing.T) {
	cluster, _ := oneNodeCluster(t)
	d := locktest.StoreOn(t, cluster)
	for i := range 3 {
		r := locktest.TestRequest(fmt.Sprint("k", i))
		a, n, err := d.Tenure(r).Acquire(t.Context(), backend.Try, backend.CallBound)
		require.NoError(t, err)
		assert.Equal(t, backend.Granted, a.State)
		assert.EqualValues(t, 1, n)
		state, err := d.Inspect(t.Context(), r.Key, backend.CallBound)
		require.NoError(t, err)
		assert.True(t, state.Held)
		answered := make(chan int, 1)
		d.Tenure(r).RenewLater(backend.Renewal{PX: r.PX}, func(_ backend.Pending, waiters int, err error) {
			assert.NoError(t, err)
			answered <- waiters
		})
		d.Flush()
		assert.Zero(t, <-answered)
		what, _, err := d.Tenure(r).Release(t.Context(), backend.Plain, backend.CallBound)
		require.NoError(t, err)
		assert.Equal(t, backend.ReleasedLock, what)
	}
	assert.True(t, d.Close(t.Context()))
}

func TestAClusterWithoutAnyNodeIsServerTrouble(t *testing.T) {
	cluster, _ := oneNodeCluster(t)
	d := locktest.StoreOn(t, cluster)
	require.NoError(t, cluster.Close())
	for replicas := range 2 {
		r := locktest.TestRequest("k")
		r.Replicas, r.ReplicasWithin = replicas, time.Second
		_, _, err := d.Tenure(r).Acquire(t.Context(), backend.Try, backend.CallBound)
		require.ErrorIs(t, err, redis.ErrClosed)
	}
}

// An acquire that wants replicas to know of it is granted only when enough of them do.
func TestReplicasAcknowledgeAnAcquire(t *testing.T) {
	t.Parallel()
	s := redistest.Server(t)
	replica := redistest.Replica(t, s)
	c := s.Client()
	d := locktest.StoreOn(t, c)
	wants := func(key string, replicas int, within time.Duration) backend.Request {
		r := locktest.TestRequest(key)
		r.Replicas, r.ReplicasWithin = replicas, within
		return r
	}
	for range 2 { // once with EVAL, once with EVALSHA, and again for the same token
		a, n, err := d.Tenure(wants("k", 1, time.Second)).Acquire(t.Context(), backend.Try, backend.CallBound)
		require.NoError(t, err)
		assert.Equal(t, backend.Granted, a.State)
		assert.EqualValues(t, 1, n)
		assert.EqualValues(t, 1, replica.Client().Exists(t.Context(), "k").Val())
	}
	other := wants("k", 1, time.Second)
	other.Token = "other"
	a, _, err := d.Tenure(other).Acquire(t.Context(), backend.Try, backend.CallBound)
	require.NoError(t, err)
	assert.Equal(t, backend.Held, a.State)

	replica.Stop()
	_, n, err := d.Tenure(wants("k2", 1, 20*time.Millisecond)).Acquire(t.Context(), backend.Try, backend.CallBound)
	var replicas *fault.Replicas
	require.ErrorAs(t, err, &replicas)
	assert.EqualError(t, err, "0 of the 1 replicas that WithReplicas wants acknowledged within 20ms")
	assert.False(t, fault.Transient(err))
	assert.EqualValues(t, 1, n, "there is something to be undone")
	a, _, err = d.Tenure(other).Acquire(t.Context(), backend.Try, backend.CallBound)
	require.NoError(t, err)
	assert.Equal(t, backend.Held, a.State)
	replica.Cont()
}

func TestTooFewReplicasOnMiniredis(t *testing.T) {
	_, c := redistest.Mini(t)
	d := locktest.StoreOn(t, c)
	r := locktest.TestRequest("k")
	r.Replicas, r.ReplicasWithin = 2, time.Millisecond
	_, n, err := d.Tenure(r).Acquire(t.Context(), backend.Try, backend.CallBound)
	assert.EqualError(t, err, "0 of the 2 replicas that WithReplicas wants acknowledged within 1ms")
	assert.EqualValues(t, 1, n)
	r.Token = "other"
	a, _, err := d.Tenure(r).Acquire(t.Context(), backend.Try, backend.CallBound)
	require.NoError(t, err)
	assert.Equal(t, backend.Held, a.State)
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
	client, trips := cluster.Client(), &redistest.Trips{}
	client.AddHook(trips)
	l := locktest.Process(t, client)
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
	require.Eventually(t, func() bool { return trips.Under() >= locktest.FreeFlights }, 10*time.Second, time.Millisecond)
	for i := range 50 {
		begun := time.Now()
		require.NoError(t, section(keyOn(cluster, 1+i%2, i)))
		require.Less(t, time.Since(begun), time.Second, "a node that does not answer holds up another")
	}
}

// go-redis looks once a minute where the slots are.
func TestAReplicaThatHasTakenOverIsFoundByTheFirstCall(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	replica := cluster.Replica(1)
	l := locktest.Process(t, cluster.Client())
	kept, err := l.TryAcquire(t.Context(), keyOn(cluster, 1, 0), time.Minute, leasehold.WithReplicas(1, 2*time.Second))
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
