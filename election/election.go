// Package election has one of several processes do a job: the leader. It is the WithLock of leasehold in a loop, and it
// hides nothing of it.
//
// Each process calls [Run] with the same key. Run waits until the process is elected, calls a function for that term, and
// is a candidate again when the term is lost. [Observe] tells other processes who leads.
//
// The leader is the holder of a lease, so what is true of leases is true here: a leader that was paused can still write
// after somebody else has been elected. Give the fencing token of the term to every write, and let the resource refuse a
// token that is lower than one that it has seen. Before a step that cannot be taken back, call term.EnsureFor with the time
// that the step needs.
//
// # A term
//
// A term is one lease. Its number is the fencing token, which is greater in every later term. The lease is renewed until
// the function has returned, and only then it is released. So nobody leads beside a function that is still unwinding. If
// the lease is lost, the context of the function ends with a cause that matches leasehold.ErrLost. A timer sees to that at
// the deadline, whatever the network does, and before the key expires and somebody else is elected. A Redis that is away
// for less than half the TTL ends no term.
//
// A function that hangs leads for as long as its process lives, because its lease is renewed. leasehold.WithMaxHold limits
// that.
//
// # Deploying
//
// When the context of Run has ended and the function has returned, the release elects the first candidate in the same step.
// So a rolling deploy hands over without a gap if another process is already a candidate. If there may be none, the leader
// can go on until term.Contended() is closed: then there is a candidate. (A renewal brings this news, so it takes up to a
// third of the TTL.) The function should then return nil, which ends Run. If it returned [ErrResign], the process would be
// a candidate again, and the new leader would see that it is contended and hand over in turn.
package election

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/go-leasehold/leasehold"
)

// ErrResign gives the term up if the function of [Run] returns it, wrapped or not. The first waiter gets the lock, and the
// process is a candidate again.
var ErrResign = errors.New("the leader resigned")

// A TermError is the error with which the function of a term ended [Run]. It unwraps to that error. If an error of Run has no
// TermError in it, the process was not elected.
type TermError struct {
	Term int64 // the fencing token of the lease
	Err  error
}

func (e *TermError) Error() string { return fmt.Sprintf("election: term %d: %v", e.Term, e.Err) }

// Unwrap returns the function's error.
func (e *TermError) Unwrap() error { return e.Err }

// Run is a candidate until lead says that it is enough, or ctx ends. It calls lead once for each term, in the goroutine of
// the caller, with the lease of the term and a context that ends with the lease. Any number of processes may call Run for a
// key, and so may several goroutines of one process. Each of them is a candidate. opts are options of the lock:
// leasehold.WithOwner is the name under which [Observe] reports this candidate. A leasehold.WithWait among them ends Run with
// leasehold.ErrHeld when it is over. One of the Locker does not count, because candidates wait for long.
//
// The result of lead decides while the term lasts:
//
//   - nil: Run returns nil.
//   - [ErrResign]: lead gives the term up, and Run is a candidate again.
//   - any other error: Run returns it, in a [TermError]. If the release found that the lock was lost, the error also
//     matches leasehold.ErrLost.
//
// If the term was lost before lead returned, Run is a candidate again whatever lead returns, because the loss may be the
// reason for the result. So lead need not tell a loss from other errors. End ctx to end Run for certain. Before Run is a
// candidate again it pauses for a sixth to a third of the TTL, at random and at most a second, so that others come first.
//
// While the process is not elected, Run waits until a Redis that is unavailable is back (leasehold.ErrUnavailable). Any
// other error of the acquire ends Run with that error, for example an invalid argument, a wrong password, too few replicas
// or a closed Locker. If ctx ends meanwhile, the error matches the error and the cause of ctx. After Run has returned the
// process does not lead: the lock is released, or expires with its TTL.
func Run(ctx context.Context, locker *leasehold.Locker, key string, ttl time.Duration, lead func(ctx context.Context, term *leasehold.Lease) error, opts ...leasehold.Option) error {
	if lead == nil {
		return &leasehold.Error{Op: "elect", Key: key, Err: fmt.Errorf("%w: the function is nil", leasehold.ErrInvalid)}
	}
	opts = append([]leasehold.Option{leasehold.WithWait(math.MaxInt64)}, opts...)
	for {
		var term *leasehold.Lease // nil: not elected
		lost := false
		err := locker.WithLock(ctx, key, ttl, func(ctx context.Context, lease *leasehold.Lease) error {
			term = lease
			err := lead(ctx, lease)
			lost = errors.Is(lease.Err(), leasehold.ErrLost) // not by err, because lead may have lost another lease
			return err
		}, opts...)
		switch {
		case term == nil:
			return err
		case lost || errors.Is(err, ErrResign):
			// A context that has ended is the next acquire's to report.
			pause(ctx, min(ttl/3, time.Second), 2)
		case err != nil:
			return &TermError{Term: term.FencingToken(), Err: err}
		default:
			return nil
		}
	}
}

// pause sleeps for d, minus a jitter of at most d/share. It ends with ctx.
func pause(ctx context.Context, d time.Duration, share int64) {
	timer := time.NewTimer(d - rand.N(d/time.Duration(share)+1))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
