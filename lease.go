package leasehold

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/inside"
	"github.com/go-leasehold/leasehold/internal/keep"
	"github.com/go-leasehold/leasehold/internal/line"
	"github.com/go-leasehold/leasehold/internal/token"
)

// Lease is one acquisition of one key. It is held until it is released or lost, and never taken up again; see the
// package comment for its states. A Lease is safe for concurrent use and may be passed between goroutines: whoever has
// it owns the lock. A nil Lease is not held, and its methods say so without a panic. It may be printed in any way: that
// shows neither its token nor more than an instant.
type Lease struct{ *sealed }

// sealed is what keeps fmt out.
type sealed struct{ *lease }

// seal makes the Lease of a state, in the place that the state has for both.
func (s *lease) seal() *Lease {
	s.inner = sealed{s}
	s.outer = Lease{&s.inner}
	return &s.outer
}

// lease is the state of a Lease.
type lease struct {
	outer Lease // it points to inner, and that to this lease; see String
	inner sealed

	l      *Locker
	key    string // in Redis, prefix included
	token  string
	o      *options
	tenure backend.Tenure
	fence  int64
	begun  clock.Moment // before the attempt that won was first sent
	scoped bool         // it is WithLock's
	resent bool         // a copy of its acquire may still be on its way
	slot   int16        // below token.MaxSlots

	mu           sync.Mutex    // guards what follows; never held across a Redis call, a hook or a send
	deadline     clock.Moment  // end of trust
	span         keep.Span     // its TTL
	turns        chan struct{} // of Extends, of length one; nil: there was none
	err          error         // nil while held; then why it ended for its holder, once and for all
	held         time.Duration // then: from its acquire to its end
	releases     releases      // what became of the key then; see release.go
	trouble      error         // why the last renewal failed; nil: held, else: in jeopardy
	renewal                    // the automatic one; see renewal.go
	waiters      bool          // somebody waits, as far as a renewal told
	countWaiters bool          // a renewal asks who waits, and why it fails
	shared       bool          // others may know the token, and adopt the lease
	done         chan struct{}
	contended    chan struct{}
	contexts     []*leaseContext

	entry keep.Entry // the keeper's
}

// newLease makes the Lease of a grant. It is the one place where a deadline begins.
func newLease(l *Locker, a *attempt, g line.Grant) *Lease {
	le := (&lease{
		l: l, key: a.asks.Key, token: g.Token, o: a.o, tenure: g.Tenure, fence: g.Fence, slot: int16(g.Slot), begun: g.Anchor,
		scoped: a.scoped, resent: g.Resent, span: keep.NewSpan(a.asks.TTL, a.asks.TTL),
	}).seal()
	if a.asks.Former != "" {
		le.span = keep.NewSpan(a.asks.TTL, maxTTL) // the former holder may have had more time
	}
	le.auto = a.asks.AutoRenew
	le.prolong(g.Anchor)
	le.schedule.Every = le.o.every(a.asks.TTL)
	le.schedule.Start(g.Anchor.Time)
	if g.Life > 0 { // a renewal must confirm the grant, and brings the whole TTL
		if until := g.Anchor.Plus(g.Life - clock.Margin(g.Life)); until.Before(le.deadline.Time) {
			le.deadline = until
		}
		le.schedule.Hasten(le.deadline.Add(-g.Life / 3))
	}
	return le
}

var errNilLease = &Error{Op: "use", Err: invalid("the lease is nil: an acquire failed and its error was passed over")}

// Key returns the Redis key, with the prefix of [WithKeyPrefix]. It does not know what a hook of the client puts before
// the key.
func (le *Lease) Key() string {
	if le == nil {
		return ""
	}
	return le.key
}

// Token returns the value that proves ownership. Give it to [Locker.Adopt] in another process, and to nobody else.
func (le *Lease) Token() string {
	if le == nil {
		return ""
	}
	le.mu.Lock()
	defer le.mu.Unlock()
	le.shared, le.countWaiters = true, true
	return le.token
}

// FencingToken returns a number that is greater than that of every earlier lease of the key, and does not change during
// the lease. Send it with every write that the lock protects, and let the resource refuse a number that is lower than
// one that it has seen; see [Guard] and [FencedScript]. It is at least 1. FencingToken sends nothing.
func (le *Lease) FencingToken() int64 {
	if le == nil {
		return 0
	}
	return le.fence
}

// Slot returns the number of the slot that the lease holds, from 0 to n-1 with [WithSlots]. No other lease that is held
// has it, and the fencing tokens of the leases of one slot rise. It is 0 for all other leases.
func (le *Lease) Slot() int {
	if le == nil {
		return 0
	}
	return int(le.slot)
}

// IsShared reports whether others may hold leases of the key at the same time under [WithShared]. A resource must not refuse
// such a lease for the fencing token of another shared one, which may be higher: both hold. A lease of [WithSlots] is not
// shared: it is alone in its slot.
func (le *Lease) IsShared() bool { return le != nil && token.KindOf(le.token) == token.Shared }

// ValidUntil returns the last instant at which this process may trust the lease, unless it is renewed: the moment
// before the acquire or the last successful renewal was sent, plus the TTL, minus a margin of 1 % of the TTL (at least
// 2 ms). It has a monotonic reading, so use it with time.Until. [Lease.Valid] also reads the wall clock.
func (le *Lease) ValidUntil() time.Time {
	if le == nil {
		return time.Time{}
	}
	le.mu.Lock()
	defer le.mu.Unlock()
	return le.deadline.Time
}

// Valid reports whether the lease may be trusted at this instant. It reads two clocks and sends nothing. Once false, it
// stays false. Ask it right before each step that must not happen twice. The step itself can still come late, and then
// only its resource can refuse it.
func (le *Lease) Valid() bool { return le != nil && le.check() == nil }

// Err returns nil while the lease is held. After that it returns an error that matches [ErrLost] or [ErrReleased] and
// says why. The first reason stays: if the release of a lease finds that its key is gone, the lease was released, and
// the result of Release says what it found.
func (le *Lease) Err() error {
	if le == nil {
		return errNilLease
	}
	_ = le.check()
	le.mu.Lock()
	defer le.mu.Unlock()
	return le.err
}

// check judges the lease by the clocks, ends it if its time is over, and reports why it must not be used.
func (le *Lease) check() error { return le.checkAt(le.l.clock.Now()) }

// checkAt is check for those who have just read the clocks.
func (le *Lease) checkAt(now clock.Moment) error {
	le.mu.Lock()
	err, over := le.err, le.deadline.Reached(now)
	le.mu.Unlock()
	if err == nil && over {
		return le.end(le.overdue())
	}
	return err
}

// overdue is the reason of a lease whose deadline has come.
func (le *Lease) overdue() error {
	le.mu.Lock()
	defer le.mu.Unlock()
	switch {
	case le.trouble != nil:
		return &lossError{LossRenewals, "its time ran out while renewals failed", le.trouble}
	case le.capped():
		return lost(LossMaxHold, "held as long as WithMaxHold allows")
	}
	return lost(LossExpired, "its time ran out")
}

// Done returns a channel that is closed when the lease ends: when Release is called, or when the lease is lost. At the
// deadline a timer closes it, whatever the network does. [Lease.Err] says which.
func (le *Lease) Done() <-chan struct{} {
	if le == nil {
		return closedChan
	}
	le.mu.Lock()
	defer le.mu.Unlock()
	if le.err != nil {
		return closedChan
	}
	if le.done == nil {
		le.done = make(chan struct{})
	}
	return le.done
}

var closedChan = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// fail names the operation that met the error.
func (le *Lease) fail(op string, err error) error {
	return &Error{Op: op, Key: le.key, Err: reason(err)}
}

// inside is the state of the lease, for tests.
func (le *Lease) inside() inside.Lease {
	le.mu.Lock()
	defer le.mu.Unlock()
	return inside.Lease{Token: le.token, TTL: le.span.TTL(), Begun: le.begun, Deadline: le.deadline, Now: le.l.clock.Now(),
		Ended: le.err != nil, Contexts: len(le.contexts), Schedule: le.schedule}
}

// is reports whether the lease is the one of that token at that key.
func (le *Lease) is(key, token string) bool { return le.key == key && le.token == token }

// isOf reports whether the lease is one of that Locker's.
func (le *Lease) isOf(l *Locker) bool { return le.l == l }

// isScoped reports whether the lease is WithLock's.
func (le *Lease) isScoped() bool { return le.scoped }

// event begins an Event of the lease.
func (le *Lease) event() Event { return Event{Key: le.key, Owner: le.o.owner, FencingToken: le.fence} }

// standing says how the lease stands, as it was noted last: printing a lease does not end it.
func (le *Lease) standing() string {
	le.mu.Lock()
	err, until, trouble := le.err, le.deadline.Time, le.trouble
	le.mu.Unlock()
	if err != nil {
		return strings.TrimPrefix(reason(err).Error(), "lease ")
	}
	s := "held until " + until.Format("2006-01-02T15:04:05.000Z07:00")
	if trouble != nil {
		s += ", in jeopardy: " + trouble.Error()
	}
	return s
}

// leaseContext is a context that ends with a lease, and knows it.
type leaseContext struct {
	context.Context
	cancel context.CancelCauseFunc
	lease  *Lease
}

// leaseKey is the key under which a context finds the innermost leaseContext.
type leaseKey struct{}

func (c *leaseContext) Value(key any) any {
	if key == (leaseKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// String is what contexts print of themselves.
func (c *leaseContext) String() string { return fmt.Sprintf("%v.Lease(%q)", c.Context, c.lease.key) }

// leaseOf returns the innermost leaseContext of ctx, nil if there is none.
func leaseOf(ctx context.Context) *leaseContext {
	c, _ := ctx.Value(leaseKey{}).(*leaseContext)
	return c
}

// FromContext returns the lease of ctx: the lease of the function of [Locker.WithLock], or of [Lease.Context], from
// whose context ctx descends. If there are several, it returns the innermost. So the functions below find the fencing
// token without a parameter in every layer. The lease may have ended; the resource checks that by the fencing token.
func FromContext(ctx context.Context) (lease *Lease, ok bool) {
	if c := leaseOf(ctx); c != nil {
		return c.lease, true
	}
	return nil, false
}

// errNested: whoever waits for a lock with a context of the lease that holds it waits for themselves. They would not
// even get it when the lease ends, since the context ends with it.
var errNested = invalid("held by the lease of this context: pass it")

// nested reports whether the lock on the key is held by a lease of ctx that is the one which the caller means.
func nested(ctx context.Context, key string, isMeant func(*Lease) bool) bool {
	for c := leaseOf(ctx); c != nil; c = leaseOf(c.Context) {
		if le := c.lease; le.key == key && isMeant(le) && le.check() == nil {
			return true
		}
	}
	return false
}

// Context returns a context of parent that ends with the lease. Its cause is then the Err of the lease, or an error
// that matches [ErrClosed] if the Locker is being closed and the holder should finish. [FromContext] finds the lease in
// it. Call the CancelFunc when the work is done; the lease goes on without it.
func (le *Lease) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	if le == nil {
		cancel(errNilLease)
		return ctx, func() {}
	}
	_ = le.check()
	c := &leaseContext{ctx, cancel, le}
	le.mu.Lock()
	defer le.mu.Unlock()
	if le.err != nil {
		cancel(le.err)
		return c, func() {}
	}
	if le.l.life.IsClosing() {
		cancel(le.closing())
		return c, func() {}
	}
	le.contexts = append(le.contexts, c)
	return c, func() {
		cancel(nil)
		le.mu.Lock()
		defer le.mu.Unlock()
		if i := slices.Index(le.contexts, c); i >= 0 {
			le.contexts = slices.Delete(le.contexts, i, i+1)
		}
	}
}

// closing is the cause of the contexts of a Locker that closes.
func (le *Lease) closing() error { return &Error{Op: "hold", Key: le.key, Err: ErrClosed} }

// endContexts ends the lease's contexts before the lease itself.
func (le *Lease) endContexts(cause error) {
	le.mu.Lock()
	contexts := le.contexts
	le.contexts = nil
	le.mu.Unlock()
	for _, c := range contexts {
		c.cancel(cause)
	}
}

// How leases are printed: without the token, which is a proof of ownership, and without a race with the keeper, which
// changes the lease meanwhile. The methods below see to that wherever fmt calls them. fmt does not call them for
// a field that is not exported, in a struct of the user's: it then prints by reflection, and follows a pointer if the
// verb does not suit one (as %s does not). It never follows two pointers, so two lie between a Lease and its state.

// String says which lease it is and how it stands:
//
//	lease "invoice:7" (fencing token 42, held until 2026-01-02T15:04:05.678Z)
func (le *Lease) String() string {
	if le == nil {
		return "<nil>"
	}
	return fmt.Sprintf("lease %s (fencing token %d, %s)", fault.Quote(le.Key()), le.FencingToken(), le.standing())
}

// GoString returns the same as String, for %#v: there is no Go expression for a lease.
func (le *Lease) GoString() string { return le.String() }

// Format prints String with any verb that suits a string. With the others fmt would print the fields.
func (le *Lease) Format(f fmt.State, verb rune) { format(f, verb, le.String()) }

// LogValue returns what String says as a group of attributes, named as in the lines of [WithLogger].
func (le *Lease) LogValue() slog.Value {
	if le == nil {
		return slog.AnyValue(nil)
	}
	e := le.event()
	return slog.GroupValue(slog.String("key", e.Key), slog.Int64("fencing_token", e.FencingToken),
		slog.String("owner", e.Owner), slog.String("state", le.standing()))
}

// Format prints what the Locker has in hand. Without it fmt would read fields that calls and the keeper change.
func (l *Locker) Format(f fmt.State, verb rune) {
	text := "<nil>"
	if l != nil {
		text = fmt.Sprintf("locker (%d leases held, %d acquires waiting)", l.keeper.Len(), l.Stats().Waiting)
	}
	format(f, verb, text)
}

// format prints a text as fmt prints strings, but for %#v without quotes.
func format(f fmt.State, verb rune, text string) {
	if verb == 'v' {
		verb = 's'
	}
	fmt.Fprintf(f, fmt.FormatString(f, verb), text)
}
