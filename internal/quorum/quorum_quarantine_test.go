package quorum_test

import (
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

func TestQuorumNodesAreJudgedWhenTheyAreGiven(t *testing.T) {
	node := func() redis.UniversalClient {
		c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // nothing is sent
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	a, b, c, d, e := node(), node(), node(), node(), node()
	for _, bad := range []struct {
		nodes []redis.UniversalClient
		opts  []leasehold.Option
		why   string
	}{
		{nil, nil, "0 nodes: want an odd number, 3 at least"},
		{[]redis.UniversalClient{a}, nil, "1 nodes"},
		{[]redis.UniversalClient{a, b, c, d}, nil, "4 nodes"},
		{[]redis.UniversalClient{a, nil, c}, nil, "the client of node 1 is nil"},
		{[]redis.UniversalClient{a, b, a}, nil, "nodes 0 and 2 are one client"},
		{[]redis.UniversalClient{a, b, c}, []leasehold.Option{leasehold.WithRestartQuarantine(-time.Second)}, "WithRestartQuarantine(-1s)"},
		{[]redis.UniversalClient{a, b, c}, []leasehold.Option{leasehold.WithRestartQuarantine(time.Millisecond)}, "WithRestartQuarantine(1ms)"},
	} {
		l, err := leasehold.NewQuorum(bad.nodes, bad.opts...)
		require.Nil(t, l)
		require.ErrorIs(t, err, leasehold.ErrInvalid)
		require.ErrorContains(t, err, bad.why)
	}
	for _, nodes := range [][]redis.UniversalClient{{a, b, c}, {a, b, c, d, e}} {
		l, err := leasehold.NewQuorum(nodes)
		require.NoError(t, err)
		require.NoError(t, l.Close())
	}
}

func TestQuorumRefusesALeaseLongerThanTheQuarantine(t *testing.T) {
	locktest.QuorumBubble(t, 3, func(t *testing.T, _ []*locktest.FakeNode, join locktest.JoinFunc) {
		byDefault, err := leasehold.NewQuorum(join().Clients)
		require.NoError(t, err)
		minute := join(leasehold.WithRestartQuarantine(time.Minute))
		for _, l := range []*leasehold.Locker{byDefault, minute.Locker} {
			x, err := l.TryAcquire(t.Context(), "k", time.Minute)
			require.NoError(t, err)
			require.NoError(t, x.Release(t.Context()))
		}
		synctest.Wait()
		for _, s := range minute.Spies {
			s.Took()
		}
		for why, opts := range map[string][]leasehold.Option{
			"want at most WithRestartQuarantine's 1m0s together": {leasehold.WithLockDelay(time.Millisecond)},
			"it is for NewQuorum":                                {leasehold.WithRestartQuarantine(0)},
			"a quorum counts nodes, not replicas":                {leasehold.WithReplicas(1, 10*time.Millisecond)},
			"WithMinHold(1s), WithCounterLife(0s): no option":    {leasehold.WithMinHold(time.Second)},
			"WithMinHold(0s), WithCounterLife(1h0m0s): no":       {leasehold.WithCounterLife(time.Hour)},
		} {
			_, err := minute.Acquire(t.Context(), "k", time.Minute, opts...)
			require.ErrorIs(t, err, leasehold.ErrInvalid)
			require.ErrorContains(t, err, why)
		}
		_, err = minute.Adopt(t.Context(), "k", "token", time.Minute+time.Millisecond)
		require.ErrorIs(t, err, leasehold.ErrInvalid)
		synctest.Wait()
		require.Empty(t, minute.Spies[0].Took(), "nothing was sent")

		x, err := join().TryAcquire(t.Context(), "k", time.Hour)
		require.NoError(t, err, "without a quarantine a lease may be of any length")
		require.NoError(t, x.Release(t.Context()))

		single := leasehold.New(minute.Clients[0], leasehold.WithRestartQuarantine(time.Minute))
		_, err = single.TryAcquire(t.Context(), "other", time.Second)
		require.ErrorContains(t, err, "it is for NewQuorum")
	})
}

func TestQuorumNodeInQuarantineVotesForNobody(t *testing.T) {
	locktest.QuorumBubble(t, 3, func(t *testing.T, nodes []*locktest.FakeNode, join locktest.JoinFunc) {
		nodes[2].Mask(true) // what a process that never saw the node before can tell
		q := join(leasehold.WithRestartQuarantine(10 * time.Second))
		x, err := q.TryAcquire(t.Context(), "k", 8*time.Second, leasehold.WithAutoRenew(true))
		require.NoError(t, err)
		synctest.Wait()
		begun := time.Now()
		nodes[2].Forget()
		for time.Since(begun) < 11*time.Second { // whole seconds, and one more
			require.NoError(t, x.Renew(t.Context()))
			synctest.Wait()
			require.Empty(t, q.Holders("k")[2], "not even for the holder, after %v", time.Since(begun))
			require.Zero(t, nodes[2].Counter("k"))
			require.Contains(t, q.Spies[2].Took(), "refill")
			time.Sleep(500 * time.Millisecond)
		}
		require.NoError(t, x.Renew(t.Context()))
		synctest.Wait()
		require.Equal(t, x.Token(), q.Holders("k")[2])
		require.Equal(t, x.FencingToken(), nodes[2].Counter("k"))
		require.NoError(t, x.Release(t.Context()))
		synctest.Wait()

		nodes[0].Forget()
		nodes[1].Forget()
		_, err = join(leasehold.WithRestartQuarantine(10*time.Second)).TryAcquire(t.Context(), "k", 8*time.Second)
		require.ErrorIs(t, err, leasehold.ErrNoQuorum)
		require.ErrorContains(t, err, "in quarantine for another 11s")
		synctest.Wait()
		for i, n := range nodes[:2] {
			require.Empty(t, n.Keys(), "node %d", i)
		}

		// Acquire waits it out.
		begun = time.Now()
		x, err = join(leasehold.WithRestartQuarantine(10*time.Second)).Acquire(t.Context(), "k", 8*time.Second)
		require.NoError(t, err)
		require.InDelta(t, 11, time.Since(begun).Seconds(), 1.1)
		require.Greater(t, x.FencingToken(), int64(0))
	})
}

// Data that survived a crash end no quarantine: the last second of writes may still be missing.
func TestQuorumSurvivingCounterEndsNoQuarantine(t *testing.T) {
	locktest.QuorumBubble(t, 3, func(t *testing.T, nodes []*locktest.FakeNode, join locktest.JoinFunc) {
		q := join(leasehold.WithRestartQuarantine(10 * time.Second))
		for _, n := range nodes[:2] {
			n.Forget()
			n.SetCounter("k", 0)
		}
		_, err := q.TryAcquire(t.Context(), "k", time.Second)
		require.ErrorIs(t, err, leasehold.ErrNoQuorum)
	})
}

// A step of its clock can make a restarted node look old, and a promoted replica is old: who knew the former run is not taken in.
func TestQuorumAnotherRunOfANodeIsInQuarantineForThoseWhoKnewIt(t *testing.T) {
	locktest.QuorumBubble(t, 3, func(t *testing.T, nodes []*locktest.FakeNode, join locktest.JoinFunc) {
		q := join(leasehold.WithRestartQuarantine(10 * time.Second))
		x, err := q.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		synctest.Wait() // a majority is enough for the lease, and here all must have been met
		require.Equal(t, []string{x.Token(), x.Token(), x.Token()}, q.Holders("k"))
		require.NoError(t, x.Release(t.Context()))
		synctest.Wait()
		for _, n := range nodes[:2] {
			n.Rerun()
		}
		_, err = q.TryAcquire(t.Context(), "k", time.Second)
		require.ErrorIs(t, err, leasehold.ErrNoQuorum)
		require.ErrorContains(t, err, "in quarantine for another")
		synctest.Wait()
		require.Equal(t, []string{"", "", ""}, q.Holders("k"), "what they granted is given back")

		x, err = join(leasehold.WithRestartQuarantine(10*time.Second)).TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err, "who meets it now cannot know")
		require.NoError(t, x.Release(t.Context()))

		time.Sleep(10 * time.Second)
		_, err = q.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
	})
}

// Which nodes reply first decides when the two are found out. With both replies in hand no lease is granted; and if two votes from
// two servers win a lease first, the late reply is noted all the same.
func TestQuorumRefusesTwoNodesThatAreOneServer(t *testing.T) {
	for late, granted := range map[int]bool{1: false, 2: true} {
		t.Run("node "+strconv.Itoa(late)+" is late", func(t *testing.T) {
			locktest.QuorumBubble(t, 3, func(t *testing.T, nodes []*locktest.FakeNode, _ locktest.JoinFunc) {
				twice := []*locktest.FakeNode{nodes[0], nodes[1], nodes[0]}
				q := locktest.JoinNodes(t, twice, nil, leasehold.WithRestartQuarantine(time.Minute))
				refused := func(err error) {
					require.ErrorIs(t, err, leasehold.ErrInvalid)
					require.ErrorContains(t, err, "nodes 0 and 2 are one server")
				}
				reply := q.Hooks[late].Next(1, locktest.Runs("acquire")).HoldReply()
				x, err := q.TryAcquire(t.Context(), "k", time.Second)
				synctest.Wait() // the late reply is held, unless the attempt is over and its command was withdrawn
				reply.Release()
				synctest.Wait()
				if granted {
					require.NoError(t, err, "its two votes came from two servers")
					require.NoError(t, x.Release(t.Context()))
					synctest.Wait()
				} else {
					refused(err)
				}
				require.Equal(t, []string{"", "", ""}, q.Holders("k"))
				for _, s := range q.Spies {
					s.Took()
				}

				_, err = q.TryAcquire(t.Context(), "k", time.Second)
				refused(err)
				begun := time.Now()
				_, err = q.Acquire(t.Context(), "k", time.Second)
				refused(err)
				require.Zero(t, time.Since(begun), "waiting does not help")
				_, err = q.Inspect(t.Context(), "k")
				refused(err)
				refused(q.ForceRelease(t.Context(), "k"))
				synctest.Wait()
				for i, s := range q.Spies {
					require.Empty(t, s.Took(), "nothing is sent to node %d any more", i)
				}
			})
		})
	}
}

func TestQuorumWithoutUptimeEndsAtOnceAndSaysWhy(t *testing.T) {
	locktest.QuorumBubble(t, 3, func(t *testing.T, nodes []*locktest.FakeNode, join locktest.JoinFunc) {
		for _, n := range nodes[:2] {
			n.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
				if cmd == "INFO" {
					c.WriteError("NOPERM this user has no permissions to run the 'info' command")
					return true
				}
				return n.Answer(c, cmd, args...)
			})
		}
		q := join(leasehold.WithRestartQuarantine(time.Minute))
		begun := time.Now()
		_, err := q.Acquire(t.Context(), "k", time.Second)
		require.ErrorIs(t, err, leasehold.ErrNoQuorum)
		require.ErrorContains(t, err, "INFO does not tell its uptime")
		require.Zero(t, time.Since(begun))
		_, err = join().TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err, "without a quarantine nobody asks")
	})
}

// A node may be a cluster. Each of its masters has an uptime and a run_id of its own, and a vote only for its slots.
func TestQuorumCountsAClusterAsOneNode(t *testing.T) {
	t.Parallel()
	const quarantine = 3 * time.Second // no lease may be longer, and a short one is lost to a stall of a busy machine
	dead := redistest.Server(t)
	nodes := []redis.UniversalClient{
		dead.Client(func(o *redis.Options) { o.DialTimeout, o.MaxRetries = 50*time.Millisecond, -1 }),
		redistest.Server(t).Client(),
		redistest.Cluster(t).Client(),
	}
	q, err := leasehold.NewQuorum(nodes, leasehold.WithRestartQuarantine(quarantine))
	require.NoError(t, err)
	defer func() { _ = q.Close() }()
	x, err := q.Acquire(t.Context(), "first", quarantine)
	require.NoError(t, err)
	require.NoError(t, x.Release(t.Context()))
	dead.Kill()
	for i := range 12 { // keys of all masters
		key := strconv.Itoa(i)
		x, err := q.Acquire(t.Context(), key, quarantine)
		require.NoError(t, err)
		for _, n := range nodes[1:] {
			require.Equal(t, x.Token(), n.Get(t.Context(), key).Val())
		}
		require.Eventually(t, func() bool { return x.Renew(t.Context()) == nil }, quarantine, time.Millisecond)
		require.NoError(t, x.Release(t.Context()))
	}
}

// The same on real servers, which have an uptime and a run_id of their own.
func TestQuorumOnRealServersQuarantinesARestart(t *testing.T) {
	t.Parallel()
	const quarantine = 4 * time.Second // a stall of a busy machine must not cost a lease
	var servers []*redistest.RedisServer
	var nodes []redis.UniversalClient
	for range 3 {
		s := redistest.Server(t)
		servers = append(servers, s)
		nodes = append(nodes, s.Client())
	}
	q, err := leasehold.NewQuorum(nodes, leasehold.WithRestartQuarantine(quarantine))
	require.NoError(t, err)
	defer func() { require.NoError(t, q.Close()) }()

	_, err = q.TryAcquire(t.Context(), "k", quarantine)
	require.ErrorIs(t, err, leasehold.ErrNoQuorum, "all have just been started")
	require.ErrorContains(t, err, "in quarantine for another")
	x, err := q.Acquire(t.Context(), "k", quarantine, leasehold.WithAutoRenew(true))
	require.NoError(t, err)

	key := func(i int) string { v, _ := nodes[i].Get(t.Context(), "k").Result(); return v }
	require.Eventually(t, func() bool { // or the restart could take one node of the two that make the majority
		return key(0) == x.Token() && key(1) == x.Token() && key(2) == x.Token()
	}, 30*time.Second, 10*time.Millisecond)
	servers[0].Restart()
	restarted := time.Now()
	other, err := leasehold.NewQuorum(nodes, leasehold.WithRestartQuarantine(quarantine))
	require.NoError(t, err)
	defer func() { require.NoError(t, other.Close()) }()
	if !assert.Eventually(t, func() bool { return key(0) == x.Token() }, 30*time.Second, 10*time.Millisecond) {
		t.Fatalf("the lease: %v", x.Err())
	}
	require.Greater(t, time.Since(restarted), quarantine, "refilled, and not before the quarantine was over")
	require.True(t, x.Valid())
	_, err = other.TryAcquire(t.Context(), "k", quarantine)
	require.ErrorIs(t, err, leasehold.ErrHeld)

	s, err := other.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.True(t, s.Held)
	require.Equal(t, x.FencingToken(), s.FencingToken)
	y, err := other.Adopt(t.Context(), "k", x.Token(), quarantine)
	require.NoError(t, err)
	require.Greater(t, y.FencingToken(), x.FencingToken())
	require.ErrorIs(t, x.Release(t.Context()), leasehold.ErrLost)
	require.NoError(t, y.Release(t.Context()))

	twice, err := leasehold.NewQuorum([]redis.UniversalClient{nodes[0], nodes[1], servers[0].Client()}, leasehold.WithRestartQuarantine(quarantine))
	require.NoError(t, err)
	defer func() { _ = twice.Close() }()
	for begun := time.Now(); !errors.Is(err, leasehold.ErrInvalid) && time.Since(begun) < 30*time.Second; {
		_, err = twice.TryAcquire(t.Context(), "other", quarantine)
	}
	require.ErrorContains(t, err, "nodes 0 and 2 are one server")
}
