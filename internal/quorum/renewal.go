package quorum

import (
	"context"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/quorum/nodescript"
	"github.com/go-leasehold/leasehold/internal/roundtrip"
)

// round is one renewal of a lease on all nodes. The tenure's mutex guards it.
//
// It is decided by the first of these, and whatever comes after that only tells which nodes have the key:
//
//	renewed    a majority has renewed while the lease was valid
//	lost       so many nodes say that the token does not hold the key that no majority is left
//	no quorum  so many nodes failed, or said so, that no majority is to be had now; the lease goes on until its deadline
//
// Rejected: to wait for all nodes. A node that is slow would make every renewal as slow, and one that is away would fail them.
//
// A node that says that nobody has the key is refilled once the round is renewed, and never before: a lease that a majority
// has not confirmed may be over, and the refill would take the node from the next holder. A refill does not count in the round.
type round struct {
	t     *tenure
	asked backend.Renewal
	// until is the end of the trust that a yes brings. It counts from the moment before the first command was sent.
	until time.Time
	then  func(p backend.Pending, waiters int, err error)
	// unsettled counts the nodes at which a copy of the command may still arrive.
	unsettled int

	// commands are under way, by node; nil: the node has replied, or the command was withdrawn.
	commands []*roundtrip.Command
	// errs is why each node did not renew, as far as is known.
	errs []error
	// absent are the nodes on which nobody has the key, and that were not refilled yet.
	absent []int
	// mine, lost and failed count the nodes that have renewed, those that say that the token does not hold the key, and those
	// that have said neither.
	mine   int
	lost   nodescript.Refusals
	failed int
	// decided is set once then is called, or about to be. renewed is set if that was a yes.
	decided, renewed bool
}

// Renew renews on all nodes and waits until the round is decided. It returns 0, or why the lease is lost; a quorum knows of no
// waiters. What is still under way when it returns is not stopped: a late yes may tell a node that needs a refill.
func (t *tenure) Renew(ctx context.Context, asked backend.Renewal, bound time.Duration) (int, error) {
	if err := t.q.ready(ctx); err != nil {
		return 0, err
	}
	var lost int
	var err error
	decided := make(chan struct{})
	r := t.renew(ctx, asked, func(_ backend.Pending, why int, e error) { lost, err = why, e; close(decided) })
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-decided:
		return lost, err
	case <-ctx.Done():
	case <-timer.C:
	}
	r.Withdraw()
	return 0, cutShort(ctx, bound, r.reason)
}

// RenewLater sends a round of renewals at once: a quorum has no use for a flush, since each node has a queue of its own.
func (t *tenure) RenewLater(asked backend.Renewal, then func(backend.Pending, int, error)) backend.Pending {
	return t.renew(context.Background(), asked, then)
}

// Lane is the quorum as a whole: a round goes to all nodes, and each node has a sender of its own.
func (t *tenure) Lane() any { return t.q }

// renew sends a renewal to all nodes. then is called once, from another goroutine and with no mutex held, when the round is
// decided.
func (t *tenure) renew(ctx context.Context, asked backend.Renewal, then func(backend.Pending, int, error)) *round {
	r := &round{t: t, asked: asked, then: then, unsettled: len(t.votes)}
	r.commands, r.errs = make([]*roundtrip.Command, len(t.votes)), make([]error, len(t.votes))
	t.mu.Lock()
	defer t.mu.Unlock()
	t.r.PX = asked.PX // also of the refills from now on
	r.until = time.Now().Add(t.life())
	var fence, mode any = t.fence, asked.Mode()
	for i, n := range t.q.nodes {
		r.commands[i] = t.command(ctx, nodescript.Renew, fence, mode)
		if mode == "" && t.votes[i].accepted {
			r.commands[i].SetShort(nodescript.Renewals)
		}
		n.send(r.commands[i], func(writes int, sentAt time.Time, raw any, err error) {
			r.onRenewReply(i, writes, sentAt, raw, err)
		})
	}
	return r
}

// onRenewReply takes in a node's reply to the renewal, and decides the round if it can be decided now. A reply that comes after
// that is noted all the same, since the node may need a refill.
func (r *round) onRenewReply(i, writes int, sentAt time.Time, raw any, err error) {
	t, settles := r.t, fault.IsSettled(err, writes)
	reply, _, err := t.q.nodes[i].read(t.r.Key, sentAt, raw, err)
	t.mu.Lock()
	r.commands[i] = nil
	switch {
	case err != nil:
		r.fail(i, err)
	case reply.IsGranted() && t.votes[i].release.isBegun():
		r.fail(i, errReleasing) // it has the key now, and not for long
	case reply.IsGranted():
		t.votes[i].holds = true
		// Where the counter was lost, the next renewal is sent whole, and raises it again.
		t.votes[i].accepted = t.votes[i].accepted && reply.Counter >= t.fence
		r.mine++
	default:
		r.errs[i] = errGone
		if reply.Free {
			r.lost.Gone++
			r.absent = append(r.absent, i)
		} else {
			r.lost.Others++
		}
	}
	if settles {
		r.unsettled--
	}
	settled := r.unsettled == 0 && r.asked.Shorten != nil
	tell := r.judge()
	// Also after the round was decided: a node that is slow to say that nobody has its key is refilled then.
	if r.renewed {
		for _, j := range r.absent {
			t.refill(j)
		}
		r.absent = nil
	}
	t.mu.Unlock()
	if settled {
		r.asked.Shorten()
	}
	if tell != nil {
		tell()
	}
}

// fail notes a node that says neither that the token holds the key nor that it does not. Such a node may have renewed, so the
// round is lost only by those that say no. The tenure's mutex is held.
func (r *round) fail(i int, err error) {
	r.errs[i] = err
	r.failed++
}

// judge decides the round if it can be, and returns the call of then that is due. That call is made without the tenure's mutex, which
// is held here: it leads to the lease, whose mutex comes first.
func (r *round) judge() (tell func()) {
	t := r.t
	need := t.q.majority()
	lost, err := 0, error(nil)
	switch {
	case r.decided:
		return nil
	case t.q.sameServer.Load() != nil:
		err = t.q.sameServer.Load()
	case r.mine >= need:
		// A lease that was not trusted for an instant may have been somebody else's in that instant. The root judges it by its
		// own deadline, so it is told of the yes.
		r.renewed = t.isValid()
		if r.renewed && r.until.After(t.until) {
			t.until = r.until
		}
	case r.lost.Count() > len(t.votes)-need:
		lost = r.lost.Why()
	case len(t.votes)-r.lost.Count()-r.failed < need:
		err = t.q.shortOf(r.mine, r.errs)
	default:
		return nil
	}
	r.decided = true
	return func() { r.then(r, lost, err) }
}

// Withdraw takes back what has not been sent, and reports whether nothing is under way and nothing was decided: only then is it
// certain that then is never called.
func (r *round) Withdraw() bool {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	open := false
	for i, c := range r.commands {
		switch {
		case c == nil:
		case r.t.q.nodes[i].withdraw(r.t.r.Key, c):
			r.commands[i] = nil
			r.fail(i, errUnheard)
		default:
			open = true
		}
	}
	return !open && !r.decided
}

// Silence names what each node had against the renewal, when the round was not decided after bound.
func (r *round) Silence(bound time.Duration) error { return r.reason(&fault.NoAnswer{Bound: bound}) }

// reason names what each node had against the renewal. silence is the cause of those that have not replied, and of those whose
// command was withdrawn since it had not been sent.
func (r *round) reason(silence error) error {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	errs := make([]error, len(r.errs))
	for i, err := range r.errs {
		switch {
		case r.commands[i] != nil:
			errs[i] = r.commands[i].Unheard(silence)
		case err == errUnheard:
			errs[i] = silence
		default:
			errs[i] = err
		}
	}
	return r.t.q.shortOf(r.mine, errs)
}

// refill gives the lease, which a majority has just confirmed, a node on which nobody has the key: one that was slow when the
// lease was acquired, or that has lost its data. So the lease outlasts the loss of another node later. A node on which a release
// is under way is left alone, since the release would take the key behind the refill. What was released is taken again, so its
// release is history: the writes of that one say nothing of the next. t.mu is held.
func (t *tenure) refill(i int) {
	v := &t.votes[i]
	if t.phase == over || t.detached || v.creating != nil || v.release.isOpen() || !t.isValid() {
		return
	}
	n := t.q.nodes[i]
	v.release = nodeRelease{}
	v.creating, v.unsure = t.command(context.Background(), nodescript.Refill, t.fence, t.q.quarantine), true
	n.send(v.creating, func(_ int, sentAt time.Time, raw any, err error) {
		r, quarantine, err := n.read(t.r.Key, sentAt, raw, err)
		t.mu.Lock()
		defer t.mu.Unlock()
		v.creating = nil
		v.holds = err == nil && r.IsGranted()
		if t.phase == over || quarantine != nil {
			t.releaseNode(i)
		}
	})
}

// Detach leaves the lease to others: no further node is given to it. A renewal that is on its way only lengthens the time of
// keys that are there.
func (t *tenure) Detach() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.detached = true
}
