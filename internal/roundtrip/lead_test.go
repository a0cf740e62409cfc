package roundtrip

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
	"github.com/redis/go-redis/v9/push"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

// witness is an argument that sees in which goroutine it is written.
type witness struct{ led bool }

func (w *witness) MarshalBinary() ([]byte, error) {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(0, pcs[:])])
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		w.led = w.led || strings.HasSuffix(f.Function, ".leads")
	}
	return nil, nil
}

// onLoneBench is onSenderBench for a client without a hook.
func onLoneBench(t *testing.T, test func(t *testing.T, b *senderBench), opts ...func(*redis.Options)) {
	redistest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, dial func(...func(*redis.Options)) *redis.Client) {
		b := &senderBench{t: t, m: m}
		c := dial(append(opts, func(o *redis.Options) {
			b.wire = redistest.FaultyDialer(o.Dialer)
			o.Dialer = b.wire.Dial
		})...)
		require.NoError(t, c.ScriptLoad(t.Context(), takeScript.Src).Err())
		b.c = NewClient(c)
		test(t, b)
		synctest.Wait()
		b.idle()
		require.True(t, b.c.Close(t.Context()))
	})
}

// do takes the key, and reports whether the caller led.
func (b *senderBench) do(ctx context.Context, key string, bound time.Duration) (out outcome, led bool) {
	b.t.Helper()
	var w witness
	cmd := runOf(takeScript, key)
	cmd.Add(&w)
	begun := time.Now()
	reply, n, err := b.c.Do(ctx, cmd, bound)
	out = outcome{reply, n, err, time.Since(begun)}
	synctest.Wait() // the goroutine of a trip ends
	return out, w.led
}

// lead takes the key until the caller leads, and returns how often it did not.
func (b *senderBench) lead() (before int) {
	b.t.Helper()
	for ; ; before++ {
		out, led := b.do(b.t.Context(), "k", enough)
		requireGranted(b.t, out)
		if led {
			return before
		}
		require.Less(b.t, before, 50)
	}
}

func TestALoneCallerMakesItsOwnRoundTripsOnceTheServerIsKnownToBeQuick(t *testing.T) {
	onLoneBench(t, func(t *testing.T, b *senderBench) {
		assert.Equal(t, 8, b.lead())
		for range 100 {
			assert.Zero(t, b.lead())
		}
		require.NoError(t, b.c.Redis().ScriptFlush(t.Context()).Err())
		assert.Zero(t, b.lead(), "a script that the server has forgotten")
	})
}

func TestNobodyLeadsWithAClientThatMayHoldItsCaller(t *testing.T) {
	for name, set := range map[string]func(*redis.Options){
		"no retries":          func(o *redis.Options) { o.MaxRetries = -1 },
		"no read deadlines":   func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = -2, time.Second },
		"no write deadlines":  func(o *redis.Options) { o.WriteTimeout = -2 },
		"OnConnect":           func(o *redis.Options) { o.OnConnect = func(context.Context, *redis.Conn) error { return nil } },
		"Limiter":             func(o *redis.Options) { o.Limiter = noLimit{} },
		"CredentialsProvider": func(o *redis.Options) { o.CredentialsProvider = func() (string, string) { return "", "" } },
		"CredentialsProviderContext": func(o *redis.Options) {
			o.CredentialsProviderContext = func(context.Context) (string, string, error) { return "", "", nil }
		},
	} {
		t.Run(name, func(t *testing.T) {
			onLoneBench(t, func(t *testing.T, b *senderBench) {
				for range 20 {
					out, led := b.do(t.Context(), "k", enough)
					requireGranted(t, out)
					require.False(t, led)
				}
			}, set)
		})
	}
	for name, client := range map[string]redis.UniversalClient{
		"StreamingCredentialsProvider": redis.NewClient(&redis.Options{StreamingCredentialsProvider: noCredentials{}}),
		"PushNotificationProcessor":    redis.NewClient(&redis.Options{PushNotificationProcessor: struct{ *push.Processor }{push.NewProcessor()}}),

		"wrapper": struct{ *redis.Client }{redis.NewClient(&redis.Options{})},
		"cluster": redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"a"}}),
		"ring":    redis.NewRing(&redis.RingOptions{}),
		"nil":     (*redis.Client)(nil),
		"zero":    new(redis.Client),
	} {
		assert.Nil(t, newLeader(client), name)
	}
}

type noCredentials struct {
	auth.StreamingCredentialsProvider
}

type noLimit struct{}

func (noLimit) Allow() error       { return nil }
func (noLimit) ReportResult(error) {}

// What go-redis calls in the goroutine of its caller may hang, and must not hold the caller.
func TestAHookIsSeenAtOnceAndKeepsCallersFromLeading(t *testing.T) {
	onLoneBench(t, func(t *testing.T, b *senderBench) {
		b.lead()
		trips := &redistest.Trips{}
		b.c.Redis().AddHook(trips)
		_, led := b.do(t.Context(), "k", enough)
		assert.False(t, led)
		assert.Equal(t, []int{1}, trips.Seen())
		release := trips.Hold(1)
		out, _ := b.do(t.Context(), "k", 100*time.Millisecond)
		assert.ErrorAs(t, out.err, new(*fault.NoAnswer))
		assert.Equal(t, 100*time.Millisecond, out.took)
		release()
	})
	t.Run("added before", func(t *testing.T) {
		_, c := redistest.Mini(t)
		c.AddHook(&redistest.Trips{})
		assert.Len(t, newLeader(c).hooks.Load().list, 1)
	})
}

func TestHooksMayBeAddedWhileCallersLead(t *testing.T) {
	_, c := redistest.Mini(t)
	client, trips := NewClient(c), &redistest.Trips{}
	var adding sync.WaitGroup
	defer adding.Wait()
	for i := range 200 {
		if i == 100 {
			adding.Go(func() { c.AddHook(trips) })
		}
		_, _, err := client.Do(t.Context(), runOf(takeScript, "k"), enough)
		require.NoError(t, err)
	}
}

func TestALateCallerDoesNotLead(t *testing.T) {
	onLoneBench(t, func(t *testing.T, b *senderBench) {
		b.lead()
		_, led := b.do(t.Context(), "k", enoughToLead-1)
		assert.False(t, led, "its bound")
		for left, want := range map[time.Duration]bool{enoughToLead - 1: false, enoughToLead: true} {
			ctx, cancel := context.WithTimeout(t.Context(), left)
			_, led = b.do(ctx, "k", enough)
			cancel()
			assert.Equal(t, want, led, "its context: %v", left)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		out, led := b.do(ctx, "k", enough)
		assert.ErrorIs(t, out.err, context.Canceled)
		assert.Zero(t, out.sent)
		assert.False(t, led)
	})
}

// Whatever somebody else may have seen is left to the garbage collector: a round trip may still write it.
func TestACommandIsUsedAgainOnlyIfItsCallerLedAndWasAnswered(t *testing.T) {
	onLoneBench(t, func(t *testing.T, b *senderBench) {
		recycled := func() bool {
			cmd := runOf(takeScript, "k")
			_, _, _ = b.c.Do(t.Context(), cmd, enoughToLead)
			synctest.Wait()
			cmd.Recycle()
			return cmd.script == nil
		}
		assert.False(t, recycled(), "a goroutine had it")
		b.lead()
		assert.True(t, recycled())
		next := runOf(takeScript, "next")
		assert.False(t, next.private || next.given || next.taught || next.Writes() > 0 || next.spent > 0)

		b.wire.Forget()
		assert.False(t, recycled(), "its caller led in vain, and then a goroutine had it")
		b.wire.BlackHole()
		assert.False(t, recycled(), "it was given up")
		b.wire.Pass()
		b.wire.Cut()
		b.pass(time.Minute)
		b.lead()
		b.c.Redis().AddHook(&redistest.Trips{})
		assert.False(t, recycled(), "a hook may keep its arguments")
	})
}

func TestNobodyLeadsPastOthers(t *testing.T) {
	onLoneBench(t, func(t *testing.T, b *senderBench) {
		b.lead()
		later := b.later("queued", func(any, error) {})
		_, led := b.do(t.Context(), "k", enough)
		assert.False(t, led, "a command is queued")
		assert.False(t, later.Withdraw(), "it went with the other")

		b.lead()
		b.wire.Delay(quick)
		under := b.send(t.Context(), "under way", enough)
		_, led = b.do(t.Context(), "k", enough)
		assert.False(t, led, "another leads")
		requireGranted(t, <-under)
	})
}

func TestNobodyLeadsOutOfACrowd(t *testing.T) {
	onLoneBench(t, func(t *testing.T, b *senderBench) {
		b.lead()
		b.wire.Delay(time.Millisecond)
		var crowd []<-chan outcome
		for i := range 12 {
			crowd = append(crowd, b.start(t.Context(), fmt.Sprint("k", i), enough))
		}
		for _, out := range crowd {
			requireGranted(t, <-out)
		}
		synctest.Wait()
		_, led := b.do(t.Context(), "k", enough)
		assert.False(t, led, "the others are about to follow")
		_, led = b.do(t.Context(), "k", enough)
		assert.True(t, led, "they did not")
	})
}

func TestASlowServerEndsTheLeadUntilItIsQuickAgain(t *testing.T) {
	onLoneBench(t, func(t *testing.T, b *senderBench) {
		b.lead()
		b.wire.Delay(quick / 2) // each way
		for range 20 {
			out, _ := b.do(t.Context(), "k", enough)
			requireGranted(t, out)
		}
		_, led := b.do(t.Context(), "k", enough)
		assert.True(t, led, "in the mean it is just below")
		b.wire.Delay(quick)
		for range 10 {
			b.do(t.Context(), "k", enough)
		}
		_, led = b.do(t.Context(), "k", enough)
		assert.False(t, led)
		b.wire.Delay(0)
		assert.Positive(t, b.lead())

		b.wire.Delay(silence / 3)
		out, _ := b.do(t.Context(), "k", enough)
		require.NoError(t, out.err)
		b.wire.Delay(0)
		assert.Equal(t, 8, b.lead(), "one that took very long counts no more than another")

		// The slot of a round trip that was written off tells nothing of its time.
		s, mean := b.c.sender, b.c.sender.leader.mean
		s.settle(&trip{id: -1, answered: "k"})
		assert.Equal(t, mean, s.leader.mean)
	})
}

func TestAnAnswerOfLongAgoIsNoReasonToLead(t *testing.T) {
	onLoneBench(t, func(t *testing.T, b *senderBench) {
		b.lead()
		b.pass(lately)
		assert.Zero(t, b.lead())
		b.pass(lately + time.Millisecond)
		assert.Equal(t, 1, b.lead())
		assert.Zero(t, b.c.sender.scouted, "no answer was missing")
	})
}

// The connections are forgotten, so the first caller leads in vain. It is served on a new connection by the ordinary way.
func TestACallerThatLeadsInVainIsServedOnTheOrdinaryWay(t *testing.T) {
	onLoneBench(t, func(t *testing.T, b *senderBench) {
		b.lead()
		b.wire.Forget()
		out, led := b.do(t.Context(), "other", enough)
		require.NoError(t, out.err)
		assert.True(t, led)
		assert.Equal(t, 2, out.sent)
		assert.LessOrEqual(t, out.took, ledTime)
		assert.GreaterOrEqual(t, out.took, ledTime-ledSpare)
		assert.Equal(t, 7, b.lead(), "the server has to be quick again for a while")
	})
}

func TestBoundAndContextHoldWhileACallerLeadsInVain(t *testing.T) {
	mine := errors.New("of my own")
	for name, tt := range map[string]struct {
		end    func(context.CancelCauseFunc)
		bound  time.Duration
		took   time.Duration
		reason error
	}{
		"bound":                {bound: 100 * time.Millisecond, took: 100 * time.Millisecond},
		"cancelled at once":    {bound: enough, took: ledTime, reason: mine, end: func(end context.CancelCauseFunc) { time.AfterFunc(time.Millisecond, func() { end(mine) }) }},
		"cancelled afterwards": {bound: enough, took: 70 * time.Millisecond, reason: mine, end: func(end context.CancelCauseFunc) { time.AfterFunc(70*time.Millisecond, func() { end(mine) }) }},
	} {
		t.Run(name, func(t *testing.T) {
			onLoneBench(t, func(t *testing.T, b *senderBench) {
				b.lead()
				b.pass(ledTime) // so that the context of the lead is a new one
				b.wire.BlackHole()
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				if tt.end != nil {
					tt.end(cancel)
				}
				begun := time.Now()
				out, led := b.do(ctx, "other", tt.bound)
				assert.True(t, led)
				assert.Equal(t, begun, b.c.sender.silent, "since when scouts count")
				assert.Equal(t, tt.took, out.took)
				assert.Positive(t, out.sent, "the server may have it")
				if tt.reason != nil {
					assert.ErrorIs(t, out.err, tt.reason)
				} else {
					assert.EqualError(t, out.err, "no answer from redis within 100ms")
				}
				b.wire.Pass()
				b.wire.Cut()
				b.pass(time.Minute)
			})
		})
	}
}

// All round trips are stuck, so the command is still queued when its caller leaves. But the lead may have written it.
func TestACommandThatIsWithdrawnAfterALeadInVainCountsAsSent(t *testing.T) {
	onLoneBench(t, func(t *testing.T, b *senderBench) {
		b.lead()
		b.wire.BlackHole()
		ctx, cancel := context.WithCancel(t.Context())
		leading := b.send(ctx, "k", enough)
		others := []<-chan outcome{b.send(t.Context(), "a", stall), b.send(t.Context(), "b", enough)}
		b.pass(ledTime + time.Millisecond)
		s := b.c.sender
		s.mu.Lock()
		assert.Len(t, s.queue, 1)
		s.mu.Unlock()
		cancel()
		assert.Equal(t, 1, (<-leading).sent)
		b.wire.Pass()
		b.wire.Cut()
		for _, out := range others {
			<-out
		}
		b.pass(time.Minute)
	})
}

// A pool that is full holds a caller that leads no longer than a silent server does.
func TestACallerThatLeadsWaitsNoLongerForAConnection(t *testing.T) {
	s := redistest.Server(t)
	c := s.Client(func(o *redis.Options) { o.PoolSize = 1 })
	client := NewClient(c)
	take := func() (led bool, cmd *Command) {
		var w witness
		cmd = runOf(takeScript, "k")
		cmd.Add(&w)
		_, _, _ = client.Do(t.Context(), cmd, 100*time.Millisecond)
		return w.led, cmd
	}
	require.Eventually(t, func() bool { led, _ := take(); return led }, 10*time.Second, time.Millisecond)
	blocked := make(chan struct{})
	go func() {
		defer close(blocked)
		c.BLPop(t.Context(), 0, "nothing")
	}()
	admin := s.Client()
	require.Eventually(t, func() bool { return admin.ClientList(t.Context()).Val() != "" && c.PoolStats().IdleConns == 0 }, 10*time.Second, time.Millisecond)
	_, cmd := take()
	assert.Zero(t, cmd.Writes(), "there is no connection")
	assert.Positive(t, cmd.spent, "the caller did lead")
	assert.Less(t, cmd.spent, time.Second, "the pool lets callers wait for longer by itself")
	assert.Equal(t, slow, client.sender.leader.mean)
	require.NoError(t, admin.LPush(t.Context(), "nothing", "now").Err())
	<-blocked
}

func TestACallerThatLeadsHoldsUpNobody(t *testing.T) {
	onLoneBench(t, func(t *testing.T, b *senderBench) {
		b.lead()
		b.wire.Forget()
		leading := b.send(t.Context(), "a", enough) // on the only connection there is
		out := <-b.send(t.Context(), "b", enough)
		requireGranted(t, out)
		assert.Zero(t, out.took)
		out = <-leading
		require.NoError(t, out.err)
		assert.Equal(t, 2, out.sent)
	})
}

// Two are under way, one of them led, so the next ones are queued. They go with the first that comes back.
func TestWhatIsQueuedBehindALeadIsSentWhenTheLeadEnds(t *testing.T) {
	onLoneBench(t, func(t *testing.T, b *senderBench) {
		b.lead()
		b.wire.Delay(quick)
		all := b.sendMany(2)
		b.pass(quick) // the third of them would go with the second, which answers a moment later
		for i := range 3 {
			all = append(all, b.send(t.Context(), fmt.Sprint("queued", i), enough))
		}
		for _, out := range all {
			requireGranted(t, <-out)
		}
	})
}

func TestCloseWaitsForACallerThatLeads(t *testing.T) {
	onLoneBench(t, func(t *testing.T, b *senderBench) {
		b.lead()
		b.wire.Delay(quick)
		out := b.send(t.Context(), "k", enough)
		begun := time.Now()
		assert.True(t, b.c.Close(t.Context()))
		assert.Equal(t, 2*quick, time.Since(begun))
		requireGranted(t, <-out)
		assert.Error(t, b.c.sender.leader.term.Err(), "its timer runs for nobody")
	})
}

// A connection that the server has closed is replaced by go-redis, while the caller leads.
func TestACallerThatLeadsHasItsCommandRepeatedByTheClient(t *testing.T) {
	onLoneBench(t, func(t *testing.T, b *senderBench) {
		b.lead()
		b.pass(ledTime)
		b.wire.DropReplies(1, "evalsha")
		out, led := b.do(t.Context(), "other", enough)
		require.NoError(t, out.err)
		assert.True(t, led)
		assert.Equal(t, 2, out.sent)
		assert.Less(t, b.c.sender.leader.mean, slow)
	}, func(o *redis.Options) { o.MinRetryBackoff, o.MaxRetryBackoff = time.Millisecond, time.Millisecond })
}

func TestTheContextOfALeadEndsInTimeAndHasTheValuesOfTheCallers(t *testing.T) {
	type span struct{}
	synctest.Test(t, func(t *testing.T) {
		l, begun := &leader{end: func() {}}, time.Now()
		ctx := &led{l.at(begun), context.WithValue(t.Context(), span{}, "parent")}
		assert.Equal(t, "parent", ctx.Value(span{}))
		assert.Equal(t, ctx.Context, l.at(begun.Add(ledSpare)), "one serves all that begin in time")
		next := l.at(begun.Add(ledSpare + 1))
		assert.Error(t, ctx.Err(), "nobody uses it any more")
		assert.NoError(t, next.Err())
		<-next.Done()
		assert.Equal(t, ledTime+ledSpare+1, time.Since(begun))
	})
}

// The client of a caller that leads is the user's but for heeding contexts.
func TestTheClientOfALeadHasTheOptionsOfTheUsers(t *testing.T) {
	c := redis.NewClient(&redis.Options{ReadTimeout: time.Second, WriteTimeout: 2 * time.Second, Dialer: (&net.Dialer{}).DialContext})
	t.Cleanup(func() { _ = c.Close() })
	l := newLeader(c)
	require.NotNil(t, l)
	assert.False(t, c.Options().ContextTimeoutEnabled)
	assert.True(t, l.client.Options().ContextTimeoutEnabled)
	assert.Equal(t, time.Second, l.client.Options().ReadTimeout)
	assert.Equal(t, 2*time.Second, l.client.Options().WriteTimeout)

	heeding := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = heeding.Close() })
	assert.Same(t, heeding, newLeader(heeding).client)
}
