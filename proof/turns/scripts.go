package turns

import "slices"

// kind is a command, with what is said of it.
type kind = uint8

const (
	join kind = 1 + iota
	poll
	renew
	release
	adopt

	verb   kind = 15
	orphan kind = 16 // nobody listens for the answer
	cancel kind = 32 // a release that leaves a tombstone
)

// reply is what a script answers.
type reply = uint8

const (
	granted reply = 1 + iota
	waits
	gone
	yes
	no
)

// exec runs one script and answers.
func (w *walk) exec(s *state, c command) (reply, uint8) {
	switch t := c.token; c.kind & verb {
	case join, poll:
		return w.acquire(s, t, c.kind&verb)
	case renew:
		if s.owner != t {
			return no, 0
		}
		s.expires = s.now + w.ttl
		s.counter = max(s.counter, c.upto)
		return yes, 0
	case release:
		w.release(s, t, c.kind&cancel != 0)
	case adopt:
		if c.kind&cancel == 0 {
			return w.adopt(s)
		}
		s.ended |= bit(adopter)
		if s.owner == adopter { // the lease is the former token's again
			s.owner = s.adopter.former
			s.ended &^= bit(s.owner)
			s.tombs &^= bit(s.owner)
		}
	}
	return 0, 0
}

func (w *walk) acquire(s *state, t token, mode kind) (reply, uint8) {
	if s.owner == t {
		s.expires = s.now + w.ttl
		if s.counter == 0 {
			w.mint(s)
		}
		return granted, s.counter // the end of a block, if one was reserved: above all that were used
	}
	at := slices.IndexFunc(s.line[:], func(p place) bool { return p.token == t })
	if mode == poll && at < 0 || mode == join && s.tombs&bit(t) != 0 {
		return gone, 0
	}
	if s.owner == 0 {
		head := w.firstLive(s, t)
		if head.token == 0 || head.token == t {
			s.owner, s.expires = t, s.now+w.ttl
			return granted, w.mint(s)
		}
		w.handOver(s, head)
		at = slices.IndexFunc(s.line[:], func(p place) bool { return p.token == t })
	}
	if at < 0 {
		at = slices.IndexFunc(s.line[:], func(p place) bool { return p.token == 0 })
	}
	if at < 0 {
		w.full = true
		return 0, 0
	}
	s.line[at] = place{t, s.now + w.waiterTTL}
	if s.counter == 0 {
		return waits, w.time(s)
	}
	return waits, s.counter
}

func (w *walk) release(s *state, t token, buries bool) {
	s.ended |= bit(t)
	if buries {
		s.tombs |= bit(t)
	}
	if s.owner != t {
		s.leave(t)
		return
	}
	s.owner, s.expires = 0, 0
	if head := w.firstLive(s, 0); head.token != 0 {
		w.handOver(s, head)
	}
}

// adopt puts the adopter's token in the place of the former one.
func (w *walk) adopt(s *state) (reply, uint8) {
	if s.owner != s.adopter.former {
		return gone, 0
	}
	s.owner, s.expires = adopter, max(s.expires, s.now+w.ttl)
	s.tombs |= bit(s.adopter.former)
	return granted, w.mint(s)
}

func (w *walk) handOver(s *state, p place) {
	s.owner, s.expires = p.token, p.until
	f := w.mint(s)
	i := slices.IndexFunc(s.messages[:], func(g message) bool { return g.token == 0 })
	if i < 0 {
		w.full = true
		return
	}
	s.messages[i] = message{p.token, f}
}

func (w *walk) firstLive(s *state, me token) place {
	for s.line[0].token != 0 {
		head := s.line[0]
		s.leave(head.token)
		if head.token == me || s.now < head.until {
			return head
		}
	}
	return place{}
}

func (s *state) leave(t token) {
	if i := slices.IndexFunc(s.line[:], func(p place) bool { return p.token == t }); i >= 0 {
		copy(s.line[i:], s.line[i+1:])
		s.line[maxPlaces-1] = place{}
	}
}

// time is the server's clock.
func (w *walk) time(s *state) uint8 { return w.perTick*s.now - min(s.behind, w.perTick*s.now) }

// mint issues the next fencing token: the clock, or one more than the counter.
func (w *walk) mint(s *state) uint8 {
	s.counter = max(w.time(s), s.counter+1)
	s.written, s.ahead = s.now, 0
	if s.counter > w.time(s) {
		s.ahead = 1
	}
	return s.counter
}
