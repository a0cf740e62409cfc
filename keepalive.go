package leasehold

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

const (
	// maxRenewing bounds the renewals of a Locker that have been handed to the sender and are not answered.
	maxRenewing = 1024
	// together is how much too early a lease is renewed so that it can share a round trip with one that is due: a process with
	// many leases sends pipelines, not a command for each, and its timer fires twenty times a second at most.
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

	mu       sync.Mutex // guards what follows and every Lease's entry; taken last
	leases   byNext
	timer    *time.Timer
	fires    time.Time // when the timer does; zero: it does not
	ticking  bool
	answers  []renewalAnswer
	renewing int      // handed to the sender
	crowd    []*Lease // due, and waiting until fewer are
	last     moment
	closed   bool
	ticks    calls
}

// entry is a lease's place in the heap.
type entry struct {
	next  time.Time
	early bool // it is a renewal's: may be seen to before
	crowd bool // in keeper.crowd
	pos   int  // from 1; 0: not in the heap
	over  bool // ended: never in the heap again
}

// renewal is the state of a lease's automatic renewing, guarded by the lease's mutex.
type renewal struct {
	auto     bool
	due      time.Time // of the next renewal
	flight   *call     // the renewal under way
	late     time.Time // when it counts as failed
	failures int       // in a row
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
	k.put(x, next, early)
	return true
}

// put moves a lease to its next moment; one that has ended stays out. k.mu is held.
func (k *keeper) put(x *Lease, next time.Time, early bool) {
	if x.keep.over {
		return
	}
	x.keep.next, x.keep.early = next, early
	if x.keep.pos == 0 {
		heap.Push(&k.leases, x)
	} else {
		heap.Fix(&k.leases, x.keep.pos-1)
	}
	k.arm()
}

// remove forgets a lease that has ended.
func (k *keeper) remove(x *Lease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	x.keep.over = true
	if x.keep.pos > 0 {
		heap.Remove(&k.leases, x.keep.pos-1)
	}
}

// len is the number of leases that have not ended.
func (k *keeper) len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.leases)
}

// live returns the leases that have not ended.
func (k *keeper) live() []*Lease {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.leases)
}

// close stops the timer and waits for a tick that is running, no longer than ctx allows: a hook may be in it, even one that
// has called Close. It returns the leases that have not ended, which nobody watches any more.
func (k *keeper) close(ctx context.Context) []*Lease {
	k.mu.Lock()
	k.closed = true
	if k.timer != nil {
		k.timer.Stop()
	}
	left := k.leases
	for _, x := range left {
		x.keep = entry{over: true}
	}
	k.leases, k.crowd, k.answers = nil, nil, nil
	k.mu.Unlock()
	k.ticks.wait(ctx)
	return left
}

// arm sets the timer to the earliest moment. It is not set back when that is later than before: a tick too many costs
// less than a timer per acquire. k.mu is held.
func (k *keeper) arm() {
	if k.ticking || k.closed {
		return
	}
	var next time.Time
	switch {
	case len(k.answers) > 0, len(k.crowd) > 0 && k.renewing < maxRenewing:
		next = time.Now()
	case len(k.leases) > 0:
		next = k.leases[0].keep.next
	default:
		return
	}
	if !k.fires.IsZero() && !next.Before(k.fires) {
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
	k.ticks.enter()
	defer k.ticks.leave()
	for {
		answers, due := k.ready()
		if len(answers)+len(due) == 0 || k.closed {
			break
		}
		k.mu.Unlock()
		for _, a := range answers {
			k.answered(a)
		}
		for _, x := range due {
			k.turn(x)
		}
		k.l.store.flush()
		k.mu.Lock()
	}
	k.ticking = false
	k.arm()
	k.mu.Unlock()
}

// ready takes what is due. k.mu is held.
func (k *keeper) ready() (answers []renewalAnswer, due []*Lease) {
	answers, k.answers = k.answers, nil

	now := k.l.now()
	if asleep := now.wall - k.last.wall - int64(now.Sub(k.last.Time)); !k.last.IsZero() && asleep > int64(time.Second) {
		due = slices.Clone(k.leases) // the machine was suspended, or its wall clock set: judge every lease now
	}
	k.last = now
	soon := now.Add(together)
	for len(k.leases) > 0 {
		x := k.leases[0]
		if x.keep.next.After(now.Time) && !(len(due) > 0 && x.keep.early && x.keep.next.Before(soon)) {
			break
		}
		due = append(due, x)
		x.keep.next = now.Add(maxTTL) // out of the way until turn has put it back, and still among the living
		heap.Fix(&k.leases, 0)
	}
	for room := maxRenewing - k.renewing; room > 0 && len(k.crowd) > 0; k.crowd = k.crowd[1:] {
		x := k.crowd[0]
		if x.keep.crowd = false; !x.keep.over {
			due = append(due, x)
			room--
		}
	}
	return answers, due
}

// turn does what is due about one lease and puts it back, unless it has ended.
func (k *keeper) turn(x *Lease) {
	_ = x.check()
	now := k.l.now()

	x.mu.Lock()
	late := x.flight
	if late == nil || now.Before(x.late) {
		late = nil
	} else {
		x.flight = nil // its answer still counts if it comes in time, but is not waited for
	}
	x.mu.Unlock()
	if late != nil {
		k.l.store.withdraw(late)
		k.leave()
		_ = x.renewed(now, 0, &noAnswerError{x.late.Sub(x.due)})
	}

	crowded := false
	x.mu.Lock()
	if late != nil {
		x.postpone(now)
	}
	switch {
	case !x.renewable() || x.flight != nil || now.Add(x.earliness()).Before(x.due):
	case !k.enter(x):
		crowded = true
	default:
		x.late = now.Add(min(max(x.r.o.every(x.ttl)/2, 20*time.Millisecond), callBound))
		// Only queued here, so that x.mu is not held across a send; under x.mu, so that a Release finds the flight or
		// the flight finds the Release.
		x.flight = k.renew(x, now)
	}
	next, early := x.next()
	if crowded {
		next, early = x.deadline.Time, false
	}
	x.mu.Unlock()

	k.mu.Lock()
	k.put(x, next, early)
	k.mu.Unlock()
}

// renew hands a renewal to the sender. x.mu is held.
func (k *keeper) renew(x *Lease, begun moment) *call {
	return k.l.store.renewLater(&x.r, func(flight *call, waiters int, err error) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.answers = append(k.answers, renewalAnswer{x, flight, begun, waiters, err})
		k.arm()
	})
}

// answered takes in the answer to an automatic renewal.
func (k *keeper) answered(a renewalAnswer) {
	x := a.x
	x.mu.Lock()
	awaited := x.flight == a.flight
	if awaited {
		x.flight = nil
	}
	x.mu.Unlock()
	switch {
	case awaited:
		k.leave()
	case a.err != nil:
		return // it was counted as failed when it was late
	}
	if x.renewed(a.begun, a.waiters, a.err) != nil && a.err == nil {
		return // over
	}
	x.mu.Lock()
	switch {
	case a.err == nil:
		x.failures = 0
		x.due = x.nextDue(a.begun)
	default:
		x.postpone(k.l.now())
	}
	next, early := x.next()
	x.mu.Unlock()
	k.mu.Lock()
	k.put(x, next, early)
	k.mu.Unlock()
}

// enter makes room for one more renewal under way. If there is none, the lease's turn comes when one has ended.
func (k *keeper) enter(x *Lease) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.renewing >= maxRenewing {
		if !x.keep.crowd {
			x.keep.crowd = true
			k.crowd = append(k.crowd, x)
		}
		return false
	}
	k.renewing++
	return true
}

func (k *keeper) leave() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.renewing--
	k.arm()
}

// renewable reports whether the lease is to be renewed at all. x.mu is held.
func (x *Lease) renewable() bool {
	return x.auto && x.err == nil && !x.releasing && !x.capped() && (x.busy || !x.l.isClosed())
}

// next is the moment at which the keeper must see to the lease, and whether it may be some time before. x.mu is held.
func (x *Lease) next() (at time.Time, early bool) {
	switch {
	case !x.renewable():
	case x.flight != nil && x.late.Before(x.deadline.Time):
		return x.late, false
	case x.flight == nil && x.due.Before(x.deadline.Time):
		return x.due, true
	}
	return x.deadline.Time, false
}

// earliness is how much too early the lease may be renewed.
func (x *Lease) earliness() time.Duration { return min(together, x.r.o.every(x.ttl)/8) }

// nextDue is when a lease that was renewed by a call begun then is to be renewed again: a little early by chance, so that
// leases that were taken together do not stay together.
func (x *Lease) nextDue(begun moment) time.Time {
	every := x.r.o.every(x.ttl)
	return begun.Add(every - rand.N(every/10+1))
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
	awaited := x.flight == flight
	x.flight = nil
	x.mu.Unlock()
	if awaited {
		k.leave()
	}
}

// byNext is the heap of leases by their next moment.
type byNext []*Lease

func (h byNext) Len() int           { return len(h) }
func (h byNext) Less(i, j int) bool { return h[i].keep.next.Before(h[j].keep.next) }
func (h byNext) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].keep.pos, h[j].keep.pos = i+1, j+1
}

// Push and Pop are heap.Interface's.
func (h *byNext) Push(x any) {
	*h = append(*h, x.(*Lease))
	x.(*Lease).keep.pos = len(*h)
}

func (h *byNext) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	x.keep.pos = 0
	return x
}
