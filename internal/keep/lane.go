package keep

import (
	"time"
)

const (
	// underWay is for how long renewals may follow each other at their usual rate before the first
	// must be answered. It bounds what has been handed to one server, and a round trip is shorter.
	underWay = 200 * time.Millisecond
	// probing is how many renewals may be under way while the server does not answer: enough to
	// find out that it is back, and few, since it will run what it was sent meanwhile for nothing.
	probing = 64
)

// urgent renewals, of clients whose trust ends within this part of their TTL, wait for no credit of
// the token bucket: to be slow with them would lose the lease for the sake of the server's ease.
const urgentPart = 8

// Lane is the queue of renewals to one server. What waits in it goes by the end of its trust, the
// earliest first. A server that does not answer fills its own lane and no other.
type Lane struct {
	queue    heap // due, by deadline
	renewing int  // handed over and not answered
	silent   bool // the server did not answer of late
}

// Outcome is what the end of a renewal says about its server.
type Outcome int

// The outcomes.
const (
	Unsent   Outcome = iota // nothing: the renewal was not sent
	Answered                // the server answers, be it with an error
	Silent                  // it did not answer in time, or could not be reached
)

// OutcomeOf returns what the end of a renewal says about its server. An error that the server itself
// has said is an answer too.
func OutcomeOf(answered bool) Outcome {
	if answered {
		return Answered
	}
	return Silent
}

// Leave gives back the room of a renewal that has ended, and the credit of one that was not sent.
func (k *Keeper) Leave(ln *Lane, o Outcome) {
	k.mu.Lock()
	defer k.mu.Unlock()
	ln.renewing--
	// A renewal that was not sent says nothing about the server, and has used no credit.
	if o == Unsent {
		k.pace.credit++
	} else {
		ln.silent = o == Silent
	}
	k.arm()
}

// IsSilent reports whether the server of that name did not answer of late.
func (k *Keeper) IsSilent(server any) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	ln := k.lanes[server]
	return ln != nil && ln.silent // a server without a lane has nothing to do, so nothing is known of it
}

// lane returns the lane of that server. k.mu is held.
func (k *Keeper) lane(server any) *Lane {
	ln := k.lanes[server]
	if ln == nil {
		if k.lanes == nil {
			k.lanes = map[any]*Lane{}
		}
		ln = new(Lane)
		k.lanes[server] = ln
	}
	return ln
}

// room returns how many renewals may be handed over now. It returns none while that would be a few
// of many, which would make a round trip for each answer. k.mu is held.
func (k *Keeper) room(ln *Lane) int {
	most := probing
	if !ln.silent {
		most = max(burst, int(k.pace.rate*underWay.Seconds()))
	}
	room := most - ln.renewing
	if room < min(ln.queue.len(), most/4) {
		return 0
	}
	return room
}

// drop takes out the clients that have ended, as far as they are the first. They need no room and
// no credit, and once all have ended there may be nobody left who earns any. k.mu is held.
func (ln *Lane) drop() {
	for ln.queue.len() > 0 && ln.queue.slots[0].e.over {
		ln.queue.remove(1)
	}
}

// admitted is a renewal for which there is room.
type admitted struct {
	e    *Entry
	lane *Lane
}

// admit takes from the lanes what may be renewed now, and counts it as under way. k.mu is held.
//
// A lane without room does not stop the others. Credit is common to all lanes, since it bounds what
// the leases ask for as a whole: what a silent server's leases leave is used by the others.
func (k *Keeper) admit(now time.Time) (sends []admitted) {
	k.pace.refill(now)
	for server, ln := range k.lanes {
		ln.drop()
		allowed := k.pace.allows(ln.queue.len())
		for room := k.room(ln); room > 0 && ln.queue.len() > 0; room-- {
			first := ln.queue.slots[0]
			urgent := first.at-since(k.epoch, now) < int64(first.e.terms.TTL/urgentPart)
			if (!allowed || k.pace.credit < 1) && !urgent {
				break
			}
			ln.queue.remove(1)
			ln.renewing++ // until Leave
			k.pace.credit = max(0, k.pace.credit-1)
			sends = append(sends, admitted{first.e, ln})
			ln.drop()
		}
		if ln.queue.len() == 0 && ln.renewing == 0 {
			delete(k.lanes, server)
		}
	}
	return sends
}

// ready reports when the lanes have something to send: now, at the end of the pacing interval, or
// not before an answer. k.mu is held.
func (k *Keeper) ready(now time.Time) (at time.Time, ok bool) {
	for _, ln := range k.lanes {
		switch {
		case ln.queue.len() == 0 || k.room(ln) <= 0: // an answer, or a late renewal, comes first
		case k.pace.allows(ln.queue.len()):
			return now, true
		default:
			at, ok = now.Add(pacing), true
		}
	}
	return at, ok
}
