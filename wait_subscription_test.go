package leasehold

import (
	"context"
	"net"
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

	"github.com/go-leasehold/leasehold/internal/redistest"
)

// onSubscribe answers SUBSCRIBE in the server's place while it reports that it has; it returns how often it was asked.
func (w *world) onSubscribe(answer func(c *server.Peer, channel string) bool) *atomic.Int32 {
	var asked atomic.Int32
	w.m.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
		if !strings.EqualFold(cmd, "SUBSCRIBE") {
			return false
		}
		asked.Add(1)
		return answer(c, args[0])
	})
	w.t.Cleanup(func() { w.m.Server().SetPreHook(nil) })
	return &asked
}

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
func handOver(t *testing.T, p, q *party, key string) (woken Wake, took time.Duration) {
	t.Helper()
	x, err := p.TryAcquire(t.Context(), key, time.Minute)
	require.NoError(t, err)
	before := len(q.heard("acquired"))
	waiting := beside(func() (*Lease, error) { return q.Acquire(t.Context(), key, time.Minute, WithAutoRenew(true)) })
	time.Sleep(100 * time.Millisecond)
	require.NoError(t, x.Release(t.Context()))
	released := time.Now()
	r := <-waiting
	require.NoError(t, r.err)
	took = time.Since(released)
	require.NoError(t, r.lease.Release(t.Context()))
	return q.heard("acquired")[before].Woken, took
}

func TestASubscriptionThatMissesTwoMessagesInARowIsMadeAnew(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p, q := w.party(), w.party()
		var asked *atomic.Int32
		asked = w.onSubscribe(func(c *server.Peer, channel string) bool { return asked.Load() == 1 && confirm(c, channel) })
		for i, want := range []Wake{WokenByPoll, WokenByPoll, WokenByMessage, WokenByMessage} {
			woken, took := handOver(t, p, q, "k")
			assert.Equal(t, want, woken, i)
			assert.Less(t, took, tick)
		}
		assert.EqualValues(t, 2, asked.Load())
		assert.Equal(t, 1, w.subscribers(), "the old one is closed")
	})
}

// A message that is late, or lost with a connection that has just broken, proves nothing.
func TestASubscriptionIsNotMadeAnewForOneMessageThatIsMissed(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p, q := w.party(), w.party()
		var deaf bool
		asked := w.onSubscribe(func(c *server.Peer, channel string) bool { return deaf && confirm(c, channel) })
		for range 5 {
			deaf = true
			q.wire.Cut() // the next subscription hears nothing
			time.Sleep(time.Second)
			woken, _ := handOver(t, p, q, "k")
			require.Equal(t, WokenByPoll, woken)
			deaf = false
			q.wire.Cut()
			time.Sleep(time.Second)
			n := asked.Load()
			woken, _ = handOver(t, p, q, "k")
			require.Equal(t, WokenByMessage, woken)
			require.Equal(t, n, asked.Load())
		}
	})
}

func TestAMessageShowsThatTheSubscriptionIsGood(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p, q := w.party(), w.party()
		var to *server.Peer
		asked := w.onSubscribe(func(c *server.Peer, channel string) bool { to = c; return confirm(c, channel) })
		hear := func() {
			publish(to, q.channel(), "to a waiter that has left")
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
		for range maxMissed {
			_, _ = handOver(t, p, q, "k")
		}
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, n+1, asked.Load(), "at once: what was in vain before counts no more")
	})
}

func TestALockThatIsFoundTakenNeedNotBeAMessageMissed(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p, q := w.party(), w.party()
		waiting := func(key string) <-chan result {
			return beside(func() (*Lease, error) { return q.Acquire(t.Context(), key, time.Minute) })
		}

		// What is handed over before the subscription stands could not be heard of.
		asked := w.onSubscribe(func(*server.Peer, string) bool { time.Sleep(300 * time.Millisecond); return false })
		var held []*Lease
		var got []<-chan result
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
			require.NoError(t, r.err)
			require.Equal(t, 300*time.Millisecond, r.took)
		}
		time.Sleep(time.Second)
		assert.EqualValues(t, 1, asked.Load())

		// A lease that nobody renews is looked for after its message.
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		c := waiting("k")
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, x.Release(t.Context()))
		require.NoError(t, (<-c).err)
		events := q.heard("acquired")
		assert.Equal(t, WokenByMessage, events[len(events)-1].Woken)

		// A poll may have taken the lock, and its answer be lost.
		for _, key := range []string{"free", "free too"} {
			w.take(key, time.Hour)
			c = waiting(key)
			time.Sleep(100 * time.Millisecond)
			q.fault.Next(1, runOf(acquireScript, "poll")).Lose(errNetwork)
			w.m.Del(key)
			require.NoError(t, (<-c).err)
		}
		time.Sleep(time.Second)
		assert.EqualValues(t, 1, asked.Load())
	})
}

// Where no message can come, as without the right to publish, subscribing anew is no help.
func TestASubscriptionThatNeverBringsAMessageIsSeldomMadeAnew(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p, q := w.party(), w.party()
		asked := w.onSubscribe(confirm)
		begun := time.Now()
		for time.Since(begun) < 10*time.Minute {
			woken, _ := handOver(t, p, q, "k")
			require.Equal(t, WokenByPoll, woken)
		}
		assert.Greater(t, asked.Load(), int32(10))
		assert.Less(t, asked.Load(), int32(30))
	})
}

// A waiter that comes in at the expiry was told by nobody, and misses no message.
func TestALockThatExpiresIsNoMessageMissed(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		q := w.party()
		asked := w.onSubscribe(func(*server.Peer, string) bool { return false })
		for range 5 {
			w.take("k", 3*time.Second)
			x, err := q.Acquire(t.Context(), "k", time.Minute)
			require.NoError(t, err)
			require.NoError(t, x.Release(t.Context()))
		}
		assert.EqualValues(t, 1, asked.Load())
	})
}

// Some proxies let no subscription through, and say so by closing the connection.
func TestAConnectionThatIsClosedAtSubscribeIsNotOpenedAgainAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		q := w.party()
		var open atomic.Bool
		asked := w.onSubscribe(func(c *server.Peer, _ string) bool {
			if open.Load() {
				return false
			}
			c.Close()
			return true
		})
		w.take("k", time.Hour)
		waiting := beside(func() (*Lease, error) { return q.Acquire(t.Context(), "k", time.Minute) })
		time.Sleep(refused - time.Second)
		assert.LessOrEqual(t, asked.Load(), int32(2*maxUnheard), "go-redis tries once more by itself each time")
		time.Sleep(10 * refused)
		assert.LessOrEqual(t, asked.Load(), int32(2*maxUnheard+22))
		open.Store(true)
		time.Sleep(refused)
		assert.Equal(t, 1, w.subscribers(), "the proxy has learned it")
		w.m.Del("k")
		require.NoError(t, (<-waiting).err)
	})
}

// brokenHooks are the places in which code of the user's runs when a connection is made.
var brokenHooks = map[string]func(o *redis.Options, hook func()) redis.Hook{
	"the dialer": func(o *redis.Options, hook func()) redis.Hook {
		dial := o.Dialer
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			hook()
			return dial(ctx, network, addr)
		}
		return nil
	},
	"OnConnect": func(o *redis.Options, hook func()) redis.Hook {
		o.OnConnect = func(context.Context, *redis.Conn) error { hook(); return nil }
		return nil
	},
	"the credentials": func(o *redis.Options, hook func()) redis.Hook {
		o.CredentialsProviderContext = func(context.Context) (string, string, error) { hook(); return "", "", nil }
		return nil
	},
	"the limiter":     func(o *redis.Options, hook func()) redis.Hook { o.Limiter = limiter(hook); return nil },
	"a dial hook":     func(_ *redis.Options, hook func()) redis.Hook { return dialHook(hook) },
	"a hook of HELLO": func(_ *redis.Options, hook func()) redis.Hook { return helloHook(hook) },
}

type limiter func()

func (l limiter) Allow() error       { l(); return nil }
func (l limiter) ReportResult(error) { l() }

type dialHook func()

func (h dialHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		h()
		return next(ctx, network, addr)
	}
}
func (dialHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (dialHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

type helloHook func()

func (helloHook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h helloHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { h(); return next(ctx, cmd) }
}
func (h helloHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { h(); return next(ctx, cmds) }
}

// A hook that panics or ends the goroutine, when a subscription is begun or when its connection has broken, harms nobody.
func TestHooksThatBreakInASubscriptionLeaveItToTheTickAndAreTriedAgain(t *testing.T) {
	for name, put := range brokenHooks {
		for how, end := range map[string]func(){"panics": func() { panic("no") }, "exits": runtime.Goexit} {
			for when, atOnce := range map[string]bool{"first": true, "again": false} {
				t.Run(name+" "+how+" "+when, func(t *testing.T) {
					inBubble(t, func(t *testing.T, w *world) {
						var broken atomic.Bool
						var reached atomic.Int32
						hook := func() {
							if broken.Load() && strings.Contains(string(debug.Stack()), ".(*PubSub).") {
								reached.Add(1)
								end()
							}
						}
						p, q := w.party(), &party{t: t}
						var added redis.Hook
						client := w.dial(func(o *redis.Options) {
							q.wire = redistest.FaultyDialer(o.Dialer)
							o.Dialer = q.wire.Dial
							added = put(o, hook)
						})
						if added != nil {
							client.AddHook(added)
						}
						q.start(client, nil)
						broken.Store(atOnce)

						ctx, cancel := context.WithCancel(t.Context())
						w.take("held", time.Hour)
						held := beside(func() (*Lease, error) { return q.Acquire(ctx, "held", time.Minute) })
						time.Sleep(time.Second)
						if !atOnce {
							require.Equal(t, 1, w.subscribers())
							broken.Store(true)
							q.wire.Cut()
						}
						woken, took := handOver(t, p, q, "k")
						assert.Equal(t, WokenByPoll, woken)
						assert.LessOrEqual(t, took, tick)
						assert.Zero(t, w.subscribers())
						time.Sleep(refused - 5*time.Second)
						assert.Positive(t, reached.Load())
						assert.LessOrEqual(t, reached.Load(), int32(2*maxUnheard))

						broken.Store(false)
						time.Sleep(refused)
						assert.Equal(t, 1, w.subscribers())
						woken, _ = handOver(t, p, q, "k")
						assert.Equal(t, WokenByMessage, woken)
						broken.Store(true)
						q.wire.Cut() // and it is closed so
						time.Sleep(time.Second)
						cancel()
						require.Error(t, (<-held).err)
						begun := time.Now()
						require.NoError(t, q.Close())
						assert.Less(t, time.Since(begun), closeBound)
						assert.Zero(t, q.line.Load(), "and nothing is left of it")
					})
				})
			}
		}
	}
}
