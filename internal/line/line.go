// Package line waits for locks, in order of arrival.
//
// Two queues stand one behind the other. In the gate of a key the goroutines of this process queue
// for that key, and one of them is let through at a time. That one takes a place in the line, the
// queue in Redis in which the processes wait. So a process with a thousand waiters takes turns with
// a process that has one, and costs Redis no more. A release hands the lock over to the head of the
// line, and tells it by a message. A message may be lost, so every waiter also polls.
//
// A quorum has no line: there a waiter tries again after pauses of chance.
//
// # Files
//
// line.go has the door; attempt.go asks for a lock once, and cancels what may be left of an
// attempt; wait.go waits, and polls a quorum; gate.go has the gates. place.go is the waiter in the
// line of a key: when it polls, and which messages it trusts. notifier.go delivers messages to
// places, and subscription.go receives them. These two alone know go-redis.
//
// # Ownership
//
// A goroutine of the user's runs each call, and owns the timer of its pauses. What the package
// starts by itself are the cancellations of attempts, which the Locker's [inflight.Life] counts,
// and what belongs to subscriptions, which [Line.Close] waits for: one goroutine for each
// subscription, with the timer of its pauses, and a short one for each call of the client in it.
//
// # Lock order
//
// There are two mutexes: that of the gates, and that of the notifier, which guards the
// subscriptions and topics too. They are never held together. Neither is held across a call of the
// client, a hook, or a wait. Under that of the notifier a goroutine may be started, which takes the
// mutex of an [inflight.Group]; under that of the gates no other is taken.
package line

import (
	"context"
	"fmt"
	mathrand "math/rand/v2"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/inflight"
	"github.com/go-leasehold/leasehold/internal/roundtrip"
	"github.com/go-leasehold/leasehold/internal/token"
)

// Line takes locks for one Locker: at once or after a wait. It is safe for concurrent use. It
// starts nothing before somebody waits, and keeps nothing for a key that nobody waits for.
type Line struct {
	id       string
	backend  backend.Backend
	clock    *clock.Clock
	life     *inflight.Life
	gates    gates
	notifier *notifier     // nil: there is no line, so waiters poll
	phase    time.Duration // of the instants at which its waiters poll
}

// Config is what a Line needs of its Locker.
type Config struct {
	ID      string // the Locker's, the first part of its tokens; it names the channel of its messages
	Prefix  string // of every key and channel
	Backend backend.Backend
	Client  *roundtrip.Client // receives messages; nil: the backend has no line
	Clock   *clock.Clock
	Life    *inflight.Life // the Locker's: waits end when it drains, and cancellations count as its calls
}

// New makes a Line. It starts nothing and sends nothing.
//
// It is given the backend and not a function that makes tenures, because the rule that no token is
// used twice belongs to those who wait: they alone know when an attempt may have been given up.
func New(c Config) *Line {
	l := &Line{id: c.ID, backend: c.Backend, clock: c.Clock, life: c.Life, phase: mathrand.N(pollGrid)}
	if c.Client != nil {
		l.notifier = newNotifier(c)
	}
	return l
}

// Close ends the subscriptions and waits for their goroutines, no longer than ctx allows. Waits end
// by the Life, not by Close.
func (l *Line) Close(ctx context.Context) {
	if l.notifier != nil {
		l.notifier.close(ctx)
	}
}

// Load is how much a Line has in hand.
type Load struct {
	Keys          int // whose gate is taken
	Places        int // in lines, to which messages are delivered
	Subscriptions int // connections that receive messages, each of one server
	Goroutines    int // of the subscriptions
}

// Load tells how much there is in hand.
func (l *Line) Load() (n Load) {
	n.Keys = l.gates.len()
	if l.notifier != nil {
		l.notifier.count(&n)
	}
	return n
}

// Waiter is one call for a lock: what it asks for, and how far it has come. A Waiter serves one
// call of [Line.Wait], [Line.Try] or [Line.Adopt], and is not used by two goroutines at once.
type Waiter struct {
	// Request is what is asked of the backend. Its Token is set by the Line, once for every attempt
	// that could meet what is left of another: a token that may have been given up is never used
	// again.
	backend.Request
	Owner     string        // the label in the tokens
	TTL       time.Duration // that the holder trusts, less the margin; without the lock delay
	MaxHold   time.Duration // that the holder trusts at most, counted from the grant's Anchor; 0: no bound
	AutoRenew bool          // the lease will be renewed in the background
	// Within is how long Wait waits at most; 0: it tries once; nil: for as long as its context allows.
	Within *time.Duration
	Caller Caller

	Attempts int // that were sent
	tenure   backend.Tenure
	reason   error // what the call waits for
}

// Caller is who waits. Its methods are called from the goroutine of the call, with no lock held.
type Caller interface {
	// Refuse returns an error if a call with ctx must not wait for the lease of that fencing token,
	// which has the lock.
	Refuse(ctx context.Context, fence int64) error
	// Retrying is told when the wait has found Redis unavailable and goes on.
	Retrying(reason error)
}

// newTenure gives the waiter a token that was never used, and with it a tenure.
func (l *Line) newTenure(w *Waiter) {
	w.Token = token.New(l.id, w.Kind, w.Owner)
	w.tenure = l.backend.Tenure(w.Request)
}

// trust is for how long a lease is trusted from the moment at which the attempt that won it was
// sent.
func (w *Waiter) trust() time.Duration {
	d := w.TTL - clock.Margin(w.TTL)
	if w.MaxHold > 0 {
		d = min(d, w.MaxHold)
	}
	return d
}

// Grant is a lock that a Waiter was given. It is no Lease: the caller makes one of it, and is the
// only one to decide until when the lease is trusted. All that it needs for that is here, so the
// deadline of a lease begins in one place, whether an answer or a message has brought the lock.
type Grant struct {
	Token  string
	Tenure backend.Tenure
	// Anchor is the moment from which the lease counts: before the attempt that won was sent, or
	// before the last poll before a message.
	Anchor clock.Moment
	// Life is how long from the Anchor the key lasts, of which the margin is still to be taken. 0
	// is the whole TTL, which an answer has confirmed. A message confirms less, and the lease must
	// be renewed before that has passed.
	Life   time.Duration
	Fence  int64
	Slot   int
	Resent bool // a copy of an attempt may still be on its way
	Woken  Woken
}

// Woken says what made a waiter look at the lock when it got it.
type Woken int

// The ways to be woken.
const (
	AtOnce    Woken = iota // it did not wait
	ByMessage              // a release handed the lock over and said so
	ByExpiry               // the former holder's TTL ran out
	ByPoll                 // it polled
)

// GoneError means that the token whose lease was to be adopted does not hold its lock. Nothing was
// changed, and another attempt would meet the same.
type GoneError struct {
	Why int // one of the backend's reasons
}

func (e *GoneError) Error() string {
	return fmt.Sprintf("the token does not hold the lock (reason %d)", e.Why)
}
