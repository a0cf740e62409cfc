package leasehold

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEachEventIsToldOnceWithItsFacts(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party(WithOwner("worker 7"), WithKeyPrefix("app:"))
		x, err := p.TryAcquire(t.Context(), "k", 10*time.Second)
		require.NoError(t, err)
		require.NoError(t, x.Renew(t.Context()))
		time.Sleep(time.Second)
		p.fault.Next(2, nil).Fail(errNetwork)
		require.Error(t, x.Renew(t.Context()))
		require.Error(t, x.Renew(t.Context()))
		require.NoError(t, x.Renew(t.Context()))
		time.Sleep(time.Second)
		require.NoError(t, x.Release(t.Context()))

		assert.Equal(t, []string{"start", "acquired", "renewed", "jeopardy", "renewed", "released"}, p.story())
		e := Event{Key: "app:k", Owner: "worker 7"}
		assert.Equal(t, e, p.heard("start")[0].Event)
		e.FencingToken = x.FencingToken()
		assert.Equal(t, e, p.heard("renewed")[1].Event)
		acquired := e
		acquired.Attempts, acquired.Woken = 1, WokenAtOnce
		assert.Equal(t, acquired, p.heard("acquired")[0].Event)
		jeopardy := p.heard("jeopardy")[0].Event
		require.ErrorIs(t, jeopardy.Err, errNetwork)
		jeopardy.Err = nil
		assert.Equal(t, e, jeopardy)
		released := e
		released.Held, released.Clean = 2*time.Second, true
		assert.Equal(t, released, p.heard("released")[0].Event)

		y, err := p.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		_, err = p.TryAcquire(t.Context(), "k", time.Second)
		require.Error(t, err)
		assert.Equal(t, Event{Key: "app:k", Owner: "worker 7", Attempts: 1, Err: err}, p.heard("gave up")[0].Event)
		awaitEnd(y)
		lost := p.heard("lost")[0]
		assert.Equal(t, 990*time.Millisecond, lost.Held)
		assert.Equal(t, y.FencingToken(), lost.FencingToken)
		require.ErrorIs(t, lost.Err, ErrLost)
	})
}

func TestAWaitTellsHowLongHowOftenAndWhatWokeIt(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		w.take("k", 5500*time.Millisecond)
		_, err := p.Acquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		e := p.heard("acquired")[0]
		assert.Equal(t, WokenByExpiry, e.Woken)
		assert.InDelta(t, 5500*time.Millisecond, e.Waited, float64(5*time.Millisecond))
		assert.Equal(t, len(p.fault.Sent()), e.Attempts)

		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		_, err = p.Acquire(ctx, "k", time.Second)
		g := p.heard("gave up")[0]
		assert.Equal(t, err, g.Err)
		assert.Equal(t, 500*time.Millisecond, g.Waited)
		assert.Equal(t, 1, g.Attempts)
		assert.Empty(t, g.Woken, "it was not")
	})
}

// What is refused before anything is sent is no attempt.
func TestWhatIsInvalidIsToldToNoHook(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		_, err := p.TryAcquire(t.Context(), "", time.Second)
		require.ErrorIs(t, err, ErrInvalid)
		assert.Empty(t, p.story())
		assert.Zero(t, p.Stats())
	})
}

type ctxKey struct{}

// traced notes the context of each command, as a tracing library does.
type traced struct {
	mu   sync.Mutex
	seen []any
}

func (h *traced) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.mu.Lock()
		h.seen = append(h.seen, ctx.Value(ctxKey{}))
		h.mu.Unlock()
		return next(ctx, cmd)
	}
}
func (h *traced) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (h *traced) DialHook(next redis.DialHook) redis.DialHook { return next }

func TestTheContextOfStartGoesThroughTheCall(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		client, spans := w.dial(), &traced{}
		client.AddHook(spans)
		var ended []any
		end := func(ctx context.Context, _ Event) { ended = append(ended, ctx.Value(ctxKey{})) }
		l := New(client, WithHooks(Hooks{
			Start: func(ctx context.Context, e Event) context.Context {
				return context.WithValue(ctx, ctxKey{}, "span of "+e.Key)
			},
			Acquired: end,
			GaveUp:   end,
		}))
		defer l.Close()
		_, err := l.TryAcquire(t.Context(), "a", time.Second)
		require.NoError(t, err)
		_, err = l.TryAcquire(t.Context(), "a", time.Second)
		require.ErrorIs(t, err, ErrHeld)
		assert.Equal(t, []any{"span of a", "span of a"}, ended)
		assert.Subset(t, spans.seen, []any{"span of a"})

		// One that returns none leaves what there is.

		_, err = l.TryAcquire(t.Context(), "b", time.Second, WithHooks(Hooks{
			Start:    func(context.Context, Event) context.Context { return nil },
			Acquired: end,
		}))
		require.NoError(t, err)
		assert.Equal(t, []any{"span of b", "span of b"}, ended[2:])
	})
}

// A call's hooks come on top of New's, and do not silence those of whoever made the Locker.
func TestHooksAddUpInTheOrderInWhichTheyWereGiven(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var mu sync.Mutex
		var told []string
		note := func(s string) { mu.Lock(); defer mu.Unlock(); told = append(told, s) }
		hooks := func(name string) Option {
			with := func(hook string) func(context.Context, Event) {
				return func(ctx context.Context, _ Event) { note(name + " " + hook + ctx.Value(ctxKey{}).(string)) }
			}
			on := func(hook string) func(Event) { return func(Event) { note(name + " " + hook) } }
			return WithHooks(Hooks{
				Start: func(ctx context.Context, _ Event) context.Context {
					note(name + " start")
					before, _ := ctx.Value(ctxKey{}).(string)
					return context.WithValue(ctx, ctxKey{}, before+" "+name)
				},
				Acquired: with("acquired"), GaveUp: with("gave up"),
				Renewed: on("renewed"), Jeopardy: on("jeopardy"), Lost: on("lost"), Released: on("released"),
			})
		}
		client := w.dial()
		fault := redistest.Faulty(client)
		l := New(client, hooks("a"), hooks("b"), WithHooks(Hooks{}))
		defer l.Close()
		events := func(want ...string) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			assert.Equal(t, want, told)
			told = nil
		}
		x, err := l.TryAcquire(t.Context(), "k", time.Second, hooks("c"))
		require.NoError(t, err)
		events("a start", "b start", "c start", "a acquired a b c", "b acquired a b c", "c acquired a b c")

		// What one call was given stays its own.
		_, err = l.TryAcquire(t.Context(), "y", time.Minute, hooks("d"))
		require.NoError(t, err)
		events("a start", "b start", "d start", "a acquired a b d", "b acquired a b d", "d acquired a b d")
		_, err = l.TryAcquire(t.Context(), "y", time.Second)
		require.ErrorIs(t, err, ErrHeld)
		events("a start", "b start", "a gave up a b", "b gave up a b")

		require.NoError(t, x.Renew(t.Context()))
		events("a renewed", "b renewed", "c renewed")
		fault.Next(1, nil).Fail(errNetwork)
		require.Error(t, x.Renew(t.Context()))
		events("a jeopardy", "b jeopardy", "c jeopardy")
		awaitEnd(x)
		events("a lost", "b lost", "c lost")
	})
}

func TestAPanicInAnyHookIsContainedAndLogged(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var log bytes.Buffer
		var mu sync.Mutex
		var heard []string
		hear := func(name string) func(Event) {
			return func(Event) { mu.Lock(); defer mu.Unlock(); heard = append(heard, name) }
		}
		boom := func(name string) func(Event) { return func(Event) { panic(name + " panics") } }
		with := func(name string) func(context.Context, Event) {
			return func(context.Context, Event) { panic(name + " panics") }
		}
		client := w.dial()
		l := New(client, WithLogger(slog.New(slog.NewTextHandler(&log, nil))), WithHooks(Hooks{
			Start:    func(context.Context, Event) context.Context { panic("start panics") },
			Acquired: with("acquired"), GaveUp: with("gave up"),
			Renewed: boom("renewed"), Jeopardy: boom("jeopardy"), Lost: boom("lost"), Released: boom("released"), Detached: boom("detached"),
		}), WithHooks(Hooks{
			Start:    func(ctx context.Context, _ Event) context.Context { hear("start")(Event{}); return ctx },
			Acquired: func(_ context.Context, e Event) { hear("acquired")(e) },
			GaveUp:   func(_ context.Context, e Event) { hear("gave up")(e) },
			Renewed:  hear("renewed"), Jeopardy: hear("jeopardy"), Lost: hear("lost"), Released: hear("released"), Detached: hear("detached"),
		}))
		x, err := l.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		_, err = l.TryAcquire(t.Context(), "k", time.Second)
		require.ErrorIs(t, err, ErrHeld)
		require.NoError(t, x.Renew(t.Context()))
		w.m.SetError("LOADING")
		require.Error(t, x.Renew(t.Context()))
		w.m.SetError("")
		awaitEnd(x)
		y, err := l.TryAcquire(t.Context(), "y", time.Second)
		require.NoError(t, err)
		require.NoError(t, y.Release(t.Context()))
		z, err := l.TryAcquire(t.Context(), "z", time.Second)
		require.NoError(t, err)
		require.NotEmpty(t, z.Detach())
		require.NoError(t, l.Close())
		for _, hook := range []string{"start", "acquired", "gave up", "renewed", "jeopardy", "lost", "released", "detached"} {
			assert.Contains(t, log.String(), hook+" panics")
			assert.Contains(t, heard, hook, "a hook behind one that panics")
		}
	})
}

// As FailNow in a hook of a test does. Deadlines and renewals of all leases are in one goroutine's hands.
func TestAHookThatEndsItsGoroutineEndsNothingElse(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party(WithAutoRenew(true))
		exit := func(Event) { runtime.Goexit() }
		x, err := p.TryAcquire(t.Context(), "x", 3*time.Second, WithHooks(Hooks{Renewed: exit, Jeopardy: exit, Lost: exit, Released: exit}))
		require.NoError(t, err)
		y, err := p.TryAcquire(t.Context(), "y", 3*time.Second)
		require.NoError(t, err)
		require.NoError(t, x.Renew(t.Context()), "the caller's goroutine neither")
		time.Sleep(time.Minute)
		assert.True(t, x.Valid())
		assert.True(t, y.Valid())
		p.fault.Every(runOf(renewScript)).Fail(errNetwork)
		time.Sleep(4 * time.Second)
		for _, lease := range []*Lease{x, y} {
			select {
			case <-lease.Done():
			default:
				assert.Fail(t, "no timer ended a lease", "%v", lease)
			}
		}
		assert.Len(t, p.heard("lost"), 2)
		assert.Contains(t, p.logged(), "leasehold: a hook ended its goroutine")
	})
}

// No lock is held while a hook runs.
func TestAHookMayUseTheLeaseAndTheLocker(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		var lease atomic.Pointer[Lease]
		use := func(Event) {
			x := lease.Load()
			_ = x.Valid()
			_ = x.Err()
			_ = x.Done()
			_ = x.ValidUntil()
			_ = p.Stats()
			ctx, cancel := x.Context(context.Background())
			_ = ctx
			cancel()
			_, err := p.TryAcquire(context.Background(), "other", time.Second)
			_ = err
		}
		hooks := WithHooks(Hooks{
			Renewed: use, Lost: use, Released: use, Detached: use,
			Jeopardy: func(e Event) { use(e); _ = lease.Load().Renew(context.Background()) },
		})
		x := p.keeps("k", time.Second, hooks)
		lease.Store(x)
		time.Sleep(400 * time.Millisecond)
		p.fault.Next(2, runOf(renewScript)).Fail(errNetwork)
		time.Sleep(2 * time.Second)
		require.NoError(t, x.Release(t.Context()))
		x = p.keeps("k", time.Second, hooks)
		lease.Store(x)
		w.m.Del("k")
		awaitEnd(x)
		time.Sleep(time.Second)
	})
}

func TestTheLogHasOneLineForEachLossJeopardyAndFailedRelease(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party(WithOwner("worker 7"))
		lines := func() []string {
			return strings.FieldsFunc(p.logged(), func(r rune) bool { return r == '\n' })
		}
		x := p.keeps("k", time.Second)
		y, err := p.TryAcquire(t.Context(), "clean", time.Second)
		require.NoError(t, err)
		require.NoError(t, x.Renew(t.Context()))
		require.NoError(t, y.Release(t.Context()))
		assert.Empty(t, lines(), "what goes well is not logged")

		p.fault.Every(nil).Fail(errors.New("the network is gone: " + strings.Repeat("x", 10)))
		awaitEnd(x)
		require.Len(t, lines(), 2)
		assert.Contains(t, lines()[0], `level=WARN msg="leasehold: lease in jeopardy" key=k fencing_token=`)
		assert.Contains(t, lines()[1], `level=ERROR msg="leasehold: lease lost" key=k fencing_token=`)
		for _, line := range lines() {
			assert.Contains(t, line, `owner="worker 7" reason="`)
			assert.Contains(t, line, "the network is gone")
		}
		p.fault.Clear()
		z, err := p.TryAcquire(t.Context(), "z", time.Minute)
		require.NoError(t, err)
		w.m.SetError("NOPERM no")
		require.Error(t, z.Release(t.Context()))
		require.Len(t, lines(), 3)
		assert.Contains(t, lines()[2], `level=WARN msg="leasehold: release failed" key=z`)
		w.m.SetError("")
	})
}

func TestSilenceIsTheDefault(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for _, opts := range [][]Option{nil, {WithLogger(nil)}, {WithHooks(Hooks{})}} {
			l := New(w.dial(), opts...)
			x, err := l.TryAcquire(t.Context(), "k", 50*time.Millisecond)
			require.NoError(t, err)
			awaitEnd(x)
			require.NoError(t, l.ForceRelease(t.Context(), "k"))
			require.NoError(t, l.Close())
		}
	})
}
