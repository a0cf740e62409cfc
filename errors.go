package leasehold

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-leasehold/leasehold/internal/fault"
)

// The reasons for which a call can fail, to be matched with [errors.Is]. An error of the library that
// matches none of them and no context error is trouble with the server: [errors.As] then finds the error
// of go-redis (a redis.Error, a net.Error) in it.
var (
	// ErrHeld: somebody else holds the lock. TryAcquire returns it at once; an Acquire whose context ended
	// while it waited for the holder matches both it and the context's cause.
	ErrHeld = errors.New("held by another")

	// ErrLost: the lease is not ours any more, or can no longer be trusted to be. It is final.
	ErrLost = errors.New("lease lost")

	// ErrReleased: the holder has let go of the lease, by Release, by WithLock's end or by Close.
	ErrReleased = errors.New("lease released")

	// ErrStale: the resource has seen a higher fencing token, so this holder's lease is over.
	ErrStale = errors.New("stale fencing token")

	// ErrClosed: the Locker was closed.
	ErrClosed = errors.New("locker closed")

	// ErrNoQuorum: too few nodes of a quorum agreed. The error carries the cause of each node that did not.
	ErrNoQuorum = errors.New("no quorum")

	// ErrInvalid: an argument cannot be used. Nothing is changed in Redis.
	ErrInvalid = errors.New("invalid argument")
)

// Error is the error of every operation on a lock. It prints as
//
//	leasehold: acquire "invoice:7": held by another
//
// and unwraps to the reason, so [errors.Is] and [errors.As] see through it.
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

// reason is the error without the operation that met it.
func reason(err error) error {
	if e, ok := err.(*Error); ok {
		return e.Err
	}
	return err
}

// invalid reports a value that cannot be used and says what would be right.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// errHeldForever is ErrHeld of a key that is never given back: somebody wrote it without a TTL, as no lease of ours is.
var errHeldForever = fmt.Errorf("%w, and its key has no TTL: it will never expire; see ForceRelease", ErrHeld)

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

// waitError says how a wait ended: what it was last waiting for, and what ended it.
type waitError struct {
	reason error // nil if nothing had been answered
	ended  error // the context's cause, or ErrClosed
	ctxErr error // context.Canceled or DeadlineExceeded, which a cause of the caller's own would hide
}

// ended reports a call that its context cut short; reason may be nil.
func ended(ctx context.Context, reason error) error {
	return &waitError{reason: reason, ended: context.Cause(ctx), ctxErr: ctx.Err()}
}

func (e *waitError) Error() string {
	if e.reason == nil {
		return e.ended.Error()
	}
	return e.reason.Error() + ": " + e.ended.Error()
}

func (e *waitError) Unwrap() []error {
	errs := make([]error, 0, 3)
	for _, err := range []error{e.reason, e.ended, e.ctxErr} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// noAnswerError is the end of one command's own bound, which is not the caller's deadline: it does not
// match context.DeadlineExceeded, and like a net.Error it says that it is a timeout.
type noAnswerError struct{ bound time.Duration }

func (e *noAnswerError) Error() string {
	return fmt.Sprintf("no answer from redis within %v", e.bound.Round(time.Millisecond))
}

// Timeout and Temporary report true: it is a net.Error.
func (e *noAnswerError) Timeout() bool   { return true }
func (e *noAnswerError) Temporary() bool { return true }

// replicasError is the outcome of an acquire that too few replicas acknowledged.
type replicasError struct {
	acks, want int
	within     time.Duration
}

func (e *replicasError) Error() string {
	return fmt.Sprintf("%d of the %d replicas that WithReplicas wants acknowledged within %v", e.acks, e.want, e.within)
}

// transient tells an error that a later attempt may not meet from one that it will.
func transient(err error) bool {
	nodes, isVote := errors.AsType[*noQuorumError](err)
	switch {
	case isVote:
		return nodes.transient()
	case is[*noAnswerError](err):
		return true
	case errors.Is(err, errReply), errors.Is(err, ErrInvalid), is[*replicasError](err):
		return false
	}
	return fault.Passes(err)
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// errReply: the server answered something that no script of ours answers.
var errReply = errors.New("unexpected reply")
