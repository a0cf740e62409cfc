package several

// Today's scripts, which know only exclusive locks: a marker is somebody else's token to them. See package line, where each
// of their rules is left out.

// again answers an acquire whose token holds the key: the same.
func (w *walk) again(s *state, me token) answer {
	s.lock.left, s.lock.unconfirmed = w.ttlOf(me), 0
	if s.missing != 0 {
		s.lock.fence = w.mint(s)
	}
	if s.counter != s.lock.fence {
		w.fail(fenceDiffers)
	}
	return answer{granted, s.counter, 0}
}

func (w *walk) acquireExclusive(s *state, me token, mode kind) answer {
	if s.lock.owner == me {
		return w.again(s, me)
	}
	if mode == poll && s.placeOf(me) < 0 || mode != poll && s.tombs&bit(me) != 0 {
		return answer{reply: gone}
	}
	if s.lock.owner == 0 {
		head := w.firstLive(s, me)
		if head.token == 0 || head.token == me {
			fence := w.mint(s)
			s.lock = lock{me, w.ttlOf(me), fence, 0}
			return answer{granted, fence, 0}
		}
		w.handOver(s, head)
	}
	if mode == try {
		return answer{reply: held}
	}
	w.stand(s, me)
	return answer{reply: waits, fence: s.counter}
}

func (w *walk) releaseExclusive(s *state, me token) {
	if s.lock.owner == me {
		s.lock = lock{}
		if head := w.firstLive(s, 0); head.token != 0 {
			w.handOver(s, head)
		}
	} else if i := s.placeOf(me); i >= 0 {
		s.removePlace(i)
	}
}

func (w *walk) adoptExclusive(s *state, c command) answer {
	me := c.token
	switch {
	case s.lock.owner == me && s.missing == 0:
		return answer{granted, s.counter, 0}
	case s.lock.owner == me:
	case s.lock.owner != c.former || s.tombs&bit(me) != 0:
		return answer{reply: gone}
	}
	fence := w.mint(s)
	s.lock = lock{me, max(s.lock.left, w.ttlOf(me)), fence, 0}
	s.tombs |= bit(c.former)
	return answer{granted, fence, 0}
}

func (w *walk) cancelAdoptExclusive(s *state, c command) {
	s.ended |= bit(c.token)
	s.tombs |= bit(c.token)
	if s.lock.owner == c.token {
		s.tombs &^= bit(c.former)
		s.lock.owner, s.lock.fence = c.former, s.counter
		s.returned |= bit(c.former)
	}
}

// handOver sets the key to the token of a waiter, of whatever kind, and tells no slot.
func (w *walk) handOver(s *state, p place) {
	fence := w.mint(s)
	s.lock = lock{p.token, minus(p.heartbeat, w.zero()), fence, 1}
	w.tell(s, message{p.token, fence, untold})
}

// firstLive takes the first live place out of the line, or that of me, and the dead before it.
func (w *walk) firstLive(s *state, me token) place {
	for s.line[0].token != 0 {
		head := s.line[0]
		if head.token == me || w.lives(head) {
			w.overtakes(s, head.token)
			s.removePlace(0)
			return head
		}
		s.removePlace(0)
	}
	return place{}
}
