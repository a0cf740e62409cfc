package leasehold

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold/internal/redistest"
)

// trips is a hook that counts the round trips of a client and can hold them back.
type trips struct {
	mu     sync.Mutex
	sizes  []int
	names  []string
	under  int           // way
	most   int           // were under way at once
	gate   chan struct{} // where round trips are held; nil: nowhere
	held   int           // so many more are; below 0: all
	before func(ctx context.Context, cmds []redis.Cmder) error
}

// hold holds back the next n round trips, or all if n is below 0, until the function that it returns is called.
func (f *trips) hold(n int) (release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	gate := make(chan struct{})
	f.gate, f.held = gate, n
	return sync.OnceFunc(func() {
		f.mu.Lock()
		f.gate = nil
		f.mu.Unlock()
		close(gate)
	})
}

func (f *trips) seen() []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.sizes)
}

// peak is how many were under way at once.
func (f *trips) peak() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.most
}

func (f *trips) run(ctx context.Context, cmds []redis.Cmder, next func() error) error {
	f.mu.Lock()
	f.sizes = append(f.sizes, len(cmds))
	for _, cmd := range cmds {
		f.names = append(f.names, cmd.Name())
	}
	f.under++
	f.most = max(f.most, f.under)
	gate := f.gate
	switch {
	case f.held == 0:
		gate = nil
	case f.held > 0:
		f.held--
	}
	before := f.before
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.under--
		f.mu.Unlock()
	}()
	if before != nil {
		if err := before(ctx, cmds); err != nil {
			return err
		}
	}
	if gate != nil {
		<-gate
	}
	return next()
}

func (f *trips) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			return f.run(ctx, []redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
		}
		return next(ctx, cmd)
	}
}

func (f *trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if strings.HasPrefix(cmds[0].Name(), "eval") {
			return f.run(ctx, cmds, func() error { return next(ctx, cmds) })
		}
		return next(ctx, cmds)
	}
}

// bench is a deployment on a miniredis in a bubble, whose scripts the server knows.
type senderBench struct {
	t     *testing.T
	m     *miniredis.Miniredis
	d     *deployment
	trips *trips
	wire  *redistest.DialFault
}

func onSenderBench(t *testing.T, test func(t *testing.T, b *senderBench), opts ...func(*redis.Options)) {
	redistest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, dial func(...func(*redis.Options)) *redis.Client) {
		b := &senderBench{t: t, m: m, trips: &trips{}}
		c := dial(append(opts, func(o *redis.Options) {
			b.wire = redistest.FaultyDialer(o.Dialer)
			o.Dialer = b.wire.Dial
		})...)
		for _, sc := range []*script{acquireScript, releaseScript, renewScript, inspectScript} {
			require.NoError(t, sc.Load(t.Context(), c).Err())
		}
		c.AddHook(b.trips)
		b.d = storeOn(t, c)
		test(t, b)
		synctest.Wait()
		b.idle()
	})
}

// idle requires that nothing is under way or left.
func (b *senderBench) idle() {
	b.t.Helper()
	time.Sleep(2 * stuck)
	s := b.d.sender
	s.mu.Lock()
	defer s.mu.Unlock()
	assert.Empty(b.t, s.queue)
	assert.Zero(b.t, s.flights)
	assert.Nil(b.t, s.rescue, "a timer runs for nobody")
}

// pass lets time pass in the bubble.
func (b *senderBench) pass(d time.Duration) { time.Sleep(d) }

func testRequest(key string) *request {
	return &request{key: key, token: "AAAAAAAAAAAAAAAA." + key, px: 60_000, o: &options{}}
}

// outcome is what a call returned, and when.
type outcome struct {
	reply any
	sent  sent
	err   error
	took  time.Duration
}

// send runs an acquire of the key in a goroutine of its own.
func (b *senderBench) send(ctx context.Context, key string, bound time.Duration) <-chan outcome {
	out := b.start(ctx, key, bound)
	synctest.Wait()
	return out
}

func (b *senderBench) start(ctx context.Context, key string, bound time.Duration) <-chan outcome {
	out := make(chan outcome, 1)
	go func() {
		start := time.Now()
		reply, n, err := b.d.do(ctx, b.d.call(acquireScript, testRequest(key), modeTry), bound)
		out <- outcome{reply, n, err, time.Since(start)}
	}()
	return out
}

// sendMany sends n calls, the first two one by one: each has a round trip to itself.
func (b *senderBench) sendMany(n int) (all []<-chan outcome) {
	for i := range n {
		if i <= freeFlights {
			synctest.Wait()
		}
		all = append(all, b.start(b.t.Context(), fmt.Sprint("k", i), callBound))
	}
	synctest.Wait()
	return all
}

func requireGranted(t *testing.T, out outcome) {
	t.Helper()
	require.NoError(t, out.err)
	a, err := decodeAcquire(out.reply)
	require.NoError(t, err)
	require.Equal(t, granted, a.state)
	require.EqualValues(t, 1, out.sent)
}

func TestALoneCallIsSentAtOnce(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		for range 3 {
			out := <-b.send(t.Context(), "k", callBound)
			requireGranted(t, out)
			assert.Zero(t, out.took)
			b.idle()
		}
		assert.Equal(t, []int{1, 1, 1}, b.trips.sizes)
	})
}

func TestCallsShareARoundTripOnlyWhileTwoAreUnderWay(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		release := b.trips.hold(2)
		all := b.sendMany(12)
		assert.Equal(t, []int{1, 1}, b.trips.seen())
		release()
		for _, out := range all {
			out := <-out
			requireGranted(t, out)
			assert.Zero(t, out.took)
		}
		assert.Equal(t, []int{1, 1, 10}, b.trips.sizes)
	})
}

func TestARoundTripHasABoundedNumberOfCalls(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		release := b.trips.hold(2)
		all := b.sendMany(2 + 2*maxBatch + 5)
		release()
		for _, out := range all {
			requireGranted(t, <-out)
		}
		slices.Sort(b.trips.sizes)
		assert.Equal(t, []int{1, 1, 5, maxBatch, maxBatch}, b.trips.sizes)
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
		release := b.trips.hold(3)
		first := b.sendMany(2)
		ctx, cancel := context.WithCancelCause(t.Context())
		shared := []<-chan outcome{b.send(t.Context(), "a", callBound), b.send(ctx, "b", callBound), b.send(t.Context(), "c", callBound)}
		time.Sleep(2 * stuck)
		require.Equal(t, []int{1, 1, 3}, b.trips.seen())
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
		release := b.trips.hold(2)
		first := b.sendMany(2)
		ctx, cancel := context.WithCancel(t.Context())
		cancelled, late := b.send(ctx, "cancelled", callBound), b.send(t.Context(), "late", stuck/2)
		other := b.send(t.Context(), "other", callBound)
		cancel()
		out := <-cancelled
		assert.ErrorIs(t, out.err, context.Canceled)
		assert.Zero(t, out.sent)
		out = <-late
		assert.ErrorAs(t, out.err, new(*noAnswerError))
		assert.Zero(t, out.sent)
		assert.Equal(t, stuck/2, out.took)

		var told atomic.Int32
		later := b.d.renewLater(testRequest("later"), func(*call, int, error) { told.Add(1) })
		assert.True(t, b.d.withdraw(later))
		assert.False(t, b.d.withdraw(later))
		release()
		requireGranted(t, <-other)
		for _, out := range first {
			requireGranted(t, <-out)
		}
		synctest.Wait()
		assert.Zero(t, told.Load())
		assert.Equal(t, []int{1, 1, 1}, b.trips.sizes)
		assert.False(t, b.m.Exists("cancelled"))
		assert.False(t, b.m.Exists("late"))

		ended, cancel := context.WithCancel(t.Context())
		cancel()
		out = <-b.send(ended, "ended", callBound)
		assert.ErrorIs(t, out.err, context.Canceled)
		assert.Zero(t, out.sent)
		assert.Len(t, b.trips.sizes, 3)
	})
}

func TestLaterCallsAreSentTogetherByFlushAndAnsweredOnce(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		const n = 5
		answers := make(chan int, 2*n)
		var rs []*request
		for i := range n {
			rs = append(rs, testRequest(fmt.Sprint("k", i)))
			_, _, err := b.d.acquire(t.Context(), rs[i], modeTry, callBound)
			require.NoError(t, err)
		}
		synctest.Wait()
		b.m.Del("k0")
		b.trips.sizes = nil
		for _, r := range rs {
			b.d.renewLater(r, func(_ *call, waiters int, err error) {
				assert.NoError(t, err)
				answers <- waiters
			})
		}
		time.Sleep(time.Second)
		assert.Empty(t, answers)
		gone := b.d.renewLater(testRequest("withdrawn"), func(*call, int, error) { t.Error("answered") })
		assert.True(t, b.d.withdraw(gone))
		b.d.flush()
		b.d.flush()
		synctest.Wait()
		assert.Equal(t, []int{n}, b.trips.sizes)
		require.Len(t, answers, n)
		assert.Equal(t, -1, <-answers, "k0 is gone")
		for range n - 1 {
			assert.Zero(t, <-answers)
		}
	})
}
