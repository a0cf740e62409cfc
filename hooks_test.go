package leasehold_test

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

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEachEventIsToldOnceWithItsFacts(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party(leasehold.WithOwner("worker 7"), leasehold.WithKeyPrefix("app:"))
		x, err := p.TryAcquire(t.Context(), "k", 10*time.Second)
		require.NoError(t, err)
		require.NoError(t, x.Renew(t.Context()))
		time.Sleep(time.Second)
		p.Fault.Next(2, nil).Fail(locktest.ErrNetwork)
		require.Error(t, x.Renew(t.Context()))
		require.Error(t, x.Renew(t.Context()))
		require.NoError(t, x.Renew(t.Context()))
		time.Sleep(time.Second)
		require.NoError(t, x.Release(t.Context()))

		assert.Equal(t, []string{"start", "acquired", "renewed", "jeopardy", "renewed", "released"}, p.Story())
		e := leasehold.Event{Key: "app:k", Owner: "worker 7"}
		assert.Equal(t, e, p.Heard("start")[0].Event)
		e.FencingToken = x.FencingToken()
		assert.Equal(t, e, p.Heard("renewed")[1].Event)
		acquired := e
		acquired.Attempts, acquired.Woken = 1, leasehold.WokenAtOnce
		assert.Equal(t, acquired, p.Heard("acquired")[0].Event)
		jeopardy := p.Heard("jeopardy")[0].Event
		require.ErrorIs(t, jeopardy.Err, locktest.ErrNetwork)
		jeopardy.Err = nil
		assert.Equal(t, e, jeopardy)
		released := e
		released.Held, released.Clean = 2*time.Second, true
		assert.Equal(t, released, p.Heard("released")[0].Event)

		y, err := p.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		_, err = p.TryAcquire(t.Context(), "k", time.Second)
		require.Error(t, err)
		assert.Equal(t, leasehold.Event{Key: "app:k", Owner: "worker 7", Attempts: 1, Err: err}, p.Heard("gave up")[0].Event)
		locktest.AwaitEnd(y)
		lost := p.Heard("lost")[0]
		assert.Equal(t, 990*time.Millisecond, lost.Held)
		assert.Equal(t, y.FencingToken(), lost.FencingToken)
		require.ErrorIs(t, lost.Err, leasehold.ErrLost)
	})
}

func TestAWaitTellsHowLongHowOftenAndWhatWokeIt(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		w.Take("k", 5500*time.Millisecond)
		_, err := p.Acquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		e := p.Heard("acquired")[0]
		assert.Equal(t, leasehold.WokenByExpiry, e.Woken)
		assert.InDelta(t, 5500*time.Millisecond, e.Waited, float64(5*time.Millisecond))
		assert.Equal(t, len(p.Fault.Sent()), e.Attempts)

		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		_, err = p.Acquire(ctx, "k", time.Second)
		g := p.Heard("gave up")[0]
		assert.Equal(t, err, g.Err)
		assert.Equal(t, 500*time.Millisecond, g.Waited)
		assert.Equal(t, 1, g.Attempts)
		assert.Empty(t, g.Woken, "it was not")
	})
}

// What is refused before anything is sent is no attempt.
func TestWhatIsInvalidIsToldToNoHook(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		_, err := p.TryAcquire(t.Context(), "", time.Second)
		require.ErrorIs(t, err, leasehold.ErrInvalid)
		assert.Empty(t, p.Story())
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
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		client, spans := w.Dial(), &traced{}
		client.AddHook(spans)
		var ended []any
		end := func(ctx context.Context, _ leasehold.Event) { ended = append(ended, ctx.Value(ctxKey{})) }
		l := leasehold.New(client, leasehold.WithHooks(leasehold.Hooks{
			Start: func(ctx context.Context, e leasehold.Event) context.Context {
				return context.WithValue(ctx, ctxKey{}, "span of "+e.Key)
			},
			Acquired: end,
			GaveUp:   end,
		}))
		defer l.Close()
		_, err := l.TryAcquire(t.Context(), "a", time.Second)
		require.NoError(t, err)
		_, err = l.TryAcquire(t.Context(), "a", time.Second)
		require.ErrorIs(t, err, leasehold.ErrHeld)
		assert.Equal(t, []any{"span of a", "span of a"}, ended)
		assert.Subset(t, spans.seen, []any{"span of a"})

		// One that returns none leaves what there is.

		_, err = l.TryAcquire(t.Context(), "b", time.Second, leasehold.WithHooks(leasehold.Hooks{
			Start:    func(context.Context, leasehold.Event) context.Context { return nil },
			Acquired: end,
		}))
		require.NoError(t, err)
		assert.Equal(t, []any{"span of b", "span of b"}, ended[2:])
	})
}

// A call's hooks come on top of New's, and do not silence those of whoever made the Locker.
func TestHooksAddUpInTheOrderInWhichTheyWereGiven(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		var mu sync.Mutex
		var told []string
		note := func(s string) { mu.Lock(); defer mu.Unlock(); told = append(told, s) }
		hooks := func(name string) leasehold.Option {
			with := func(hook string) func(context.Context, leasehold.Event) {
				return func(ctx context.Context, _ leasehold.Event) { note(name + " " + hook + ctx.Value(ctxKey{}).(string)) }
			}
			on := func(hook string) func(leasehold.Event) { return func(leasehold.Event) { note(name + " " + hook) } }
			return leasehold.WithHooks(leasehold.Hooks{
				Start: func(ctx context.Context, _ leasehold.Event) context.Context {
					note(name + " start")
					before, _ := ctx.Value(ctxKey{}).(string)
					return context.WithValue(ctx, ctxKey{}, before+" "+name)
				},
				Acquired: with("acquired"), GaveUp: with("gave up"),
				Renewed: on("renewed"), Jeopardy: on("jeopardy"), Lost: on("lost"), Released: on("released"),
			})
		}
		client := w.Dial()
		fault := redistest.Faulty(client)
		l := leasehold.New(client, hooks("a"), hooks("b"), leasehold.WithHooks(leasehold.Hooks{}))
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
		require.ErrorIs(t, err, leasehold.ErrHeld)
		events("a start", "b start", "a gave up a b", "b gave up a b")

		require.NoError(t, x.Renew(t.Context()))
		events("a renewed", "b renewed", "c renewed")
		fault.Next(1, nil).Fail(locktest.ErrNetwork)
		require.Error(t, x.Renew(t.Context()))
		events("a jeopardy", "b jeopardy", "c jeopardy")
		locktest.AwaitEnd(x)
		events("a lost", "b lost", "c lost")
	})
}

func TestAPanicInAnyHookIsContainedAndLogged(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		var log bytes.Buffer
		var mu sync.Mutex
		var heard []string
		hear := func(name string) func(leasehold.Event) {
			return func(leasehold.Event) { mu.Lock(); defer mu.Unlock(); heard = append(heard, name) }
		}
		boom := func(name string) func(leasehold.Event) { return func(leasehold.Event) { panic(name + " panics") } }
		with := func(name string) func(context.Context, leasehold.Event) {
			return func(context.Context, leasehold.Event) { panic(name + " panics") }
		}
		client := w.Dial()
		l := leasehold.New(client, leasehold.WithLogger(slog.New(slog.NewTextHandler(&log, nil))), leasehold.WithHooks(leasehold.Hooks{
			Start:    func(context.Context, leasehold.Event) context.Context { panic("start panics") },
			Acquired: with("acquired"), GaveUp: with("gave up"),
			Renewed: boom("renewed"), Jeopardy: boom("jeopardy"), Lost: boom("lost"), Released: boom("released"), Detached: boom("detached"),
		}), leasehold.WithHooks(leasehold.Hooks{
			Start: func(ctx context.Context, _ leasehold.Event) context.Context {
				hear("start")(leasehold.Event{})
				return ctx
			},
			Acquired: func(_ context.Context, e leasehold.Event) { hear("acquired")(e) },
			GaveUp:   func(_ context.Context, e leasehold.Event) { hear("gave up")(e) },
			Renewed:  hear("renewed"), Jeopardy: hear("jeopardy"), Lost: hear("lost"), Released: hear("released"), Detached: hear("detached"),
		}))
		x, err := l.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		_, err = l.TryAcquire(t.Context(), "k", time.Second)
		require.ErrorIs(t, err, leasehold.ErrHeld)
		require.NoError(t, x.Renew(t.Context()))
		w.M.SetError("LOADING")
		require.Error(t, x.Renew(t.Context()))
		w.M.SetError("")
		locktest.AwaitEnd(x)
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
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party(leasehold.WithAutoRenew(true))
		exit := func(leasehold.Event) { runtime.Goexit() }
		x, err := p.TryAcquire(t.Context(), "x", 3*time.Second, leasehold.WithHooks(leasehold.Hooks{Renewed: exit, Jeopardy: exit, Lost: exit, Released: exit}))
		require.NoError(t, err)
		y, err := p.TryAcquire(t.Context(), "y", 3*time.Second)
		require.NoError(t, err)
		require.NoError(t, x.Renew(t.Context()), "the caller's goroutine neither")
		time.Sleep(time.Minute)
		assert.True(t, x.Valid())
		assert.True(t, y.Valid())
		p.Fault.Every(locktest.RunOf(locktest.RenewScript)).Fail(locktest.ErrNetwork)
		time.Sleep(4 * time.Second)
		for _, lease := range []*leasehold.Lease{x, y} {
			select {
			case <-lease.Done():
			default:
				assert.Fail(t, "no timer ended a lease", "%v", lease)
			}
		}
		assert.Len(t, p.Heard("lost"), 2)
		assert.Contains(t, p.Logged(), "leasehold: a hook ended its goroutine")
	})
}

// No lock is held while a hook runs.
func TestAHookMayUseTheLeaseAndTheLocker(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		var lease atomic.Pointer[leasehold.Lease]
		use := func(leasehold.Event) {
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
		hooks := leasehold.WithHooks(leasehold.Hooks{
			Renewed: use, Lost: use, Released: use, Detached: use,
			Jeopardy: func(e leasehold.Event) { use(e); _ = lease.Load().Renew(context.Background()) },
		})
		x := p.Keeps("k", time.Second, hooks)
		lease.Store(x)
		time.Sleep(400 * time.Millisecond)
		p.Fault.Next(2, locktest.RunOf(locktest.RenewScript)).Fail(locktest.ErrNetwork)
		time.Sleep(2 * time.Second)
		require.NoError(t, x.Release(t.Context()))
		x = p.Keeps("k", time.Second, hooks)
		lease.Store(x)
		w.M.Del("k")
		locktest.AwaitEnd(x)
		time.Sleep(time.Second)
	})
}

func TestTheLogHasOneLineForEachLossJeopardyAndFailedRelease(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party(leasehold.WithOwner("worker 7"))
		lines := func() []string {
			return strings.FieldsFunc(p.Logged(), func(r rune) bool { return r == '\n' })
		}
		x := p.Keeps("k", time.Second)
		y, err := p.TryAcquire(t.Context(), "clean", time.Second)
		require.NoError(t, err)
		require.NoError(t, x.Renew(t.Context()))
		require.NoError(t, y.Release(t.Context()))
		assert.Empty(t, lines(), "what goes well is not logged")

		p.Fault.Every(nil).Fail(errors.New("the network is gone: " + strings.Repeat("x", 10)))
		locktest.AwaitEnd(x)
		require.Len(t, lines(), 2)
		assert.Contains(t, lines()[0], `level=WARN msg="leasehold: lease in jeopardy" key=k fencing_token=`)
		assert.Contains(t, lines()[1], `level=ERROR msg="leasehold: lease lost" key=k fencing_token=`)
		for _, line := range lines() {
			assert.Contains(t, line, `owner="worker 7" reason="`)
			assert.Contains(t, line, "the network is gone")
		}
		p.Fault.Clear()
		z, err := p.TryAcquire(t.Context(), "z", time.Minute)
		require.NoError(t, err)
		w.M.SetError("NOPERM no")
		require.Error(t, z.Release(t.Context()))
		require.Len(t, lines(), 3)
		assert.Contains(t, lines()[2], `level=WARN msg="leasehold: release failed" key=z`)
		w.M.SetError("")
	})
}

func TestSilenceIsTheDefault(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		for _, opts := range [][]leasehold.Option{nil, {leasehold.WithLogger(nil)}, {leasehold.WithHooks(leasehold.Hooks{})}} {
			l := leasehold.New(w.Dial(), opts...)
			x, err := l.TryAcquire(t.Context(), "k", 50*time.Millisecond)
			require.NoError(t, err)
			locktest.AwaitEnd(x)
			require.NoError(t, l.ForceRelease(t.Context(), "k"))
			require.NoError(t, l.Close())
		}
	})
}

func TestStatsAddUp(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, q := w.Party(), w.Party()
		assert.Zero(t, p.Stats())
		a := p.Keeps("a", 30*time.Second)
		b, err := p.TryAcquire(t.Context(), "b", time.Minute)
		require.NoError(t, err)
		assert.Equal(t, leasehold.Stats{Held: 2, Acquired: 2, AcquiredAtOnce: 2}, p.Stats())

		w.Take("c", time.Minute)
		_, err = p.TryAcquire(t.Context(), "c", time.Minute)
		require.ErrorIs(t, err, leasehold.ErrHeld)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wait := locktest.Beside(func() (*leasehold.Lease, error) { return p.Acquire(ctx, "c", time.Minute) })
		time.Sleep(500 * time.Millisecond)
		assert.Equal(t, leasehold.Stats{Held: 2, Waiting: 1, Acquired: 2, GaveUp: 1, AcquiredAtOnce: 2}, p.Stats())
		require.Error(t, (<-wait).Err)
		assert.Equal(t, leasehold.Stats{Held: 2, Acquired: 2, GaveUp: 2, AcquiredAtOnce: 2}, p.Stats())

		require.NoError(t, b.Renew(t.Context()))
		p.Fault.Next(1, nil).Fail(locktest.ErrNetwork)
		require.Error(t, b.Renew(t.Context()))
		assert.Equal(t, leasehold.Stats{Held: 2, Acquired: 2, GaveUp: 2, Renewed: 1, RenewalsFailed: 1, AcquiredAtOnce: 2}, p.Stats())

		// Each way to be woken.
		x, err := q.TryAcquire(t.Context(), "d", time.Minute)
		require.NoError(t, err)
		message := locktest.Beside(func() (*leasehold.Lease, error) { return p.Acquire(t.Context(), "d", time.Minute) })
		w.Take("e", 1500*time.Millisecond)
		expiry := locktest.Beside(func() (*leasehold.Lease, error) { return p.Acquire(t.Context(), "e", time.Minute) })
		w.Take("f", time.Minute)
		tick := locktest.Beside(func() (*leasehold.Lease, error) { return p.Acquire(t.Context(), "f", time.Minute) })
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, x.Release(t.Context()))
		w.M.Del("f")
		d := (<-message).Lease
		require.NoError(t, (<-expiry).Err)
		require.NoError(t, (<-tick).Err)
		s := p.Stats()
		assert.Equal(t, []int64{5, 2, 1, 1, 1}, []int64{s.Acquired, s.AcquiredAtOnce, s.AcquiredByMessage, s.AcquiredByExpiry, s.AcquiredByPoll})
		assert.Equal(t, 5, s.Held)

		// Each way to end.
		require.NoError(t, d.Release(t.Context()))
		w.M.Del("a")
		locktest.AwaitEnd(a)
		p.Wire.DropReplies(1, "evalsha")
		require.NoError(t, b.Release(t.Context()))
		s = p.Stats()
		assert.Equal(t, 2, s.Held)
		assert.Equal(t, []int64{1, 1, 1}, []int64{s.Released, s.Lost, s.ReleasesUnconfirmed})
		x, err = p.TryAcquire(t.Context(), "given away", time.Minute)
		require.NoError(t, err)
		require.NotEmpty(t, x.Detach())
		s = p.Stats()
		assert.EqualValues(t, 1, s.Detached)
		assert.EqualValues(t, s.Held, s.Acquired-s.Released-s.Lost-s.ReleasesUnconfirmed-s.Detached)
	})
}

// A lost lease that is released for the sake of others has ended once.
func TestALeaseEndsOnceInTheStats(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute, leasehold.WithMaxHold(time.Second))
		require.NoError(t, err)
		locktest.AwaitEnd(x)
		require.ErrorIs(t, x.Release(t.Context()), leasehold.ErrLost)
		assert.Equal(t, leasehold.Stats{Acquired: 1, AcquiredAtOnce: 1, Lost: 1}, p.Stats())
		assert.Equal(t, []string{"start", "acquired", "lost"}, p.Story())
	})
}
