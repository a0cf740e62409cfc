package keep

import (
	"context"
	"sync"
	"time"

	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/inflight"
)

// Coalesce is how much too early a lease is renewed so that its renewal can share a round trip with
// one that is due. A process with many leases sends pipelines, not a command for each, and its
// timer fires some twenty times a second.
const Coalesce = 50 * time.Millisecond

// Client is a lease, as the keeper knows it. Its methods are called without the keeper's lock, by one
// goroutine at a time.
type Client interface {
	// Turn does what is due about the client now. It reports false if the client has ended.
	Turn(now clock.Moment) (Plan, bool)
	// Send has the client's renewal sent with the next flush, since there is room in its lane. It
	// reports false if there is nothing to send any more.
	Send(now clock.Moment, in *Lane) (Plan, bool)
	// Answered takes in the answer to a renewal. It reports false if that changes no plan.
	Answered(a Answer, now clock.Moment) (Plan, bool)
}

// Terms are what a client asks of its keeper. They change by [Keeper.Retime] alone.
type Terms struct {
	Every time.Duration // between two renewals; 0: the client is not renewed
	TTL   time.Duration // that one renewal brings
}

// Plan is what the keeper is to do about a client next.
//
// A plan is made by the client under its own mutex, and may be out of date when the Keeper notes it:
// a plan of a client that has ended is dropped, and one that is too early costs a Turn for nothing.
type Plan struct {
	Next  time.Time // of the next turn
	Early bool      // that turn is a renewal's, which may be some time before
	// Queue names the server in whose lane the client's renewal is to wait; nil: it is not to be
	// renewed now.
	Queue any
	Until time.Time // in the lane: the end of the client's trust
}

// Answer is the outcome of one renewal. The Keeper passes it on and does not look into it.
type Answer struct {
	Of      any // the renewal, as its client knows it
	Begun   clock.Moment
	Round   int // of the lease's terms, when it was begun
	Waiters int
	Err     error
}

// Entry is a client's place with its keeper, guarded by the keeper. The zero value is ready to be
// added once.
type Entry struct {
	client Client
	terms  Terms
	early  bool // its turn is a renewal's, which may be some time before
	stale  bool // plans that were made before its terms changed must not move its next turn
	over   bool // ended: never in the heap again
	pos    int  // in the heap, from 1; 0: not in it
}

// Keeper keeps clients: every live one stands in its heap, by the next moment at which something is
// to be done about it. One timer fires at the earliest of those moments. The methods are safe for
// concurrent use.
//
// A client is added in the goroutine that won the lease, before anybody can release it. What is
// late after its end (an answer, a turn) meets a client that says so, so no order of events arms a
// client that has ended.
type Keeper struct {
	clock *clock.Clock
	flush func() // sends what the clients have sent

	mu      sync.Mutex // guards what follows and every Entry; no other mutex is taken under it
	epoch   time.Time  // of the heaps' times
	clients heap
	lanes   map[any]*Lane // by server
	pace    pace
	timer   *time.Timer
	fires   time.Time // when the timer does; zero: it does not
	ticking bool
	answers []answered   // that the next tick has to deliver
	last    clock.Moment // of the last tick: a wall clock that ran ahead of it shows a suspension
	sealed  bool         // nothing is added any more
	closed  bool
	ticks   inflight.Group

	turns []turn // only tick's
}

// turn is what a client's turn has led to.
type turn struct {
	e *Entry
	Plan
}

type answered struct {
	e *Entry
	Answer
}

// New returns a Keeper. It starts nothing before a client is added.
func New(c *clock.Clock, flush func()) *Keeper {
	return &Keeper{clock: c, flush: flush, clients: heap{placed: true}}
}

// Add begins to keep a client, whose entry e is. It reports false after Seal.
func (k *Keeper) Add(e *Entry, c Client, t Terms, p Plan) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sealed {
		return false
	}
	if k.epoch.IsZero() {
		k.epoch = time.Now()
	}
	e.client, e.terms = c, t
	k.pace.rate += rate(t)
	k.put(e, p)
	return true
}

// Retime gives a client other terms, and a turn at once, in which it plans its next one by them. A
// turn that runs meanwhile may have made its plan by the terms of before, which can be too late: that
// plan is not kept.
func (k *Keeper) Retime(e *Entry, t Terms) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e.pos == 0 {
		return
	}
	k.pace.rate += rate(t) - rate(e.terms)
	e.terms, e.stale = t, true
	k.put(e, Plan{})
}

// rate returns what a client of these terms adds to the rate of renewals, in renewals a second. The
// token bucket is filled by the sum of all rates, so a client leaves with the rate that it has added.
func rate(t Terms) float64 {
	if t.Every > 0 {
		return 1 / t.Every.Seconds()
	}
	return 0
}

// put moves a client to its next moment, and sets the timer if that is the earliest now. One that
// has ended stays out. k.mu is held.
func (k *Keeper) put(e *Entry, p Plan) {
	if e.over {
		return
	}
	if e.stale {
		p = Plan{Next: time.Now()}
	}
	e.early = p.Early
	if at := since(k.epoch, p.Next); e.pos == 0 {
		k.clients.push(at, e)
	} else {
		k.clients.move(e.pos, at)
	}
	k.arm()
}

// Remove forgets a client that has ended. Its entry in a lane stays there until the lane is looked
// at (see Lane.drop): to find it would cost more than to meet it.
func (k *Keeper) Remove(e *Entry) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e.over = true
	if e.pos == 0 {
		return
	}
	k.clients.remove(e.pos)
	if k.pace.rate -= rate(e.terms); k.clients.len() == 0 {
		k.pace.rate = 0 // what rounding has left
	}
}

// Deliver passes the answer to a renewal on to its client. It does not block.
func (k *Keeper) Deliver(e *Entry, a Answer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.answers = append(k.answers, answered{e, a})
	k.arm()
}

// Len returns the number of clients that have not ended.
func (k *Keeper) Len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.clients.len()
}

// Live returns the clients that have not ended.
func (k *Keeper) Live() []Client {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.live()
}

// Seal is Live, and no client is added after it: so nobody is missed.
func (k *Keeper) Seal() []Client {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sealed = true
	return k.live()
}

// live is Live. Every client that has not ended stands in the heap, at all times: a client whose
// turn it is moves to a later place, and is not taken out. k.mu is held.
func (k *Keeper) live() []Client {
	all := make([]Client, k.clients.len())
	for i, s := range k.clients.slots {
		all[i] = s.e.client
	}
	return all
}

// Close stops the timer and waits for a tick that is running, no longer than ctx allows: a user's
// hook may be in it, even one that has called Close. It returns the clients that have not ended,
// which nobody watches any more.
func (k *Keeper) Close(ctx context.Context) []Client {
	k.mu.Lock()
	k.sealed, k.closed = true, true
	if k.timer != nil {
		k.timer.Stop()
	}
	left := k.live()
	for _, s := range k.clients.slots {
		s.e.pos, s.e.over = 0, true
	}
	k.clients.slots, k.lanes, k.answers = nil, nil, nil // answers that are late find no client
	k.mu.Unlock()
	k.ticks.Wait(ctx)
	return left
}

// Load returns how many clients are kept, how many of their renewals wait in lanes, and how many
// are under way.
func (k *Keeper) Load() (kept, queued, underWay int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, ln := range k.lanes {
		queued += ln.queue.len()
		underWay += ln.renewing
	}
	return k.clients.len(), queued, underWay
}

// arm sets the timer to the earliest moment. The timer is not set back when that is later than
// before: a tick too many costs less than a timer for each acquire. k.mu is held.
func (k *Keeper) arm() {
	if k.ticking || k.closed {
		return
	}
	var next time.Time
	if k.clients.len() > 0 {
		next = k.epoch.Add(time.Duration(k.clients.slots[0].at))
	}
	if len(k.answers) > 0 {
		next = time.Now()
	} else if len(k.lanes) > 0 {
		if at, ok := k.ready(time.Now()); ok && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	if next.IsZero() || !k.fires.IsZero() && !next.Before(k.fires) {
		return
	}
	k.fires = next
	if k.timer == nil {
		k.timer = time.AfterFunc(time.Until(next), k.tick)
	} else {
		k.timer.Reset(time.Until(next))
	}
}

// tick does what is due, until nothing is. It is the timer's. One tick runs at a time: what becomes
// due while it runs, the running one finds, since it looks again before it ends.
//
// Clients are called without k.mu, since they take their own mutexes and run hooks of the user's.
// So a client may end, or be added, between the look and the call; the plan of one that has ended
// is dropped by put.
func (k *Keeper) tick() {
	k.mu.Lock()
	if k.closed || k.ticking {
		k.mu.Unlock()
		return
	}
	k.ticking = true
	k.fires = time.Time{}
	k.ticks.Enter()
	defer k.ticks.Leave()
	for !k.closed {
		now := k.clock.Now()
		// First what has come and what is due, which may queue renewals; then the renewals for
		// which there is room.
		answers, due := k.take(now)
		if len(answers)+len(due) > 0 {
			k.mu.Unlock()
			k.serve(answers, due, now)
			k.mu.Lock()
			k.settle()
		}
		sends := k.admit(now.Time)
		if len(sends) > 0 {
			k.mu.Unlock()
			k.send(sends, now)
			k.mu.Lock()
			k.settle()
		}
		if len(answers)+len(due)+len(sends) == 0 {
			break
		}
	}
	k.ticking = false
	k.arm()
	k.mu.Unlock()
}

// serve has the clients take in their answers, and then do what is due: an answer that has come
// makes many a turn unnecessary.
func (k *Keeper) serve(answers []answered, due []*Entry, now clock.Moment) {
	for _, a := range answers {
		p, changed := a.e.client.Answered(a.Answer, now)
		k.note(a.e, p, changed)
	}
	for _, e := range due {
		p, live := e.client.Turn(now)
		k.note(e, p, live)
	}
}

// send has the clients send their renewals, and then has all of them flushed at once. A client that
// has nothing to send any more gives back the room that admit has taken for it.
func (k *Keeper) send(sends []admitted, now clock.Moment) {
	for _, s := range sends {
		p, sent := s.e.client.Send(now, s.lane)
		k.note(s.e, p, true)
		if !sent {
			k.Leave(s.lane, Unsent) // it ended in the lane, or an answer came that had been given up
		}
	}
	k.flush()
}

// note keeps a plan for settle, which has k.mu. Only the tick that runs calls it.
func (k *Keeper) note(e *Entry, p Plan, changed bool) {
	if changed {
		k.turns = append(k.turns, turn{e, p})
	}
}

// take returns the answers and the clients that are due. A client whose renewal may be early comes
// along with one that is due, so that both share a round trip. k.mu is held.
func (k *Keeper) take(now clock.Moment) (answers []answered, due []*Entry) {
	answers, k.answers = k.answers, nil

	// The wall clock goes on while a machine is suspended, and the monotonic clock stands still. The
	// timer goes by the latter, so leases may be over of which the heap says that they are not due.
	if asleep := now.Wall - k.last.Wall - int64(now.Sub(k.last.Time)); !k.last.IsZero() && asleep > int64(time.Second) {
		for _, s := range k.clients.slots {
			due = append(due, s.e)
		}
	}
	k.last = now
	at := since(k.epoch, now.Time)
	soon := at + int64(Coalesce)
	for k.clients.len() > 0 {
		first := k.clients.slots[0]
		if first.at > at && !(len(due) > 0 && first.e.early && first.at < soon) {
			break
		}
		due = append(due, first.e)
		first.e.early, first.e.stale = false, false
		// It goes to where its turn will put most clients, and so stays among the living.
		k.clients.move(1, at+int64(timeout(first.e.terms.Every)))
	}
	return answers, due
}

// settle puts the clients that had a turn where they belong now. k.mu is held.
func (k *Keeper) settle() {
	for i, t := range k.turns {
		// The lane first: put may set the timer by what is in it.
		if t.Queue != nil && !t.e.over {
			k.lane(t.Queue).queue.push(since(k.epoch, t.Until), t.e)
		}
		k.put(t.e, t.Plan)
		k.turns[i] = turn{}
	}
	k.turns = k.turns[:0]
}
