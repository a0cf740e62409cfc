package quorum

import (
	"context"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/quorum/nodescript"
	"github.com/go-leasehold/leasehold/internal/roundtrip"
	"github.com/go-leasehold/leasehold/internal/script"
)

const (
	// maxPending bounds the releases that a node has not confirmed. What finds no room is left to the TTL.
	maxPending = 4096
	// retryBound is the longest that a release which a node has not confirmed is retried.
	retryBound = 10 * time.Second
)

// nodeRelease is the release of a token on one node. The tenure's mutex guards it.
type nodeRelease struct {
	stage stage
	// back means that the key goes to the former token: an adoption has failed. It does not change while a release is open.
	back bool
	// writes is how often a release may have been written to a connection.
	writes int
	// found is what a released node has said: backend.ReleasedLock, or a reason below 0.
	found int
}

// stage is how far the release of a token on one node is.
//
//	stage       what is under way                            goes on to
//	unreleased  nothing                                      delayed or sent, when a release is wanted;
//	                                                         released, if the key is certainly not there
//	delayed     a command that could create the key          sent, when the command has returned;
//	                                                         released, if the key is then certainly not there
//	sent        the first release                            released, by a reply;
//	                                                         pending, if the node did not confirm it;
//	                                                         unreleased, by an error that a retry would meet again
//	pending     nothing, or a retry                          released, by a reply;
//	                                                         unreleased, by such an error, when the key is gone with its
//	                                                         TTL, or at Close
//	released    nothing                                      unreleased, when the lease takes the node again
//
// A key that was given up in unreleased is left to the TTL. A release is delayed because go-redis may be about to repeat the
// command: the copy would arrive behind the release, and take the lock for nobody.
//
// In delayed and sent, acquires of the same key by this process wait at the node. In pending they do not, since the node may be
// away for long.
type stage int

const (
	unreleased stage = iota
	delayed
	sent
	pending
	released
)

// isBegun reports whether the key was given back, or may be at any moment.
func (r *nodeRelease) isBegun() bool { return r.stage >= sent }

// isOpen reports whether a release was sent and nothing is known of it for certain.
func (r *nodeRelease) isOpen() bool { return r.stage == sent || r.stage == pending }

func (s stage) holdsBack() bool { return s == delayed || s == sent }

// setStage moves the release on a node to a stage, and makes the node's acquires wait or go on. t.mu is held.
func (t *tenure) setStage(i int, to stage) {
	r, n := &t.votes[i].release, t.q.nodes[i]
	from := r.stage
	r.stage = to
	switch {
	case to.holdsBack() && !from.holdsBack():
		n.holdBack(t.r.Key)
	case from.holdsBack() && !to.holdsBack():
		n.letGo(t.r.Key)
	}
}

// Release gives the key back on every node, whatever the tenure has there. It returns when a majority is free of the token and
// it is clear what that says about the lease. The other nodes are seen to in the background: their releases stay pending.
//
// It may be called again, and then sends only what the stage of each node asks for. It returns one write at most, since how
// often a release was written is judged here, for each node.
func (t *tenure) Release(ctx context.Context, how backend.How, bound time.Duration) (found, writes int, _ error) {
	if ctx.Err() != nil {
		return 0, 0, fault.Ended(ctx, nil)
	}
	t.end(how == backend.Return)
	bound = min(bound, Patience)
	timer := time.NewTimer(bound)
	defer timer.Stop()
	for late := false; ; {
		found, settled, progress := t.outcome(late)
		if settled {
			return found, 1, nil
		}
		if progress == nil || ctx.Err() != nil {
			return 0, 1, cutShort(ctx, bound, t.remaining)
		}
		select {
		case <-progress:
		case <-timer.C:
			late = true
		case <-ctx.Done():
		}
	}
}

// end begins to release a lease, or what an attempt has left. back is for an adoption in vain: the lock goes to the former token.
func (t *tenure) end(back bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.handedOut = t.handedOut && !back
	t.releaseAll()
}

// releaseAll ends the tenure, and begins the release on every node. t.mu is held.
func (t *tenure) releaseAll() {
	t.phase = over
	for i := range t.votes {
		t.releaseNode(i)
	}
}

// releaseNode sends the release to a node, unless the key is certainly not there, a release is under way, or a command is that
// could create the key. When that command returns, releaseNode is called again. What has not been sent yet is withdrawn. t.mu
// is held.
func (t *tenure) releaseNode(i int) {
	v, n := &t.votes[i], t.q.nodes[i]
	if v.raise != nil && n.withdraw(t.r.Key, v.raise) {
		v.raise = nil
	}
	if v.creating != nil && n.withdraw(t.r.Key, v.creating) {
		v.creating = nil
		if v.against == nil {
			v.against = errUnheard
		}
	}
	switch {
	case v.release.isBegun():
	case v.creating != nil:
		t.setStage(i, delayed)
	case !v.holds && !v.unsure:
		v.release.found = backend.NotHeld
		t.setStage(i, released)
	default:
		v.release.back = t.r.Former != "" && !t.handedOut
		t.setStage(i, sent)
		t.sendRelease(i, time.Now().Add(min(time.Duration(t.r.PX)*time.Millisecond, retryBound)))
	}
}

// sendRelease sends a release that is of use until then: the key goes with its TTL. It does not need t.mu, since nothing that it
// reads changes while a release is open.
func (t *tenure) sendRelease(i int, until time.Time) {
	if t.q.closed.Load() {
		return
	}
	var args []any
	if t.votes[i].release.back {
		args = append(args, "back", roundtrip.Secret(t.r.Former))
	}
	c := nodescript.ReleaseCommand(context.Background(), &t.keys, t.r.Token, args...)
	t.q.nodes[i].send(c, func(writes int, _ time.Time, raw any, err error) {
		t.onReleaseReply(i, writes, until, raw, err)
	})
}

// onReleaseReply takes in a node's reply to a release, or that there was none. A release that failed is of use again if the failure
// may pass; n.retryLater keeps it, unless the key is gone by now.
//
// A reply that the key was not the token's is about the time before the release, if the release was written once. If it was
// written twice, the first may have done the work, so the node counts as one that had the key.
func (t *tenure) onReleaseReply(i, writes int, until time.Time, raw any, err error) {
	n := t.q.nodes[i]
	found := 0
	if err == nil {
		found, err = script.Int(raw)
	}
	again := err != nil && fault.Transient(err)
	n.onConfirmation(!again)
	t.mu.Lock()
	defer t.mu.Unlock()
	v := &t.votes[i]
	v.release.writes += writes
	switch {
	case again && n.retryLater(t, until):
		v.against = err
		t.setStage(i, pending)
	case err != nil:
		v.against = err
		t.setStage(i, unreleased)
	default:
		switch {
		case found == 1 || v.release.writes > 1:
			v.release.found = backend.ReleasedLock
		case found < 0:
			v.release.found = backend.HeldByOther
		default:
			v.release.found = backend.NotHeld
		}
		t.setStage(i, released)
	}
	t.wake()
}

// onDropped takes in that a pending release is left to the TTL.
func (t *tenure) onDropped(i int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setStage(i, unreleased)
	t.wake()
}

// wake wakes the callers of Release, of whom there may be several: the stage of a node has changed, and they ask for the outcome
// again. t.mu is held.
func (t *tenure) wake() {
	if t.progress != nil {
		close(t.progress)
		t.progress = nil
	}
}

// outcome tells how far the release is as a whole: settled, with what it found; not settled, with a channel that is closed when
// the stage of a node changes; or, without a channel, failed for now. If it is late, nothing is waited for that would only make
// the answer more exact.
//
// A majority that is free of the token is free for the next one. Whether the lease had lasted is another question. One node that
// no longer had the key proves nothing: it may have lost its data. If so many had not that no majority is left, the lease was
// lost before the release.
func (t *tenure) outcome(late bool) (found int, settled bool, progress <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	need := t.q.majority()
	nodes := func(found int) int {
		return t.count(func(v *vote) bool { return v.release.stage == released && v.release.found == found })
	}
	ours, not := nodes(backend.ReleasedLock), nodescript.Refusals{Gone: nodes(backend.NotHeld), Others: nodes(backend.HeldByOther)}
	open := t.count(func(v *vote) bool { return v.creating != nil || v.release.stage == sent })
	free, last := ours+not.Count() >= need, late || open == 0
	switch {
	case not.Count() > len(t.votes)-need:
		return not.Why(), true, nil
	case free && (ours >= need || last):
		// Before the last reply only if so many had the key that no further reply could tell of a loss.
		return backend.ReleasedLock, true, nil
	case last:
		// The key may still be on a majority. Those releases are pending, or were given up.
		return 0, false, nil
	}
	if t.progress == nil {
		t.progress = make(chan struct{})
	}
	return 0, false, t.progress
}

// remaining names the nodes on which the key may still be. silence is the cause of those that have not replied.
func (t *tenure) remaining(silence error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	errs := make([]error, len(t.votes))
	done := 0
	for i := range t.votes {
		switch v := &t.votes[i]; {
		case v.release.stage == released:
			done++
		case v.release.stage != sent && v.against != nil:
			errs[i] = v.against
		default:
			errs[i] = silence
		}
	}
	return t.q.shortOf(done, errs)
}

// pendingReleases are the releases that a node has not confirmed. The node's mutex guards them.
//
// One of them is retried at a time, to find out whether the node answers again; then all are sent. So a node that is away for
// long costs about one command a second, however many releases it has missed. A tenure has at most one in the list of a node.
//
// Rejected: a timer or a goroutine for each release. A process with thousands of leases would then send thousands of commands a
// second to a node that has just come back, or that is still away.
type pendingReleases struct {
	list []pendingRelease
	// failures is how many releases in a row the node has not confirmed.
	failures int
	// retry runs while there are pending releases and none is under way.
	retry *time.Timer
	// dropped is set when the quorum closes. Nothing is retried any more.
	dropped bool
}

// pendingRelease is one that is of use until then. The tenure knows the rest: the node is the one that has the list.
type pendingRelease struct {
	t     *tenure
	until time.Time
}

// retryLater keeps a release, to be sent again while the key may be there. It reports false if the release is left to the TTL.
func (n *node) retryLater(t *tenure, until time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := &n.releases
	if p.dropped || len(p.list) >= maxPending || !time.Now().Before(until) {
		return false
	}
	p.list = append(p.list, pendingRelease{t, until})
	n.planRetry()
	return true
}

// planRetry starts the timer, with a pause that grows with the failures in a row. n.mu is held.
func (n *node) planRetry() {
	if p := &n.releases; p.retry == nil {
		p.retry = time.AfterFunc(fault.Backoff(p.failures), n.retryOne)
	}
}

// retryOne sends the first release that is still of use, and drops those before it. They are in the order in which they failed,
// not in that of their TTLs, so one behind the first may be of no use any more; it is dropped when its turn comes.
func (n *node) retryOne() {
	n.mu.Lock()
	p := &n.releases
	p.retry = nil
	now := time.Now()
	expired := 0
	for expired < len(p.list) && !now.Before(p.list[expired].until) {
		expired++
	}
	late, first := p.list[:expired:expired], p.list[expired:min(expired+1, len(p.list))]
	p.list = p.list[expired+len(first):]
	n.mu.Unlock()
	n.drop(late)
	n.resend(first)
}

// onConfirmation takes in whether the node has confirmed a release. If it has, it answers again, and is sent all others.
func (n *node) onConfirmation(ok bool) {
	var all []pendingRelease
	n.mu.Lock()
	p := &n.releases
	p.failures++
	if ok {
		all, p.list, p.failures = p.list, nil, 0
	} else if len(p.list) > 0 {
		n.planRetry()
	}
	n.mu.Unlock()
	n.resend(all)
}

// dropReleases leaves all pending releases to the TTL, now and from now on.
func (n *node) dropReleases() {
	n.mu.Lock()
	p := &n.releases
	all := p.list
	p.list, p.dropped = nil, true
	if p.retry != nil {
		p.retry.Stop()
	}
	n.mu.Unlock()
	n.drop(all)
}

// resend sends releases again. No mutex is held, since a release may belong to any tenure, and a tenure's mutex comes first.
func (n *node) resend(releases []pendingRelease) {
	for _, r := range releases {
		r.t.sendRelease(n.i, r.until)
	}
}

// drop tells tenures that their releases are left to the TTL. No mutex is held, as in resend.
func (n *node) drop(releases []pendingRelease) {
	for _, r := range releases {
		r.t.onDropped(n.i)
	}
}
