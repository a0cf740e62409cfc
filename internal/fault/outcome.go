package fault

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"
)

// The reasons that the machines below the public package give. The public package has them under the same names, with their
// meaning for users.
var (
	ErrHeld     = errors.New("held by another")
	ErrLost     = errors.New("lease lost")
	ErrClosed   = errors.New("locker closed")
	ErrNoQuorum = errors.New("no quorum")
	ErrInvalid  = errors.New("invalid argument")
)

// ErrHeldForever is ErrHeld of a key that is never given back: somebody wrote it without a TTL, as no lease of ours is.
var ErrHeldForever = fmt.Errorf("%w, and its key has no TTL: it will never expire; see ForceRelease", ErrHeld)

// ErrReply means that a server answered what no script of ours answers.
var ErrReply = errors.New("unexpected reply")

// ErrUnconnected means that a client has no connection at all.
var ErrUnconnected = errors.New("no connection was made")

// Invalid reports a value that cannot be used and says what would be right. It matches ErrInvalid.
func Invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// Wait says how a wait ended: what it was last waiting for, and what ended it.
type Wait struct {
	Reason error // nil if nothing had been answered
	Ended  error // the context's cause, ErrClosed, or that WithWait is over
	ctxErr error // context.Canceled or DeadlineExceeded, which a cause of the caller's own would hide
}

// Ended reports a call that its context cut short; reason may be nil.
func Ended(ctx context.Context, reason error) error {
	return &Wait{Reason: reason, Ended: context.Cause(ctx), ctxErr: ctx.Err()}
}

// Unanswered is Ended for a call that waited for Redis. That no answer came until the caller's deadline says something about
// Redis, and silence says it. That the caller cancelled says nothing, unless something had gone wrong by then.
func Unanswered(ctx context.Context, silence error) error {
	quiet, isQuiet := silence.(*NoAnswer)
	if isQuiet && (quiet.Cause == nil || errors.Is(quiet.Cause, ErrUnconnected)) && NoWord(ctx) == nil {
		silence = nil
	}
	return Ended(ctx, silence)
}

// NoWord is Unanswered's silence where nobody knows more, nil if it says nothing.
func NoWord(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &NoAnswer{}
	}
	return nil
}

// Overdue reports a wait that has had the time which WithWait gives it. If nothing was answered by then, Redis is what was waited
// for.
func Overdue(reason error, within time.Duration) error {
	if reason == nil {
		reason = &NoAnswer{}
	}
	return &Wait{Reason: reason, Ended: fmt.Errorf("WithWait(%v) is over", within)}
}

func (e *Wait) Error() string {
	if e.Reason == nil {
		return e.Ended.Error()
	}
	return e.Reason.Error() + ": " + e.Ended.Error()
}

// Unwrap returns what was waited for and what ended the wait.
func (e *Wait) Unwrap() []error {
	errs := make([]error, 0, 3)
	for _, err := range []error{e.Reason, e.Ended, e.ctxErr} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// NoAnswer means that no answer came within a command's own bound, or until the caller's context ended. The bound is not the
// caller's deadline: the error does not match context.DeadlineExceeded, and like a net.Error it says that it is a timeout.
type NoAnswer struct {
	Bound time.Duration // 0: the caller's
	Cause error         // what was met meanwhile on the way to the server; nil: nothing is known
}

func (e *NoAnswer) Error() string {
	s := "no answer from redis"
	if e.Bound > 0 {
		s += fmt.Sprintf(" within %v", e.Bound.Round(time.Millisecond))
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *NoAnswer) Unwrap() error { return e.Cause }

// Timeout and Temporary report true: it is a net.Error.
func (e *NoAnswer) Timeout() bool   { return true }
func (e *NoAnswer) Temporary() bool { return true }

// Replicas is the outcome of an acquire that too few replicas acknowledged.
type Replicas struct {
	Acks, Want int
	Within     time.Duration
}

func (e *Replicas) Error() string {
	return fmt.Sprintf("%d of the %d replicas that WithReplicas wants acknowledged within %v", e.Acks, e.Want, e.Within)
}

// verdict is an error of several nodes, which knows itself what the errors of the single nodes add up to.
type verdict interface {
	error
	Transient() bool
	Unavailable() bool
}

// Transient tells an error that a later attempt may not meet from one that it will.
func Transient(err error) bool {
	nodes, isVerdict := errors.AsType[verdict](err)
	switch {
	case isVerdict:
		return nodes.Transient()
	case Has[*NoAnswer](err):
		return true
	case errors.Is(err, ErrReply), errors.Is(err, ErrInvalid), Has[*Replicas](err):
		return false
	}
	return Passes(err)
}

// Unavailable reports whether an error says that no answer came, or none that is of use now.
func Unavailable(err error) bool {
	nodes, isVerdict := errors.AsType[verdict](err)
	read, isRead := errors.AsType[*Error](err)
	switch {
	case errors.Is(err, ErrHeld), errors.Is(err, ErrLost), errors.Is(err, ErrInvalid):
		return false
	case isVerdict:
		return nodes.Unavailable()
	}
	return Has[*NoAnswer](err) || isRead && read.Passes
}

// IsSaid reports whether a server said so: no error, or one of its own.
func IsSaid(err error) bool {
	return err == nil || Has[redis.Error](err)
}

// DidNothing reports whether an error says that a command which was written so many times has certainly done nothing.
func DidNothing(err error, writes int) bool {
	return writes == 0 || writes == 1 && Has[redis.Error](err)
}

// IsSettled reports whether no copy of a command that was written so many times can arrive any more: there is none, or the only one
// was answered.
func IsSettled(err error, writes int) bool {
	return writes == 0 || writes == 1 && IsSaid(err)
}

// Backoff is the pause after the nth failure in a row: from about 10 ms to about 1 s, with jitter.
func Backoff(n int) time.Duration {
	d := min(10*time.Millisecond<<min(n, 10), time.Second)
	return d/2 + mathrand.N(d/2)
}
