// Package redistest gives the tests of leasehold a Redis to talk to and ways
// to break the conversation. Nothing but tests and leaseholdtest may import it.
//
// Take the cheapest one that can show the fault:
//
//	Bubble   miniredis inside a testing/synctest bubble: everything about time
//	Mini     miniredis on a loopback port: what needs a socket, but no real Redis
//	Server   a redis-server process of the test's own; Replica and Cluster are made of it
//
//	Faulty   a hook on the client: one call is one event, go-redis's retries are below it
//	FaultyDialer, Proxy
//	         on the wire, in a bubble and on TCP: go-redis's own retries, subscriptions
//	         and half-written commands are in reach
//
// A script that passes on miniredis has not been shown to pass on Redis:
// TestMiniredisIsNotRedis lists the differences that matter to scripts.
package redistest

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Mini starts a miniredis on a loopback port and a client for it; both end
// with the test. Its TTLs stand still until the test calls FastForward, while
// its TIME is the wall clock.
func Mini(t testing.TB) (*miniredis.Miniredis, *redis.Client) {
	t.Helper()
	m := miniredis.RunT(t)
	c := redis.NewClient(&redis.Options{Addr: m.Addr()})
	t.Cleanup(func() { _ = c.Close() })
	return m, c
}

// Bubble runs fn inside a synctest bubble with a miniredis whose TTLs and TIME
// run on the bubble's clock. dial makes a client of that miniredis; an option
// it is given may wrap Dialer, for example with FaultyDialer. A client is closed
// after the cleanups that fn registers behind its dial, and the miniredis last;
// a goroutine that outlives them fails the test. A Close of the miniredis by fn
// does not keep clients away, because their next Dial starts it again; Refuse of
// a DialFault does.
//
// The bubble's clock stands still while any goroutine waits for a mutex. So a
// goroutine that sleeps under a mutex which another one wants hangs the test
// instead of failing it. Two such mutexes are not ours:
//
//   - A PubSub holds its own while it dials and writes. To black-hole or delay a
//     subscriber while something else may call the same PubSub, leave the bubble
//     and use a Proxy.
//   - miniredis holds its only one while it publishes, and there is no buffer on
//     the way: with a subscriber that does not read, the server stops.
func Bubble(t *testing.T, fn func(t *testing.T, m *miniredis.Miniredis, dial func(opts ...func(*redis.Options)) *redis.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := miniredis.NewMiniRedis()
		m.ClockTTL(true)
		// The first Dial starts the server, and most methods of m need it started.
		conn, err := m.Dial()
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()

		t.Cleanup(func() {
			m.Close()
			// The clock stops for good when this function returns: let the last
			// sleepers (go-redis waits up to a second between dials) see the end.
			time.Sleep(time.Minute)
		})

		fn(t, m, func(opts ...func(*redis.Options)) *redis.Client {
			opt := &redis.Options{
				Addr: "bubble",
				Dialer: func(context.Context, string, string) (net.Conn, error) {
					conn, err := m.Dial()
					if err != nil {
						return nil, err
					}
					return &socket{Conn: conn}, nil
				},
				// A caller who waits for a free connection waits on a timer out of a
				// pool of the whole process, which must not cross a bubble's border.
				PoolSize:                 1 << 10,
				DisableIdentity:          true,
				MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
			}
			for _, o := range opts {
				o(opt)
			}
			c := redis.NewClient(opt)
			t.Cleanup(func() { _ = c.Close() })
			return c
		})
	})
}
