package leasehold

import (
	"errors"
	"fmt"

	"github.com/go-leasehold/leasehold/internal/fault"
)

// The reasons for which a call can fail, to be matched with [errors.Is]. An error of the library that matches none of
// them and no context error is for somebody to mend: a password, rights, a client for another kind of Redis. It says
// what, and [errors.As] finds the error of go-redis (a redis.Error, a net.Error) in it.
var (
	// ErrHeld: somebody else holds the lock. TryAcquire returns it at once; an Acquire whose context ended while it
	// waited for the holder matches both it and the context's cause.
	ErrHeld = fault.ErrHeld

	// ErrLost: the lease has ended without a release, because Redis or the deadline ended it. It is final.
	ErrLost = fault.ErrLost

	// ErrReleased: the holder has let go of the lease, by Release, by WithLock's end or by Close.
	ErrReleased = errors.New("lease released")

	// ErrStale: the resource has seen a higher fencing token, so the lease of this holder has ended.
	ErrStale = errors.New("stale fencing token")

	// ErrClosed: the Locker was closed.
	ErrClosed = fault.ErrClosed

	// ErrNoQuorum: too few nodes of a quorum agreed. The error carries the cause of each node that did not.
	ErrNoQuorum = fault.ErrNoQuorum

	// ErrInvalid: an argument is invalid. Nothing is changed in Redis.
	ErrInvalid = fault.ErrInvalid

	// ErrUnavailable: Redis gave no answer, or one that says that it cannot serve now: it is starting, fails over, is
	// full or busy; of a quorum, a majority of the nodes. Acquire waits such trouble out; if its context ends
	// meanwhile, the error matches the context's too. The cause is inside. An error that a later call would meet again,
	// such as missing rights, is another.
	ErrUnavailable = errors.New("redis is unavailable")
)

// Error is the error of every operation on a lock. It prints as
//
//	leasehold: acquire "invoice:7": held by another
//
// and unwraps to the reason, so [errors.Is] and [errors.As] find the reason.
type Error struct {
	Op  string // what was attempted: acquire, renew, release, …
	Key string // the Redis key, prefix included
	Err error  // why it failed
}

func (e *Error) Error() string {
	if e.Key == "" {
		return fmt.Sprintf("leasehold: %s: %v", e.Op, e.Err) // it is not about one
	}
	return fmt.Sprintf("leasehold: %s %s: %v", e.Op, fault.Quote(e.Key), e.Err)
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether the reason is that Redis is unavailable. It is asked here, of the whole: one node of a quorum that
// cannot be reached does not make the quorum unavailable.
func (e *Error) Is(target error) bool { return target == ErrUnavailable && fault.Unavailable(e.Err) }

// reported is a reason as hooks are told it: it matches as the Error would.
type reported struct{ error }

func (e reported) Unwrap() error { return e.error }
func (e reported) Is(target error) bool {
	return target == ErrUnavailable && fault.Unavailable(e.error)
}

// reason is the error without the operation that met it.
func reason(err error) error {
	if e, ok := err.(*Error); ok {
		return e.Err
	}
	return err
}

// lossError is ErrLost with its reason.
type lossError struct {
	loss  Loss
	why   string
	cause error // nil: there is none
}

func lost(loss Loss, why string) error { return &lossError{loss: loss, why: why} }

func (e *lossError) Error() string {
	if e.cause == nil {
		return fmt.Sprintf("%v: %s", ErrLost, e.why)
	}
	return fmt.Sprintf("%v: %s: %v", ErrLost, e.why, e.cause)
}

func (e *lossError) Unwrap() []error {
	if e.cause == nil {
		return []error{ErrLost}
	}
	return []error{ErrLost, e.cause}
}

// invalid reports a value that cannot be used and says what would be right.
func invalid(format string, args ...any) error { return fault.Invalid(format, args...) }
