package leasehold

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/keep"
)

// Renew restores the full TTL of the lease, in Redis, and here counted from the moment before the call. An error that
// matches [ErrLost] or [ErrReleased] is final. After any other error, of the context or of Redis, the lease is still
// held until [Lease.ValidUntil], and Renew may be called again. Renew can be used beside automatic renewals.
func (x *Lease) Renew(ctx context.Context) error {
	if x == nil {
		return errNilLease
	}
	if err := x.check(); err != nil {
		return x.fail("renew", err)
	}
	begun := x.l.clock.Now()
	x.mu.Lock()
	curious := x.curious
	x.mu.Unlock()
	n, err := x.tenure.Renew(ctx, curious, x.patience(begun))
	if err != nil && ctx.Err() != nil {
		return x.fail("renew", err) // cut short by the caller: that says nothing about the lease
	}
	if err := x.renewed(x.l.clock.Now(), begun, n, err); err != nil {
		return x.fail("renew", err)
	}
	return nil
}

// EnsureFor returns nil if the lease may be trusted for another d. If less is left, it first renews the lease once.
// Call it before a step of known length. If d is more than the TTL can give, it returns [ErrInvalid]. Any other error
// is that of Renew.
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

// Contended returns a channel that is closed once somebody waits for the key. So a long job can release the lock
// between two items and let others in. A renewal brings this news, so it takes until the next one. Renewals ask for it
// after the first call of Contended.
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

// patience bounds one renewal: it must not hold up the next one, nor outlast the lease.
func (x *Lease) patience(now clock.Moment) time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	return max(min(x.schedule.Timeout(), x.deadline.Sub(now.Time)), time.Millisecond)
}

// renewed takes in the outcome of a renewal that was begun, at first, at begun. The deadline moves only after a
// definite yes, and never when it had passed before the answer came: what was not trusted for an instant may have been
// somebody else's in that instant. Yes counts from begun, which no re-sending of the client's can make too late.
func (x *Lease) renewed(now, begun clock.Moment, waiters int, err error) error {
	if over := x.checkAt(now); over != nil {
		return over
	}
	if err == nil && waiters < 0 {
		return x.end(notOurs(waiters, ""))
	}
	if err != nil {
		x.l.stats.count(func(now *Stats) { now.RenewalsFailed++ })
		x.endanger(err)
		return err
	}
	x.mu.Lock()
	x.trouble = nil
	x.extend(begun)
	x.noteWaiters(waiters)
	x.mu.Unlock()
	x.l.stats.count(func(now *Stats) { now.Renewed++ })
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

// renewal is the state of a lease's automatic renewing, guarded by the lease's mutex.
type renewal struct {
	auto     bool
	schedule keep.Schedule
	queued   bool            // it waits in a lane
	sent     backend.Pending // it is under way
	lane     *keep.Lane      // of the one that is under way
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
		all[i] = c.(*renewer).Lease()
	}
	return all
}

// Lease returns the lease.
func (r *renewer) Lease() *Lease { return &r.outer }

// Every is how often the keeper has the lease renewed.
func (r *renewer) Every() time.Duration {
	if !r.auto {
		return 0
	}
	return r.schedule.Every
}

// TTL is what a renewal brings.
func (r *renewer) TTL() time.Duration { return r.ttl }

// Overdue is how long after its turn a renewal counts as failed.
func (r *renewer) Overdue() time.Duration { return r.schedule.Timeout() }

// Turn does what is due about the lease.
func (r *renewer) Turn(now clock.Moment) (p keep.Plan, live bool) {
	x := &r.outer
	x.mu.Lock()
	if x.err != nil || x.deadline.Reached(now) {
		x.mu.Unlock()
		_ = x.check()
		return p, false
	}
	if x.renewing() && x.schedule.IsOverdue(now.Time) {
		late := x.sent
		x.sent = nil // its answer still counts if it comes in time, but is not waited for
		x.schedule.Begin(now.Time)
		x.mu.Unlock()
		x.giveUpRenewal(late, now)
		x.mu.Lock()
	}
	wants := !x.queued && x.wanting(now)
	if wants {
		x.queued = true
		x.schedule.Begin(now.Time)
	}
	p = x.plan()
	if wants {
		p.Queue, p.Until = x.tenure.Lane(), x.deadline.Time
	}
	x.mu.Unlock()
	return p, true
}

// giveUpRenewal sees to a renewal whose answer, or whose turn to be sent, has not come in time.
func (x *Lease) giveUpRenewal(late backend.Pending, now clock.Moment) {
	timeout := x.schedule.Timeout()
	if late == nil {
		if x.l.keeper.IsSilent(x.tenure.Lane()) { // otherwise it is only held up by others
			x.endanger(&fault.NoAnswer{Bound: timeout})
		}
		return
	}
	err := late.Silence(timeout)
	late.Withdraw()
	x.l.keeper.Leave(x.lane, keep.Silent)
	_ = x.renewed(now, now, 0, err)
	x.mu.Lock()
	x.schedule.Failed(now.Time, x.deadline.Time)
	x.mu.Unlock()
}

// Send hands the lease's renewal to the store.
func (r *renewer) Send(now clock.Moment, in *keep.Lane) (p keep.Plan, sent bool) {
	x := &r.outer
	x.mu.Lock()
	defer x.mu.Unlock()
	x.queued = false
	if sent = x.wanting(now) && !x.deadline.Reached(now); sent {
		x.schedule.Begin(now.Time)
		x.lane = in
		// Only queued here, so that x.mu is not held across a send; under x.mu, so that a Release finds the renewal or
		// the renewal finds the Release.
		x.sent = x.tenure.RenewLater(x.curious, func(p backend.Pending, waiters int, err error) {
			x.l.keeper.Deliver(&x.entry, keep.Answer{Of: p, Begun: now, Waiters: waiters, Err: err})
		})
	}
	return x.plan(), sent
}

// Answered takes in the answer to an automatic renewal.
func (r *renewer) Answered(a keep.Answer, now clock.Moment) (p keep.Plan, changed bool) {
	x := &r.outer
	x.mu.Lock()
	awaited, lane := x.sent != nil && a.Of == x.sent, x.lane
	if awaited {
		x.sent = nil
	}
	x.mu.Unlock()
	switch {
	case awaited:
		x.l.keeper.Leave(lane, keep.OutcomeOf(fault.IsSaid(a.Err)))
	case a.Err != nil:
		return p, false // it was counted as failed when it was late
	}
	if x.renewed(now, a.Begun, a.Waiters, a.Err) != nil && a.Err == nil {
		return p, false // the lease has ended
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if a.Err == nil {
		x.schedule.Renewed(a.Begun.Time)
	} else {
		x.schedule.Failed(now.Time, x.deadline.Time)
	}
	return x.plan(), true
}

// withdraw takes back the lease's renewal if it has not been sent.
func (x *Lease) withdraw() {
	x.mu.Lock()
	sent := x.sent
	x.mu.Unlock()
	if sent == nil || !sent.Withdraw() {
		return // there is none, or its answer will come
	}
	x.mu.Lock()
	awaited, lane := x.sent == sent, x.lane
	x.sent = nil
	x.mu.Unlock()
	if awaited {
		x.l.keeper.Leave(lane, keep.Unsent)
	}
}

// plan is when the keeper must see to the lease next. x.mu is held.
func (x *Lease) plan() keep.Plan {
	if !x.renewable() {
		return keep.Plan{Next: x.deadline.Time}
	}
	return x.schedule.Plan(x.renewing(), x.deadline.Time)
}

// renewing reports whether a renewal is queued or under way. x.mu is held.
func (x *Lease) renewing() bool { return x.queued || x.sent != nil }

// renewable reports whether the lease is to be renewed at all. x.mu is held.
func (x *Lease) renewable() bool {
	return x.auto && x.err == nil && !x.capped() && (x.scoped || !x.l.life.IsClosing())
}

// wanting reports whether it is time for a renewal. x.mu is held.
func (x *Lease) wanting(now clock.Moment) bool {
	return x.renewable() && x.sent == nil && x.schedule.IsDue(now.Time)
}
