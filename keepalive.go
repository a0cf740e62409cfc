package leasehold

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-leasehold/leasehold/internal/inflight"
)

const (
	// together is how much too early a lease is renewed so that it can share a round trip with one that is due: a process with
	// many leases sends pipelines, not a command for each, and its timer fires some twenty times a second.
	together = 50 * time.Millisecond
	// firstRetry is the pause after a first failed renewal; it doubles.
	firstRetry = 50 * time.Millisecond
)

// keeper is the one renewer of a Locker, and the timer of all its deadlines. Every live lease stands in its heap, by the
// next moment at which something is to be done about it. There is no goroutine per lease and none that sleeps: one timer
// fires at the earliest of those moments and runs tick, so a Locker whose leases need nothing runs nothing.
//
// A lease enters the heap in the goroutine that won it, before anybody can release it, and a release withdraws it from
// renewing before it is sent. What is late after that (an answer, a tick) meets a lease that says so (Lease.check), so no
// order of events arms a lease that has ended.
type keeper struct {
	l *Locker

	mu      sync.Mutex // guards what follows and every Lease's entry; taken last
	epoch   time.Time  // of the heaps' times
	leases  leaseHeap
	lanes   map[any]*lane // by server; see lane.go
	pace    pace
	timer   *time.Timer
	fires   time.Time // when the timer does; zero: it does not
	ticking bool
	answers []renewalAnswer
	last    moment
	closed  bool
	ticks   inflight.Group

	turns []turn // only tick's
}

// entry is a lease's place in the heap.
type entry struct {
	early bool // its moment is a renewal's, which may be some time before
	pos   int  // from 1; 0: not in the heap
	over  bool // ended: never in the heap again
}

// renewal is the state of a lease's automatic renewing, guarded by the lease's mutex.
type renewal struct {
	auto     bool
	due      time.Time // of the next renewal
	queued   bool      // it waits in a lane
	flight   *call     // it is under way
	lane     *lane     // of the flight
	late     time.Time // when that which is queued or under way counts as failed
	failures int       // in a row
}

// turn is what a lease's turn has led to.
type turn struct {
	x     *Lease
	next  time.Time
	early bool
	queue any // the name of the lane in which it is to wait, nil: in none
	until time.Time
}

// send is a renewal for which there is room.
type send struct {
	x    *Lease
	lane *lane
}

// renewalAnswer is the outcome of one automatic renewal.
type renewalAnswer struct {
	x       *Lease
	flight  *call
	begun   moment
	waiters int
	err     error
}

// add begins to keep a lease. It reports false if the Locker has been closed.
func (k *keeper) add(x *Lease) bool {
	x.mu.Lock()
	next, early := x.next()
	x.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed || k.l.isClosed() {
		return false // else Close, which has seen all there were, would miss it
	}
	if k.epoch.IsZero() {
		k.epoch = x.begun.Time
		k.leases.placed = func(x *Lease, pos int) { x.keep.pos = pos }
	}
	k.pace.rate += x.wants()
	k.put(x, next, early)
	return true
}

// put moves a lease to its next moment; one that has ended stays out. k.mu is held.
func (k *keeper) put(x *Lease, next time.Time, early bool) {
	if x.keep.over {
		return
	}
	x.keep.early = early
	if at := since(k.epoch, next); x.keep.pos == 0 {
		k.leases.push(at, x)
	} else {
		k.leases.move(x.keep.pos, at)
	}
	k.arm()
}

// remove forgets a lease that has ended.
func (k *keeper) remove(x *Lease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	x.keep.over = true
	if x.keep.pos == 0 {
		return
	}
	k.leases.remove(x.keep.pos)
	if k.pace.rate -= x.wants(); k.leases.len() == 0 {
		k.pace.rate = 0 // what rounding has left
	}
}

// len is the number of leases that have not ended.
func (k *keeper) len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.leases.len()
}

// live returns the leases that have not ended.
func (k *keeper) live() []*Lease {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.all()
}

// all is live with k.mu held.
func (k *keeper) all() []*Lease {
	all := make([]*Lease, k.leases.len())
	for i, slot := range k.leases.slots {
		all[i] = slot.x
	}
	return all
}

// close stops the timer and waits for a tick that is running, no longer than ctx allows: a hook may be in it, even one that
// has called Close. It returns the leases that have not ended, which nobody watches any more.
func (k *keeper) close(ctx context.Context) []*Lease {
	k.mu.Lock()
	k.closed = true
	if k.timer != nil {
		k.timer.Stop()
	}
	left := k.all()
	for _, x := range left {
		x.keep = entry{over: true}
	}
	k.leases.slots, k.lanes, k.answers = nil, nil, nil
	k.mu.Unlock()
	k.ticks.Wait(ctx)
	return left
}

// arm sets the timer to the earliest moment. It is not set back when that is later than before: a tick too many costs
// less than a timer per acquire. k.mu is held.
func (k *keeper) arm() {
	if k.ticking || k.closed {
		return
	}
	var next time.Time
	if k.leases.len() > 0 {
		next = k.epoch.Add(time.Duration(k.leases.slots[0].at))
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

// tick does what is due, until nothing is.
func (k *keeper) tick() {
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
		now := k.l.now()
		answers, due := k.take(now)
		if len(answers)+len(due) > 0 {
			k.mu.Unlock()
			for _, a := range answers {
				k.answered(a, now)
			}
			for _, x := range due {
				k.turn(x, now)
			}
			k.mu.Lock()
			k.settle()
		}
		sends := k.admit(now)
		if len(sends) > 0 {
			k.mu.Unlock()
			for _, s := range sends {
				k.send(s, now)
			}
			k.l.store.flush()
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

// take returns the answers and the leases that are due. k.mu is held.
func (k *keeper) take(now moment) (answers []renewalAnswer, due []*Lease) {
	answers, k.answers = k.answers, nil

	if asleep := now.wall - k.last.wall - int64(now.Sub(k.last.Time)); !k.last.IsZero() && asleep > int64(time.Second) {
		due = k.all() // the machine was suspended, or its wall clock set: judge every lease now
	}
	k.last = now
	at := since(k.epoch, now.Time)
	soon := at + int64(together)
	for k.leases.len() > 0 {
		first := k.leases.slots[0]
		if first.at > at && !(len(due) > 0 && first.x.keep.early && first.at < soon) {
			break
		}
		due = append(due, first.x)
		first.x.keep.early = false
		k.leases.move(1, at+int64(first.x.tardiness())) // where its turn will put most, and still among the living
	}
	return answers, due
}

// settle puts the leases that had a turn where they belong now. k.mu is held.
func (k *keeper) settle() {
	for i, t := range k.turns {
		if t.queue != nil && !t.x.keep.over {
			k.lane(t.queue).crowd.push(since(k.epoch, t.until), t.x)
		}
		k.put(t.x, t.next, t.early)
		k.turns[i] = turn{}
	}
	k.turns = k.turns[:0]
}

// turn does what is due about one lease.
func (k *keeper) turn(x *Lease, now moment) {
	x.mu.Lock()
	if x.err != nil || x.deadline.reached(now) {
		x.mu.Unlock()
		_ = x.check()
		return
	}
	if (x.queued || x.flight != nil) && !now.Before(x.late) {
		flight := x.flight
		x.flight = nil // its answer still counts if it comes in time, but is not waited for
		x.late = now.Add(x.tardiness())
		x.mu.Unlock()
		k.late(x, flight, now)
		x.mu.Lock()
	}
	t := turn{x: x}
	if !x.queued && x.wanting(now) {
		x.queued = true
		x.late = now.Add(x.tardiness())
		t.queue, t.until = k.l.store.lane(&x.r), x.deadline.Time
	}
	t.next, t.early = x.next()
	x.mu.Unlock()
	k.turns = append(k.turns, t)
}

// late sees to a renewal whose answer, or whose turn to be sent, has not come in time.
func (k *keeper) late(x *Lease, flight *call, now moment) {
	if flight == nil {
		err := &noAnswerError{bound: x.tardiness()}
		if k.isSilent(k.l.store.lane(&x.r)) { // otherwise it is only held up by others
			x.endanger(err)
		}
		return
	}
	err := flight.silence(x.tardiness())
	k.l.store.withdraw(flight)
	k.leave(x.lane, answerless)
	_ = x.renewed(now, now, 0, err)
	x.mu.Lock()
	x.postpone(now)
	x.mu.Unlock()
}

// send hands a renewal to the sender.
func (k *keeper) send(s send, now moment) {
	x := s.x
	x.mu.Lock()
	x.queued = false
	sent := x.wanting(now) && !x.deadline.reached(now)
	if sent {
		x.late = now.Add(x.tardiness())
		x.lane = s.lane
		// Only queued here, so that x.mu is not held across a send; under x.mu, so that a Release finds the flight or
		// the flight finds the Release.
		x.flight = k.renew(x, now)
	}
	t := turn{x: x}
	t.next, t.early = x.next()
	x.mu.Unlock()
	k.turns = append(k.turns, t)
	if !sent {
		k.leave(s.lane, unknown) // it ended in the crowd, or an answer came that had been given up
	}
}

// renew has a renewal sent with the next flush. x.mu is held.
func (k *keeper) renew(x *Lease, begun moment) *call {
	return k.l.store.renewLater(&x.r, func(flight *call, waiters int, err error) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.answers = append(k.answers, renewalAnswer{x, flight, begun, waiters, err})
		k.arm()
	})
}

// answered takes in the answer to an automatic renewal.
func (k *keeper) answered(a renewalAnswer, now moment) {
	x := a.x
	x.mu.Lock()
	awaited, lane := x.flight == a.flight, x.lane
	if awaited {
		x.flight = nil
	}
	x.mu.Unlock()
	switch {
	case awaited:
		k.leave(lane, newsOf(a.err))
	case a.err != nil:
		return // it was counted as failed when it was late
	}
	if x.renewed(now, a.begun, a.waiters, a.err) != nil && a.err == nil {
		return // over
	}
	x.mu.Lock()
	if a.err == nil {
		overdue := a.begun.Sub(x.due) > x.r.o.every(x.ttl)/8
		x.due = x.nextDue(a.begun, overdue || x.failures > 0)
		x.failures = 0
	} else {
		x.postpone(now)
	}
	t := turn{x: x}
	t.next, t.early = x.next()
	x.mu.Unlock()
	k.turns = append(k.turns, t)
}

// renewable reports whether the lease is to be renewed at all. x.mu is held.
func (x *Lease) renewable() bool {
	return x.auto && x.err == nil && !x.capped() && (x.busy || !x.l.isClosed())
}

// wanting reports whether it is time for a renewal. x.mu is held.
func (x *Lease) wanting(now moment) bool {
	return x.renewable() && x.flight == nil && !now.Add(x.earliness()).Before(x.due)
}

// next is the moment at which the keeper must see to the lease, and whether it may be some time before. x.mu is held.
func (x *Lease) next() (at time.Time, early bool) {
	waits := x.queued || x.flight != nil
	switch {
	case !x.renewable():
	case waits && x.late.Before(x.deadline.Time):
		return x.late, false
	case !waits && x.due.Before(x.deadline.Time):
		return x.due, x.failures == 0
	}
	return x.deadline.Time, false
}

// earliness is how much too early the lease may be renewed; what has just failed is not.
func (x *Lease) earliness() time.Duration {
	if x.failures > 0 {
		return 0
	}
	return min(together, x.r.o.every(x.ttl)/8)
}

// tardiness is after how long a renewal counts as failed.
func (x *Lease) tardiness() time.Duration {
	return min(max(x.r.o.every(x.ttl)/2, 20*time.Millisecond), callBound)
}

// nextDue is when a lease that was renewed by a call begun then is to be renewed again: a little early by chance, so that
// leases that were taken together do not stay together. After trouble, which has many renewed at one time, it is spread more
// widely.
func (x *Lease) nextDue(begun moment, trouble bool) time.Time {
	every := x.r.o.every(x.ttl)
	early := every / 10
	if trouble {
		early = every
	}
	return begun.Add(every - rand.N(early+1))
}

// postpone plans the next try after a renewal that failed: soon, by chance, growing, and while the deadline leaves time for
// more. x.mu is held.
func (x *Lease) postpone(now moment) {
	pause := firstRetry << min(x.failures, 10)
	pause = min(pause, x.r.o.every(x.ttl)/2, x.deadline.Sub(now.Time)/4)
	pause = max(pause, 5*time.Millisecond)
	x.failures++
	x.due = now.Add(pause/2 + rand.N(pause/2))
}

// withdraw takes back the lease's renewal if it has not been sent.
func (k *keeper) withdraw(x *Lease) {
	x.mu.Lock()
	flight := x.flight
	x.mu.Unlock()
	if flight == nil || !k.l.store.withdraw(flight) {
		return // none, or its answer will come
	}
	x.mu.Lock()
	awaited, lane := x.flight == flight, x.lane
	x.flight = nil
	x.mu.Unlock()
	if awaited {
		k.leave(lane, unknown)
	}
}
