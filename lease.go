package leasehold

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/keep"
)

// Lease is one acquisition of one key. It is held until it is released or lost, and never taken up again; see
// the package comment for its states. A Lease is safe for concurrent use and may be passed between goroutines:
// whoever has it owns the lock. A nil Lease is not held, and its methods say so without a panic. It may be printed in any way:
// that shows neither its token nor more than an instant.
type Lease struct{ *sealed }

// lease is the state of a Lease.
type lease struct {
	outer Lease // it points to inner, and that to this lease; see print.go
	inner sealed

	l      *Locker
	key    string // in Redis, prefix included
	token  string
	o      *options
	tenure backend.Tenure
	ttl    time.Duration
	fence  int64
	begun  clock.Moment // before the attempt that won was first sent
	scoped bool         // it is WithLock's
	resent bool         // a copy of its acquire may still be on its way

	mu        sync.Mutex    // guards what follows; never held across a Redis call, a hook or a send
	deadline  clock.Moment  // end of trust
	err       error         // nil while held; then why it ended for its holder, once and for all
	held      time.Duration // then: from its acquire to its end
	releases  releases      // what became of the key then; see release.go
	trouble   error         // why the last renewal failed; nil: held, else: in jeopardy
	renewal                 // the automatic one; see renewal.go
	waiters   bool          // somebody waits, as far as a renewal told
	curious   bool          // a renewal asks who waits, and why it fails
	told      bool          // others may know the token, and adopt the lease
	done      chan struct{}
	contended chan struct{}
	contexts  []*leaseContext

	entry keep.Entry // the keeper's
}

var errNilLease = &Error{Op: "use", Err: invalid("the lease is nil: an acquire failed and its error was passed over")}

// Key returns the Redis key, with the prefix that [WithKeyPrefix] puts before it. What a hook of the client puts there besides, it
// does not know.
func (x *Lease) Key() string {
	if x == nil {
		return ""
	}
	return x.key
}

// Token returns the value that proves ownership. Give it to [Locker.Adopt] in another process, and to nobody else.
func (x *Lease) Token() string {
	if x == nil {
		return ""
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.told, x.curious = true, true
	return x.token
}

// FencingToken returns a number that is greater than that of every earlier lease of the key, and the same for the life
// of this one. Send it with every write that the lock protects, and have the resource refuse a lower one than it has
// seen; see [Guard] and [FencedScript]. It is at least 1. It asks nobody.
func (x *Lease) FencingToken() int64 {
	if x == nil {
		return 0
	}
	return x.fence
}

// ValidUntil returns the last instant at which this process may trust the lease, as things stand now: the moment
// before the acquire or the last successful renewal was sent, plus the TTL, less a margin of a hundredth of it (2 ms at
// least). It has a monotonic reading, so use it with time.Until. [Lease.Valid] asks the wall clock as well.
func (x *Lease) ValidUntil() time.Time {
	if x == nil {
		return time.Time{}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.deadline.Time
}

// Valid reports whether the lease may be trusted at this instant. It asks two clocks and nobody else: once false, it
// stays false. Ask it right before each step that must not happen twice; the step itself can still come late, and only
// its resource can refuse it then.
func (x *Lease) Valid() bool { return x != nil && x.check() == nil }

// Err returns nil while the lease is held, and then an error that matches [ErrLost] or [ErrReleased] and says why. The first
// reason stays: a lease whose key turns out to be gone when it is released was released, and Release says what it found.
func (x *Lease) Err() error {
	if x == nil {
		return errNilLease
	}
	_ = x.check()
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.err
}

// check judges the lease by the clocks, ends it if its time is over, and reports why it must not be used.
func (x *Lease) check() error { return x.checkAt(x.l.now()) }

// checkAt is check for those who have just read the clocks.
func (x *Lease) checkAt(now clock.Moment) error {
	x.mu.Lock()
	err, over := x.err, x.deadline.Reached(now)
	x.mu.Unlock()
	if err == nil && over {
		return x.end(x.overdue())
	}
	return err
}

// overdue is the reason of a lease whose deadline has come.
func (x *Lease) overdue() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.trouble != nil:
		return &lossError{LossRenewals, "its time ran out while renewals failed", x.trouble}
	case x.capped():
		return lost(LossMaxHold, "held as long as WithMaxHold allows")
	}
	return lost(LossExpired, "its time ran out")
}

// Done returns a channel that is closed when the lease is lost, at its deadline by a timer, whatever the network does; or when
// Release is called. [Lease.Err] then says which.
func (x *Lease) Done() <-chan struct{} {
	if x == nil {
		return closedChan
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.err != nil {
		return closedChan
	}
	if x.done == nil {
		x.done = make(chan struct{})
	}
	return x.done
}

var closedChan = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Contended returns a channel that is closed once somebody waits for the key, so that a long job can release it between
// two items and let others in. The news comes with a renewal, not at once; renewals ask for it from the first call on.
func (x *Lease) Contended() <-chan struct{} {
	if x == nil {
		return closedChan
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.waiters {
		return closedChan
	}
	if x.contended == nil {
		x.contended = make(chan struct{})
		x.curious = true
	}
	return x.contended
}

// noteWaiters closes Contended. x.mu is held.
func (x *Lease) noteWaiters(n int) {
	if n < 1 || x.waiters {
		return
	}
	x.waiters, x.curious = true, x.told
	if x.contended != nil {
		close(x.contended)
	}
}

// end is the one way out of "held": the first reason stays. It returns the reason that stands, and no mutex is held
// while those who wait for it are told.
func (x *Lease) end(reason error) error {
	x.mu.Lock()
	if x.err != nil {
		defer x.mu.Unlock()
		return x.err
	}
	x.err = &Error{Op: "hold", Key: x.key, Err: reason}
	x.held = time.Since(x.begun.Time)
	loss, isLost := reason.(*lossError)
	x.releases.ended(reason)
	if x.done != nil {
		close(x.done)
	}
	x.mu.Unlock()
	x.l.keeper.Remove(&x.entry)
	x.endContexts(x.err)
	if isLost {
		x.tell(x.lossEvent(loss))
	}
	return x.err
}

// fail names the operation that met the error.
func (x *Lease) fail(op string, err error) error {
	return &Error{Op: op, Key: x.key, Err: reason(err)}
}

// run is WithLock after the lock was won: fn, then the release, also when fn panics or ends its goroutine.
func (x *Lease) run(ctx context.Context, fn func(context.Context, *Lease) error) (err error) {
	inner, cancel := x.Context(ctx)
	defer cancel()
	defer func() {
		released := x.Release(context.WithoutCancel(ctx))
		if !errors.Is(released, ErrLost) {
			return // fn had the lock to its end; how the release went is for the hooks and the log
		}
		over := x.Err()
		if !errors.Is(over, ErrLost) {
			over = x.fail("hold", released)
		}
		if err == nil {
			err = over
		} else if !errors.Is(err, reason(over)) { // else fn has returned that very loss
			err = errors.Join(err, over)
		}
	}()
	return fn(inner, x)
}
