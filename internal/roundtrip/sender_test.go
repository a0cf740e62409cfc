package roundtrip

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/go-leasehold/leasehold/internal/script"
)

// enough is a bound that no answer reaches.
const enough = 3 * time.Second

// takeScript is granted if nobody else has the key; keepScript tells whether the token has it.
var takeScript, keepScript = newScript(`
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1`), newScript(`return redis.call('GET', KEYS[1]) == ARGV[1] and 1 or 0`)

func newScript(src string) *script.Script {
	sc := &script.Script{}
	sc.Set(src)
	return sc
}

// runOf is a run of a script for the key's own token.
func runOf(sc *script.Script, key string) *Command {
	c := New(context.Background(), sc, tokenOf(key), 60_000, key)
	c.AddToken()
	c.AddMillis()
	return c
}

func tokenOf(key string) string { return "AAAAAAAAAAAAAAAA." + key }

// senderBench is a Client on a miniredis in a bubble, whose scripts the server knows.
type senderBench struct {
	t     *testing.T
	m     *miniredis.Miniredis
	c     *Client
	trips *redistest.Trips
	wire  *redistest.DialFault
}

func init() { logging.Disable() } // go-redis writes to stderr about every connection that a test breaks

func onSenderBench(t *testing.T, test func(t *testing.T, b *senderBench), opts ...func(*redis.Options)) {
	redistest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, dial func(...func(*redis.Options)) *redis.Client) {
		b := &senderBench{t: t, m: m, trips: &redistest.Trips{}}
		c := dial(append(opts, func(o *redis.Options) {
			b.wire = redistest.FaultyDialer(o.Dialer)
			o.Dialer = b.wire.Dial
		})...)
		for _, sc := range []*script.Script{takeScript, keepScript} {
			require.NoError(t, c.ScriptLoad(t.Context(), sc.Src).Err())
		}
		c.AddHook(b.trips)
		b.c = NewClient(c)
		test(t, b)
		synctest.Wait()
		b.idle()
	})
}

// idle requires that nothing is under way or left.
func (b *senderBench) idle() {
	b.t.Helper()
	time.Sleep(2 * stall)
	s := b.c.sender
	s.mu.Lock()
	defer s.mu.Unlock()
	assert.Empty(b.t, s.queue)
	assert.Zero(b.t, s.counted)
	assert.Nil(b.t, s.stallTimer, "a timer runs for nobody")
}

// pass lets time pass in the bubble.
func (b *senderBench) pass(d time.Duration) { time.Sleep(d) }

// outcome is what a call returned, and when.
type outcome struct {
	reply any
	sent  int
	err   error
	took  time.Duration
}

// send takes the key in a goroutine of its own.
func (b *senderBench) send(ctx context.Context, key string, bound time.Duration) <-chan outcome {
	out := b.start(ctx, key, bound)
	synctest.Wait()
	return out
}

func (b *senderBench) start(ctx context.Context, key string, bound time.Duration) <-chan outcome {
	out := make(chan outcome, 1)
	go func() {
		start := time.Now()
		reply, n, err := b.c.Do(ctx, runOf(takeScript, key), bound)
		out <- outcome{reply, n, err, time.Since(start)}
	}()
	return out
}

// sendMany sends n calls, the first two one by one: each has a round trip to itself.
func (b *senderBench) sendMany(n int) (all []<-chan outcome) {
	for i := range n {
		if i <= freeTrips {
			synctest.Wait()
		}
		all = append(all, b.start(b.t.Context(), fmt.Sprint("k", i), enough))
	}
	synctest.Wait()
	return all
}

// later queues a command for the next flush.
func (b *senderBench) later(key string, then func(reply any, err error)) *Command {
	c := runOf(keepScript, key)
	c.Then(then)
	b.c.Queue(c)
	return c
}

func requireGranted(t *testing.T, out outcome) {
	t.Helper()
	require.NoError(t, out.err)
	require.EqualValues(t, 1, out.reply)
	require.EqualValues(t, 1, out.sent)
}

func TestALoneCallIsSentAtOnce(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		for range 3 {
			out := <-b.send(t.Context(), "k", enough)
			requireGranted(t, out)
			assert.Zero(t, out.took)
			b.idle()
		}
		assert.Equal(t, []int{1, 1, 1}, b.trips.Sizes)
	})
}

func TestCallsShareARoundTripOnlyWhileTwoAreUnderWay(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		release := b.trips.Hold(2)
		all := b.sendMany(12)
		assert.Equal(t, []int{1, 1}, b.trips.Seen())
		release()
		for _, out := range all {
			out := <-out
			requireGranted(t, out)
			assert.Zero(t, out.took)
		}
		assert.Equal(t, []int{1, 1, 10}, b.trips.Sizes)
	})
}

func TestARoundTripHasABoundedNumberOfCalls(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		release := b.trips.Hold(2)
		all := b.sendMany(2 + 2*maxBatch + 5)
		release()
		for _, out := range all {
			requireGranted(t, <-out)
		}
		slices.Sort(b.trips.Sizes)
		assert.Equal(t, []int{1, 1, 5, maxBatch, maxBatch}, b.trips.Sizes)
	})
}

func TestACallersContextEndsItsOwnWaitAlone(t *testing.T) {
	for _, enabled := range []bool{false, true} {
		aContextEndsItsOwnWaitAlone(t, func(o *redis.Options) { o.ContextTimeoutEnabled = enabled })
	}
}

func aContextEndsItsOwnWaitAlone(t *testing.T, opt func(*redis.Options)) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		mine := errors.New("of my own")
		release := b.trips.Hold(3)
		first := b.sendMany(2)
		ctx, cancel := context.WithCancelCause(t.Context())
		shared := []<-chan outcome{b.send(t.Context(), "a", enough), b.send(ctx, "b", enough), b.send(t.Context(), "c", enough)}
		time.Sleep(2 * stall)
		require.Equal(t, []int{1, 1, 3}, b.trips.Seen())
		cancel(mine)
		out := <-shared[1]
		assert.ErrorIs(t, out.err, mine)
		assert.ErrorIs(t, out.err, context.Canceled)
		assert.EqualValues(t, 1, out.sent, "it is on its way")
		release()
		requireGranted(t, <-shared[0])
		requireGranted(t, <-shared[2])
		for _, out := range first {
			requireGranted(t, <-out)
		}
		assert.True(t, b.m.Exists("b"), "the batch was cut short")
	}, opt)
}

func TestACallThatWasNotSentIsWithdrawn(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		release := b.trips.Hold(2)
		first := b.sendMany(2)
		ctx, cancel := context.WithCancel(t.Context())
		cancelled, late := b.send(ctx, "cancelled", enough), b.send(t.Context(), "late", stall/2)
		other := b.send(t.Context(), "other", enough)
		cancel()
		out := <-cancelled
		assert.ErrorIs(t, out.err, context.Canceled)
		assert.Zero(t, out.sent)
		out = <-late
		assert.ErrorAs(t, out.err, new(*fault.NoAnswer))
		assert.Zero(t, out.sent)
		assert.Equal(t, stall/2, out.took)

		var told atomic.Int32
		later := b.later("later", func(any, error) { told.Add(1) })
		assert.True(t, later.Withdraw())
		assert.False(t, later.Withdraw())
		release()
		requireGranted(t, <-other)
		for _, out := range first {
			requireGranted(t, <-out)
		}
		synctest.Wait()
		assert.Zero(t, told.Load())
		assert.Equal(t, []int{1, 1, 1}, b.trips.Sizes)
		assert.False(t, b.m.Exists("cancelled"))
		assert.False(t, b.m.Exists("late"))

		ended, cancel := context.WithCancel(t.Context())
		cancel()
		out = <-b.send(ended, "ended", enough)
		assert.ErrorIs(t, out.err, context.Canceled)
		assert.Zero(t, out.sent)
		assert.Len(t, b.trips.Sizes, 3)
	})
}

func TestLaterCallsAreSentTogetherByFlushAndAnsweredOnce(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		const n = 5
		answers := make(chan any, 2*n)
		for i := range n {
			requireGranted(t, <-b.send(t.Context(), fmt.Sprint("k", i), enough))
		}
		synctest.Wait()
		b.m.Del("k0")
		b.trips.Sizes = nil
		for i := range n {
			b.later(fmt.Sprint("k", i), func(reply any, err error) {
				assert.NoError(t, err)
				answers <- reply
			})
		}
		time.Sleep(time.Second)
		assert.Empty(t, answers)
		gone := b.later("withdrawn", func(any, error) { t.Error("answered") })
		assert.True(t, gone.Withdraw())
		b.c.Flush()
		b.c.Flush()
		synctest.Wait()
		assert.Equal(t, []int{n}, b.trips.Sizes)
		require.Len(t, answers, n)
		assert.EqualValues(t, 0, <-answers, "k0 is gone")
		for range n - 1 {
			assert.EqualValues(t, 1, <-answers)
		}
	})
}
