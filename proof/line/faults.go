package line

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
	do := func(what string, f func()) {
		s = *s0
		f()
		s.faulty()
		w.done(&s, step{what: what, who: nobody})
	}
	if s0.deletions > 0 {
		if s0.lock.owner != 0 {
			do("the lock is deleted", func() {
				s.deletions--
				s.seize()
			})
			do("the lock is released by force", func() {
				s.deletions--
				s.seize()
				if head, _ := w.firstLive(&s, 0); head.token != 0 {
					w.handOver(&s, head)
				}
			})
		}
		if s0.line[0].token != 0 {
			do("the line is deleted", func() {
				s.deletions--
				s.line, s.lineLeft = [maxPlaces]place{}, 0
			})
			// Who has polled since it came counts as alive for less long than it knows, and so does a lock that is handed
			// to it: this is as if the lock were deleted early.
			do("the heartbeats are deleted", func() {
				s.deletions--
				for i := range s.line {
					p := &s.line[i]
					if p.heartbeat != p.ticket {
						s.excuse(p.token)
					}
					p.heartbeat = p.ticket
				}
			})
		}
		if s0.missing == 0 {
			do("the counter is deleted", func() { s.deletions--; s.missing, s.flagged = 1, 0 })
			if w.hand && s0.flagged != 0 {
				do("the flag is deleted", func() { s.deletions--; s.flagged = 0 })
			}
		}
	}
	if s0.back > 0 {
		do("the server's clock is set back", func() {
			s.back--
			later := func(left *uint8, there bool) {
				if there {
					*left++
				}
			}
			later(&s.lock.left, s.lock.owner != 0)
			later(&s.lineLeft, s.line[0].token != 0)
			for i := range s.line {
				p := &s.line[i]
				later(&p.heartbeat, p.token != 0)
				later(&p.ticket, p.token != 0)
			}
		})
	}
	if s0.forward > 0 {
		do("the server's clock is set forward", func() { s.forward--; w.expire(&s) })
	}
	// Keys that are used no more expire after a while. What is said of each holds at any time after that.
	if !w.timed && s0.line[0].token != 0 && !w.anybodyLives(s0) && w.broken != heartbeatsCount {
		s = *s0
		s.line, s.lineLeft = [maxPlaces]place{}, 0
		w.done(&s, step{what: "the line expires", who: nobody})
	}
	if s0.graves != 0 && s0.tombs&s0.references() == 0 {
		s = *s0
		s.graves, s.tombs = 0, 0
		w.done(&s, step{what: "the tombstones expire", who: nobody})
	}
}

// seize takes the lock from whoever has it. One whose lease is being adopted trusts it still, so all who trust are excused.
func (s *state) seize() {
	s.excuse(s.lock.owner)
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
		if cl.reply != 0 || cl.due != 0 || cl.subscription == 1 || cl.phase == holding && cl.left == 0 {
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
		if cl.call != 0 && cl.age < max(w.waiterTTL, w.ttl) {
			cl.age++
		}
		if w.timed && cl.phase == waiting && cl.call == 0 && w.broken != pollEveryTick {
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
		p.heartbeat, p.ticket = minus(p.heartbeat, 1), minus(p.ticket, 1)
	}
	if s.lineLeft > 0 && w.timed {
		if s.lineLeft--; s.lineLeft == 0 {
			s.line = [maxPlaces]place{}
		}
	}
}
