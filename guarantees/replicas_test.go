package guarantees_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

// requireReplicated takes a lock that a replica has to know of, on servers of which only some have one.
func requireReplicated(t *testing.T, l *leasehold.Locker, key string, has bool) {
	t.Helper()
	patience := 20 * time.Millisecond // none will come
	if has {
		patience = 2 * time.Second
	}
	x, err := l.TryAcquire(t.Context(), key, time.Minute, leasehold.WithReplicas(1, patience))
	if has {
		require.NoError(t, err, key)
		require.NoError(t, x.Release(t.Context()))
		return
	}
	require.ErrorAs(t, err, new(*fault.Replicas), "%s was granted, and no replica of its server is up", key)
	state, err := l.Inspect(t.Context(), key)
	require.NoError(t, err)
	require.False(t, state.Held, "the attempt was not undone")
}

// A WAIT that goes to another server than the key's, or to another connection, is answered by replicas that know nothing.
func TestOnlyReplicasOfTheKeysServerAcknowledge(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	replicated := cluster.Shard(rediskey.Slot("k0"))
	cluster.Replica(replicated)
	_, one := redistest.Mini(t)
	for name, client := range map[string]redis.UniversalClient{
		"cluster":          cluster.Client(),
		"embedded cluster": struct{ *redis.ClusterClient }{cluster.Client()},
		"wrapped cluster":  locktest.Wrapper{UniversalClient: locktest.Wrapper{UniversalClient: cluster.Client()}},
	} {
		t.Run(name, func(t *testing.T) {
			l := locktest.Process(t, client)
			for i := range 12 {
				key := fmt.Sprint("k", i)
				requireReplicated(t, l, key, cluster.Shard(rediskey.Slot(key)) == replicated)
			}
		})
	}
	t.Run("ring", func(t *testing.T) {
		a, b := redistest.Server(t), redistest.Server(t)
		redistest.Replica(t, a)
		ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": a.Addr(), "b": b.Addr()}})
		t.Cleanup(func() { _ = ring.Close() })
		for i := range 12 {
			key := fmt.Sprint("k", i)
			node, err := ring.GetShardClientForKey(key)
			require.NoError(t, err)
			requireReplicated(t, locktest.Process(t, locktest.Wrapper{UniversalClient: ring}), key, node.Options().Addr == a.Addr())
		}
	})
	t.Run("a client that hides what it is", func(t *testing.T) {
		fault := redistest.Faulty(one)
		_, err := leasehold.New(locktest.Opaque{UniversalClient: one}).TryAcquire(t.Context(), "k", time.Minute, leasehold.WithReplicas(1, time.Second))
		require.ErrorIs(t, err, leasehold.ErrInvalid)
		require.ErrorContains(t, err, "WithReplicas(1, 1s)")
		require.ErrorContains(t, err, "locktest.Opaque")
		require.Empty(t, fault.Sent())
		x, err := leasehold.New(locktest.Opaque{UniversalClient: one}).TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err, "without replicas the client will do")
		require.NoError(t, x.Release(t.Context()))
	})
}

// Whatever a hook of a cluster's client does to the keys, the replicas that count are those of the server that has the lock: the
// hook either lets the library see where that is, or the lock is not granted.
func TestReplicasBehindAHookThatRewritesKeys(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	replicated := cluster.Shard(rediskey.Slot("{k0}"))
	cluster.Replica(replicated)
	for _, prefix := range []string{"red:", "{red}:"} {
		for _, copies := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, a hook that copies: %v", prefix, copies), func(t *testing.T) {
				client := cluster.Client()
				client.AddHook(tenant{prefix, copies})
				l := locktest.Process(t, client)
				for i := range 12 {
					key := fmt.Sprintf("{k%d}", i)
					requireReplicated(t, l, key, !copies && cluster.Shard(rediskey.Slot(prefix+key)) == replicated)
				}
				for _, s := range cluster.Nodes {
					for _, key := range s.Client().Keys(t.Context(), "*").Val() {
						assert.Contains(t, key, prefix)
						assert.NotContains(t, key, prefix+prefix)
					}
					require.NoError(t, s.Client().FlushAll(t.Context()).Err())
				}
			})
		}
	}
}

// breaking is a hook that ends the goroutine of a pipeline, or panics in it.
type breaking struct {
	redis.Hook
	how func()
}

func (h breaking) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (h breaking) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (h breaking) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[len(cmds)-1].Name() == "wait" {
			h.how()
		}
		return next(ctx, cmds)
	}
}

func TestAClientThatBreaksWhileReplicasAreAskedIsTheErrorOfTheCall(t *testing.T) {
	for name, tt := range map[string]struct {
		how  func()
		want string
	}{
		"panics":        {func() { panic("no") }, "the redis client panicked: no"},
		"exits":         {runtime.Goexit, fault.ErrExited.Error()},
		"knows nothing": {func() {}, "the redis client names no server for the key"},
	} {
		t.Run(name, func(t *testing.T) {
			m, one := redistest.Mini(t)
			clients := map[string]redis.UniversalClient{"lookup": locktest.LostClient{UniversalClient: one, How: tt.how}}
			if name != "knows nothing" {
				hooked := redis.NewClient(&redis.Options{Addr: m.Addr()})
				t.Cleanup(func() { _ = hooked.Close() })
				hooked.AddHook(breaking{how: tt.how})
				clients["one server"] = hooked
				cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{m.Addr()}})
				t.Cleanup(func() { _ = cluster.Close() })
				cluster.OnNewNode(func(node *redis.Client) { node.AddHook(breaking{how: tt.how}) })
				clients["cluster"] = cluster
			}
			for kind, client := range clients {
				l := leasehold.New(client)
				_, err := l.TryAcquire(t.Context(), "k", time.Minute, leasehold.WithReplicas(1, time.Millisecond))
				require.ErrorContains(t, err, tt.want, kind)
				require.NoError(t, l.Close(), kind) // which waits for the attempt to be undone
				require.False(t, m.Exists("k"), kind)
			}
		})
	}
}

// A WAIT is about the writes before it. A renewal that wrote nothing, as one in the millisecond of its acquire might, would have a WAIT
// that is about none.
func TestARenewalIsAlwaysAWriteThatReplicasGet(t *testing.T) {
	t.Parallel()
	s := redistest.Server(t)
	redistest.Replica(t, s)
	c := s.Client()
	offset := func() (n int64) {
		_, err := fmt.Sscan(c.InfoMap(t.Context(), "replication").Val()["Replication"]["master_repl_offset"], &n)
		require.NoError(t, err)
		return n
	}
	grows := func(script string) int64 {
		before := offset()
		require.NoError(t, c.Eval(t.Context(), script, []string{"k"}, "me", 60_000).Err())
		return offset() - before
	}
	const take = "redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])\n"
	for range 20 { // most of them in one millisecond
		assert.Greater(t, grows(take+locktest.RenewScript.Src), grows(take+"return 1")+10)
	}
}
