package leasehold

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/keep"
)

// Renew puts the lease's full TTL back, in Redis and, from the moment before the call, here. An error that matches
// [ErrLost] or [ErrReleased] is final. After any other, of the context or of Redis, the lease is still held until
// [Lease.ValidUntil], and Renew may be called again. It works beside automatic renewals.
func (x *Lease) Renew(ctx context.Context) error {
	if x == nil {
		return errNilLease
	}
	if err := x.check(); err != nil {
		return x.fail("renew", err)
	}
	begun := x.l.now()
	x.mu.Lock()
	curious := x.curious
	x.mu.Unlock()
	n, err := x.tenure.Renew(ctx, curious, x.patience(begun))
	if err != nil && ctx.Err() != nil {
		return x.fail("renew", err) // cut short by the caller: that says nothing about the lease
	}
	if err := x.renewed(x.l.now(), begun, n, err); err != nil {
		return x.fail("renew", err)
	}
	return nil
}

// EnsureFor returns nil if the lease may be trusted for d more, after one renewal if it needs one. Ask it before a step
// whose length is known. A d that the TTL cannot give is refused with [ErrInvalid]; any other error is Renew's.
func (x *Lease) EnsureFor(ctx context.Context, d time.Duration) error {
	if x == nil {
		return errNilLease
	}
	if most := x.ttl - clock.Margin(x.ttl); d > most {
		return x.fail("ensure", invalid("%v: a ttl of %v gives %v at most", d, x.ttl, most))
	}
	if x.check() == nil && time.Until(x.ValidUntil()) >= d {
		return nil
	}
	if err := x.Renew(ctx); err != nil {
		return err
	}
	if left := time.Until(x.ValidUntil()); left < d {
		return x.fail("ensure", fmt.Errorf("only %v left after a renewal, want %v", left, d))
	}
	return nil
}

// patience bounds one renewal: it must not hold up the next one, nor outlast the lease.
func (x *Lease) patience(now clock.Moment) time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	d := min(max(x.o.every(x.ttl)/2, 20*time.Millisecond), callBound)
	return max(min(d, x.deadline.Sub(now.Time)), time.Millisecond)
}

// renewed takes in the outcome of a renewal that was begun, at first, at begun. The deadline moves only after a
// definite yes, and never when it had passed before the answer came: what was not trusted for an instant may have
// been somebody else's in that instant. Yes counts from begun, which no re-sending of the client's can make too late.
func (x *Lease) renewed(now, begun clock.Moment, waiters int, err error) error {
	if over := x.checkAt(now); over != nil {
		return over
	}
	if err == nil && waiters < 0 {
		return x.end(notOurs(waiters, ""))
	}
	x.l.stats.renewed(err)
	if err != nil {
		x.endanger(err)
		return err
	}
	x.mu.Lock()
	x.trouble = nil
	x.extend(begun)
	x.noteWaiters(waiters)
	x.mu.Unlock()
	x.o.hook(onRenewed, x.event())
	return nil
}

// endanger notes that the lease needs a renewal and has had none: it failed, or is late.
func (x *Lease) endanger(err error) {
	x.mu.Lock()
	before := x.trouble
	x.trouble = err
	x.mu.Unlock()
	if before == nil {
		e := x.event()
		e.Err = err
		x.o.hook(onJeopardy, e)
		x.o.log(slog.LevelWarn, "leasehold: lease in jeopardy", e)
	}
}

// extend moves the deadline to the one that a call begun at that moment earns, if it is later. x.mu is held.
func (x *Lease) extend(begun clock.Moment) {
	next := begun.Plus(x.ttl - clock.Margin(x.ttl))
	if hold := x.o.maxHold; hold > 0 {
		if last := x.begun.Plus(hold); last.Before(next.Time) {
			next = last
		}
	}
	if next.After(x.deadline.Time) {
		x.deadline = next
	}
}

// capped reports whether no renewal can move the deadline any more. x.mu is held.
func (x *Lease) capped() bool {
	hold := x.o.maxHold
	return hold > 0 && !x.deadline.Before(x.begun.Add(hold))
}

// firstRetry is the pause after a first failed renewal; it doubles.
const firstRetry = 50 * time.Millisecond

// renewal is the state of a lease's automatic renewing, guarded by the lease's mutex.
type renewal struct {
	auto      bool
	due       time.Time       // of the next renewal
	queued    bool            // it waits in a lane
	flight    backend.Pending // it is under way
	lane      *keep.Lane      // of the flight
	overdueAt time.Time       // when that which is queued or under way counts as failed
	failures  int             // in a row
}

// renewer is a lease as the keeper knows it, a type of its own since a Lease must not show these methods.
type renewer lease

// keep hands a new lease to the keeper. It reports false if the Locker is closed.
func (x *Lease) keep() bool {
	x.mu.Lock()
	p := x.plan()
	x.mu.Unlock()
	return x.l.keeper.Add(&x.entry, (*renewer)(x.lease), p)
}

// leases are the leases behind the keeper's clients.
func leases(clients []keep.Client) []*Lease {
	all := make([]*Lease, len(clients))
	for i, c := range clients {
		all[i] = &c.(*renewer).outer
	}
	return all
}

// Every is how often the keeper has the lease renewed.
func (r *renewer) Every() time.Duration {
	if !r.auto {
		return 0
	}
	return r.o.every(r.ttl)
}

// TTL is what a renewal brings.
func (r *renewer) TTL() time.Duration { return r.ttl }

// Overdue is how long after its turn a renewal counts as failed.
func (r *renewer) Overdue() time.Duration { return r.outer.renewalTimeout() }

// Turn does what is due about the lease.
func (r *renewer) Turn(now clock.Moment) (p keep.Plan, live bool) {
	x := &r.outer
	x.mu.Lock()
	if x.err != nil || x.deadline.Reached(now) {
		x.mu.Unlock()
		_ = x.check()
		return p, false
	}
	if (x.queued || x.flight != nil) && !now.Before(x.overdueAt) {
		flight := x.flight
		x.flight = nil // its answer still counts if it comes in time, but is not waited for
		x.overdueAt = now.Add(x.renewalTimeout())
		x.mu.Unlock()
		x.giveUpRenewal(flight, now)
		x.mu.Lock()
	}
	wants := !x.queued && x.wanting(now)
	if wants {
		x.queued = true
		x.overdueAt = now.Add(x.renewalTimeout())
	}
	p = x.plan()
	if wants {
		p.Queue, p.Until = x.tenure.Lane(), x.deadline.Time
	}
	x.mu.Unlock()
	return p, true
}

// giveUpRenewal sees to a renewal whose answer, or whose turn to be sent, has not come in time.
func (x *Lease) giveUpRenewal(flight backend.Pending, now clock.Moment) {
	if flight == nil {
		if x.l.keeper.IsSilent(x.tenure.Lane()) { // otherwise it is only held up by others
			x.endanger(&fault.NoAnswer{Bound: x.renewalTimeout()})
		}
		return
	}
	err := flight.Silence(x.renewalTimeout())
	flight.Withdraw()
	x.l.keeper.Leave(x.lane, keep.Silent)
	_ = x.renewed(now, now, 0, err)
	x.mu.Lock()
	x.postpone(now)
	x.mu.Unlock()
}

// Send hands the lease's renewal to the store.
func (r *renewer) Send(now clock.Moment, in *keep.Lane) (p keep.Plan, sent bool) {
	x := &r.outer
	x.mu.Lock()
	defer x.mu.Unlock()
	x.queued = false
	if sent = x.wanting(now) && !x.deadline.Reached(now); sent {
		x.overdueAt = now.Add(x.renewalTimeout())
		x.lane = in
		// Only queued here, so that x.mu is not held across a send; under x.mu, so that a Release finds the flight or
		// the flight finds the Release.
		x.flight = x.tenure.RenewLater(x.curious, func(flight backend.Pending, waiters int, err error) {
			x.l.keeper.Deliver(&x.entry, keep.Answer{Of: flight, Begun: now, Waiters: waiters, Err: err})
		})
	}
	return x.plan(), sent
}

// Answered takes in the answer to an automatic renewal.
func (r *renewer) Answered(a keep.Answer, now clock.Moment) (p keep.Plan, changed bool) {
	x := &r.outer
	x.mu.Lock()
	awaited, lane := x.flight != nil && a.Of == x.flight, x.lane
	if awaited {
		x.flight = nil
	}
	x.mu.Unlock()
	switch {
	case awaited:
		x.l.keeper.Leave(lane, outcomeOf(a.Err))
	case a.Err != nil:
		return p, false // it was counted as failed when it was late
	}
	if x.renewed(now, a.Begun, a.Waiters, a.Err) != nil && a.Err == nil {
		return p, false // the lease has ended
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if a.Err == nil {
		trouble := x.failures > 0 || a.Begun.Sub(x.due) > x.o.every(x.ttl)/8
		x.due = x.nextDue(a.Begun, trouble)
		x.failures = 0
	} else {
		x.postpone(now)
	}
	return x.plan(), true
}

// outcomeOf is what the end of a renewal says about its server.
func outcomeOf(err error) keep.Outcome {
	if fault.IsSaid(err) {
		return keep.Answered
	}
	return keep.Silent
}

// withdraw takes back the lease's renewal if it has not been sent.
func (x *Lease) withdraw() {
	x.mu.Lock()
	flight := x.flight
	x.mu.Unlock()
	if flight == nil || !flight.Withdraw() {
		return // there is none, or its answer will come
	}
	x.mu.Lock()
	awaited, lane := x.flight == flight, x.lane
	x.flight = nil
	x.mu.Unlock()
	if awaited {
		x.l.keeper.Leave(lane, keep.Unsent)
	}
}

// plan is when the keeper must see to the lease next. x.mu is held.
func (x *Lease) plan() (p keep.Plan) {
	p.Next, p.Early = x.next()
	return p
}

// renewable reports whether the lease is to be renewed at all. x.mu is held.
func (x *Lease) renewable() bool {
	return x.auto && x.err == nil && !x.capped() && (x.scoped || !x.l.isClosed())
}

// wanting reports whether it is time for a renewal. x.mu is held.
func (x *Lease) wanting(now clock.Moment) bool {
	return x.renewable() && x.flight == nil && !now.Add(x.coalesce()).Before(x.due)
}

// next is the moment at which the keeper must see to the lease, and whether it may be some time before. x.mu is held.
func (x *Lease) next() (at time.Time, early bool) {
	waits := x.queued || x.flight != nil
	switch {
	case !x.renewable():
	case waits && x.overdueAt.Before(x.deadline.Time):
		return x.overdueAt, false
	case !waits && x.due.Before(x.deadline.Time):
		return x.due, x.failures == 0
	}
	return x.deadline.Time, false
}

// coalesce is how much too early the lease may be renewed; what has just failed is not.
func (x *Lease) coalesce() time.Duration {
	if x.failures > 0 {
		return 0
	}
	return min(keep.Coalesce, x.o.every(x.ttl)/8)
}

// renewalTimeout is after how long a renewal counts as failed.
func (x *Lease) renewalTimeout() time.Duration {
	return min(max(x.o.every(x.ttl)/2, 20*time.Millisecond), callBound)
}

// nextDue is when a lease that was renewed by a call begun then is to be renewed again: a little early by chance, so that
// leases that were taken together do not stay together. After trouble, which has many renewed at one time, it is spread more
// widely.
func (x *Lease) nextDue(begun clock.Moment, trouble bool) time.Time {
	every := x.o.every(x.ttl)
	early := every / 10
	if trouble {
		early = every
	}
	return begun.Add(every - rand.N(early+1))
}

// postpone plans the next try after a renewal that failed: soon, by chance, growing, and while the deadline leaves time for
// more. x.mu is held.
func (x *Lease) postpone(now clock.Moment) {
	pause := firstRetry << min(x.failures, 10)
	pause = min(pause, x.o.every(x.ttl)/2, x.deadline.Sub(now.Time)/4)
	pause = max(pause, 5*time.Millisecond)
	x.failures++
	x.due = now.Add(pause/2 + rand.N(pause/2))
}
