package quorum

import (
	"context"
	"sync"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/quorum/nodescript"
	"github.com/go-leasehold/leasehold/internal/roundtrip"
	"github.com/go-leasehold/leasehold/internal/script"
)

// tenure is what one token has on the nodes: first an attempt, then the lease that the attempt won. Each attempt has a token of its
// own, or the clean-up of one would release the next.
//
// Each reply is taken in by the goroutine that received it, so a round over N nodes needs no goroutine of its own, and a late
// reply is treated as any other, whoever has stopped waiting. The methods named on…Reply are the only ones that replies reach.
type tenure struct {
	q    *Quorum
	r    backend.Request
	keys nodescript.Keys
	// decided is closed by decide, once the attempt has a result.
	decided chan struct{}

	// mu guards what follows. It is held while commands are queued, and never while they are sent.
	mu    sync.Mutex
	phase phase
	// fence is the fencing token, from phase raising on.
	fence int64
	// askedAt is the moment before the first acquire was sent. Trust counts from it, or from a later round that was confirmed.
	askedAt time.Time
	// until is the end of trust, in phase won. The root has a deadline of its own, which may be sooner.
	until time.Time
	// handedOut means that the lease was won. Until then the key of an adopted lease goes back to the former token.
	handedOut bool
	// detached means that the lease was left to others: no further node is given to it.
	detached bool
	// isDecided means that decided is closed. state, lostWhy (of Gone) and err are the result, and do not change then.
	isDecided bool
	state     backend.State
	lostWhy   int
	err       error
	// grace runs while replies that are still to come may turn a failure into a refusal; see tellRefusal.
	grace *time.Timer
	// votes are what is known of each node.
	votes []vote
	// progress is closed when the release of a node made progress; nil: nobody waits for that.
	progress chan struct{}
}

// phase is how far a tenure is. It never goes back.
//
//	phase    entered                                what it does
//	asking   at first                               Each node gets an acquire. One that grants names a number.
//	raising  when a majority has granted            The highest number is the fencing token, once and for all. Each node that
//	                                                named less is raised to it, and so is one that grants later.
//	won      when a majority has accepted           The lease is renewed. A node that grants late is raised if the lease is still
//	                                                valid, and released otherwise.
//	over     when no majority can accept any more,  The key is taken back from each node that has it or may have it, and from
//	         when the caller has left, or when the  one that grants later.
//	         lease is released
//
// The result is decided with the step to won or to over; or a moment later, where the replies that are still to come may say that
// another token holds the lock.
type phase int

const (
	asking phase = iota
	raising
	won
	over
)

// vote is what a tenure knows of one node.
type vote struct {
	// creating is an acquire or a refill under way: a command that can create the key.
	creating *roundtrip.Command
	// raise is a raise under way.
	raise *roundtrip.Command
	// holds means that the token has the key on the node, as far as is known.
	holds bool
	// unsure means that the key may be there, although no reply said so.
	unsure bool
	// proposed is the number that the node named when it granted.
	proposed int64
	// accepted means that the node's counter was the fencing token while the token had the key.
	accepted bool
	// run is the id of the run in which the node's server has replied.
	run string
	// against is why the node is no vote, or why its release has failed.
	against error
	release nodeRelease
}

// These are asked of all votes, by count.
func (v *vote) isAsked() bool    { return v.creating != nil }
func (v *vote) isHeld() bool     { return v.holds && !v.release.isBegun() }
func (v *vote) isAccepted() bool { return v.accepted }
func (v *vote) isOthers() bool   { return v.against == errHeld || v.isForever() }
func (v *vote) isForever() bool  { return v.against == errHeldEver }
func (v *vote) isFree() bool     { return v.against == errFree }

// command prepares the run of a node's script for the token.
func (t *tenure) command(ctx context.Context, sc *script.Script, args ...any) *roundtrip.Command {
	return nodescript.Command(ctx, sc, &t.keys, t.r.Token, t.r.PX, args...)
}

// life is for how long the lease is trusted from the moment before a round that a majority confirmed.
func (t *tenure) life() time.Duration {
	ttl := time.Duration(t.r.PX)*time.Millisecond - t.r.LockDelay
	return ttl - clock.Margin(ttl)
}

// isValid reports whether the lease may still be trusted. t.mu is held.
func (t *tenure) isValid() bool { return time.Now().Before(t.until) }

// count counts votes. t.mu is held.
func (t *tenure) count(f func(v *vote) bool) (n int) {
	for i := range t.votes {
		if f(&t.votes[i]) {
			n++
		}
	}
	return n
}

// Acquire tries once. What an attempt that failed has left on the nodes, its tenure takes back by itself, from each node after
// that node's own acquire has returned. So the writes are 0, since the caller has nothing to cancel; but for an adoption, of
// which the caller has to wait until the former token has the key again.
func (t *tenure) Acquire(ctx context.Context, _ backend.Mode, bound time.Duration) (backend.Answer, int, error) {
	if err := t.q.ready(ctx); err != nil {
		return backend.Answer{}, 0, err
	}
	// A quarter of the bound, and so of the TTL: two rounds have to fit in, and a lease that took most of its time to get is of no
	// use. The nodes that are slower than that are late, and do not count.
	patience := max(bound/4, minPatience)
	t.ask(ctx)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case <-t.decided:
			return t.result()
		case <-ctx.Done():
		case <-timer.C:
			if patience < roundtrip.FirstBound && t.q.IsUnknown() {
				timer.Reset(roundtrip.FirstBound - patience)
				patience = roundtrip.FirstBound
				continue
			}
		}
		t.giveUp(func() error { return cutShort(ctx, patience, t.causes) })
	}
}

// ask sends the acquire to all nodes, with the same proposal to each. A node that has too many calls already counts as one that
// has failed.
func (t *tenure) ask(ctx context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var proposal any = t.q.proposer.Propose(t.r.Key)
	t.askedAt = time.Now()
	for i, n := range t.q.nodes {
		v := &t.votes[i]
		if n.isCrowded() {
			v.against = errCrowded
			continue
		}
		v.creating = t.command(ctx, nodescript.Acquire, proposal, t.q.quarantine)
		if t.r.Former != "" {
			v.creating.Add(roundtrip.Secret(t.r.Former))
		}
		n.sendBehindReleases(t.r.Key, v.creating, func(writes int, sentAt time.Time, raw any, err error) {
			t.onAcquireReply(i, writes, sentAt, raw, err)
		})
	}
	t.judge()
}

// onAcquireReply takes in a node's reply to the acquire.
//
// The vote is unsure unless it is certain that the acquire did nothing. After an error it may have been done all the same. After a
// refusal to an acquire that was written twice, another copy may have been granted before: a refusal is about one moment.
//
// A grant in quarantine is released at once. So is one that comes when the tenure is over, or when the lease, which was won
// without it, has run out. Any other late grant is raised: it makes the lease outlast the loss of another node.
func (t *tenure) onAcquireReply(i, writes int, sentAt time.Time, raw any, err error) {
	r, quarantine, err := t.q.nodes[i].read(t.r.Key, sentAt, raw, err)
	t.mu.Lock()
	defer t.mu.Unlock()
	v := &t.votes[i]
	v.creating, v.run = nil, r.Run
	switch {
	case err != nil:
		v.against, v.unsure = err, v.unsure || !fault.DidNothing(err, writes)
	case r.IsGranted() && quarantine != nil:
		v.against, v.holds = quarantine, true
	case r.IsGranted():
		v.holds, v.proposed = true, r.Counter
	default:
		v.against, v.unsure = against(r), writes > 1
	}
	if j := t.sameServerAs(i); j >= 0 {
		same := &sameServerError{min(i, j), max(i, j)}
		t.q.sameServer.CompareAndSwap(nil, same)
		t.fail(same)
	}
	switch {
	case t.phase == over, quarantine != nil, v.holds && t.phase == won && !t.isValid():
		t.releaseNode(i)
	case v.holds && t.phase > asking:
		t.accept(i)
	}
	t.judge()
}

// sameServerAs finds another node that has replied from the same run of a server: both clients reach that one server. It returns
// -1 if there is none. t.mu is held.
func (t *tenure) sameServerAs(i int) int {
	for j := range t.votes {
		if j != i && t.votes[i].run != "" && t.votes[j].run == t.votes[i].run {
			return j
		}
	}
	return -1
}

// judge goes on to the next phase if it is time to. It is called after each change of a vote. t.mu is held.
func (t *tenure) judge() {
	need := t.q.majority()
	// Once in an attempt, with the replies that are there: to wait for more would cost time, and a number that one of them names
	// is no better. Which nodes made up the majority does not matter, since each node has to accept the number.
	if t.phase == asking && t.count((*vote).isHeld) >= need {
		t.choose()
	}
	switch {
	case t.phase == raising && t.count((*vote).isAccepted) >= need:
		t.phase, t.state, t.handedOut = won, backend.Granted, true
		t.until = t.askedAt.Add(t.life())
		t.decide()
	case t.phase < won && t.count(t.mayAccept) < need:
		t.releaseAll()
		t.tellRefusal()
	case t.phase == over && !t.isDecided:
		t.tellRefusal()
	}
}

// mayAccept reports whether a node has accepted the fencing token or still may: nothing that is under way is a refusal. While
// there is no fencing token yet, a node that has granted may accept it. t.mu is held.
func (t *tenure) mayAccept(v *vote) bool {
	return v.accepted || v.creating != nil || v.raise != nil || t.phase == asking && v.isHeld()
}

// choose makes the highest number that a node has named the fencing token, and has the nodes accept it. That a node which named
// it has been released since does no harm. t.mu is held.
func (t *tenure) choose() {
	f := int64(0)
	for i := range t.votes {
		f = max(f, t.votes[i].proposed)
	}
	t.phase, t.fence = raising, f
	t.q.proposer.Remember(t.r.Key, f)
	for i := range t.votes {
		if t.votes[i].isHeld() {
			t.accept(i)
		}
	}
}

// accept has a node that granted accept the fencing token. A node that named that number has accepted it already: it wrote the
// number over a smaller counter. One that named a higher number never will. The raise has a context of its own, since a caller who
// leaves does not stop it; releaseNode withdraws it. t.mu is held.
//
// Rejected: to raise nodes whether or not the token holds the key there. A raise that comes late would then change the counter under
// another token, which might take it for the number that it was granted with.
func (t *tenure) accept(i int) {
	v := &t.votes[i]
	switch {
	case v.proposed == t.fence:
		v.accepted = true
	case v.proposed > t.fence:
		v.against = errOvertaken
	default:
		v.raise = t.command(context.Background(), nodescript.Renew, t.fence, "raise")
		t.q.nodes[i].send(v.raise, func(_ int, _ time.Time, raw any, err error) { t.onRaiseReply(i, raw, err) })
	}
}

// onRaiseReply takes in a node's reply to a raise. The node has accepted if the token has the key there and the counter is the
// fencing token: a raise never lowers a counter that is higher.
func (t *tenure) onRaiseReply(i int, raw any, err error) {
	r, err := nodescript.Read(raw, err)
	t.mu.Lock()
	defer t.mu.Unlock()
	v := &t.votes[i]
	v.raise = nil
	switch {
	case err != nil:
		v.against = err
	case !r.IsGranted():
		v.against = errGone
	case r.Counter != t.fence:
		v.against = errOvertaken
	default:
		v.accepted = true
	}
	t.judge()
}

// giveUp ends an attempt that has no result yet: its caller has left, or the grace is over. cause is called with t.mu held.
func (t *tenure) giveUp(cause func() error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.isDecided {
		t.fail(cause())
	}
}

// fail ends an attempt that has not won. A lease that was handed out goes on, whatever was found since. t.mu is held.
func (t *tenure) fail(cause error) {
	if t.phase == won {
		return
	}
	t.releaseAll()
	if !t.isDecided {
		t.err = cause
		t.decide()
	}
}

// tellRefusal decides why a majority is out of reach: a majority says that another token holds the lock, or that there is no lease
// to adopt; or else too many nodes failed. The first tells the caller more. So where the replies that are still to come may say
// so, they get a moment of grace. t.mu is held.
func (t *tenure) tellRefusal() {
	need := t.q.majority()
	no := nodescript.Refusals{Gone: t.count((*vote).isFree), Others: t.count((*vote).isOthers)}
	switch {
	case no.Count() >= need && t.r.Former != "":
		t.state, t.lostWhy = backend.Gone, no.Why()
		t.decide()
	case no.Count() >= need:
		t.state = backend.Held
		t.decide()
	case no.Count()+t.count((*vote).isAsked) < need:
		t.err = t.causes(errUnheard)
		t.decide()
	case t.grace == nil:
		t.grace = time.AfterFunc(t.q.proposer.Slack(), func() {
			t.giveUp(func() error { return t.causes(errUnheard) })
		})
	}
}

// decide makes the result known, once in an attempt. t.mu is held.
func (t *tenure) decide() {
	t.isDecided = true
	if t.grace != nil {
		t.grace.Stop()
	}
	close(t.decided)
}

// result returns the outcome of a decided attempt, and how many writes the caller has to cancel. That a majority has keys without a
// TTL means that the lock is held for ever.
func (t *tenure) result() (backend.Answer, int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	writes := 0
	if t.r.Former != "" && t.err != nil {
		writes = 1
	}
	forever := t.count((*vote).isForever) >= t.q.majority()
	return backend.Answer{State: t.state, Fence: t.fence, Forever: forever, Why: t.lostWhy}, writes, t.err
}

// causes names what each node had against the attempt. silence is the cause of those that have not replied. A node that has
// granted and was not asked for more has agreed. t.mu is held.
func (t *tenure) causes(silence error) error {
	errs := make([]error, len(t.votes))
	agreed := 0
	for i := range t.votes {
		switch v := &t.votes[i]; {
		case v.creating != nil:
			errs[i] = v.creating.Unheard(silence)
		case v.raise != nil:
			errs[i] = v.raise.Unheard(silence)
		case v.against != nil:
			errs[i] = v.against
		default:
			agreed++
		}
	}
	return t.q.shortOf(agreed, errs)
}
