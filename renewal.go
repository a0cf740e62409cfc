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
func (le *Lease) Renew(ctx context.Context) error {
	if le == nil {
		return errNilLease
	}
	if err := le.check(); err != nil {
		return le.fail("renew", err)
	}
	begun := le.l.clock.Now()
	le.mu.Lock()
	r, round := le.request(), le.span.Round()
	le.mu.Unlock()
	n, err := le.tenure.Renew(ctx, r, le.patience(begun))
	return le.answered(ctx, "renew", begun, round, n, err)
}

// answered takes in the outcome of a renewal that a caller has waited for.
func (le *Lease) answered(ctx context.Context, op string, begun clock.Moment, round, waiters int, err error) error {
	if err == nil || ctx.Err() == nil { // else the caller cut it short: that says nothing about the lease
		err = le.renewed(le.l.clock.Now(), begun, round, waiters, err)
	}
	if err != nil {
		return le.fail(op, err)
	}
	return nil
}

// EnsureFor returns nil if the lease may be trusted for another d. If less is left, it first renews the lease once.
// Call it before a step of known length. If d is more than the TTL can give, it returns [ErrInvalid]. Any other error
// is that of Renew.
func (le *Lease) EnsureFor(ctx context.Context, d time.Duration) error {
	if le == nil {
		return errNilLease
	}
	le.mu.Lock()
	ttl := le.span.Trusted()
	le.mu.Unlock()
	if most := ttl - clock.Margin(ttl); d > most {
		return le.fail("ensure", invalid("%v: a ttl of %v gives %v at most", d, ttl, most))
	}
	if le.check() == nil && time.Until(le.ValidUntil()) >= d {
		return nil
	}
	if err := le.Renew(ctx); err != nil {
		return err
	}
	if left := time.Until(le.ValidUntil()); left < d {
		return le.fail("ensure", fmt.Errorf("only %v left after a renewal, want %v", left, d))
	}
	return nil
}

// Contended returns a channel that is closed once somebody waits for the key. So a long job can release the lock
// between two items and let others in. A renewal brings this news, so it takes until the next one. Renewals ask for it
// after the first call of Contended.
func (le *Lease) Contended() <-chan struct{} {
	if le == nil {
		return closedChan
	}
	le.mu.Lock()
	defer le.mu.Unlock()
	if le.waiters {
		return closedChan
	}
	if le.contended == nil {
		le.contended = make(chan struct{})
		le.countWaiters = true
	}
	return le.contended
}

// noteWaiters closes Contended. le.mu is held.
func (le *Lease) noteWaiters(n int) {
	if n < 1 || le.waiters {
		return
	}
	le.waiters, le.countWaiters = true, le.shared
	if le.contended != nil {
		close(le.contended)
	}
}

// patience bounds one renewal: it must not hold up the next one, nor outlast the lease.
func (le *Lease) patience(now clock.Moment) time.Duration {
	le.mu.Lock()
	defer le.mu.Unlock()
	return max(min(le.schedule.Timeout(), le.deadline.Sub(now.Time)), time.Millisecond)
}

// renewed takes in the outcome of a renewal that was begun, at first, at begun. The deadline moves only after a
// definite yes, and never when it had passed before the answer came: what was not trusted for an instant may have been
// somebody else's in that instant. Yes counts from begun, which no re-sending of the client's can make too late, and only
// in the round in which the renewal was begun.
func (le *Lease) renewed(now, begun clock.Moment, round, waiters int, err error) error {
	if over := le.checkAt(now); over != nil {
		return over
	}
	if err == nil && waiters < 0 {
		return le.end(notOurs(waiters, ""))
	}
	if err != nil {
		le.l.stats.count(func(now *Stats) { now.RenewalsFailed++ })
		le.endanger(err)
		return err
	}
	le.mu.Lock()
	le.trouble = nil
	if round == le.span.Round() {
		le.prolong(begun)
	}
	le.noteWaiters(waiters)
	le.mu.Unlock()
	le.l.stats.count(func(now *Stats) { now.Renewed++ })
	le.o.hook(onRenewed, le.event())
	return nil
}

// endanger notes that the lease needs a renewal and has had none: it failed, or is late.
func (le *Lease) endanger(err error) {
	le.mu.Lock()
	before := le.trouble
	le.trouble = err
	le.mu.Unlock()
	if before == nil {
		e := le.event()
		e.Err = err
		le.o.hook(onJeopardy, e)
		le.o.log(slog.LevelWarn, "leasehold: lease in jeopardy", e)
	}
}

// prolong moves the deadline to the one that a call begun at that moment earns, if it is later. le.mu is held.
func (le *Lease) prolong(begun clock.Moment) {
	ttl := le.span.Trusted()
	next := begun.Plus(ttl - clock.Margin(ttl))
	if hold := le.o.maxHold; hold > 0 {
		if last := le.begun.Plus(hold); last.Before(next.Time) {
			next = last
		}
	}
	if next.After(le.deadline.Time) {
		le.deadline = next
	}
}

// capped reports whether no renewal can move the deadline any more. le.mu is held.
func (le *Lease) capped() bool {
	hold := le.o.maxHold
	return hold > 0 && !le.deadline.Before(le.begun.Add(hold))
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
func (le *Lease) keep() bool {
	le.mu.Lock()
	p, t := le.plan(), le.terms()
	le.mu.Unlock()
	return le.l.keeper.Add(&le.entry, (*renewer)(le.lease), t, p)
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

// Turn does what is due about the lease.
func (r *renewer) Turn(now clock.Moment) (p keep.Plan, live bool) {
	le := &r.outer
	le.mu.Lock()
	if le.err != nil || le.deadline.Reached(now) {
		le.mu.Unlock()
		_ = le.check()
		return p, false
	}
	if le.renewing() && le.schedule.IsOverdue(now.Time) {
		late, timeout := le.sent, le.schedule.Timeout()
		le.sent = nil // its answer still counts if it comes in time, but is not waited for
		le.schedule.Begin(now.Time)
		le.mu.Unlock()
		le.giveUpRenewal(late, timeout, now)
		le.mu.Lock()
	}
	wants := !le.queued && le.wanting(now)
	if wants {
		le.queued = true
		le.schedule.Begin(now.Time)
	}
	p = le.plan()
	if wants {
		p.Queue, p.Until = le.tenure.Lane(), le.deadline.Time
	}
	le.mu.Unlock()
	return p, true
}

// giveUpRenewal sees to a renewal whose answer, or whose turn to be sent, has not come in time.
func (le *Lease) giveUpRenewal(late backend.Pending, timeout time.Duration, now clock.Moment) {
	if late == nil {
		if le.l.keeper.IsSilent(le.tenure.Lane()) { // otherwise it is only held up by others
			le.endanger(&fault.NoAnswer{Bound: timeout})
		}
		return
	}
	err := late.Silence(timeout)
	late.Withdraw()
	le.l.keeper.Leave(le.lane, keep.Silent)
	_ = le.renewed(now, now, 0, 0, err)
	le.mu.Lock()
	le.schedule.Failed(now.Time, le.deadline.Time)
	le.mu.Unlock()
}

// Send hands the lease's renewal to the store.
func (r *renewer) Send(now clock.Moment, in *keep.Lane) (p keep.Plan, sent bool) {
	le := &r.outer
	le.mu.Lock()
	defer le.mu.Unlock()
	le.queued = false
	if sent = le.wanting(now) && !le.deadline.Reached(now); sent {
		le.schedule.Begin(now.Time)
		le.lane = in
		// Only queued here, so that le.mu is not held across a send; under le.mu, so that a Release finds the renewal or
		// the renewal finds the Release.
		round := le.span.Round()
		le.sent = le.tenure.RenewLater(le.request(), func(p backend.Pending, waiters int, err error) {
			le.l.keeper.Deliver(&le.entry, keep.Answer{Of: p, Begun: now, Round: round, Waiters: waiters, Err: err})
		})
	}
	return le.plan(), sent
}

// Answered takes in the answer to an automatic renewal.
func (r *renewer) Answered(a keep.Answer, now clock.Moment) (p keep.Plan, changed bool) {
	le := &r.outer
	le.mu.Lock()
	awaited, lane := le.sent != nil && a.Of == le.sent, le.lane
	if awaited {
		le.sent = nil
	}
	le.mu.Unlock()
	switch {
	case awaited:
		le.l.keeper.Leave(lane, keep.OutcomeOf(fault.IsSaid(a.Err)))
	case a.Err != nil:
		return p, false // it was counted as failed when it was late
	}
	if le.renewed(now, a.Begun, a.Round, a.Waiters, a.Err) != nil && a.Err == nil {
		return p, false // the lease has ended
	}
	le.mu.Lock()
	defer le.mu.Unlock()
	if a.Err == nil {
		le.schedule.Renewed(a.Begun.Time)
	} else {
		le.schedule.Failed(now.Time, le.deadline.Time)
	}
	return le.plan(), true
}

// withdraw takes back the lease's renewal if it has not been sent.
func (le *Lease) withdraw() {
	le.mu.Lock()
	sent := le.sent
	le.mu.Unlock()
	if sent == nil || !sent.Withdraw() {
		return // there is none, or its answer will come
	}
	le.mu.Lock()
	awaited, lane := le.sent == sent, le.lane
	le.sent = nil
	le.mu.Unlock()
	if awaited {
		le.l.keeper.Leave(lane, keep.Unsent)
	}
}

// plan is when the keeper must see to the lease next. le.mu is held.
func (le *Lease) plan() keep.Plan {
	if !le.renewable() {
		return keep.Plan{Next: le.deadline.Time}
	}
	return le.schedule.Plan(le.renewing(), le.deadline.Time)
}

// renewing reports whether a renewal is queued or under way. le.mu is held.
func (le *Lease) renewing() bool { return le.queued || le.sent != nil }

// renewable reports whether the lease is to be renewed at all. le.mu is held.
func (le *Lease) renewable() bool {
	return le.auto && le.err == nil && !le.capped() && (le.scoped || !le.l.life.IsClosing())
}

// wanting reports whether it is time for a renewal. le.mu is held.
func (le *Lease) wanting(now clock.Moment) bool {
	return le.renewable() && le.sent == nil && le.schedule.IsDue(now.Time)
}
