package leasehold

import (
	"context"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/roundtrip"
	"github.com/go-leasehold/leasehold/internal/script"
)

// round is one renewal of a tenure on all nodes. It is guarded by the tenure's mutex.
type round struct {
	t     *tenure
	begun time.Time
	then  func(p backend.Pending, waiters int, err error)

	calls   []*roundtrip.Command // under way; nil: answered or withdrawn
	errs    []error              // of nodes that did not answer
	absent  []int                // nodes that do not have the key
	mine    int
	lost    fates // certain "not yours"
	failed  int
	said    bool // then was called
	renewed bool
}

// renew sends a renewal to all nodes. Then is called once, from another goroutine, as soon as it is decided.
func (t *tenure) renew(ctx context.Context, then func(backend.Pending, int, error)) *round {
	r := &round{t: t, begun: time.Now(), then: then}
	r.calls, r.errs = make([]*roundtrip.Command, len(t.seats)), make([]error, len(t.seats))
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, n := range t.q.nodes {
		r.calls[i] = t.call(ctx, renewNodeScript, t.fence)
		n.send(t.r.Key, r.calls[i], func(_ int, begun time.Time, reply any, err error) { r.answered(i, begun, reply, err) })
	}
	return r
}

// answered takes in a node's answer to a renewal.
func (r *round) answered(i int, begun time.Time, reply any, err error) {
	t := r.t
	v, _, err := t.q.nodes[i].heardOf(t.r.Key, begun, reply, err)
	t.mu.Lock()
	r.calls[i] = nil
	switch {
	case err != nil:
		r.errs[i] = err
		r.failed++
	case v.granted() && t.seats[i].given():
		r.errs[i] = errGiven
		r.failed++
	case v.granted():
		t.seats[i].holds = true
		r.mine++
	default:
		r.errs[i] = errNodeGone
		if v.free {
			r.lost.gone++
			r.absent = append(r.absent, i)
		} else {
			r.lost.others++
		}
	}
	tell := r.judge()
	if r.renewed {
		for _, j := range r.absent {
			t.refill(j)
		}
		r.absent = nil
	}
	t.mu.Unlock()
	if tell != nil {
		tell()
	}
}

// judge decides the round if it can be, and returns the call of then that is due. t.mu is held.
func (r *round) judge() func() {
	t := r.t
	need := t.q.majority()
	waiters, err := 0, error(nil)
	switch {
	case r.said:
		return nil
	case t.q.twins.Load() != nil:
		err = t.q.twins.Load()
	case r.mine >= need:
		// What was not trusted for an instant may have been somebody else's in it.
		r.renewed = time.Now().Before(t.until)
		if until := r.begun.Add(t.life()); r.renewed && until.After(t.until) {
			t.until = until
		}
	case r.lost.count() > len(t.seats)-need:
		waiters = r.lost.why()
	case len(t.seats)-r.lost.count()-r.failed < need:
		err = t.q.shortOf(r.mine, r.errs)
	default:
		return nil
	}
	r.said = true
	return func() { r.then(r, waiters, err) }
}

// Withdraw takes back what has not been sent, and reports whether nothing is under way and nothing was decided.
func (r *round) Withdraw() bool {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	open := false
	for i, c := range r.calls {
		switch {
		case c == nil:
		case r.t.q.nodes[i].withdraw(r.t.r.Key, c):
			r.calls[i], r.errs[i] = nil, errUnheard
			r.failed++
		default:
			open = true
		}
	}
	return !open && !r.said
}

// Silence names what each node had against the renewal, when there was no answer after bound.
func (r *round) Silence(bound time.Duration) error { return r.reason(&fault.NoAnswer{Bound: bound}) }

// reason names what each node had against the renewal.
func (r *round) reason(unheard error) error {
	if unheard == nil {
		unheard = errUnheard
	}
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	errs := make([]error, len(r.errs))
	for i, err := range r.errs {
		switch {
		case r.calls[i] != nil:
			errs[i] = r.calls[i].Unheard(unheard)
		case err == errUnheard:
			errs[i] = unheard
		default:
			errs[i] = err
		}
	}
	return r.t.q.shortOf(r.mine, errs)
}

// refill gives a confirmed lease a node that does not have it. t.mu is held.
func (t *tenure) refill(i int) {
	s := &t.seats[i]
	if t.freeing || t.detached || s.asked != nil || s.releasing || !time.Now().Before(t.until) {
		return
	}
	n := t.q.nodes[i]
	s.freed, s.asked, s.unsure = notFreed, t.call(context.Background(), refillNodeScript, t.fence, t.q.quarantineMillis()), true
	n.send(t.r.Key, s.asked, func(_ int, begun time.Time, reply any, err error) {
		v, young, err := n.heardOf(t.r.Key, begun, reply, err)
		t.mu.Lock()
		defer t.mu.Unlock()
		s.asked = nil
		s.holds = err == nil && v.granted()
		if t.freeing || young != nil {
			t.free(i)
		}
	})
}

// Detach sees to it that a lease that is left to others takes no further node.
func (t *tenure) Detach() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.detached = true
}

// end begins to take a lease back, or to give one back that was adopted in vain.
func (t *tenure) end(back bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.phase, t.kept = over, t.kept && !back
	t.freeAll()
}

// freeAll takes the key back on every node. t.mu is held.
func (t *tenure) freeAll() {
	t.freeing = true
	for i := range t.seats {
		t.free(i)
	}
}

// free sends the release to a node, unless the key is certainly not there, or a release is under way, or a command is that could
// create the key behind it: go-redis may still be going to repeat that. Its return calls free again. t.mu is held.
func (t *tenure) free(i int) {
	s, n := &t.seats[i], t.q.nodes[i]
	if s.raise != nil && n.withdraw(t.r.Key, s.raise) {
		s.raise = nil
	}
	if s.asked != nil && n.withdraw(t.r.Key, s.asked) {
		s.asked = nil
		if s.why == nil {
			s.why = errUnheard
		}
	}
	if s.freed != notFreed || s.releasing {
		return
	}
	if s.asked == nil && !s.holds && !s.unsure {
		s.freed = wasNobodys
		t.left(i)
		return
	}
	if !s.leaving {
		s.leaving = true
		n.leave(t.r.Key)
	}
	if s.asked == nil {
		s.releasing, s.back = true, t.r.Former != "" && !t.kept
		bound := min(time.Duration(t.r.PX)*time.Millisecond, cancelBound)
		t.sendRelease(i, time.Now().Add(bound))
	}
}

// left lets those to the node who waited for the token to leave, or for the first try to have it leave. t.mu is held.
func (t *tenure) left(i int) {
	if s := &t.seats[i]; s.leaving {
		s.leaving = false
		t.q.nodes[i].left(t.r.Key)
	}
}

// sendRelease sends a release that is of use until then. t.mu need not be held.
func (t *tenure) sendRelease(i int, until time.Time) {
	if t.q.closed.Load() {
		return
	}
	n := t.q.nodes[i]
	var args []any
	if t.seats[i].back { // it does not change while the release is owed
		args = append(args, "back", roundtrip.Secret(t.r.Former))
	}
	c := t.call(context.Background(), releaseNodeScript, args...)
	n.send(t.r.Key, c, func(k int, _ time.Time, reply any, err error) { t.released(i, k, until, reply, err) })
}

// released takes in a node's answer to a release.
func (t *tenure) released(i int, k int, until time.Time, reply any, err error) {
	n := t.q.nodes[i]
	done := 0
	if err == nil {
		done, err = script.Int(reply)
	}
	again := err != nil && fault.Transient(err)
	n.answered(!again)
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.seats[i]
	s.writes += k
	t.left(i)
	switch {
	case again && n.owe(t, until):
		s.owed, s.why = true, err
	case err != nil:
		s.releasing, s.owed, s.why = false, false, err // the TTL will do it
	default:
		s.releasing, s.owed, s.freed = false, false, wasNobodys
		switch {
		case done == 1 || s.writes > 1:
			s.freed = wasOurs
		case done < 0:
			s.freed = wasAnothers
		}
	}
	t.progress()
}

// unpaid is told that an owed release is left to the TTL.
func (t *tenure) unpaid(i int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seats[i].releasing, t.seats[i].owed = false, false
	t.progress()
}

// progress wakes those who wait for the release. t.mu is held.
func (t *tenure) progress() {
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

// release tells how far the release is: settled, with what it found; not settled, with a channel that is closed when there is
// news; or, without a channel, failed for now. Late, it does not wait for what would only make the answer more exact.
//
// A majority that is free of the key is free for the next one. Whether the lease had lasted is another matter: a node
// that no longer had the key proves nothing, several may.
func (t *tenure) release(late bool) (what int, settled bool, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	need := t.q.majority()
	ours := t.count(func(s *seat) bool { return s.freed == wasOurs })
	not := fates{
		t.count(func(s *seat) bool { return s.freed == wasNobodys }),
		t.count(func(s *seat) bool { return s.freed == wasAnothers }),
	}
	open := t.count(func(s *seat) bool { return s.asked != nil || s.releasing && !s.owed })
	free, over := ours+not.count() >= need, late || open == 0
	switch {
	case not.count() > len(t.seats)-need:
		return not.why(), true, nil
	case free && (ours >= need || over):
		return backend.ReleasedLock, true, nil
	case over:
		return 0, false, nil
	}
	if t.changed == nil {
		t.changed = make(chan struct{})
	}
	return 0, false, t.changed
}

// unfreed names the nodes on which the key may still be.
func (t *tenure) unfreed(unheard error) error {
	if unheard == nil {
		unheard = errUnheard
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	errs := make([]error, len(t.seats))
	done := 0
	for i := range t.seats {
		s := &t.seats[i]
		switch {
		case s.freed != notFreed:
			done++
		case s.owed, !s.releasing && s.why != nil:
			errs[i] = s.why
		default:
			errs[i] = unheard
		}
	}
	return t.q.shortOf(done, errs)
}
