package leasehold

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/go-leasehold/leasehold/internal/roundtrip"
)

// Hooks are functions that are called at the events of a lease's life. A nil function is skipped. If [WithHooks] was
// given several times, the functions are called one after another, and each Start gets the context of the one before.
// No lock is held while a hook runs. Functions with a context are called in the goroutine of the acquire, the others in
// one of their own. The Locker waits for them, so they must return soon: a slow hook delays the renewals of its Locker.
// They must be safe for concurrent use. A panic in a hook is contained and logged. So is the end of its goroutine,
// unless it is the goroutine of the acquire.
type Hooks struct {
	// Start is called before an acquire is first sent. The context that it returns, which may carry a span, is used for
	// the call and given to the Acquired or GaveUp that always follows.
	Start func(ctx context.Context, e Event) context.Context

	Acquired func(ctx context.Context, e Event) // a lease was won
	GaveUp   func(ctx context.Context, e Event) // an acquire ended without a lease
	// Retrying: an acquire that waits found Redis unavailable, and goes on. A Locker tells it once in 10 s at most,
	// however many of its acquires wait; Stats.Retried counts every time.
	Retrying func(e Event)
	Renewed  func(e Event) // by hand or in the background
	Jeopardy func(e Event) // a renewal failed or is late, and the one before succeeded
	// One of Lost, Released and Detached is called once for every lease. Lost: it ended without being released, or its
	// release found that the key was gone or somebody else's.
	Lost func(e Event)
	// Released: the holder has let go. If the release is not clean, either the reason matches ErrReleased: it was sent
	// twice, and the key was gone at the second answer. Or the release failed: it is repeated in the background, and
	// the key is gone after its TTL at the latest.
	Released func(e Event)
	Detached func(e Event) // Detach has left the lease to an adopter
}

// Event is what a hook is told. Fields that an event does not have are zero.
type Event struct {
	Key          string // the Redis key
	Owner        string // the label of WithOwner
	FencingToken int64  // 0 before the lease is won

	Waited   time.Duration // Acquired, GaveUp, Retrying: since the call
	Attempts int           // Acquired, GaveUp, Retrying: commands sent for it
	Woken    Wake          // Acquired: what ended the wait

	Held  time.Duration // Lost, Released, Detached: from the sending of the acquire to the end of the lease
	Loss  Loss          // Lost: the kind of reason
	Clean bool          // Released: Redis confirmed that the key was ours and has been given up
	Err   error         // GaveUp, Retrying, Jeopardy, Lost, a release that is not clean: the reason
}

// Wake says what ended the wait of an acquire.
type Wake string

// The ways to win a lock.
const (
	WokenAtOnce    Wake = "at once" // it did not wait
	WokenByMessage Wake = "message" // a release handed the lock over, and a message said so
	WokenByExpiry  Wake = "expiry"  // the former holder's TTL ran out
	WokenByPoll    Wake = "poll"    // a regular poll found the lock
)

// Loss is the kind of reason for which a lease was lost.
type Loss string

// The ways to lose a lease.
const (
	LossExpired  Loss = "expired"         // nothing renewed it in time
	LossRenewals Loss = "renewals failed" // every renewal failed until the deadline
	LossMaxHold  Loss = "max hold"        // WithMaxHold allows no more
	LossGone     Loss = "gone"            // Redis said that the key is gone or somebody else's
	LossAdopted  Loss = "adopted"         // Adopt has taken the lease over
	LossForced   Loss = "forced"          // ForceRelease of the same Locker has ended it
	LossClosed   Loss = "closed"          // WithLock's function had not returned when Close gave up
)

// Callers is for a hook of the Redis client, such as one that makes spans. It returns the contexts of the callers whose
// commands share the round trip of ctx, and nil if ctx is that of one caller. Only their values count.
func Callers(ctx context.Context) []context.Context { return roundtrip.Callers(ctx) }

// event begins an Event of the attempt.
func (a *attempt) event() Event { return Event{Key: a.asks.Key, Owner: a.o.owner} }

// started runs the Start hooks. Each is given the context of the one before.
func (o *options) started(ctx context.Context, e Event) context.Context {
	for _, h := range o.hooks {
		if h.Start == nil {
			continue
		}
		o.contain(func() {
			if c := h.Start(ctx, e); c != nil {
				ctx = c
			}
		})
	}
	return ctx
}

// acquired runs the hooks of an acquire's end.
func (o *options) acquired(ctx context.Context, e Event) {
	for _, h := range o.hooks {
		hook := h.Acquired
		if e.Err != nil {
			hook = h.GaveUp
		}
		if hook != nil {
			o.contain(func() { hook(ctx, e) })
		}
	}
}

// hook runs the hooks of one event that take no context.
func (o *options) hook(pick func(*Hooks) func(Event), e Event) {
	if e.Err != nil {
		e.Err = reported{e.Err}
	}
	for i := range o.hooks {
		if hook := pick(&o.hooks[i]); hook != nil {
			// In a goroutine of its own, which it may end, as a test's FailNow does: this one may renew all leases.
			done, told := make(chan struct{}), e // a copy: e itself would be allocated for those without hooks as well
			go func() {
				defer close(done)
				o.contain(func() { hook(told) })
			}()
			<-done
		}
	}
}

// hears reports whether anybody would be told of an event that is a line in the log as well.
func (o *options) hears(pick func(*Hooks) func(Event)) bool {
	return o.logger != nil || slices.ContainsFunc(o.hooks, func(h Hooks) bool { return pick(&h) != nil })
}

func onRetrying(h *Hooks) func(Event) { return h.Retrying }
func onRenewed(h *Hooks) func(Event)  { return h.Renewed }
func onJeopardy(h *Hooks) func(Event) { return h.Jeopardy }
func onLost(h *Hooks) func(Event)     { return h.Lost }
func onReleased(h *Hooks) func(Event) { return h.Released }
func onDetached(h *Hooks) func(Event) { return h.Detached }

// log writes the one line of an event: never the token, which is the proof of ownership.
func (o *options) log(level slog.Level, msg string, e Event) {
	if o.logger == nil {
		return
	}
	o.logger.LogAttrs(context.Background(), level, msg, slog.String("key", e.Key),
		slog.Int64("fencing_token", e.FencingToken), slog.String("owner", e.Owner), slog.Any("reason", e.Err))
}

// contain runs code of the user's.
func (o *options) contain(f func()) {
	returned := false
	defer func() {
		switch p := recover(); {
		case returned || o.logger == nil:
		case p == nil:
			o.logger.Error("leasehold: a hook ended its goroutine")
		default:
			o.logger.Error("leasehold: a hook panicked", "panic", fmt.Sprint(p))
		}
	}()
	f()
	returned = true
}
