package several

// The rules of the client: internal/line, lock.go, release.go and adopt.go.

// send puts a command on its way.
func (w *walk) send(s *state, c command) {
	for i := range s.commands {
		if s.commands[i].kind == 0 {
			s.commands[i] = c
			return
		}
	}
	w.full = true
}

// call sends a command of a client that waits for the answer.
func (w *walk) call(s *state, c int, k kind) {
	cl := &s.clients[c]
	cl.call, cl.age, cl.reply, cl.due = k, 0, 0, 0
	w.send(s, command{k, s.tokenOf(c), cl.former})
}

// abandon makes the call that is under way one whose answer nobody reads.
func (w *walk) abandon(s *state, c int) {
	cl := &s.clients[c]
	if cl.call == 0 {
		return
	}
	for i := range s.commands {
		if s.commands[i] == (command{cl.call, s.tokenOf(c), cl.former}) {
			s.commands[i].kind |= orphan
			break
		}
	}
	cl.call, cl.age, cl.reply, cl.replyFence, cl.replySlot = 0, 0, 0, 0, 0
}

// finish ends what a client does.
func (s *state) finish(c int) {
	cl := &s.clients[c]
	*cl = client{acquisitions: cl.acquisitions, dead: cl.dead, paused: cl.paused}
}

// enter begins a stay in the line, under a token of its own.
func (w *walk) enter(s *state, c int, k kind) {
	cl := &s.clients[c]
	cl.phase = waiting
	w.call(s, c, k)
}

// longestTrust is how long a message can be trusted, counted from the poll before it.
func (w *walk) longestTrust(s *state, c int) uint8 { return min(w.waiterTTL, w.ttlOf(s.tokenOf(c))) }

// class is the place of a lease's fencing token among those that must rise.
func class(kind, slot uint8) int {
	switch kind {
	case exclusive:
		return 0
	case shared:
		return 1
	}
	return 2 + int(min(slot, 2))
}

// hold begins a lease.
func (w *walk) hold(s *state, c int, left, fence, slot uint8) {
	cl := &s.clients[c]
	if cl.former != 0 {
		// Until then the former holder may have trusted it; it hears at its next renewal.
		if s.trusts(cl.former) {
			s.excuse(cl.former)
		}
		s.ended |= bit(cl.former)
	}
	mine := class(w.kinds[c], slot)
	for of, highest := range s.highest {
		// An adoption is above the former lease, though others may share the lock with both.
		beside := mine != 0 && of != 0 && (mine == 1) == (of == 1) && (of == 1 || of != mine)
		if fence <= highest && !beside && s.excused&bit(s.tokenOf(c)) == 0 {
			w.fail(fenceFalls)
		}
	}
	s.highest[mine] = max(s.highest[mine], fence)
	cl.phase, cl.left, cl.fence, cl.slot = holding, left, fence, slot
	cl.joined, cl.trust, cl.high, cl.due, cl.waited, cl.former = 0, 0, 0, 0, 0, 0
	s.idle = 0
}

func (s *state) trusts(t token) bool {
	if t == foreigner {
		return s.foreign.left > 0
	}
	c := ownerOf(t)
	return s.clients[c].left > 0 && s.tokenOf(c) == t
}

// giveUp ends an attempt that may have been had. The cancellation is sent until it is answered.
func (w *walk) giveUp(s *state, c int) {
	w.abandon(s, c)
	k := release | cancel
	cl := &s.clients[c]
	if cl.phase == adopting {
		k = adopt | cancel
	}
	w.send(s, command{k, s.tokenOf(c), cl.former})
	s.finish(c)
}

// refused ends an attempt that was refused; it is cancelled if another copy of its command may come later.
func (w *walk) refused(s *state, c int) {
	if s.clients[c].stray != 0 {
		w.giveUp(s, c)
		return
	}
	s.ended |= bit(s.tokenOf(c))
	s.finish(c)
}

// readReply is what a client does with an answer.
func (w *walk) readReply(s *state, c int) {
	cl := &s.clients[c]
	answer, f, slot, age := cl.reply, cl.replyFence, cl.replySlot, cl.age
	cl.call, cl.age, cl.reply, cl.replyFence, cl.replySlot = 0, 0, 0, 0, 0
	left := minus(w.ttlOf(s.tokenOf(c)), age)
	switch answer {
	case granted:
		switch {
		case left > 0:
			if cl.former != 0 && f <= s.toldFence {
				w.fail(fenceFalls)
			}
			w.hold(s, c, left, f, slot)
		case cl.phase == waiting: // it came too late to be trusted: poll again
			cl.due = 1
		default:
			w.giveUp(s, c)
		}
	case held:
		w.refused(s, c)
	case waits:
		cl.trust, cl.high, cl.joined = minus(w.longestTrust(s, c), age), f, 1
	case gone:
		if cl.phase != waiting {
			w.refused(s, c)
			return
		}
		// Skipped, or deleted by hand: a new stay, with a new token.
		if s.refersTo(nameOf(c, 1-cl.name)) {
			cl.due = 1 // so many tokens the model does not have
			return
		}
		if cl.stray != 0 {
			w.send(s, command{kind: release | cancel, token: s.tokenOf(c)})
		}
		*cl = client{phase: waiting, name: 1 - cl.name, acquisitions: cl.acquisitions}
		w.call(s, c, join)
	case yes:
		if cl.left > 0 {
			cl.left = max(cl.left, left)
		}
	case no:
		s.finish(c)
	}
}

// readMessage is what a waiter does with a grant, of which it hears between two polls.
func (w *walk) readMessage(s *state, c int, g message) {
	cl := &s.clients[c]
	trust := cl.trust
	if w.broken == trustFromSend {
		trust = w.waiterTTL
	}
	k := w.kinds[c]
	if k > slots && g.slot == untold && w.broken != slotIsTold {
		trust = 0 // a script of today has handed the lock over: poll
	}
	if (g.fence <= cl.high && w.broken != compareFences) || trust == 0 {
		cl.due = 1 // it is a hint: poll
		return
	}
	bare, slot := g.slot == untold, g.slot
	if bare {
		slot = 0
		if w.broken == slotIsTold {
			slot = 1 // a guess
		}
	}
	w.hold(s, c, trust, g.fence, slot)
	if bare && k != exclusive && w.broken != bareIsConfirmed { // others may fit
		w.call(s, c, renew)
	}
}
