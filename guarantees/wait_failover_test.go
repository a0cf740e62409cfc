package guarantees_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

// What becomes of the messages to waiters when another server takes over, on real ones. Leases may be lost then; what counts here
// is that the line is soon as fast as it was.

func TestMessagesComeAgainAfterAShardOfAClusterFailedOver(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	shard := cluster.Shard(rediskey.Slot("k"))
	replica := cluster.Replica(shard).Client()
	x := locktest.TakeTurns(t, cluster.Client(), cluster.Client(), cluster.Client())
	x.ComeByMessage("before", locktest.Soon)
	cluster.Nodes[shard].Kill()
	require.NoError(t, replica.Do(t.Context(), "CLUSTER", "FAILOVER", "TAKEOVER").Err())
	x.ComeByMessage("after", locktest.Soon)
}

// The old primary lives on, and so does every connection to it.
func TestMessagesComeAgainAfterAShardOfAClusterWasHandedOver(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	shard := cluster.Shard(rediskey.Slot("k"))
	replica := cluster.Replica(shard).Client()
	x := locktest.TakeTurns(t, cluster.Client(), cluster.Client(), cluster.Client())
	x.ComeByMessage("before", locktest.Soon)
	require.NoError(t, replica.Do(t.Context(), "CLUSTER", "FAILOVER", "TAKEOVER").Err())
	was := cluster.Nodes[shard].Client()
	require.Eventually(t, func() bool { return was.Do(t.Context(), "ROLE").Val().([]any)[0] == "slave" }, locktest.Soon, 10*time.Millisecond)
	x.ComeByMessage("after", locktest.Soon)
}

// The node that had the slot ends the subscription, and refuses it from then on.
func TestMessagesComeAgainAfterASlotOfAClusterHasMoved(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	slot := rediskey.Slot("k")
	from := cluster.Shard(slot)
	to := cluster.Nodes[(from+1)%3].Client()
	x := locktest.TakeTurns(t, cluster.Client(), cluster.Client(), cluster.Client())
	x.ComeByMessage("before", locktest.Soon)
	for _, n := range append([]*redis.Client{to}, cluster.Nodes[from].Client(), cluster.Nodes[(from+2)%3].Client()) {
		_, err := n.TxPipelined(t.Context(), func(p redis.Pipeliner) error { // a node does not give a slot away that has keys
			p.FlushAll(t.Context())
			p.Do(t.Context(), "CLUSTER", "SETSLOT", slot, "NODE", to.ClusterMyID(t.Context()).Val())
			return nil
		})
		require.NoError(t, err)
	}
	x.ComeByMessage("after", locktest.Soon)
}

func TestMessagesComeAgainAfterAFailoverBySentinel(t *testing.T) {
	for name, dial := range map[string]func(*redis.FailoverOptions) redis.UniversalClient{
		"failover client":         func(o *redis.FailoverOptions) redis.UniversalClient { return redis.NewFailoverClient(o) },
		"failover cluster client": func(o *redis.FailoverOptions) redis.UniversalClient { return redis.NewFailoverClusterClient(o) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Server(t)
			replica := redistest.Replica(t, s).Client()
			sentinel := redistest.Sentinel(t, s)
			var clients []redis.UniversalClient
			for range 3 {
				c := dial(&redis.FailoverOptions{MasterName: redistest.MasterName, SentinelAddrs: []string{sentinel}})
				t.Cleanup(func() { _ = c.Close() })
				clients = append(clients, c)
			}
			x := locktest.TakeTurns(t, clients...)
			x.ComeByMessage("before", locktest.Soon)
			s.Kill()
			require.Eventually(t, func() bool { return replica.Do(t.Context(), "ROLE").Val().([]any)[0] == "master" }, 6*locktest.Soon, 10*time.Millisecond)
			x.ComeByMessage("after", locktest.Soon)
		})
	}
}

// An address, be it of DNS, a virtual one or a service, leads to another server, while the old one lives on and keeps its
// connections. Those of the pool come to their end at ConnMaxLifetime; a subscription has none.
func TestMessagesComeAgainAfterAnAddressHasMoved(t *testing.T) {
	t.Parallel()
	old, next := redistest.Server(t), redistest.Server(t)
	var at atomic.Pointer[redistest.RedisServer]
	at.Store(old)
	dial := func() redis.UniversalClient {
		return old.Client(func(o *redis.Options) {
			o.ConnMaxLifetime = 200 * time.Millisecond
			o.Dialer = func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, at.Load().Addr())
			}
		})
	}
	x := locktest.TakeTurns(t, dial(), dial(), dial())
	x.ComeByMessage("before", locktest.Soon)
	at.Store(next)
	listening := old.Client()
	require.Eventually(t, func() bool { return len(listening.PubSubChannels(t.Context(), "*").Val()) == 0 }, locktest.Soon, 10*time.Millisecond)
	x.ComeByMessage("after", locktest.Soon)
}
