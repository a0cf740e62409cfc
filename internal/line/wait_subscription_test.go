package line_test

import (
	"context"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
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

// confirm says that a channel is subscribed, and nothing more.
func confirm(c *server.Peer, channel string) bool {
	c.Block(func(w *server.Writer) {
		w.WritePushLen(3)
		w.WriteBulk("subscribe")
		w.WriteBulk(channel)
		w.WriteInt(1)
	})
	return true
}

// publish sends a message to one subscriber.
func publish(c *server.Peer, channel, text string) {
	c.Block(func(w *server.Writer) {
		w.WritePushLen(3)
		w.WriteBulk("message")
		w.WriteBulk(channel)
		w.WriteBulk(text)
	})
	c.Flush()
}

// handOver has q wait for the key that p holds, and tells what woke it and how long it took from the release.
func handOver(t *testing.T, p, q *locktest.Party, key string) (woken leasehold.Wake, took time.Duration) {
	t.Helper()
	x, err := p.TryAcquire(t.Context(), key, time.Minute)
	require.NoError(t, err)
	before := len(q.Heard("acquired"))
	waiting := locktest.Beside(func() (*leasehold.Lease, error) {
		return q.Acquire(t.Context(), key, time.Minute, leasehold.WithAutoRenew(true))
	})
	time.Sleep(100 * time.Millisecond)
	require.NoError(t, x.Release(t.Context()))
	released := time.Now()
	r := <-waiting
	require.NoError(t, r.Err)
	took = time.Since(released)
	require.NoError(t, r.Lease.Release(t.Context()))
	return q.Heard("acquired")[before].Woken, took
}

func TestASubscriptionThatMissesTwoMessagesInARowIsMadeAnew(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, q := w.Party(), w.Party()
		var asked *atomic.Int32
		asked = w.OnSubscribe(func(c *server.Peer, channel string) bool { return asked.Load() == 1 && confirm(c, channel) })
		for i, want := range []leasehold.Wake{leasehold.WokenByPoll, leasehold.WokenByPoll, leasehold.WokenByMessage, leasehold.WokenByMessage} {
			woken, took := handOver(t, p, q, "k")
			assert.Equal(t, want, woken, i)
			assert.Less(t, took, locktest.PollInterval)
		}
		assert.EqualValues(t, 2, asked.Load())
		assert.Equal(t, 1, w.Subscribers(), "the old one is closed")
	})
}

// A message that is late, or lost with a connection that has just broken, proves nothing.
func TestASubscriptionIsNotMadeAnewForOneMessageThatIsMissed(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, q := w.Party(), w.Party()
		var deaf bool
		asked := w.OnSubscribe(func(c *server.Peer, channel string) bool { return deaf && confirm(c, channel) })
		for range 5 {
			deaf = true
			q.Wire.Cut() // the next subscription hears nothing
			time.Sleep(time.Second)
			woken, _ := handOver(t, p, q, "k")
			require.Equal(t, leasehold.WokenByPoll, woken)
			deaf = false
			q.Wire.Cut()
			time.Sleep(time.Second)
			n := asked.Load()
			woken, _ = handOver(t, p, q, "k")
			require.Equal(t, leasehold.WokenByMessage, woken)
			require.Equal(t, n, asked.Load())
		}
	})
}

func TestAMessageShowsThatTheSubscriptionIsGood(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, q := w.Party(), w.Party()
		var to *server.Peer
		asked := w.OnSubscribe(func(c *server.Peer, channel string) bool { to = c; return confirm(c, channel) })
		hear := func() {
			publish(to, q.Channel(), "to a waiter that has left")
			synctest.Wait()
		}
		for range 5 {
			_, _ = handOver(t, p, q, "k")
			hear() // it was only late
		}
		require.EqualValues(t, 1, asked.Load(), "no two in a row")
		for range 30 {
			_, _ = handOver(t, p, q, "k")
		}
		time.Sleep(100 * time.Millisecond)
		n := asked.Load()
		require.Greater(t, n, int32(3))
		hear()
		for range locktest.MaxMissed {
			_, _ = handOver(t, p, q, "k")
		}
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, n+1, asked.Load(), "at once: what was in vain before counts no more")
	})
}

func TestALockThatIsFoundTakenNeedNotBeAMessageMissed(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, q := w.Party(), w.Party()
		waiting := func(key string) <-chan locktest.Result {
			return locktest.Beside(func() (*leasehold.Lease, error) { return q.Acquire(t.Context(), key, time.Minute) })
		}

		// What is handed over before the subscription stands could not be heard of.
		asked := w.OnSubscribe(func(*server.Peer, string) bool { time.Sleep(300 * time.Millisecond); return false })
		var held []*leasehold.Lease
		var got []<-chan locktest.Result
		for _, key := range []string{"a", "b"} {
			x, err := p.TryAcquire(t.Context(), key, time.Minute)
			require.NoError(t, err)
			held, got = append(held, x), append(got, waiting(key))
		}
		time.Sleep(100 * time.Millisecond)
		for _, x := range held {
			require.NoError(t, x.Release(t.Context()))
		}
		for _, c := range got {
			r := <-c
			require.NoError(t, r.Err)
			require.Equal(t, 300*time.Millisecond, r.Took)
		}
		time.Sleep(time.Second)
		assert.EqualValues(t, 1, asked.Load())

		// A lease that nobody renews is looked for after its message.
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		c := waiting("k")
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, x.Release(t.Context()))
		require.NoError(t, (<-c).Err)
		events := q.Heard("acquired")
		assert.Equal(t, leasehold.WokenByMessage, events[len(events)-1].Woken)

		// A poll may have taken the lock, and its answer be lost.
		for _, key := range []string{"free", "free too"} {
			w.Take(key, time.Hour)
			c = waiting(key)
			time.Sleep(100 * time.Millisecond)
			q.Fault.Next(1, locktest.RunOf(locktest.AcquireScript, "poll")).Lose(locktest.ErrNetwork)
			w.M.Del(key)
			require.NoError(t, (<-c).Err)
		}
		time.Sleep(time.Second)
		assert.EqualValues(t, 1, asked.Load())
	})
}

// Where no message can come, as without the right to publish, subscribing anew is no help.
func TestASubscriptionThatNeverBringsAMessageIsSeldomMadeAnew(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, q := w.Party(), w.Party()
		asked := w.OnSubscribe(confirm)
		begun := time.Now()
		for time.Since(begun) < 10*time.Minute {
			woken, _ := handOver(t, p, q, "k")
			require.Equal(t, leasehold.WokenByPoll, woken)
		}
		assert.Greater(t, asked.Load(), int32(10))
		assert.Less(t, asked.Load(), int32(30))
	})
}

// A waiter that comes in at the expiry was told by nobody, and misses no message.
func TestALockThatExpiresIsNoMessageMissed(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		q := w.Party()
		asked := w.OnSubscribe(func(*server.Peer, string) bool { return false })
		for range 5 {
			w.Take("k", 3*time.Second)
			x, err := q.Acquire(t.Context(), "k", time.Minute)
			require.NoError(t, err)
			require.NoError(t, x.Release(t.Context()))
		}
		assert.EqualValues(t, 1, asked.Load())
	})
}

// Some proxies let no subscription through, and say so by closing the connection.
func TestAConnectionThatIsClosedAtSubscribeIsNotOpenedAgainAtOnce(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		q := w.Party()
		var open atomic.Bool
		asked := w.OnSubscribe(func(c *server.Peer, _ string) bool {
			if open.Load() {
				return false
			}
			c.Close()
			return true
		})
		w.Take("k", time.Hour)
		waiting := locktest.Beside(func() (*leasehold.Lease, error) { return q.Acquire(t.Context(), "k", time.Minute) })
		time.Sleep(locktest.Refused - time.Second)
		assert.LessOrEqual(t, asked.Load(), int32(2*locktest.MaxUnheard), "go-redis tries once more by itself each time")
		time.Sleep(10 * locktest.Refused)
		assert.LessOrEqual(t, asked.Load(), int32(2*locktest.MaxUnheard+22))
		open.Store(true)
		time.Sleep(locktest.Refused)
		assert.Equal(t, 1, w.Subscribers(), "the proxy has learned it")
		w.M.Del("k")
		require.NoError(t, (<-waiting).Err)
	})
}

// A hook that panics or ends the goroutine, when a subscription is begun or when its connection has broken, harms nobody.
func TestHooksThatBreakInASubscriptionLeaveItToThePollsAndAreTriedAgain(t *testing.T) {
	for name, put := range locktest.BrokenHooks {
		for how, end := range map[string]func(){"panics": func() { panic("no") }, "exits": runtime.Goexit} {
			for when, atOnce := range map[string]bool{"first": true, "again": false} {
				t.Run(name+" "+how+" "+when, func(t *testing.T) {
					locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
						var broken atomic.Bool
						var reached atomic.Int32
						hook := func() {
							if broken.Load() && strings.Contains(string(debug.Stack()), ".(*PubSub).") {
								reached.Add(1)
								end()
							}
						}
						p, q := w.Party(), &locktest.Party{T: t}
						var added redis.Hook
						client := w.Dial(func(o *redis.Options) {
							q.Wire = redistest.FaultyDialer(o.Dialer)
							o.Dialer = q.Wire.Dial
							added = put(o, hook)
						})
						if added != nil {
							client.AddHook(added)
						}
						q.Start(client, nil)
						broken.Store(atOnce)

						ctx, cancel := context.WithCancel(t.Context())
						w.Take("held", time.Hour)
						held := locktest.Beside(func() (*leasehold.Lease, error) { return q.Acquire(ctx, "held", time.Minute) })
						time.Sleep(time.Second)
						if !atOnce {
							require.Equal(t, 1, w.Subscribers())
							broken.Store(true)
							q.Wire.Cut()
						}
						woken, took := handOver(t, p, q, "k")
						assert.Equal(t, leasehold.WokenByPoll, woken)
						assert.LessOrEqual(t, took, locktest.PollInterval)
						assert.Zero(t, w.Subscribers())
						time.Sleep(locktest.Refused - 5*time.Second)
						assert.Positive(t, reached.Load())
						assert.LessOrEqual(t, reached.Load(), int32(2*locktest.MaxUnheard))

						broken.Store(false)
						time.Sleep(locktest.Refused)
						assert.Equal(t, 1, w.Subscribers())
						woken, _ = handOver(t, p, q, "k")
						assert.Equal(t, leasehold.WokenByMessage, woken)
						broken.Store(true)
						q.Wire.Cut() // and it is closed so
						time.Sleep(time.Second)
						cancel()
						require.Error(t, (<-held).Err)
						begun := time.Now()
						require.NoError(t, q.Close())
						assert.Less(t, time.Since(begun), locktest.CloseBound)
						assert.Zero(t, inside.Of(q.Locker).Line.Load(), "and nothing is left of it")
					})
				})
			}
		}
	}
}
