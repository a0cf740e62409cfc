// Package election has one of several processes do a job: the leader. It is leasehold's WithLock in a loop, and nothing of it
// is hidden.
//
// Each process calls [Run] with the same key. Run waits until it is elected, calls a function for that term, and stands again
// when the term is lost. [Observe] tells everybody else who leads.
//
// Being elected is holding a lease, so what is true of leases is true here: a leader that was paused can still write when
// somebody else leads already. Give the term's fencing token to every write, and let the resource refuse a lower one than it
// has seen. Before a step that cannot be taken back, ask term.EnsureFor for the time that it needs.
//
// # A term
//
// A term is one lease. Its number is the fencing token, which is greater in every later term. The lease is renewed until the
// function has returned, and only then is it released: nobody leads beside a function that is still unwinding. When the
// lease is lost, the function's context ends with a cause that matches leasehold.ErrLost, at the deadline by a timer,
// whatever the network does. That is before the key expires and somebody else is elected. A Redis that is away for less than
// half the TTL ends no term.
//
// A function that hangs leads for as long as its process lives, since it is renewed. leasehold.WithMaxHold bounds that.
//
// # Deploying
//
// When the context of Run ends and the function has returned, the release elects the first candidate in the same step. So a
// rolling deploy hands over without a gap, provided that another process stands already. Where one may not, the leader can go
// on until term.Contended() is closed: then somebody stands (the news comes with a renewal, so within a third of the TTL).
// Let it return nil then, which ends Run. With [ErrResign] instead it would stand again, and the new leader, whom it now
// contends, would hand over to it in turn.
package election

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/go-leasehold/leasehold"
)

// ErrResign gives the term up when the function of [Run] returns it, wrapped or not: the lock goes to the first who waits,
// and Run stands again.
var ErrResign = errors.New("the leader resigned")

// A TermError is the error with which the function of a term ended [Run]. It unwraps to that error. An error of Run that has
// no TermError in it is one of standing: the process was not elected.
type TermError struct {
	Term int64 // the fencing token of the lease
	Err  error
}

func (e *TermError) Error() string { return fmt.Sprintf("election: term %d: %v", e.Term, e.Err) }

// Unwrap returns the function's error.
func (e *TermError) Unwrap() error { return e.Err }

// Run stands for election until lead says that it is enough, or ctx ends. It calls lead once for each term, in the goroutine
// of the caller, with the lease of the term and a context that ends with it. Any number of processes may call Run for a key,
// and several goroutines of one process; each of them is a candidate. opts are those of the lock: leasehold.WithOwner is the
// name under which [Observe] tells of this candidate.
//
// What lead returns while the term lasts decides:
//
//   - nil: Run returns nil.
//   - [ErrResign]: the term is given up, and Run stands again.
//   - any other error: Run returns it, in a [TermError]. If the lock was found lost when it was released, the error matches
//     leasehold.ErrLost as well.
//
// If the term was lost before lead returned, Run stands again whatever lead returns, since the loss may well have been the
// reason for that. So lead need not tell a loss from other errors; but to end Run for certain, end ctx. Before it stands
// again, Run pauses for a sixth to a third of the TTL by chance, at most a second, so that others come first.
//
// While it is not elected, Run waits out trouble with Redis that time can cure (leasehold.ErrUnavailable). Other trouble, such
// as an invalid argument, a wrong password, too few replicas or a closed Locker, ends it with the error of the acquire. If ctx
// ends meanwhile, the error matches the context's error and its cause. When Run has returned it leads no more: the lock is released, or goes with its TTL.
func Run(ctx context.Context, locker *leasehold.Locker, key string, ttl time.Duration, lead func(ctx context.Context, term *leasehold.Lease) error, opts ...leasehold.Option) error {
	if lead == nil {
		return &leasehold.Error{Op: "elect", Key: key, Err: fmt.Errorf("%w: the function is nil", leasehold.ErrInvalid)}
	}
	for {
		var term *leasehold.Lease // nil: not elected
		lost := false
		err := locker.WithLock(ctx, key, ttl, func(ctx context.Context, lease *leasehold.Lease) error {
			term = lease
			err := lead(ctx, lease)
			lost = errors.Is(lease.Err(), leasehold.ErrLost) // not by err: lead may have lost another lease
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

// pause sleeps for at most d, and for up to one part in share less by chance. It ends with ctx.
func pause(ctx context.Context, d time.Duration, share int64) {
	timer := time.NewTimer(d - rand.N(d/time.Duration(share)+1))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
