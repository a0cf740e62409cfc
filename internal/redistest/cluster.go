package redistest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// RedisCluster is a Redis Cluster of three masters without replicas.
type RedisCluster struct {
	Nodes []*RedisServer
	t     testing.TB
}

// Cluster starts a cluster that ends with the test and waits until every node
// finds it complete, which takes Redis two to three seconds.
func Cluster(t testing.TB) *RedisCluster {
	t.Helper()
	const nodes, slots = 3, 16384
	c := &RedisCluster{t: t}
	var clients []*redis.Client
	for i := range nodes {
		s := Server(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "5000")
		client := s.Client()
		// Epochs that differ from the start spare the nodes a round of conflicts.
		must(t, client.Do(t.Context(), "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err())
		must(t, client.ClusterAddSlotsRange(t.Context(), i*slots/nodes, (i+1)*slots/nodes-1).Err())
		c.Nodes = append(c.Nodes, s)
		clients = append(clients, client)
	}
	for _, s := range c.Nodes[1:] {
		must(t, clients[0].ClusterMeet(t.Context(), "127.0.0.1", s.Addr()[len("127.0.0.1:"):]).Err())
	}
	eventually(t, "every node finds the cluster complete", func() bool {
		for _, client := range clients {
			info := client.ClusterInfo(t.Context()).Val()
			if !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, "cluster_known_nodes:3") {
				return false
			}
		}
		return true
	})
	return c
}

// ClusterOfOne starts a cluster of one node, which takes Redis two seconds.
func ClusterOfOne(t testing.TB) *RedisServer {
	t.Helper()
	s := Server(t, "--cluster-enabled", "yes")
	client := s.Client()
	must(t, client.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	eventually(t, "the cluster is complete", func() bool {
		return strings.Contains(client.ClusterInfo(t.Context()).Val(), "cluster_state:ok")
	})
	return s
}

// Shard returns which of the Nodes has a slot.
func (c *RedisCluster) Shard(slot int) int {
	const slots = 16384
	for i := range c.Nodes {
		if slot < (i+1)*slots/len(c.Nodes) {
			return i
		}
	}
	return -1
}

// Replica starts a replica of one of the Nodes and waits until it follows and
// knows the whole cluster, so that CLUSTER FAILOVER TAKEOVER makes it the
// primary of that node's slots.
func (c *RedisCluster) Replica(of int) *RedisServer {
	c.t.Helper()
	ctx := c.t.Context()
	s := Server(c.t, "--cluster-enabled", "yes", "--cluster-node-timeout", "5000")
	replica := s.Client()
	known := fmt.Sprintf("cluster_known_nodes:%d", len(c.Nodes)+1)
	clients := []*redis.Client{replica}
	for _, n := range c.Nodes {
		must(c.t, replica.ClusterMeet(ctx, "127.0.0.1", strconv.Itoa(n.port)).Err())
		clients = append(clients, n.Client())
	}
	eventually(c.t, "the replica is met", func() bool { // or it will not know which slots to take over, nor be believed
		for _, client := range clients {
			info := client.ClusterInfo(ctx).Val()
			if !strings.Contains(info, "cluster_slots_assigned:16384") || !strings.Contains(info, known) {
				return false
			}
		}
		return true
	})
	must(c.t, replica.ClusterReplicate(ctx, clients[1+of].ClusterMyID(ctx).Val()).Err())
	eventually(c.t, "the replica follows", func() bool {
		return strings.Contains(replica.Info(ctx, "replication").Val(), "master_link_status:up")
	})
	return s
}

// Client returns a client of the whole cluster that is closed with the test.
func (c *RedisCluster) Client(opts ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	opt := &redis.ClusterOptions{}
	for _, s := range c.Nodes {
		opt.Addrs = append(opt.Addrs, s.Addr())
	}
	for _, o := range opts {
		o(opt)
	}
	client := redis.NewClusterClient(opt)
	c.t.Cleanup(func() { _ = client.Close() })
	return client
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
