package line

// The rules of the client: internal/line, and what a lease does about its release and its renewals.

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
	if w.broken == anchorMovesWithAnswer && k == poll {
		cl.trust = w.longestTrust()
	}
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
	cl.call, cl.age, cl.reply, cl.replyFence = 0, 0, 0, 0
}

// finish ends what a client does. Its subscription stays.
func (s *state) finish(c int) {
	cl := &s.clients[c]
	*cl = client{acquisitions: cl.acquisitions, subscription: cl.subscription, dead: cl.dead, paused: cl.paused}
}

// enter begins a stay in the line, under a token of its own.
func (w *walk) enter(s *state, c int, k kind) {
	cl := &s.clients[c]
	cl.phase = waiting
	w.call(s, c, k)
}

// longestTrust is how long a message can be trusted, counted from the poll before it: no longer than the heartbeat lasts,
// nor than the ttl, to which the first renewal sets the key.
func (w *walk) longestTrust() uint8 {
	if w.broken == trustWithinTTL {
		return w.waiterTTL
	}
	return min(w.waiterTTL, w.ttl)
}

// hold begins a lease.
func (w *walk) hold(s *state, c int, left, fence uint8) {
	cl := &s.clients[c]
	if cl.former != 0 {
		// Until then the former holder may have trusted it; it hears at its next renewal.
		if s.trusts(cl.former) {
			s.excuse(cl.former)
		}
		s.ended |= bit(cl.former)
	}
	if fence <= s.highest && s.excused&bit(s.tokenOf(c)) == 0 {
		w.fail(fenceFalls)
	}
	s.highest = max(s.highest, fence)
	cl.phase, cl.left, cl.fence = holding, left, fence
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

// refused ends an attempt that was refused. That is about one moment: another copy of the command may come later, so the attempt
// is cancelled if there is one.
func (w *walk) refused(s *state, c int) {
	if s.clients[c].stray != 0 && w.broken != refusedIsCancelled {
		w.giveUp(s, c)
		return
	}
	s.ended |= bit(s.tokenOf(c))
	s.finish(c)
}

// readReply is what a client does with an answer.
func (w *walk) readReply(s *state, c int) {
	cl := &s.clients[c]
	answer, f, age := cl.reply, cl.replyFence, cl.age
	cl.call, cl.age, cl.reply, cl.replyFence = 0, 0, 0, 0
	left := minus(w.ttlOf(command{former: cl.former}), age)
	if w.broken == trustFromSend {
		left = w.ttl
	}
	switch answer {
	case granted:
		switch {
		case left > 0:
			w.hold(s, c, left, f)
		case cl.phase == waiting: // it came too late to be trusted: poll again
			cl.due = 1
		default:
			w.giveUp(s, c)
		}
	case held:
		w.refused(s, c)
	case uncleared:
		if w.broken == unclearedAsksAgain {
			if !w.anybodyLives(s) {
				w.fail(tryRefused)
			}
			s.finish(c)
			return
		}
		w.call(s, c, try)
	case waits, waitsFree:
		cl.trust, cl.high, cl.joined = minus(w.longestTrust(), age), f, 1
		if w.subscribes && cl.subscription == 0 {
			cl.subscription = 1
		}
		if answer == waitsFree {
			cl.due = 1
		}
	case gone:
		if cl.phase != waiting {
			w.refused(s, c)
			return
		}
		// Skipped, or deleted by hand: a new stay, with a new token.
		other := nameOf(c, 1-cl.name)
		if s.refersTo(other) {
			cl.due = 1 // so many tokens the model does not have
			return
		}
		if cl.stray != 0 {
			w.send(s, command{kind: release | cancel, token: s.tokenOf(c)})
		}
		*cl = client{phase: waiting, name: 1 - cl.name, acquisitions: cl.acquisitions, subscription: cl.subscription}
		w.call(s, c, join)
	case yes:
		if cl.left > 0 {
			cl.left = max(cl.left, left)
		}
	case no:
		s.finish(c)
	case unusual:
		k := join
		if cl.phase == trying {
			k = try
		}
		w.call(s, c, k)
	}
}

// readMessage is what a waiter does with a grant, of which it hears between two polls.
func (w *walk) readMessage(s *state, c int, fence uint8) {
	cl := &s.clients[c]
	trust := cl.trust
	if w.broken == trustFromSend {
		trust = w.waiterTTL
	}
	if (fence > cl.high || w.broken == compareFences) && trust > 0 && !w.confirms {
		w.hold(s, c, trust, fence)
		return
	}
	cl.due = 1 // it is a hint: poll
}
