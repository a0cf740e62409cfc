package leasehold

import (
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// underWay is for how long renewals may follow each other at their usual rate before the first must be answered: that
	// bounds what has been handed to one server's sender. A round trip is shorter.
	underWay = 200 * time.Millisecond
	// probing is how many may be under way while the server does not answer: enough to find out that it is back, and few,
	// since it will run what it was sent meanwhile for nothing.
	probing = 64
	// headroom is how much faster than usual renewals may follow each other when many are due at once: after an outage, or
	// when all leases were taken together.
	headroom = 1.5
	// burst is how many may follow each other at once, however slow the usual rate.
	burst = 256
	// beat is how long renewals gather while they are paced.
	beat = 20 * time.Millisecond
)

// lane is the way of renewals to one server. What waits in it goes by the end of its trust, the earliest first. A server that
// does not answer fills its own lane and no other.
type lane struct {
	crowd    leaseHeap // due, by deadline
	renewing int       // handed to the sender
	silent   bool      // it did not answer of late
}

// pace says how fast renewals may follow each other: a bucket that is filled at the rate at which the leases of the Locker want
// to be renewed, and some more. Without it an outage of a few seconds ends with every renewal that fell due in it at once,
// and their next ones, and so on.
type pace struct {
	rate   float64 // renewals per second that the leases want
	credit float64
	paid   time.Time
}

// speed is how many renewals may follow each other in a second.
func (p *pace) speed() float64 { return headroom * p.rate }

// allows reports whether n renewals that wait may go on: all, or as many as a beat brings, so that they share round trips.
func (p *pace) allows(n int) bool {
	return p.credit >= max(1, min(float64(n), p.speed()*beat.Seconds()))
}

// earn fills the bucket.
func (p *pace) earn(now time.Time) {
	speed := p.speed()
	if p.paid.IsZero() {
		p.credit = burst
	} else {
		p.credit += speed * now.Sub(p.paid).Seconds()
	}
	p.paid = now
	p.credit = min(p.credit, max(burst, speed*together.Seconds()))
}

// wants is what one lease adds to the rate.
func (x *Lease) wants() float64 {
	if !x.auto {
		return 0
	}
	return 1 / x.r.o.every(x.ttl).Seconds()
}

// lane returns the lane of that name. k.mu is held.
func (k *keeper) lane(name any) *lane {
	ln := k.lanes[name]
	if ln == nil {
		if k.lanes == nil {
			k.lanes = map[any]*lane{}
		}
		ln = new(lane)
		k.lanes[name] = ln
	}
	return ln
}

// room is how many renewals may be handed over now; none while that would be a few of many, which would make a round trip
// for each answer. k.mu is held.
func (k *keeper) room(ln *lane) int {
	most := probing
	if !ln.silent {
		most = max(burst, int(k.pace.rate*underWay.Seconds()))
	}
	room := most - ln.renewing
	if room < min(ln.crowd.len(), most/4) {
		return 0
	}
	return room
}

// clear takes out the leases that have ended, as far as they are the first. They need no room and no credit; once they all
// have ended there may be nobody left who earns any. keeper.mu is held.
func (ln *lane) clear() {
	for ln.crowd.len() > 0 && ln.crowd.slots[0].x.keep.over {
		ln.crowd.remove(1)
	}
}

// admit takes from the lanes what may be renewed now, and makes room for it. k.mu is held.
func (k *keeper) admit(now moment) (sends []send) {
	k.pace.earn(now.Time)
	for name, ln := range k.lanes {
		ln.clear()
		allowed := k.pace.allows(ln.crowd.len())
		for room := k.room(ln); room > 0 && ln.crowd.len() > 0; room-- {
			first := ln.crowd.slots[0]
			urgent := first.at-since(k.epoch, now.Time) < int64(first.x.ttl/8)
			if (!allowed || k.pace.credit < 1) && !urgent {
				break
			}
			ln.crowd.remove(1)
			ln.renewing++
			k.pace.credit = max(0, k.pace.credit-1)
			sends = append(sends, send{first.x, ln})
			ln.clear()
		}
		if ln.crowd.len() == 0 && ln.renewing == 0 {
			delete(k.lanes, name)
		}
	}
	return sends
}

// ready reports when the lanes have something to send: now, at the next beat, or not before an answer. k.mu is held.
func (k *keeper) ready(now time.Time) (at time.Time, ok bool) {
	for _, ln := range k.lanes {
		switch {
		case ln.crowd.len() == 0 || k.room(ln) <= 0:
		case k.pace.allows(ln.crowd.len()):
			return now, true
		default:
			at, ok = now.Add(beat), true
		}
	}
	return at, ok
}

// news is what the end of a renewal says about its server.
type news int

const (
	unknown    news = iota // nothing: it was not sent
	answering              // it answers, be it with an error
	answerless             // it did not in time, or could not be reached
)

func newsOf(err error) news {
	if _, said := errors.AsType[redis.Error](err); said || err == nil {
		return answering
	}
	return answerless
}

// isSilent reports whether the server of a lane did not answer of late.
func (k *keeper) isSilent(name any) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	ln := k.lanes[name]
	return ln != nil && ln.silent
}

// leave gives back the room of a renewal that has ended, and the credit of one that was not sent.
func (k *keeper) leave(ln *lane, n news) {
	k.mu.Lock()
	defer k.mu.Unlock()
	ln.renewing--
	if n == unknown {
		k.pace.credit++
	} else {
		ln.silent = n == answerless
	}
	k.arm()
}
