package line

// judge checks the properties of a state.
func (w *walk) judge(s *state) {
	trusting := 0
	for c := range s.clients {
		if s.clients[c].left > 0 && s.excused&bit(s.tokenOf(c)) == 0 {
			trusting++
		}
	}
	if s.foreign.left > 0 && s.excused&bit(foreigner) == 0 {
		trusting++
	}
	if trusting > 1 {
		w.fail(twoTrust)
	}
	if s.lock.owner != 0 && s.lock.left == 0 || s.line[0].token != 0 && s.lineLeft == 0 {
		w.fail(noTTL)
	}
	if w.flag && s.missing == 0 && s.flagged == 0 && (s.line[0].token != 0 || s.graves != 0) {
		w.fail(flagless)
	}
	if w.givenUp {
		w.leftOver(s)
	}
}

// leftOver looks for a token that was given up and is in the key or in the line, though nothing of it is under way. One is
// excused: the lease that its holder has released while an adoption of it was under way, which failed and gave it back to
// nobody. That ends with the key's time.
func (w *walk) leftOver(s *state) {
	for t := token(1); t < foreigner; t++ {
		if s.ended&^s.returned&bit(t) == 0 || s.lock.owner != t && s.placeOf(t) < 0 {
			continue
		}
		used := s.clients[ownerOf(t)].phase != idle && s.tokenOf(ownerOf(t)) == t
		for _, c := range s.commands {
			used = used || c.kind != 0 && (c.token == t || c.former == t)
		}
		if !used {
			w.fail(leftBehind)
		}
	}
}

// overtakes checks, before a grant to t, that nobody who lives stands ahead.
func (w *walk) overtakes(s *state, t token) {
	for _, p := range s.line {
		if p.token == 0 || p.token == t {
			return
		}
		o := ownerOf(p.token)
		alive := p.heartbeat > w.fresh()-w.waiterTTL && p.heartbeat <= w.fresh()
		if cl := &s.clients[o]; alive && cl.phase == waiting && cl.dead == 0 && s.tokenOf(o) == p.token {
			w.fail(passed)
		}
	}
}

// count judges the tick that ends.
func (w *walk) count(s *state) {
	waiter, used := false, s.lock.owner != 0 && s.lock.unconfirmed == 0 || s.foreign.left > 0
	for c := range s.clients {
		cl := &s.clients[c]
		used = used || cl.left > 0
		if cl.phase != waiting || cl.dead != 0 || cl.paused != 0 {
			continue
		}
		waiter = true
		if w.wait > 0 {
			if cl.waited++; cl.waited > w.wait {
				w.fail(waitsLong)
			}
		}
	}
	if !waiter || used {
		s.idle = 0
	} else if s.idle++; s.idle > w.idle {
		w.fail(notServed)
	}
}
