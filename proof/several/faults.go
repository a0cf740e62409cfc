package several

import "slices"

// repeat lets go-redis send a client's call again, or the client give it up and go on.
func (w *walk) repeat(s0 *state, c int) {
	s := *s0
	cl := &s.clients[c]
	s.repeats--
	s.faulty()
	acquires := cl.call != renew
	w.abandon(&s, c)
	if acquires {
		cl.stray = 1
	}
	switch {
	case cl.phase == trying || cl.phase == adopting:
		w.giveUp(&s, c)
	case cl.phase == waiting:
		cl.due = 1
	}
	w.done(&s, step{what: "has no answer in time", who: int8(c)})

	s = *s0
	s.repeats--
	s.faulty()
	call, age := cl.call, cl.age
	w.abandon(&s, c)
	if call != renew {
		cl.stray = 1
	}
	w.call(&s, c, call)
	cl.age = age
	w.done(&s, step{what: "sends it again", who: int8(c)})
}

// faults are what people and eviction do to the keys, and what befalls the server's clock.
func (w *walk) faults(s0 *state) {
	var s state
	do := func(what string, f func(s *state)) {
		s = *s0
		f(&s)
		s.faulty()
		w.done(&s, step{what: what, who: nobody})
	}
	if s0.deletions > 0 {
		w.delete(s0, do)
	}
	if s0.back > 0 {
		do("the server's clock is set back", func(s *state) {
			s.back--
			later := func(left *uint8, there bool) { // a time that is over stays over: see place
				if there {
					*left++
				}
			}
			later(&s.lock.left, s.lock.owner != 0)
			later(&s.lineLeft, s.line[0].token != 0)
			later(&s.holdersLeft, s.holders[0].token != 0)
			for i := range s.holders {
				later(&s.holders[i].left, s.holders[i].token != 0)
			}
			for i := range s.line {
				later(&s.line[i].heartbeat, s.line[i].token != 0)
			}
		})
	}
	if s0.forward > 0 {
		do("the server's clock is set forward", func(s *state) { s.forward--; w.expire(s) })
	}
	// Keys that are used no more expire after a while. What is said of each holds at any time after that.
	if !w.timed && s0.line[0].token != 0 && !slices.ContainsFunc(s0.line[:], w.lives) {
		s = *s0
		s.line, s.lineLeft = [maxPlaces]place{}, 0
		w.done(&s, step{what: "the line expires", who: nobody})
	}
}

// delete is what people and eviction do to the keys, and an operator's release.
func (w *walk) delete(s0 *state, do func(string, func(*state))) {
	lost := func(what string, there bool, f func(s *state)) {
		if there {
			do(what, func(s *state) { s.deletions--; f(s) })
		}
	}
	if !w.counterOnly {
		inside := s0.marked() && s0.holders[0].token != 0
		lost("the holders are deleted", inside, func(s *state) {
			s.holders, s.holdersLeft, s.blind, s.closed = [maxHolders]holder{}, 0, 0, 1
		})
		lost("the holders' entries are deleted", inside && s0.blind == 0, func(s *state) { s.blind, s.closed = 1, 1 })
	}
	if !w.holdersOnly {
		lost("the counter is deleted", s0.missing == 0, func(s *state) { s.missing = 1 })
	}
	if w.holdersOnly || w.counterOnly {
		return
	}
	lost("the lock is deleted", s0.lock.owner != 0, func(s *state) { s.seize() })
	lost("the lock is released by force, by a client of today", s0.lock.owner != 0, func(s *state) {
		s.seize()
		if head := w.firstLive(s, 0); head.token != 0 {
			w.handOver(s, head)
		}
	})
	lost("the lock is released by force", s0.lock.owner != 0, func(s *state) {
		s.seize()
		s.free()
		w.serve(s, 0)
		if s.lock.owner == 0 {
			s.free()
		}
	})
	lost("the line is deleted", s0.line[0].token != 0, func(s *state) { s.line, s.lineLeft = [maxPlaces]place{}, 0 })
}

// seize takes the lock from whoever has it. One whose lease is being adopted trusts it still, so all who trust are excused.
func (s *state) seize() {
	if s.lock.owner <= foreigner {
		s.excuse(s.lock.owner)
	}
	for _, h := range s.holders {
		if h.token != 0 && s.marked() {
			s.excuse(h.token)
		}
	}
	for t := token(1); t <= foreigner; t++ {
		if s.trusts(t) {
			s.excuse(t)
		}
	}
	s.lock = lock{}
}

// excuse takes a lease out of the judgement of two that trust: it was ended by hand.
func (s *state) excuse(t token) { s.excused |= bit(t) }

// faulty lets the bounds on waiting count anew.
func (s *state) faulty() {
	s.idle = 0
	for c := range s.clients {
		s.clients[c].waited = 0
	}
}

// urgent reports whether something of a running client must happen before a tick passes, in timed mode.
func urgent(s *state) bool {
	for _, c := range s.commands {
		if c.kind != 0 {
			return true
		}
	}
	for _, g := range s.messages {
		if g.token != 0 && s.clients[ownerOf(g.token)].paused == 0 {
			return true
		}
	}
	for c := range s.clients {
		cl := &s.clients[c]
		if cl.dead != 0 || cl.paused != 0 {
			continue
		}
		if cl.reply != 0 || cl.due != 0 || cl.phase == holding && cl.left == 0 {
			return true
		}
	}
	return s.foreign.reply != 0 || s.foreign.phase == holding && s.foreign.left == 0
}

// tick lets a tick pass for everybody.
func (w *walk) tick(s *state) {
	if w.timed {
		w.count(s)
	}
	w.expire(s)
	for c := range s.clients {
		cl := &s.clients[c]
		cl.trust, cl.left = minus(cl.trust, 1), minus(cl.left, 1)
		if cl.call != 0 && cl.age < max(w.waiterTTL, w.ttlOf(s.tokenOf(c))) {
			cl.age++
		}
		if w.timed && cl.phase == waiting && cl.call == 0 {
			cl.due = 1
		}
	}
	x := &s.foreign
	x.left = minus(x.left, 1)
	if x.call != 0 && x.age < w.ttl {
		x.age++
	}
}

// expire lets a tick pass in Redis.
func (w *walk) expire(s *state) {
	if s.lock.owner != 0 {
		if s.lock.left--; s.lock.left == 0 {
			s.lock = lock{}
		}
	}
	for i := range s.line {
		p := &s.line[i]
		p.heartbeat = minus(p.heartbeat, 1)
	}
	for i := range s.holders {
		s.holders[i].left = minus(s.holders[i].left, 1)
	}
	if s.holdersLeft > 0 {
		if s.holdersLeft--; s.holdersLeft == 0 {
			s.holders, s.blind = [maxHolders]holder{}, 0
		}
	}
	if s.lineLeft > 0 && w.timed {
		if s.lineLeft--; s.lineLeft == 0 {
			s.line = [maxPlaces]place{}
		}
	}
}
