package roundtrip

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
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
					assert.ErrorAs(t, out.err, new(*fault.NoAnswer))
				}
				ctx, cancel := context.WithTimeout(t.Context(), 70*time.Millisecond)
				defer cancel()
				out = <-b.send(ctx, "k", enough)
				assert.ErrorIs(t, out.err, context.DeadlineExceeded)
				assert.Equal(t, 70*time.Millisecond, out.took)

				// Close is bounded too, and reports what it left.
				if name != "short" {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					assert.False(t, b.c.Close(ctx))
				}
				b.wire.Pass()
				b.wire.Cut()
				assert.True(t, b.c.Close(t.Context()))
			}, func(o *redis.Options) {
				o.ReadTimeout, o.WriteTimeout, o.DialTimeout, o.MaxRetries = patience, patience, time.Minute, -1
			})
		})
	}
}

func TestWritesAreCounted(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		b.wire.DropReplies(2, "evalsha")
		out := <-b.send(t.Context(), "k", enough)
		require.NoError(t, out.err)
		assert.Equal(t, 3, out.sent)
		requireGranted(t, <-b.send(t.Context(), "k", enough))

		b.wire.Refuse()
		out = <-b.send(t.Context(), "k", enough)
		require.Error(t, out.err)
		assert.Zero(t, out.sent, "nothing was written")
		b.wire.Pass()
		b.pass(time.Minute)

		// In a batch as well, which is sent again as a whole.
		batch := []*Command{runOf(takeScript, "a"), runOf(takeScript, "b")}
		b.wire.DropReplies(1, "evalsha")
		b.c.sender.sendAll(batch)
		for _, c := range batch {
			require.NoError(t, c.err)
			assert.Equal(t, 2, c.Writes())
		}
	})
}

func TestACutRequestMayHaveBeenSent(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		b.wire.CutRequest(20)
		out := <-b.send(t.Context(), "k", enough)
		require.Error(t, out.err)
		assert.Equal(t, 1, out.sent)
		assert.True(t, fault.Transient(out.err))
	}, func(o *redis.Options) { o.MaxRetries = -1 })
}

func TestForgottenScriptsInABatch(t *testing.T) {
	test := func(t *testing.T, c *redis.Client) {
		require.NoError(t, c.FlushAll(t.Context()).Err())
		log := &redistest.Trips{}
		c.AddHook(log)
		client := NewClient(c)
		release := log.Hold(2)
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() {
				reply, n, err := client.Do(t.Context(), runOf(takeScript, fmt.Sprint("k", i)), enough)
				assert.NoError(t, err)
				assert.EqualValues(t, 1, reply)
				assert.Equal(t, 1, n, "the EVALSHA has certainly done nothing")
			})
		}
		require.Eventually(t, func() bool {
			client.sender.mu.Lock()
			defer client.sender.mu.Unlock()
			n := len(client.sender.queue)
			for _, size := range log.Seen() {
				n += size
			}
			return n >= 10
		}, 10*time.Second, time.Millisecond)
		require.NoError(t, c.ScriptFlush(t.Context()).Err())
		release()
		all.Wait()
		assert.Greater(t, slices.Max(log.Sizes), 1)
	}
	t.Run("miniredis", func(t *testing.T) { _, c := redistest.Mini(t); test(t, c) })
	t.Run("redis-server", func(t *testing.T) { test(t, redistest.Server(t).Client()) })
}

// broken is what calls come to, alone and in a pipeline, while a hook of the client does that.
func (b *senderBench) broken(hook func()) (outs []outcome) {
	release := b.trips.Hold(2)
	all := b.sendMany(5)
	b.trips.SetBefore(func(context.Context, []redis.Cmder) error { hook(); return nil })
	release()
	requireGranted(b.t, <-all[0])
	requireGranted(b.t, <-all[1])
	for _, out := range append(all[2:], b.send(b.t.Context(), "k", enough)) {
		outs = append(outs, <-out)
	}
	b.trips.Before = nil
	return outs
}

func TestAPanicOfTheClientIsTheErrorOfItsCalls(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		for _, out := range b.broken(func() { panic("hook") }) {
			assert.ErrorContains(t, out.err, "the redis client panicked: hook")
			assert.Zero(t, out.took)
		}
		requireGranted(t, <-b.send(t.Context(), "k", enough))
	})
}

// As a hook does in which a test fails.
func TestAGoroutineThatTheClientEndsIsTheErrorOfItsCalls(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		for range 2 * maxTrips {
			for _, out := range b.broken(runtime.Goexit) {
				assert.ErrorIs(t, out.err, fault.ErrExited)
				assert.Zero(t, out.took)
			}
		}
		requireGranted(t, <-b.send(t.Context(), "k", enough))
		b.pass(2 * stall)
	}, func(o *redis.Options) { o.PoolSize = 1000 })
}

// A hook may answer for the server. What it leaves out is no answer of ours.
func TestAHookThatAnswersForTheServer(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		down := errors.New("breaker open")
		b.trips.Before = func(context.Context, []redis.Cmder) error { return down }
		release := b.trips.Hold(0)
		defer release()
		for _, out := range b.sendMany(4) {
			out := <-out
			assert.ErrorIs(t, out.err, down)
		}
	})
}

func TestTheCallersValuesReachTheClientAndItsCancellationDoesNot(t *testing.T) {
	type span struct{}
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		b.trips.Before = func(ctx context.Context, cmds []redis.Cmder) error {
			assert.Equal(t, "parent", ctx.Value(span{}))
			assert.Nil(t, ctx.Done())
			for _, cmd := range cmds {
				assert.NotContains(t, fmt.Sprint(cmd), tokenOf("k"), "the token is in a trace")
			}
			return nil
		}
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), span{}, "parent"))
		defer cancel()
		requireGranted(t, <-b.send(ctx, "k", enough))
	})
}

func TestCloseWaitsForWhatIsUnderWay(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		assert.True(t, b.c.Close(t.Context()))
		release := b.trips.Hold(-1)
		all := b.sendMany(4)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		assert.False(t, b.c.Close(ctx))
		assert.Equal(t, time.Second, time.Since(start))
		time.AfterFunc(time.Second, release)
		assert.True(t, b.c.Close(t.Context()))
		assert.Equal(t, 2*time.Second, time.Since(start))
		for _, out := range all {
			requireGranted(t, <-out)
		}
	})
}
