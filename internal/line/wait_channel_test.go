package line_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/inside"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

func TestOneSubscriptionServesAllWaitersOfALocker(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "0", time.Minute)
		require.NoError(t, err)
		require.NoError(t, x.Release(t.Context()))
		assert.Zero(t, w.Subscribers(), "who does not wait does not listen")
		w.Take("0", time.Minute)
		_, err = p.TryAcquire(t.Context(), "0", time.Minute)
		require.ErrorIs(t, err, leasehold.ErrHeld)
		assert.Zero(t, w.Subscribers())

		ctx, cancel := context.WithCancel(t.Context())
		var waiting []<-chan locktest.Result
		for i := range 50 {
			w.Take(fmt.Sprint(i), time.Minute)
			waiting = append(waiting, locktest.Beside(func() (*leasehold.Lease, error) { return p.Acquire(ctx, fmt.Sprint(i), time.Minute) }))
		}
		time.Sleep(time.Second)
		assert.Equal(t, 1, w.Subscribers())
		cancel()
		for _, c := range waiting {
			require.Error(t, (<-c).Err)
		}
		assert.Zero(t, inside.Of(p.Locker).Line.Load().Places)
	})
}

func TestASubscriptionIsGivenBackWhenNobodyHasWaitedForAWhile(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		for range 2 {
			w.Take("k", 5*time.Second)
			x, err := p.Acquire(t.Context(), "k", time.Minute)
			require.NoError(t, err)
			assert.Equal(t, 1, w.Subscribers())
			time.Sleep(locktest.Unused - time.Second)
			assert.Equal(t, 1, w.Subscribers(), "the next may come soon")
			time.Sleep(2*locktest.Quiet + time.Second)
			assert.Zero(t, w.Subscribers())
			assert.Empty(t, locktest.Goroutines())
			require.NoError(t, x.Release(t.Context()))
		}
	})
}

// Between a first look and the confirmation of the subscription a message goes by unheard.
func TestAReleaseBeforeTheSubscriptionStandsIsFoundWhenItDoes(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, q := w.Party(), &locktest.Party{T: t}
		var dials atomic.Int32
		q.Start(w.Dial(func(o *redis.Options) {
			dial := o.Dialer
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if dials.Add(1) == 2 {
					time.Sleep(300 * time.Millisecond) // that of the subscription
				}
				return dial(ctx, network, addr)
			}
		}), nil)
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		waiting := locktest.Beside(func() (*leasehold.Lease, error) { return q.Acquire(t.Context(), "k", time.Minute) })
		time.Sleep(100 * time.Millisecond)
		require.Zero(t, w.Subscribers())
		require.NoError(t, x.Release(t.Context()))
		r := <-waiting
		require.NoError(t, r.Err)
		assert.Equal(t, 300*time.Millisecond, r.Took, "not at the next tick")
	})
}

func TestABrokenSubscriptionIsRestored(t *testing.T) {
	for name, broken := range map[string]func(p *locktest.Party){
		"cut":       func(p *locktest.Party) { p.Wire.Cut() },
		"refused":   func(p *locktest.Party) { p.Wire.Refuse(); time.Sleep(5 * time.Second); p.Wire.Pass() },
		"swallowed": func(p *locktest.Party) { p.Wire.BlackHole(); time.Sleep(20 * time.Second); p.Wire.Pass() },
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
				p, q := w.Party(), w.Party()
				x, err := p.TryAcquire(t.Context(), "k", time.Hour)
				require.NoError(t, err)
				waiting := locktest.Beside(func() (*leasehold.Lease, error) { return q.Acquire(t.Context(), "k", time.Minute) })
				time.Sleep(3 * time.Second)
				broken(q)
				time.Sleep(15 * time.Second)
				assert.Equal(t, 1, w.Subscribers())
				begun := time.Now()
				require.NoError(t, x.Release(t.Context()))
				require.NoError(t, (<-waiting).Err)
				assert.Zero(t, time.Since(begun))
				assert.Equal(t, leasehold.WokenByMessage, q.Heard("acquired")[0].Woken)
			})
		})
	}
}

func TestADeadSubscriptionIsMadeAnew(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, q := w.Party(), &locktest.Party{T: t}
		var dials atomic.Int32
		var dead *redistest.DialFault
		q.Start(w.Dial(func(o *redis.Options) {
			dial := o.Dialer
			dead = redistest.FaultyDialer(dial)
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if dials.Add(1) == 2 { // that of the subscription
					return dead.Dial(ctx, network, addr)
				}
				return dial(ctx, network, addr)
			}
		}), nil)
		x, err := p.TryAcquire(t.Context(), "k", time.Hour)
		require.NoError(t, err)
		waiting := locktest.Beside(func() (*leasehold.Lease, error) { return q.Acquire(t.Context(), "k", time.Minute) })
		time.Sleep(3 * time.Second)
		dead.BlackHole()
		time.Sleep(3*locktest.Quiet + time.Second)
		require.EqualValues(t, 3, dials.Load())
		begun := time.Now()
		require.NoError(t, x.Release(t.Context()))
		require.NoError(t, (<-waiting).Err)
		assert.Zero(t, time.Since(begun))
	})
}

// A subscription that dies in silence is noticed, though nothing else is the matter.
func TestASilentSubscriptionIsAskedWhetherItLives(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		var asked atomic.Int32
		w.M.Server().SetPreHook(func(_ *server.Peer, cmd string, _ ...string) bool {
			if cmd == "PING" {
				asked.Add(1)
			}
			return false
		})
		defer w.M.Server().SetPreHook(nil)
		w.Take("k", time.Minute)
		_ = locktest.Beside(func() (*leasehold.Lease, error) { return p.Acquire(t.Context(), "k", time.Minute) })
		time.Sleep(30*time.Second + time.Millisecond)
		assert.EqualValues(t, 6, asked.Load())
		assert.Equal(t, 1, w.Subscribers())
		w.M.Del("k")
		time.Sleep(time.Second)
	})
}

func TestARefusedSubscriptionIsNotAskedForAgainAtOnce(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		var asked atomic.Int32
		var refuse atomic.Bool
		refuse.Store(true)
		w.M.Server().SetPreHook(func(c *server.Peer, cmd string, _ ...string) bool {
			if strings.EqualFold(cmd, "SUBSCRIBE") {
				asked.Add(1)
				if refuse.Load() {
					c.WriteError("NOPERM No permissions to access a channel")
				}
				return refuse.Load()
			}
			return false
		})
		defer w.M.Server().SetPreHook(nil)
		w.Take("k", time.Hour)
		waiting := locktest.Beside(func() (*leasehold.Lease, error) { return p.Acquire(t.Context(), "k", time.Minute) })
		time.Sleep(locktest.Refused - time.Second)
		assert.EqualValues(t, 1, asked.Load())
		refuse.Store(false)
		time.Sleep(2 * time.Second)
		assert.Equal(t, 1, w.Subscribers(), "the rights were given meanwhile")
		w.M.Del("k")
		require.NoError(t, (<-waiting).Err)
	})
}

func TestMessagesComeThroughBothProtocols(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
			p, q := w.Party(leasehold.WithOwner("a label with blanks 1 2")), &locktest.Party{T: t}
			q.Start(w.Dial(func(o *redis.Options) { o.Protocol = protocol }), []leasehold.Option{leasehold.WithOwner("3 blanks 4 5")})
			x, err := p.TryAcquire(t.Context(), "k", time.Minute)
			require.NoError(t, err)
			waiting := locktest.Beside(func() (*leasehold.Lease, error) { return q.Acquire(t.Context(), "k", time.Minute) })
			time.Sleep(100 * time.Millisecond)
			require.NoError(t, x.Release(t.Context()))
			r := <-waiting
			require.NoError(t, r.Err)
			assert.Equal(t, 100*time.Millisecond, r.Took)
			assert.Equal(t, leasehold.WokenByMessage, q.Heard("acquired")[0].Woken)
		})
	}
}

// A user without the right to subscribe or publish waits by the tick.
func TestWaitingWithoutTheRightsToChannelsOnARealServer(t *testing.T) {
	t.Parallel()
	server := redistest.Server(t)
	admin := server.Client()
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "app", "on", ">secret", "+@all", "~*", "resetchannels").Err())
	user := func(o *redis.Options) { o.Username, o.Password = "app", "secret" }
	a, b := leasehold.New(server.Client(user)), leasehold.New(server.Client(user))
	defer func() { assert.NoError(t, a.Close()); assert.NoError(t, b.Close()) }()
	x, err := a.TryAcquire(t.Context(), "k", time.Minute)
	require.NoError(t, err)
	waiting := make(chan error, 1)
	go func() {
		_, err := b.Acquire(context.Background(), "k", time.Minute)
		waiting <- err
	}()
	require.Eventually(t, func() bool { s, err := a.Inspect(t.Context(), "k"); return err == nil && s.Waiters == 1 }, 5*time.Second, time.Millisecond)
	begun := time.Now()
	require.NoError(t, x.Release(t.Context()), "a message that may not be sent does not stop a release")
	require.NoError(t, <-waiting)
	assert.Less(t, time.Since(begun), locktest.PollInterval+500*time.Millisecond)
	assert.EqualValues(t, 1, b.Stats().AcquiredByPoll)
}
