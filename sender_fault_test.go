package leasehold

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

// What the sender does when the server, the network or the client does not do what it should.

func TestBoundAndContextHoldWhateverTheClientsTimeoutsAre(t *testing.T) {
	for name, patience := range map[string]time.Duration{
		"for ever": -1, "long": time.Hour, "short": 100 * time.Millisecond,
	} {
		t.Run(name, func(t *testing.T) {
			onSenderBench(t, func(t *testing.T, b *senderBench) {
				b.wire.BlackHole()
				out := <-b.send(t.Context(), "k", 300*time.Millisecond)
				require.Error(t, out.err)
				assert.Positive(t, out.sent)
				if name == "short" { // the client's answer comes first
					assert.Less(t, out.took, 300*time.Millisecond)
				} else {
					assert.Equal(t, 300*time.Millisecond, out.took)
					assert.ErrorAs(t, out.err, new(*noAnswerError))
				}
				ctx, cancel := context.WithTimeout(t.Context(), 70*time.Millisecond)
				defer cancel()
				out = <-b.send(ctx, "k", callBound)
				assert.ErrorIs(t, out.err, context.DeadlineExceeded)
				assert.Equal(t, 70*time.Millisecond, out.took)

				// Close is bounded too, and reports what it left.
				if name != "short" {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					assert.False(t, b.d.close(ctx))
				}
				b.wire.Pass()
				b.wire.Cut()
				assert.True(t, b.d.close(t.Context()))
			}, func(o *redis.Options) {
				o.ReadTimeout, o.WriteTimeout, o.DialTimeout, o.MaxRetries = patience, patience, time.Minute, -1
			})
		})
	}
}

func TestWritesAreCounted(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		ctx, r := t.Context(), testRequest("k")
		b.wire.DropReplies(2, "evalsha")
		a, n, err := b.d.acquire(ctx, r, modeTry, callBound)
		require.NoError(t, err)
		assert.EqualValues(t, 3, n)
		again, n, err := b.d.acquire(ctx, r, modeTry, callBound)
		require.NoError(t, err)
		assert.EqualValues(t, 1, n)
		assert.Equal(t, a, again)

		b.wire.DropReplies(1, "evalsha")
		what, n, err := b.d.release(ctx, r, modeRelease, callBound)
		require.NoError(t, err)
		assert.EqualValues(t, 2, n)
		assert.Equal(t, notHeld, what, "the first has done it")

		b.wire.Refuse()
		_, n, err = b.d.acquire(ctx, r, modeTry, callBound)
		require.Error(t, err)
		assert.Zero(t, n, "nothing was written")
		b.wire.Pass()
		b.pass(time.Minute)
		assert.False(t, b.m.Exists("k"))

		// In a batch as well, which is sent again as a whole.
		batch := []*call{b.d.call(acquireScript, testRequest("a"), modeTry), b.d.call(acquireScript, testRequest("b"), modeTry)}
		b.wire.DropReplies(1, "evalsha")
		b.d.sendAll(batch)
		for _, c := range batch {
			require.NoError(t, c.err)
			assert.EqualValues(t, 2, c.written())
		}
	})
}

func TestACutRequestMayHaveBeenSent(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		b.wire.CutRequest(20)
		_, n, err := b.d.acquire(t.Context(), testRequest("k"), modeTry, callBound)
		require.Error(t, err)
		assert.EqualValues(t, 1, n)
		assert.True(t, transient(err))
	}, once)
}

func TestAServerThatForgotTheScriptsIsTaughtThemAgain(t *testing.T) {
	onScriptServers(t, func(t *testing.T, s scriptServer) {
		ctx, c := t.Context(), s.client
		require.NoError(t, c.FlushAll(ctx).Err())
		log := &trips{}
		c.AddHook(log)
		d, r := storeOn(t, c), testRequest("k")
		forget := func() { require.NoError(t, c.ScriptFlush(ctx).Err()) }
		for range 3 {
			forget()
			a, n, err := d.acquire(ctx, r, modeTry, callBound)
			require.NoError(t, err)
			assert.Equal(t, granted, a.state)
			assert.EqualValues(t, 1, n, "the EVALSHA has certainly done nothing")
			forget()
			waiters, err := d.renew(ctx, r, callBound)
			require.NoError(t, err)
			assert.Zero(t, waiters)
			forget()
			state, err := d.inspect(ctx, r, callBound)
			require.NoError(t, err)
			assert.Equal(t, LockState{Key: "k", Held: true, TTL: state.TTL, FencingToken: a.fence}, state)
			assert.InDelta(t, time.Minute, state.TTL, float64(10*time.Second))
			forget()
			what, n, err := d.release(ctx, r, modeRelease, callBound)
			require.NoError(t, err)
			assert.EqualValues(t, 1, n)
			assert.Equal(t, releasedLock, what)
		}
		assert.Equal(t, slices.Repeat([]string{"evalsha", "eval"}, 12), log.names)
	})
}

func TestForgottenScriptsInABatch(t *testing.T) {
	test := func(t *testing.T, c *redis.Client) {
		require.NoError(t, c.FlushAll(t.Context()).Err())
		log := &trips{}
		c.AddHook(log)
		d := storeOn(t, c)
		mine := testRequest("mine")
		_, _, err := d.acquire(t.Context(), mine, modeTry, callBound)
		require.NoError(t, err)

		release := log.hold(2)
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				a, n, err := d.acquire(t.Context(), testRequest(fmt.Sprint("k", i)), modeTry, callBound)
				assert.NoError(t, err)
				assert.Equal(t, granted, a.state)
				assert.EqualValues(t, 1, n)
			})
		}
		all.Go(func() {
			n, err := d.renew(t.Context(), mine, callBound)
			assert.NoError(t, err)
			assert.Zero(t, n)
		})
		all.Go(func() {
			state, err := d.inspect(t.Context(), mine, callBound)
			assert.NoError(t, err)
			assert.True(t, state.Held)
		})
		require.Eventually(t, func() bool {
			d.sender.mu.Lock()
			n := len(d.sender.queue)
			d.sender.mu.Unlock()
			for _, size := range log.seen()[2:] {
				n += size
			}
			return n >= 10
		}, 10*time.Second, time.Millisecond)
		require.NoError(t, c.ScriptFlush(t.Context()).Err())
		release()
		all.Wait()
		assert.Greater(t, slices.Max(log.sizes), 1)
	}
	t.Run("miniredis", func(t *testing.T) { _, c := redistest.Mini(t); test(t, c) })
	t.Run("redis-server", func(t *testing.T) { test(t, redistest.Server(t).Client()) })
}

// broken is what calls come to, alone and in a pipeline, while a hook of the client does that.
func (b *senderBench) broken(hook func()) (outs []outcome) {
	release := b.trips.hold(2)
	all := b.sendMany(5)
	b.trips.mu.Lock()
	b.trips.before = func(context.Context, []redis.Cmder) error { hook(); return nil }
	b.trips.mu.Unlock()
	release()
	requireGranted(b.t, <-all[0])
	requireGranted(b.t, <-all[1])
	for _, out := range append(all[2:], b.send(b.t.Context(), "k", callBound)) {
		outs = append(outs, <-out)
	}
	b.trips.before = nil
	return outs
}

func TestAPanicOfTheClientIsTheErrorOfItsCalls(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		for _, out := range b.broken(func() { panic("hook") }) {
			assert.ErrorContains(t, out.err, "the redis client panicked: hook")
			assert.Zero(t, out.took)
		}
		requireGranted(t, <-b.send(t.Context(), "k", callBound))
	})
}

// As a hook does in which a test fails.
func TestAGoroutineThatTheClientEndsIsTheErrorOfItsCalls(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		for range 2 * maxFlights {
			for _, out := range b.broken(runtime.Goexit) {
				assert.ErrorIs(t, out.err, fault.ErrExited)
				assert.Zero(t, out.took)
			}
		}
		requireGranted(t, <-b.send(t.Context(), "k", callBound))
		b.pass(2 * stuck)
	}, func(o *redis.Options) { o.PoolSize = 1000 })
}

// A hook may answer for the server. What it leaves out is no answer of ours.
func TestAHookThatAnswersForTheServer(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		down := errors.New("breaker open")
		b.trips.before = func(context.Context, []redis.Cmder) error { return down }
		release := b.trips.hold(0)
		defer release()
		for _, out := range b.sendMany(4) {
			out := <-out
			if out.err == nil {
				_, out.err = decodeAcquire(out.reply)
			}
			assert.Error(t, out.err)
		}
	})
}

func TestTheCallersValuesReachTheClientAndItsCancellationDoesNot(t *testing.T) {
	type span struct{}
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		b.trips.before = func(ctx context.Context, cmds []redis.Cmder) error {
			assert.Equal(t, "parent", ctx.Value(span{}))
			assert.Nil(t, ctx.Done())
			for _, cmd := range cmds {
				assert.NotContains(t, fmt.Sprint(cmd), testRequest("k").token, "the token is in a trace")
			}
			return nil
		}
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), span{}, "parent"))
		defer cancel()
		requireGranted(t, <-b.send(ctx, "k", callBound))
	})
}

func TestCloseWaitsForWhatIsUnderWay(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		assert.True(t, b.d.close(t.Context()))
		release := b.trips.hold(-1)
		all := b.sendMany(4)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		assert.False(t, b.d.close(ctx))
		assert.Equal(t, time.Second, time.Since(start))
		time.AfterFunc(time.Second, release)
		assert.True(t, b.d.close(t.Context()))
		assert.Equal(t, 2*time.Second, time.Since(start))
		for _, out := range all {
			requireGranted(t, <-out)
		}
	})
}

// Code of the user's that runs when a connection is made can break under a command as under a subscription. The call has an error
// within its bound then, no goroutine of ours lets the breaking through, and the next call is as any other.
func TestHooksThatBreakWhenAConnectionIsMadeAreTheErrorOfTheCall(t *testing.T) {
	ways := map[string]func(t *testing.T, client func() redis.UniversalClient) (*Locker, []Option){
		"a call": func(_ *testing.T, client func() redis.UniversalClient) (*Locker, []Option) { return New(client()), nil },
		"with replicas": func(_ *testing.T, client func() redis.UniversalClient) (*Locker, []Option) {
			return New(client()), []Option{WithReplicas(1, time.Millisecond)}
		},
		"a quorum": func(t *testing.T, client func() redis.UniversalClient) (*Locker, []Option) {
			q, err := NewQuorum([]redis.UniversalClient{client(), client(), client()}, WithRestartQuarantine(0))
			require.NoError(t, err)
			return q, nil
		},
	}
	for name, put := range brokenHooks {
		for how, end := range map[string]func(){"panics": func() { panic("no") }, "exits": runtime.Goexit} {
			if how == "exits" && strings.Contains(name, "dial") {
				continue // go-redis dials in a goroutine of its own, and waits for it for ever
			}
			for way, locker := range ways {
				t.Run(name+" "+how+" in "+way, func(t *testing.T) {
					t.Parallel()
					var broken atomic.Bool
					broken.Store(true)
					hook := func() {
						if broken.Load() {
							end()
						}
					}
					l, opts := locker(t, func() redis.UniversalClient {
						m, _ := redistest.Mini(t)
						o := &redis.Options{Addr: m.Addr(), MaxRetries: -1, DialerRetries: 1}
						o.Dialer = redis.NewDialer(o)
						added := put(o, hook)
						c := redis.NewClient(o)
						t.Cleanup(func() { _ = c.Close() })
						if added != nil {
							c.AddHook(added)
						}
						return c
					})
					var all sync.WaitGroup
					for i := range 5 {
						all.Go(func() {
							_, err := l.TryAcquire(t.Context(), fmt.Sprint("k", i), time.Minute, opts...)
							assert.Error(t, err)
						})
					}
					all.Wait()
					broken.Store(false)
					x, err := l.TryAcquire(t.Context(), "k", time.Minute)
					require.NoError(t, err)
					require.NoError(t, x.Release(t.Context()))
					require.NoError(t, l.Close())
				})
			}
		}
	}
}
