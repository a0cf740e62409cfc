package leasehold

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-leasehold/leasehold/internal/fault"
)

// The reasons for which a call can fail, to be matched with [errors.Is]. An error of the library that
// matches none of them and no context error is for somebody to mend: a password, rights, a client for another kind of Redis. It says
// what, and [errors.As] finds the error of go-redis (a redis.Error, a net.Error) in it.
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

	// ErrUnavailable: Redis gave no answer, or one that says that it cannot serve now: it is starting, fails over, is full or busy;
	// of a quorum, a majority of the nodes. Acquire waits such trouble out; if its context ends meanwhile, the error matches the
	// context's too. The cause is inside. An error that a later call would meet again, such as missing rights, is another.
	ErrUnavailable = errors.New("redis is unavailable")
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

// Is reports whether the reason is that Redis is unavailable. It is asked here, of the whole: one node of a quorum that cannot be reached
// does not make the quorum unavailable.
func (e *Error) Is(target error) bool { return target == ErrUnavailable && unavailable(e.Err) }

// reported is a reason as hooks are told it: it matches as the Error would.
type reported struct{ error }

func (e reported) Unwrap() error        { return e.error }
func (e reported) Is(target error) bool { return target == ErrUnavailable && unavailable(e.error) }

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

// unanswered is ended for a call that waited for Redis. That no answer came until the caller's deadline says something about Redis, and
// silence says it; that the caller cancelled says nothing, unless something had gone wrong by then.
func unanswered(ctx context.Context, silence error) error {
	quiet, isQuiet := silence.(*noAnswerError)
	if isQuiet && (quiet.cause == nil || errors.Is(quiet.cause, errUnconnected)) && noWord(ctx) == nil {
		silence = nil
	}
	return ended(ctx, silence)
}

// noWord is unanswered's silence where nobody knows more, nil if it says nothing.
func noWord(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &noAnswerError{}
	}
	return nil
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

// noAnswerError is that no answer came within a command's own bound, or until the caller's context ended. The bound is not the caller's
// deadline: the error does not match context.DeadlineExceeded, and like a net.Error it says that it is a timeout.
type noAnswerError struct {
	bound time.Duration // 0: the caller's
	cause error         // what was met meanwhile on the way to the server; nil: nothing is known
}

func (e *noAnswerError) Error() string {
	s := "no answer from redis"
	if e.bound > 0 {
		s += fmt.Sprintf(" within %v", e.bound.Round(time.Millisecond))
	}
	if e.cause != nil {
		s += ": " + e.cause.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *noAnswerError) Unwrap() error { return e.cause }

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

// unavailable reports whether an error says that no answer came, or none that is of use now.
func unavailable(err error) bool {
	nodes, isVote := errors.AsType[*noQuorumError](err)
	read, isRead := errors.AsType[*fault.Error](err)
	switch {
	case errors.Is(err, ErrHeld), errors.Is(err, ErrLost), errors.Is(err, ErrInvalid):
		return false
	case isVote:
		return nodes.unavailable()
	}
	return is[*noAnswerError](err) || isRead && read.Passes
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// errReply: the server answered something that no script of ours answers.
var errReply = errors.New("unexpected reply")
