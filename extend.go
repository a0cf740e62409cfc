package leasehold

import (
	"context"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/keep"
)

// Extend goes on with another TTL, longer or shorter, in Redis and here, counted from the moment before the call. The
// renewals that follow keep to it. It is bounded like the TTL of an acquire; an invalid one is [ErrInvalid], and nothing
// is sent. [WithMaxHold] still ends the lease. Other errors are those of Renew, and the former TTL stays.
//
// If the outcome of an Extend to a shorter TTL is not known, it may still come about, at any time. From its call on the
// lease is therefore trusted for that shorter TTL at a time, also after later renewals, until the outcome is known. On a
// quorum that is when all nodes have answered.
func (le *Lease) Extend(ctx context.Context, ttl time.Duration) error {
	if le == nil {
		return errNilLease
	}
	err := le.o.check(ttl)
	if err == nil {
		err = le.l.backend.Check(backend.Request{LockDelay: le.o.lockDelay}, ttl)
	}
	if err != nil {
		return le.fail("extend", err)
	}
	turn := le.turn()
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-ctx.Done():
	}
	if err = le.check(); err == nil && ctx.Err() != nil {
		err = fault.Ended(ctx, nil)
	}
	if err != nil {
		return le.fail("extend", err)
	}
	begun := le.l.clock.Now()
	r := le.cut(begun, ttl)
	le.retime()
	n, err := le.tenure.Renew(ctx, r, le.patience(begun))
	le.mu.Lock()
	confirmed := err == nil && n >= 0 && le.err == nil
	round := le.span.End(ttl, r.Shorten != nil, confirmed)
	if confirmed {
		le.schedule.Every = le.o.every(le.span.Trusted())
		le.schedule.Renewed(begun.Time)
	}
	le.mu.Unlock()
	err = le.answered(ctx, "extend", begun, round, n, err)
	le.retime()
	return err
}

// turn is what the Extends of the lease put their turns in.
func (le *Lease) turn() chan struct{} {
	le.mu.Lock()
	defer le.mu.Unlock()
	if le.turns == nil {
		le.turns = make(chan struct{}, 1)
	}
	return le.turns
}

// cut is the request of an Extend that begins. A shorter TTL is in force here before Redis has it; see keep.Span.
func (le *Lease) cut(begun clock.Moment, ttl time.Duration) backend.Renewal {
	le.mu.Lock()
	defer le.mu.Unlock()
	r := le.request()
	r.PX = le.o.px(ttl)
	if le.span.Begin(ttl) {
		r.Shorten = le.settle
		if until := begun.Plus(ttl - clock.Margin(ttl)); until.Before(le.deadline.Time) {
			le.deadline = until
		}
		le.schedule.Hasten(begun.Add(le.o.every(le.span.Trusted())))
	}
	return r
}

// settle takes in that nothing of an Extend to a shorter TTL arrives any more.
func (le *Lease) settle() {
	le.mu.Lock()
	le.span.Settle()
	le.mu.Unlock()
	le.retime()
}

// retime has the lease renewed as often as its TTL wants it, and its deadline watched.
func (le *Lease) retime() {
	le.mu.Lock()
	le.schedule.Every = le.o.every(le.span.Trusted())
	t := le.terms()
	le.mu.Unlock()
	le.l.keeper.Retime(&le.entry, t)
}

// terms are what the lease asks of the keeper. le.mu is held.
func (le *Lease) terms() keep.Terms {
	t := keep.Terms{TTL: le.span.Trusted()}
	if le.auto {
		t.Every = le.schedule.Every
	}
	return t
}

// request is what a renewal of the lease asks for. le.mu is held.
func (le *Lease) request() backend.Renewal {
	return backend.Renewal{PX: le.o.px(le.span.TTL()), CountWaiters: le.countWaiters}
}
