package guarantees_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

// A balancer that forgets connections tells neither side. go-redis gives each of them up only after a read timeout of 5 s, and then
// takes the next one, which is dead too. A new one would work.
func TestALeaseOutlivesConnectionsThatWereForgotten(t *testing.T) {
	for _, tt := range []struct {
		ttl                 time.Duration
		commands, pipelines int
		within              time.Duration // is it renewed
	}{
		{30 * time.Second, 40, 0, 16 * time.Second},
		{10 * time.Second, 40, 0, 5500 * time.Millisecond},
		{10 * time.Second, 40, 10, 5500 * time.Millisecond},
		{10 * time.Second, 200, 9, 5500 * time.Millisecond},
		{3 * time.Second, 40, 10, 1600 * time.Millisecond},
		{time.Second, 40, 10, 900 * time.Millisecond},
	} {
		t.Run(fmt.Sprintf("%v, %d and %d", tt.ttl, tt.commands, tt.pipelines), func(t *testing.T) {
			redistest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, dial func(...func(*redis.Options)) *redis.Client) {
				var wire *redistest.DialFault
				c := dial(func(o *redis.Options) {
					wire = redistest.FaultyDialer(o.Dialer)
					o.Dialer, o.PoolSize = wire.Dial, 2*tt.commands
				})
				defer wire.Close()
				l := leasehold.New(c)
				defer func() { _ = l.Close() }()
				locktest.Fill(t, c, &wire.Wire, tt.commands, tt.pipelines)
				x, err := l.TryAcquire(t.Context(), "k", tt.ttl, leasehold.WithAutoRenew(true))
				require.NoError(t, err)
				wire.Forget()
				dialed := wire.Connections()
				requireRenewed(t, x, tt.within)
				assert.LessOrEqual(t, wire.Connections()-dialed, 2, "new connections")
				time.Sleep(10 * tt.ttl)
				assert.True(t, x.Valid())

				wire.Forget() // those who wait, too
				begun := time.Now()
				y, err := l.Acquire(t.Context(), "other", time.Minute)
				require.NoError(t, err)
				assert.Less(t, time.Since(begun), 1500*time.Millisecond)
				require.NoError(t, y.Release(t.Context()))
				require.NoError(t, x.Release(t.Context()))
				time.Sleep(time.Minute) // for go-redis to give up the last of them
			})
		})
	}
}

// requireRenewed waits until the lease is renewed.
func requireRenewed(t *testing.T, x *leasehold.Lease, within time.Duration) {
	t.Helper()
	begun, until := time.Now(), x.ValidUntil()
	for x.Valid() && !x.ValidUntil().After(until) {
		time.Sleep(5 * time.Millisecond)
	}
	require.True(t, x.Valid(), "lost after %v: %v", time.Since(begun), x.Err())
	require.LessOrEqual(t, time.Since(begun), within)
}

// A pool that is full of dead connections makes no new one before their read timeouts. The pool for pipelines may have room; if it is
// full of them too, the lease has to be twice as long as the read timeout.
func TestALeaseOutlivesPoolsThatAreFullOfForgottenConnections(t *testing.T) {
	for _, tt := range []struct {
		ttl                 time.Duration
		commands, pipelines int
		readTimeout         time.Duration // 0: go-redis's 5 s
		lost                bool
	}{
		{ttl: 3 * time.Second, commands: 40},
		{ttl: 3 * time.Second, commands: 1},
		{ttl: 3 * time.Second, commands: 40, pipelines: 10, lost: true},
		{ttl: 3 * time.Second, commands: 40, pipelines: 10, readTimeout: time.Second},
		{ttl: 10 * time.Second, commands: 40, pipelines: 10},
	} {
		t.Run(fmt.Sprintf("%v, %d and %d, read timeout %v", tt.ttl, tt.commands, tt.pipelines, tt.readTimeout), func(t *testing.T) {
			t.Parallel()
			s := redistest.Server(t)
			proxy := redistest.Proxy(t, s.Addr())
			c := redis.NewClient(&redis.Options{Addr: proxy.Addr(), PoolSize: tt.commands, ReadTimeout: tt.readTimeout})
			t.Cleanup(func() { _ = c.Close() })
			locktest.Fill(t, c, &proxy.Wire, tt.commands, tt.pipelines)
			x, err := leasehold.New(c).TryAcquire(t.Context(), "k", tt.ttl, leasehold.WithAutoRenew(true))
			require.NoError(t, err)
			proxy.Forget()
			if tt.lost {
				<-x.Done()
				require.ErrorIs(t, x.Err(), leasehold.ErrLost)
				return
			}
			requireRenewed(t, x, tt.ttl)
		})
	}
}
