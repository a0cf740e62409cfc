package leasehold

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

// What becomes of the messages to waiters when another server takes over, on real ones. Leases may be lost then; what counts here
// is that the line is soon as fast as it was.

// turns is a few Lockers, each of a process of its own, that take turns at one key.
type turns struct {
	t       *testing.T
	lockers []*Locker
}

// takeTurns lets one Locker on each client take turns until the test ends.
func takeTurns(t *testing.T, clients ...redis.UniversalClient) *turns {
	x := &turns{t: t}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for _, c := range clients {
		l := process(t, c, WithAutoRenew(true))
		x.lockers = append(x.lockers, l)
		all.Go(func() {
			work := time.NewTicker(10 * time.Millisecond)
			defer work.Stop()
			for ctx.Err() == nil {
				if lease, err := l.Acquire(ctx, "k", time.Second); err == nil {
					<-work.C
					_ = lease.Release(ctx)
				}
			}
		})
	}
	t.Cleanup(func() { cancel(); all.Wait() })
	return x
}

// count is how often the lock was had after a wait, and how often a message ended it.
func (x *turns) count() (all, byMessage int64) {
	for _, l := range x.lockers {
		s := l.Stats()
		all += s.Acquired - s.AcquiredAtOnce
		byMessage += s.AcquiredByMessage
	}
	return all, byMessage
}

// comeByMessage requires that, within the bound, the lock goes from hand to hand by messages. It counts half a second at a time.
func (x *turns) comeByMessage(when string, bound time.Duration) {
	x.t.Helper()
	begun := time.Now()
	all, byMessage := x.count()
	for now := range time.Tick(500 * time.Millisecond) {
		n, m := x.count()
		n, all = n-all, n
		m, byMessage = m-byMessage, m
		x.t.Logf("%s, %4.1f s: %4d hand-overs a second, %d of %d by message", when, now.Sub(begun).Seconds(), n*2, m, n)
		if n >= 20 && m*100 >= n*90 {
			return
		}
		require.Less(x.t, now.Sub(begun), bound, "%s: the messages do not come", when)
	}
}

// soon is how long it may take until messages come as before, from when there is a server that can send them.
const soon = 10 * time.Second

func TestMessagesComeAgainAfterAShardOfAClusterFailedOver(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	shard := cluster.Shard(rediskey.Slot("k"))
	replica := cluster.Replica(shard).Client()
	x := takeTurns(t, cluster.Client(), cluster.Client(), cluster.Client())
	x.comeByMessage("before", soon)
	cluster.Nodes[shard].Kill()
	require.NoError(t, replica.Do(t.Context(), "CLUSTER", "FAILOVER", "TAKEOVER").Err())
	x.comeByMessage("after", soon)
}

// The old primary lives on, and so does every connection to it.
func TestMessagesComeAgainAfterAShardOfAClusterWasHandedOver(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	shard := cluster.Shard(rediskey.Slot("k"))
	replica := cluster.Replica(shard).Client()
	x := takeTurns(t, cluster.Client(), cluster.Client(), cluster.Client())
	x.comeByMessage("before", soon)
	require.NoError(t, replica.Do(t.Context(), "CLUSTER", "FAILOVER", "TAKEOVER").Err())
	was := cluster.Nodes[shard].Client()
	require.Eventually(t, func() bool { return was.Do(t.Context(), "ROLE").Val().([]any)[0] == "slave" }, soon, 10*time.Millisecond)
	x.comeByMessage("after", soon)
}

// The node that had the slot ends the subscription, and refuses it from then on.
func TestMessagesComeAgainAfterASlotOfAClusterHasMoved(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	slot := rediskey.Slot("k")
	from := cluster.Shard(slot)
	to := cluster.Nodes[(from+1)%3].Client()
	x := takeTurns(t, cluster.Client(), cluster.Client(), cluster.Client())
	x.comeByMessage("before", soon)
	for _, n := range append([]*redis.Client{to}, cluster.Nodes[from].Client(), cluster.Nodes[(from+2)%3].Client()) {
		_, err := n.TxPipelined(t.Context(), func(p redis.Pipeliner) error { // a node does not give a slot away that has keys
			p.FlushAll(t.Context())
			p.Do(t.Context(), "CLUSTER", "SETSLOT", slot, "NODE", to.ClusterMyID(t.Context()).Val())
			return nil
		})
		require.NoError(t, err)
	}
	x.comeByMessage("after", soon)
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
			x := takeTurns(t, clients...)
			x.comeByMessage("before", soon)
			s.Kill()
			require.Eventually(t, func() bool { return replica.Do(t.Context(), "ROLE").Val().([]any)[0] == "master" }, 2*soon, 10*time.Millisecond)
			x.comeByMessage("after", soon)
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
	x := takeTurns(t, dial(), dial(), dial())
	x.comeByMessage("before", soon)
	at.Store(next)
	listening := old.Client()
	require.Eventually(t, func() bool { return len(listening.PubSubChannels(t.Context(), "*").Val()) == 0 }, soon, 10*time.Millisecond)
	x.comeByMessage("after", soon)
}
