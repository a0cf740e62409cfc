package leasehold

import (
	"context"
	"sync"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/roundtrip"
	"github.com/go-leasehold/leasehold/internal/script"
)

// tenure is what one token has on the nodes: first of an attempt, then of the lease that the attempt won. It is driven by the
// answers as they come, in the goroutines that received them, so a round over N nodes needs no goroutine of its own, and what
// comes late is dealt with by the same code, whoever has stopped waiting.
//
//	asking    acquire is under way on all nodes; each that grants names a candidate
//	raising   a majority granted: the highest candidate is the fencing token, and nodes with a lower one are raised to it
//	won       a majority has accepted the fencing token while the token held the lock there
//	over      given up, or released: the key is taken back wherever it can be
type tenure struct {
	q       *quorum
	r       backend.Request
	keys    rediskey.Keys
	decided chan struct{} // closed once the attempt has a result

	mu       sync.Mutex // guards what follows; held while calls are queued, never while they are sent
	phase    phase
	fence    int64         // once raising
	asked    time.Time     // before the first send
	until    time.Time     // won: no trust after it, as far as is known here
	freeing  bool          // the key is taken back
	kept     bool          // the lease was handed out; of an adoption: what is taken back now does not go to the former token
	detached bool          // the lease was left to others: nothing new is taken for it
	told     bool          // decided is closed
	state    backend.State // the result
	why      int           // of gone
	err      error
	grace    *time.Timer
	seats    []seat
	changed  chan struct{} // closed when a release made progress; nil: nobody waits
}

type phase int

const (
	asking phase = iota
	raising
	won
	over
)

// seat is what a tenure has on one node.
type seat struct {
	asked     *roundtrip.Command // under way and able to create the key: an acquire or a refill
	raise     *roundtrip.Command // under way
	holds     bool               // as far as is known
	unsure    bool               // the key may be there although nothing said so
	candidate int64
	accepted  bool
	run       string
	why       error // it is no vote

	back      bool // the release is to the former token
	leaving   bool // the node was told so
	releasing bool // a release is under way or owed
	owed      bool // the node did not answer it; it is tried again in the background
	writes    int  // of releases
	freed     freed
}

type freed int

const (
	notFreed freed = iota
	wasOurs
	wasNobodys
	wasAnothers
)

// fates are what the nodes say of a token that does not hold the key there.
type fates struct{ gone, others int }

func (f fates) count() int { return f.gone + f.others }

// why is the answer of most, as lost.lua says it.
func (f fates) why() int {
	if f.others > f.gone {
		return backend.HeldByOther
	}
	return backend.NotHeld
}

// given reports whether the key is given back, or about to be.
func (s *seat) given() bool { return s.releasing || s.freed != notFreed }

// Tenure begins the life of a token.
func (q *quorum) Tenure(r backend.Request) backend.Tenure {
	return &tenure{q: q, r: r, keys: rediskey.Lock(q.prefix, r.Key), decided: make(chan struct{}), seats: make([]seat, len(q.nodes))}
}

// call prepares the run of a node's script for the token.
func (t *tenure) call(ctx context.Context, sc *script.Script, args ...any) *roundtrip.Command {
	return newNodeCall(ctx, sc, &t.keys, t.r.Token, t.r.PX, args...)
}

// life is how long a round that began at t0 can be trusted from then.
func (t *tenure) life() time.Duration {
	ttl := time.Duration(t.r.PX)*time.Millisecond - t.r.LockDelay
	return ttl - clock.Margin(ttl)
}

// count counts seats. t.mu is held.
func (t *tenure) count(f func(s *seat) bool) (n int) {
	for i := range t.seats {
		if f(&t.seats[i]) {
			n++
		}
	}
	return n
}

func (s *seat) isOpen() bool     { return s.asked != nil }
func (s *seat) isHeld() bool     { return s.holds && !s.given() }
func (s *seat) isAccepted() bool { return s.accepted }
func (s *seat) isOthers() bool   { return s.why == errNodeHeld || s.isStuck() }
func (s *seat) isStuck() bool    { return s.why == errNodeStuck }
func (s *seat) isFree() bool     { return s.why == errNodeFree }

// ask sends the acquire to all nodes.
func (t *tenure) ask(ctx context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	args := append(make([]any, 0, 3), t.q.propose(t.r.Key), t.q.quarantineMillis())
	if t.r.Former != "" {
		args = append(args, roundtrip.Secret(t.r.Former))
	}
	t.asked = time.Now()
	for i, n := range t.q.nodes {
		s := &t.seats[i]
		if n.crowded() {
			s.why = errCrowded
			continue
		}
		s.asked = t.call(ctx, acquireNodeScript, args...)
		n.sendPolitely(t.r.Key, s.asked, func(k int, begun time.Time, reply any, err error) {
			t.answered(i, k, begun, reply, err)
		})
	}
	t.judge()
}

// answered takes in a node's answer to ask.
func (t *tenure) answered(i int, k int, begun time.Time, reply any, err error) {
	v, young, err := t.q.nodes[i].heardOf(t.r.Key, begun, reply, err)
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.seats[i]
	s.asked, s.run = nil, v.run
	switch {
	case err != nil:
		s.why, s.unsure = err, s.unsure || !fault.DidNothing(err, k)
	case v.granted() && young != nil:
		s.why, s.holds = young, true
		t.free(i)
	case v.granted():
		s.holds, s.candidate = true, v.counter
	default:
		s.why, s.unsure = v.why(), k > 1
	}
	if j := t.twin(i); j >= 0 {
		twins := &twinsError{min(i, j), max(i, j)}
		t.q.twins.CompareAndSwap(nil, twins)
		t.fail(twins)
	}
	switch {
	case young != nil:
	case t.phase == over && t.freeing:
		t.free(i)
	case t.phase == raising && s.holds:
		t.accept(i)
	case t.phase == won && s.holds && time.Now().Before(t.until):
		t.accept(i) // late: it makes the lease outlast the loss of another node
	case t.phase == won && s.holds:
		t.free(i) // too late
	}
	t.judge()
}

// twin finds another node that is the same run of the same server. t.mu is held.
func (t *tenure) twin(i int) int {
	for j := range t.seats {
		if j != i && t.seats[i].run != "" && t.seats[j].run == t.seats[i].run {
			return j
		}
	}
	return -1
}

// judge goes on to the next phase if it is time to. t.mu is held.
func (t *tenure) judge() {
	if t.phase == asking {
		if f := t.choice(); f > 0 {
			t.choose(f)
		}
	}
	need := t.q.majority()
	switch {
	case t.phase == raising && t.count((*seat).isAccepted) >= need:
		t.phase, t.state, t.kept = won, backend.Granted, true
		t.until = t.asked.Add(t.life())
		t.tell()
	case t.phase < won && t.count(t.mayAccept) < need:
		t.takeBack()
		t.tellRefusal()
	case t.phase == over && !t.told:
		t.tellRefusal()
	}
}

// mayAccept reports whether a node has accepted the fencing token or still may. t.mu is held.
func (t *tenure) mayAccept(s *seat) bool {
	return s.accepted || s.asked != nil || s.raise != nil || t.phase == asking && s.isHeld()
}

// choice is the fencing token, when it is time to choose one: once in an attempt. Which nodes made up the majority does not
// matter, since each of them has to accept it. t.mu is held.
func (t *tenure) choice() int64 {
	if t.count((*seat).isHeld) < t.q.majority() {
		return 0
	}
	return t.highest()
}

func (t *tenure) highest() (f int64) {
	for i := range t.seats {
		f = max(f, t.seats[i].candidate) // of one that is given back as well: no harm
	}
	return f
}

// choose makes f the fencing token and has the nodes accept it. t.mu is held.
func (t *tenure) choose(f int64) {
	t.phase, t.fence = raising, f
	t.q.remember(t.r.Key, f)
	for i := range t.seats {
		if t.seats[i].isHeld() {
			t.accept(i)
		}
	}
}

// accept has a node that granted accept the fencing token. One whose candidate is the token has: it wrote that over a smaller
// counter. One whose candidate is higher never will. t.mu is held.
func (t *tenure) accept(i int) {
	s := &t.seats[i]
	switch {
	case s.candidate == t.fence:
		s.accepted = true
	case s.candidate > t.fence:
		s.why = errOvertaken
	default:
		s.raise = t.call(context.Background(), renewNodeScript, t.fence, "raise")
		t.q.nodes[i].send(t.r.Key, s.raise, func(_ int, _ time.Time, reply any, err error) { t.raised(i, reply, err) })
	}
}

// raised takes in a node's answer to a raise.
func (t *tenure) raised(i int, reply any, err error) {
	v, err := decodeVote(reply, err)
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.seats[i]
	s.raise = nil
	switch {
	case err != nil:
		s.why = err
	case !v.granted():
		s.why = errNodeGone
	case v.counter != t.fence:
		s.why = errOvertaken
	default:
		s.accepted = true
	}
	t.judge()
}

// giveUp ends an attempt that has no result yet.
func (t *tenure) giveUp(cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.told {
		t.fail(cause)
	}
}

// fail ends an attempt, or begins to take a lease back that should not have been. t.mu is held.
func (t *tenure) fail(cause error) {
	if t.phase == won {
		return
	}
	t.takeBack()
	if !t.told {
		t.err = cause
		t.tell()
	}
}

// takeBack ends an attempt that cannot succeed. t.mu is held.
func (t *tenure) takeBack() {
	t.phase = over
	t.freeAll()
}

// tellRefusal tells why a majority is out of reach. That somebody else holds the lock, or that there is no lease to adopt, is
// news of another kind than trouble with nodes; so where the answers that are about to come may still say so, they get a
// moment. t.mu is held.
func (t *tenure) tellRefusal() {
	need := t.q.majority()
	no, open := fates{t.count((*seat).isFree), t.count((*seat).isOthers)}, t.count((*seat).isOpen)
	switch {
	case no.count() >= need && t.r.Former != "":
		t.state, t.why = backend.Gone, no.why()
		t.tell()
	case no.count() >= need:
		t.state = backend.Held
		t.tell()
	case no.count()+open < need:
		t.err = t.causes(nil)
		t.tell()
	case t.grace == nil:
		t.grace = time.AfterFunc(t.q.slack(), func() { t.giveUp(t.reason(nil)) })
	}
}

// tell makes the result known. t.mu is held.
func (t *tenure) tell() {
	t.told = true
	if t.grace != nil {
		t.grace.Stop()
	}
	close(t.decided)
}

// result is the outcome of a decided attempt, and how often something was sent of which the caller has to see the end.
func (t *tenure) result() (backend.Answer, int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	if t.r.Former != "" && t.err != nil {
		n = 1
	}
	stuck := t.count((*seat).isStuck) >= t.q.majority()
	return backend.Answer{State: t.state, Fence: t.fence, Forever: stuck, Why: t.why}, n, t.err
}

// reason names what each node had against the attempt; unheard is for those that have not answered.
func (t *tenure) reason(unheard error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.causes(unheard)
}

// causes is reason. t.mu is held.
func (t *tenure) causes(unheard error) error {
	if unheard == nil {
		unheard = errUnheard
	}
	errs := make([]error, len(t.seats))
	agreed := 0
	for i := range t.seats {
		switch s := &t.seats[i]; {
		case s.asked != nil:
			errs[i] = s.asked.Unheard(unheard)
		case s.raise != nil:
			errs[i] = s.raise.Unheard(unheard)
		case s.why != nil:
			errs[i] = s.why
		default:
			agreed++
		}
	}
	return t.q.shortOf(agreed, errs)
}
