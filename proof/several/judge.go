package several

// judge checks the properties of a state.
func (w *walk) judge(s *state) {
	var buf [clients + 1]uint8
	kinds := buf[:0]
	var taken uint16
	for c := range s.clients {
		cl := &s.clients[c]
		if cl.left == 0 || s.excused&bit(s.tokenOf(c)) != 0 {
			continue
		}
		k := w.kinds[c]
		kinds = append(kinds, k)
		if k > slots {
			if taken&(1<<cl.slot) != 0 || cl.slot >= k-slots {
				w.fail(sameSlot)
			}
			taken |= 1 << cl.slot
		}
	}
	if s.foreign.left > 0 && s.excused&bit(foreigner) == 0 {
		kinds = append(kinds, exclusive)
	}
	if !beside(kinds) {
		w.fail(tooMany)
	}
	if s.lock.owner != 0 && s.lock.left == 0 || s.line[0].token != 0 && s.lineLeft == 0 ||
		s.holders[0].token != 0 && s.holdersLeft == 0 {
		w.fail(noTTL)
	}
	if w.givenUp {
		w.leftOver(s)
	}
}

// beside reports whether leases of these kinds may be held together.
func beside(kinds []uint8) bool {
	if len(kinds) < 2 {
		return true
	}
	for _, k := range kinds {
		if k == exclusive || (k == shared) != (kinds[0] == shared) || k > slots && len(kinds) > int(k-slots) {
			return false
		}
	}
	return true
}

// touches checks that a command has left the leases of all other tokens alone.
func (w *walk) touches(before, after *state, c command) {
	o := before.lock.owner
	if o != 0 && o <= foreigner && o != c.token && o != c.former && w.kindOf(o) == exclusive &&
		(after.lock.owner != o || after.lock.left != before.lock.left) {
		w.fail(touched)
	}
	if !before.marked() {
		return
	}
	for _, h := range before.holders {
		if h.token == 0 || h.token == c.token || h.token == c.former || h.left <= w.zero() {
			continue
		}
		i := after.holderOf(h.token)
		if i < 0 || after.holders[i].left != h.left || !after.marked() || after.lock.left+w.zero() < h.left {
			w.fail(touched)
		}
	}
}

// leftOver looks for a token that was given up and is in the key, among the holders or in the line, though nothing of it is
// under way. One is excused: the lease that its holder has released while an adoption of it was under way, which was
// cancelled and gave it back to nobody. That ends with its time.
func (w *walk) leftOver(s *state) {
	for t := token(1); t < foreigner; t++ {
		there := s.lock.owner == t || s.placeOf(t) >= 0 || s.marked() && s.holderOf(t) >= 0
		if s.ended&^s.returned&bit(t) == 0 || !there {
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
		if cl := &s.clients[o]; w.lives(p) && cl.phase == waiting && cl.dead == 0 && s.tokenOf(o) == p.token {
			w.fail(passed)
		}
	}
}

// count judges the tick that ends.
func (w *walk) count(s *state) {
	for c := range s.clients {
		if cl := &s.clients[c]; w.wait > 0 && s.awaits(c) {
			if cl.waited++; cl.waited > w.wait {
				w.fail(waitsLong)
			}
		}
	}
	if !w.hasRoom(s) {
		s.idle = 0
	} else if s.idle++; s.idle > w.idle {
		w.fail(notServed)
	}
}

// awaits reports whether a client that runs waits.
func (s *state) awaits(c int) bool {
	cl := &s.clients[c]
	return cl.phase == waiting && cl.dead == 0 && cl.paused == 0
}

// hasRoom reports whether the first live waiter could hold a lease beside those who trust one, or hold more than a grant
// that was not confirmed.
func (w *walk) hasRoom(s *state) bool {
	if s.marked() && s.closed != 0 {
		return false // until the marker expires
	}
	kinds := make([]uint8, 0, 8)
	for c := range s.clients {
		if s.clients[c].left > 0 {
			kinds = append(kinds, w.kinds[c])
		}
	}
	if s.foreign.left > 0 || s.lock.owner == foreigner {
		kinds = append(kinds, exclusive)
	}
	if o := s.lock.owner; o != 0 && o < foreigner && s.lock.unconfirmed == 0 && !s.trusts(o) {
		kinds = append(kinds, exclusive)
	}
	if s.marked() {
		for _, h := range s.holders {
			if h.token != 0 && h.left > w.zero() && h.unconfirmed == 0 && !s.trusts(h.token) {
				kinds = append(kinds, w.kindOf(h.token))
			}
		}
	}
	first := s.firstWaiter()
	return first >= 0 && beside(append(kinds, w.kinds[first]))
}

// firstWaiter is the first of those who wait: one who was granted the lock and does not know it yet, or else the first of
// the line, or else any. -1 is nobody.
func (s *state) firstWaiter() int {
	for c := range s.clients {
		if t := s.tokenOf(c); s.awaits(c) && (s.lock.owner == t || s.marked() && s.holderOf(t) >= 0) {
			return c
		}
	}
	for _, p := range s.line {
		if p.token != 0 && s.awaits(ownerOf(p.token)) && s.tokenOf(ownerOf(p.token)) == p.token {
			return ownerOf(p.token)
		}
	}
	for c := range s.clients {
		if s.awaits(c) {
			return c
		}
	}
	return -1
}
