package guarantees_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/inside"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

// ringOf is a client of servers that know nothing of one another. It looks for those that are down every 20 ms, three times before
// it believes it.
func ringOf(t *testing.T, shards ...*redistest.RedisServer) *redis.Ring {
	ring := redis.NewRing(&redis.RingOptions{Addrs: shardsOf(shards...), HeartbeatFrequency: 20 * time.Millisecond})
	t.Cleanup(func() { _ = ring.Close() })
	return ring
}

func shardsOf(shards ...*redistest.RedisServer) map[string]string {
	addrs := map[string]string{}
	for _, s := range shards {
		addrs["at "+s.Addr()] = s.Addr()
	}
	return addrs
}

// shardOf is which of the servers has the key in a ring of all of them.
func shardOf(t *testing.T, key string, shards ...*redistest.RedisServer) (it, other *redistest.RedisServer) {
	c, err := ringOf(t, shards...).GetShardClientForKey(key)
	require.NoError(t, err)
	for _, s := range shards {
		if s.Addr() == c.Options().Addr {
			it = s
		} else {
			other = s
		}
	}
	return it, other
}

func TestWaitersOnARingAreWokenByMessages(t *testing.T) {
	t.Parallel()
	a, b := redistest.Server(t), redistest.Server(t)
	for name, dial := range map[string]func() redis.UniversalClient{
		"a ring":         func() redis.UniversalClient { return ringOf(t, a, b) },
		"a wrapped ring": func() redis.UniversalClient { return locktest.Wrapper{UniversalClient: ringOf(t, a, b)} },
	} {
		t.Run(name, func(t *testing.T) {
			one, two := locktest.Process(t, dial()), locktest.Process(t, dial(), leasehold.WithAutoRenew(true))
			used := map[string]bool{}
			for i, key := range []string{"k", "other", "{t}:a", "b{t}", "a}b", "{}", "a{b", "x}{y", "a b", "ключ"} {
				at, _ := shardOf(t, key, a, b)
				used[at.Addr()] = true
				byMessage := int64(-1)
				for range 2 { // the first may be over before the subscription stands
					byMessage = two.Stats().AcquiredByMessage
					x, err := one.TryAcquire(t.Context(), key, time.Minute)
					require.NoError(t, err)
					got := locktest.Beside(func() (*leasehold.Lease, error) { return two.Acquire(t.Context(), key, time.Minute) })
					shard := at.Client()
					require.Eventually(t, func() bool {
						s, err := one.Inspect(t.Context(), key)
						return err == nil && s.Waiters == 1 && len(shard.PubSubChannels(t.Context(), "*"+key+"*").Val()) == 1
					}, locktest.Soon, time.Millisecond, "%q", key)
					require.NoError(t, x.Release(t.Context()))
					r := <-got
					require.NoError(t, r.Err)
					require.NoError(t, r.Lease.Release(t.Context()))
				}
				assert.EqualValues(t, byMessage+1, two.Stats().AcquiredByMessage, "%d: %q", i, key)
				assert.Positive(t, at.Client().Exists(t.Context(), string(rediskey.Derive(nil, "", rediskey.Counter, key))).Val(), key)
			}
			assert.Len(t, used, 2, "both servers have keys")
			assert.Equal(t, 2, inside.Of(two).Line.Load().Subscriptions, "one for each")
		})
	}
}

// What cannot be looked through is taken for one server. Behind it may be a ring, which panics where no channel is named, and where
// no server is left.
func TestWaitersOnAWrapperOfAnyKindGetIn(t *testing.T) {
	t.Parallel()
	a, b := redistest.Server(t), redistest.Server(t)
	for name, client := range map[string]redis.UniversalClient{
		"a client":         a.Client(),
		"a cluster client": redistest.Cluster(t).Client(),
		"a ring":           ringOf(t, a, b),
	} {
		t.Run(name, func(t *testing.T) {
			one, two := locktest.Process(t, locktest.Opaque{UniversalClient: client}), locktest.Process(t, locktest.Opaque{UniversalClient: client}, leasehold.WithAutoRenew(true))
			// On a ring, half of the keys are on the other server than the messages. Elsewhere a message can be missed, if the waiter
			// gets in before its subscription stands.
			for i := 0; i < 4 || name != "a ring" && two.Stats().AcquiredByMessage < 3; i++ {
				require.Less(t, i, 20, "messages do not reach the waiters")
				key := strconv.Itoa(i % 4)
				x, err := one.TryAcquire(t.Context(), key, time.Minute)
				require.NoError(t, err)
				got := locktest.Beside(func() (*leasehold.Lease, error) { return two.Acquire(t.Context(), key, time.Minute) })
				require.Eventually(t, func() bool {
					s, err := one.Inspect(t.Context(), key)
					return err == nil && s.Waiters == 1
				}, locktest.Soon, time.Millisecond)
				require.NoError(t, x.Release(t.Context()))
				r := <-got
				require.NoError(t, r.Err)
				require.NoError(t, r.Lease.Release(t.Context()))
			}
			require.NoError(t, two.Close())
			require.NoError(t, one.Close())
		})
	}
}

func TestAWaitOnARingWithoutAnyServerEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := redistest.Server(t)
	for name, wrap := range map[string]func(redis.UniversalClient) redis.UniversalClient{
		"a ring":                  func(c redis.UniversalClient) redis.UniversalClient { return c },
		"a ring, not looked into": func(c redis.UniversalClient) redis.UniversalClient { return locktest.Opaque{UniversalClient: c} },
	} {
		t.Run(name, func(t *testing.T) {
			ring := ringOf(t, s)
			l := locktest.Process(t, wrap(ring))
			x, err := l.TryAcquire(t.Context(), "k", time.Minute)
			require.NoError(t, err)
			defer func() { ring.SetAddrs(shardsOf(s)); assert.NoError(t, x.Release(t.Context())) }()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			got := locktest.Beside(func() (*leasehold.Lease, error) { return l.Acquire(ctx, "k", time.Minute) })
			require.Eventually(t, func() bool {
				s, err := l.Inspect(t.Context(), "k")
				return err == nil && s.Waiters == 1
			}, locktest.Soon, time.Millisecond)
			ring.SetAddrs(nil)
			defer time.AfterFunc(1500*time.Millisecond, cancel).Stop() // not a deadline, which could come before the waiter stands in line
			assert.ErrorIs(t, (<-got).Err, context.Canceled)
		})
	}
}

// What a ring does when the key moves to another of its servers, and back: leases are lost, but the line is soon as fast as it was.
func TestMessagesComeAgainAfterAKeyOfARingHasMoved(t *testing.T) {
	for name, change := range map[string]struct {
		there, back func(t *testing.T, rings []*redis.Ring, home, other *redistest.RedisServer)
	}{
		"a server is taken out": {
			func(_ *testing.T, rings []*redis.Ring, _, other *redistest.RedisServer) {
				for _, r := range rings {
					r.SetAddrs(shardsOf(other))
				}
			},
			func(_ *testing.T, rings []*redis.Ring, home, other *redistest.RedisServer) {
				for _, r := range rings {
					r.SetAddrs(shardsOf(home, other))
				}
			},
		},
		"a server is down": {
			func(t *testing.T, rings []*redis.Ring, home, _ *redistest.RedisServer) {
				home.Kill()
				live(t, rings, 1)
			},
			func(t *testing.T, rings []*redis.Ring, home, _ *redistest.RedisServer) {
				home.Restart()
				live(t, rings, 2)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home, other := redistest.Server(t), redistest.Server(t)
			home, other = shardOf(t, "k", home, other)
			var rings []*redis.Ring
			var clients []redis.UniversalClient
			for range 3 {
				r := ringOf(t, home, other)
				rings, clients = append(rings, r), append(clients, r)
			}
			x := locktest.TakeTurns(t, clients...)
			x.ComeByMessage("before", locktest.Soon)
			change.there(t, rings, home, other)
			x.ComeByMessage("on the other server", locktest.Soon)
			change.back(t, rings, home, other)
			x.ComeByMessage("back again", locktest.Soon)
		})
	}
}

// live waits until all rings have found that n servers are up.
func live(t *testing.T, rings []*redis.Ring, n int) {
	require.Eventually(t, func() bool {
		for _, r := range rings {
			if r.Len() != n {
				return false
			}
		}
		return true
	}, locktest.Soon, time.Millisecond)
}

// The server that has the key now knows nothing of the lease.
func TestAServerOfARingThatGoesOrComesLetsASecondHolderIn(t *testing.T) {
	t.Parallel()
	home, other := redistest.Server(t), redistest.Server(t)
	home, other = shardOf(t, "k", home, other)
	for name, servers := range map[string][2][]*redistest.RedisServer{
		"goes":  {{home, other}, {other}},
		"comes": {{other}, {home, other}},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, home.Client().FlushAll(t.Context()).Err())
			require.NoError(t, other.Client().FlushAll(t.Context()).Err())
			ring := ringOf(t, servers[0]...)
			one, two := locktest.Process(t, ring), locktest.Process(t, ring)
			x := locktest.Take(t, one, time.Minute)
			locktest.RequireHeld(t, two, "k")
			ring.SetAddrs(shardsOf(servers[1]...))
			locktest.RequireTwoHolders(t, x, two)
			require.ErrorIs(t, x.Renew(t.Context()), leasehold.ErrLost)
		})
	}
}

// Each client finds out for itself which servers are up. One that cannot reach a server goes to another, while the rest stay.
func TestAClientOfARingThatCannotReachAServerLetsASecondHolderIn(t *testing.T) {
	t.Parallel()
	home, other := redistest.Server(t), redistest.Server(t)
	home, other = shardOf(t, "k", home, other)
	var apart atomic.Bool
	cut := redis.NewRing(&redis.RingOptions{
		Addrs: shardsOf(home, other), HeartbeatFrequency: 20 * time.Millisecond, ConnMaxLifetime: time.Millisecond, DialTimeout: time.Second, DialerRetries: 1,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if apart.Load() && addr == home.Addr() {
				return nil, fmt.Errorf("%s cannot be reached", addr)
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	})
	t.Cleanup(func() { _ = cut.Close() })
	one, two := locktest.Process(t, ringOf(t, home, other)), locktest.Process(t, cut)
	x := locktest.Take(t, one, time.Minute)
	locktest.RequireHeld(t, two, "k")
	apart.Store(true)
	locktest.RequireTwoHolders(t, x, two)
	require.NoError(t, x.Renew(t.Context()))
}

func TestARingGoesOnWithoutAServerThatIsDown(t *testing.T) {
	t.Parallel()
	home, other := redistest.Server(t), redistest.Server(t)
	home, other = shardOf(t, "k", home, other)
	var keys []string
	for i := range 20 {
		if at, _ := shardOf(t, strconv.Itoa(i), home, other); at == other {
			keys = append(keys, strconv.Itoa(i))
		}
	}
	l := locktest.Process(t, ringOf(t, home, other))
	y, err := l.TryAcquire(t.Context(), keys[0], time.Minute)
	require.NoError(t, err)
	home.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), locktest.Soon)
	defer cancel()
	x, err := l.Acquire(ctx, "k", time.Minute)
	require.NoError(t, err)
	require.EqualValues(t, 1, other.Client().Exists(t.Context(), "k").Val())
	require.True(t, x.Valid())
	require.NoError(t, y.Renew(t.Context()), "the keys of the other servers stay where they are")
}

func TestNoNodeOfAQuorumIsARing(t *testing.T) {
	t.Parallel()
	s := redistest.Server(t)
	for _, ring := range []redis.UniversalClient{ringOf(t, s), locktest.Wrapper{UniversalClient: ringOf(t, s)}} {
		_, err := leasehold.NewQuorum([]redis.UniversalClient{s.Client(), s.Client(), ring})
		require.ErrorIs(t, err, leasehold.ErrInvalid)
		require.ErrorContains(t, err, "the client of node 2 is a redis.Ring")
	}
}
