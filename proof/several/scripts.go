package several

// The scripts of the new kind, each a step of its own. Those of today are in exclusive.go.

// kind is a command, with what is said of it.
type kind = uint8

const (
	try kind = 1 + iota
	join
	poll
	renew
	release
	adopt
	setNX         // of the foreign client
	compareDelete // of the foreign client

	verb   kind = 15
	orphan kind = 16 // nobody listens for the answer
	cancel kind = 32 // a release, or an adoption, that takes back what an attempt may have done
)

// reply is what a script answers.
type reply = uint8

const (
	granted reply = 1 + iota
	held          // somebody else has the lock
	waits         // we stand in the line
	gone
	yes
	no
)

// answer is a reply with the fencing token and the slot.
type answer struct {
	reply       reply
	fence, slot uint8
}

// exec runs one script and answers.
func (w *walk) exec(s *state, c command) answer {
	today := c.token != foreigner && w.old[ownerOf(c.token)]
	switch c.kind & verb {
	case try, join, poll:
		if today {
			return w.acquireExclusive(s, c.token, c.kind&verb)
		}
		return w.acquire(s, c.token, c.kind&verb)
	case renew:
		return w.renew(s, c.token, today)
	case release:
		s.ended |= bit(c.token)
		if cancels := c.kind&cancel != 0; today && !(w.plain && cancels) {
			w.releaseExclusive(s, c.token)
		} else {
			w.release(s, c.token)
		}
		if c.kind&cancel != 0 {
			s.tombs |= bit(c.token)
		}
	case adopt:
		switch {
		case c.kind&cancel != 0 && today:
			w.cancelAdoptExclusive(s, c)
		case c.kind&cancel != 0:
			w.cancelAdopt(s, c)
		case today:
			return w.adoptExclusive(s, c)
		default:
			return w.adopt(s, c)
		}
	case setNX:
		if s.lock.owner != 0 {
			return answer{reply: held}
		}
		s.lock = lock{owner: foreigner, left: w.ttl}
		return answer{reply: granted}
	case compareDelete:
		if s.lock.owner == foreigner {
			s.lock = lock{}
		}
	}
	return answer{}
}

func (w *walk) acquire(s *state, me token, mode kind) answer {
	converted := w.open(s)
	if s.lock.owner == me {
		return w.again(s, me)
	}
	if i := s.holderOf(me); i >= 0 && s.marked() && s.blind == 0 {
		h := &s.holders[i]
		h.left, h.unconfirmed = max(h.left, w.ttlOf(me)+w.zero()), 0
		a := answer{granted, h.fence, h.slot}
		if w.broken == ownFence && s.counter != h.fence {
			w.fail(fenceDiffers)
		}
		w.settle(s)
		if converted && w.broken != conversionServes {
			w.serve(s, 0)
		}
		return a
	}
	if mode == poll && s.placeOf(me) < 0 || mode != poll && s.tombs&bit(me) != 0 {
		return answer{reply: gone}
	}
	// An exclusive try that finds the key taken asks no further.
	if s.lock.owner == 0 || s.marked() && !(mode == try && w.kindOf(me) == exclusive) {
		if s.lock.owner == 0 || w.broken != pollServes {
			if got, a := w.serve(s, me); got {
				return a
			}
		}
		if (s.line[0].token == 0 || w.broken == newcomersKeepTheOrder && s.lock.owner != 0) && w.fits(s, me) {
			w.overtakes(s, me)
			fence, slot := w.put(s, me, w.ttlOf(me), 0)
			return answer{granted, fence, slot}
		}
	}
	if mode == try {
		return answer{reply: held}
	}
	w.stand(s, me)
	return answer{reply: waits, fence: s.counter}
}

func (w *walk) renew(s *state, me token, today bool) answer {
	if !today && w.open(s) {
		w.serve(s, 0) // it was exclusive until now
	}
	if s.lock.owner == me {
		s.lock.left, s.lock.unconfirmed = w.ttlOf(me), 0
		return answer{reply: yes}
	}
	if today || !s.marked() {
		return answer{reply: no}
	}
	i := s.holderOf(me)
	if i < 0 && w.broken == renewalCreatesNothing {
		w.put(s, me, w.ttlOf(me), 0)
		i = s.holderOf(me)
	}
	if i < 0 || s.holders[i].left <= w.zero() {
		return answer{reply: no}
	}
	h := &s.holders[i]
	h.left, h.unconfirmed = max(h.left, w.ttlOf(me)+w.zero()), 0
	w.settle(s)
	return answer{reply: yes}
}

// release ends a lease or a stay in the line, of any kind.
func (w *walk) release(s *state, me token) {
	w.open(s)
	switch i := s.holderOf(me); {
	case s.lock.owner == me:
		s.lock = lock{}
		w.serve(s, 0)
		if s.lock.owner == 0 {
			s.free()
		}
	case s.marked() && (i >= 0 || w.broken == lostKeepsTheKey && s.holders[0].token == 0 && s.placeOf(me) < 0):
		if i >= 0 {
			s.removeHolder(i)
		}
		if s.holders[0].token == 0 || w.broken == releaseIsOwn {
			s.free()
		} else {
			w.settle(s)
		}
		w.serve(s, 0)
	default:
		if i := s.placeOf(me); i >= 0 {
			s.removePlace(i)
			if s.marked() && w.broken != leaverServes {
				w.serve(s, 0)
			}
		}
	}
}

// adopt puts me in the place of the former holder.
func (w *walk) adopt(s *state, c command) answer {
	me := c.token
	converted := w.open(s)
	serve := func() {
		if converted {
			w.serve(s, 0)
		}
	}
	if i := s.holderOf(me); i >= 0 && s.marked() && s.blind == 0 {
		return answer{granted, s.holders[i].fence, s.holders[i].slot}
	}
	i := s.holderOf(c.former)
	entry := s.blind == 0 || w.broken == adoptNeedsEntry
	kind := w.kindOf(me) == w.kindOf(c.former) || w.broken == adoptKeepsKind
	if i < 0 || !s.marked() || !entry || !kind || s.tombs&bit(me) != 0 {
		serve()
		return answer{reply: gone}
	}
	h := &s.holders[i]
	h.token, h.unconfirmed = me, 0
	if w.broken != adoptMints {
		h.fence = w.mint(s)
	}
	s.remake(i)
	if left := w.ttlOf(me) + w.zero(); h.left < left || w.broken == adoptKeepsTime {
		h.left = left
	}
	if w.broken == adoptKeepsSlot {
		h.slot = 0
	}
	a := answer{granted, h.fence, h.slot}
	if w.broken != adoptBuriesFormer {
		s.tombs |= bit(c.former)
	}
	w.settle(s)
	serve()
	return a
}

// cancelAdopt takes an adoption back.
func (w *walk) cancelAdopt(s *state, c command) {
	me := c.token
	s.ended |= bit(me)
	s.tombs |= bit(me)
	converted := w.open(s)
	if i := s.holderOf(me); i >= 0 && s.marked() {
		if w.broken == adoptGivesBack {
			w.release(s, me)
			return
		}
		s.holders[i].token = c.former
		s.tombs &^= bit(c.former)
		s.returned |= bit(c.former)
	}
	if converted {
		w.serve(s, 0)
	}
}

// mint issues the next fencing token.
func (w *walk) mint(s *state) uint8 {
	s.counter++
	s.missing = 0
	return s.counter
}

// lives judges a waiter by its heartbeat.
func (w *walk) lives(p place) bool {
	return p.heartbeat > w.zero() && p.heartbeat <= w.zero()+w.waiterTTL
}

// stand gives me a place at the end of the line, or renews its heartbeat.
func (w *walk) stand(s *state, me token) {
	i := s.placeOf(me)
	if i < 0 {
		for i = range s.line {
			if s.line[i].token == 0 {
				break
			}
		}
		if s.line[i].token != 0 {
			w.full = true
			return
		}
	}
	s.line[i] = place{me, w.zero() + w.waiterTTL}
	s.lineLeft = 2 * w.waiterTTL
}

func (s *state) placeOf(t token) int {
	for i := range s.line {
		if s.line[i].token == t {
			return i
		}
	}
	return -1
}

func (s *state) removePlace(i int) {
	copy(s.line[i:], s.line[i+1:])
	s.line[maxPlaces-1] = place{}
	if s.line[0].token == 0 {
		s.lineLeft = 0
	}
}
