package leaseholdotel

import (
	"context"
	"errors"
	"strings"

	"github.com/go-leasehold/leasehold"
)

// The outcomes of an acquire.
const (
	acquired    = "acquired"
	held        = "held"        // by another: TryAcquire does not wait, or the time of WithWait was over
	timeout     = "timeout"     // the caller's deadline came while another held it
	canceled    = "canceled"    // by the caller
	closed      = "closed"      // the Locker was
	lost        = "lost"        // Adopt: the token does not hold the key any more
	invalid     = "invalid"     // what was given cannot be used
	unavailable = "unavailable" // Redis did not answer, or cannot serve now
	noQuorum    = "no_quorum"   // too few nodes of a quorum agreed
	redisError  = "redis_error" // what stays until somebody mends it, such as missing rights
)

var (
	failures = []string{held, timeout, canceled, closed, lost, invalid, unavailable, noQuorum, redisError}
	troubles = []string{unavailable, noQuorum, redisError} // what can be wrong with a renewal
)

// outcome classes the end of an acquire by who is to look into it. So a deadline that came is contention only if Redis had said
// that somebody holds the lock; and ctx is asked whether the caller cancelled, since an error may have a cancellation of
// the client's in it.
func outcome(ctx context.Context, err error) string {
	is := func(target error) bool { return errors.Is(err, target) }
	switch {
	case err == nil:
		return acquired
	case is(leasehold.ErrClosed):
		return closed
	case is(leasehold.ErrInvalid):
		return invalid
	case is(leasehold.ErrLost):
		return lost
	case is(context.Canceled) && errors.Is(ctx.Err(), context.Canceled):
		return canceled
	case is(leasehold.ErrHeld) && is(context.DeadlineExceeded):
		return timeout
	case is(leasehold.ErrHeld):
		return held
	case is(context.DeadlineExceeded) && !is(leasehold.ErrNoQuorum) && !is(leasehold.ErrUnavailable):
		return timeout // it had come before anything was asked
	}
	return trouble(err)
}

// trouble classes an error of Redis' side.
func trouble(err error) string {
	switch {
	case errors.Is(err, leasehold.ErrNoQuorum):
		return noQuorum
	case errors.Is(err, leasehold.ErrUnavailable):
		return unavailable // and if the deadline came as well, this is what had been waited out
	}
	return redisError
}

// What is known of a release.
const (
	clean       = "clean"       // Redis confirmed it
	unconfirmed = "unconfirmed" // sent twice, and the first answer was not heard
	failed      = "failed"      // and is repeated; the key may live until its TTL has passed
)

func release(e leasehold.Event) string {
	switch {
	case e.Clean:
		return clean
	case errors.Is(e.Err, leasehold.ErrReleased):
		return unconfirmed
	}
	return failed
}

// snake is a word of leasehold's as OpenTelemetry writes values.
func snake[W ~string](word W) string { return strings.ReplaceAll(string(word), " ", "_") }
