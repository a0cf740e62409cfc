package turns

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

// begin is the begin of a lease.
func (w *walk) begin(s *state, t token, fence uint8) {
	if fence <= s.highest && s.excused&bit(t) == 0 {
		w.fail(fenceFalls)
	}
	s.highest = max(s.highest, fence)
}

// win begins a tenure with its first lease.
func (w *walk) win(s *state, x *process, from, deadline, fence uint8) {
	*x = process{
		phase: holding, stay: x.stay, token: x.token, wants: x.wants - 1, stray: x.stray,
		deadline: deadline, first: fence, reserved: 1, from: from, won: s.now, begun: s.now, closing: x.closing,
	}
	w.begin(s, x.token, fence)
}

// finish ends a stay or a tenure on the side of the process.
func (s *state) finish(x *process) {
	for i := range s.commands { // nobody reads the answers any more
		if c := &s.commands[i]; c.token == x.token && (c.kind == join || c.kind == poll || c.kind == renew) {
			c.kind |= orphan
		}
	}
	*x = process{stay: x.stay, wants: x.wants, closing: x.closing}
}

// letGo sends the release of a tenure.
func (w *walk) letGo(s *state, x *process) {
	c := command{kind: release, token: x.token}
	if x.stray != 0 && w.broken != strayStays {
		c.kind |= cancel
	}
	w.send(s, c)
}

// mayPass reports whether the lock may go to another goroutine of the process.
func (w *walk) mayPass(s *state, x *process) bool {
	return x.wants > 0 && x.passes+1 < x.reserved &&
		(s.now < x.from+w.d || w.broken == turnsAreBounded) &&
		(s.now < x.deadline || w.broken == passInTime) &&
		(x.told == 0 || w.broken == toldIsNotPassed) &&
		(w.perTick == 0 || w.broken == clockIsAhead || w.perTick*(s.now-x.won) > x.passes+1)
}

// pass ends a lease and begins the next one.
func (w *walk) pass(s *state, x *process) {
	x.wants--
	x.passes++
	x.begun = s.now
	x.told = 0 // the next holder has told nobody
	if w.broken == passKeepsDeadline {
		x.deadline = s.now + w.ttl
	}
	w.begin(s, x.token, x.first+x.passes)
}

func (w *walk) readMessage(s *state, x *process, fence uint8) {
	deadline := x.anchor + min(w.waiterTTL, w.ttl)
	if x.anchor != 0 && fence > x.high && s.now < deadline {
		w.win(s, x, x.anchor, deadline, fence)
		return
	}
	x.due = 1 // it is a hint: poll
}

func (w *walk) readReply(s *state, x *process) {
	answer, f, sent := x.reply, x.replyFence, x.sent
	x.call, x.reply, x.replyFence, x.sent = 0, 0, 0, 0
	switch {
	case answer == granted && s.now < sent+w.ttl:
		w.win(s, x, sent, sent+w.ttl, f)
	case answer == granted: // it came too late to be trusted: poll again
		x.due = 1
	case answer == waits:
		x.anchor, x.high, x.joined, x.due = sent, f, 1, 0
	case answer == gone:
		s.finish(x)
	}
}

func (w *walk) readRenewal(s *state, x *process) {
	answer, sent, reserves := x.renewalReply, x.renewalSent, x.reserves
	x.renewing, x.renewalReply, x.renewalSent, x.reserves = 0, 0, 0, 0
	if w.broken == renewalFromSend {
		sent = s.now
	}
	switch {
	case answer == no:
		s.finish(x)
	case s.now < x.deadline:
		x.deadline = max(x.deadline, sent+w.ttl)
		if reserves != 0 {
			x.reserved = w.block
		}
	}
}

// process is what a process may do of itself.
func (w *walk) process(s0 *state, p int) {
	x0 := &s0.of[p]
	passes := !(p == 1 && w.old)
	do := func(what string, f func(s *state, x *process)) {
		s := *s0
		f(&s, &s.of[p])
		w.done(&s, step{what: what, who: int8(p)})
	}
	if x0.phase != idle && s0.crashes > 0 {
		do("crashes", func(s *state, x *process) { s.crashes--; s.finish(x) })
	}
	if x0.reply != 0 {
		do("reads an answer", w.readReply)
	}
	if x0.call != 0 && s0.repeats > 0 {
		do("sends it again", func(s *state, x *process) {
			s.repeats--
			for i := range s.commands {
				if c := &s.commands[i]; c.kind == x.call && c.token == x.token {
					c.kind |= orphan
				}
			}
			x.reply, x.replyFence, x.stray = 0, 0, 1
			w.send(s, command{kind: x.call, token: x.token})
		})
	}
	w.close(s0, p, do)
	switch x0.phase {
	case idle:
		if x0.wants == 0 || x0.stay == w.stays || x0.closing != 0 {
			return
		}
		do("joins", func(s *state, x *process) {
			x.phase, x.token = waiting, token(p*maxStays)+x.stay+1
			x.stay++
			x.call, x.sent = join, s.now
			w.send(s, command{kind: join, token: x.token})
		})
	case waiting:
		if x0.call == 0 && (!w.timed || x0.due != 0) {
			do("polls", func(s *state, x *process) {
				x.call, x.sent, x.due = join, s.now, 0
				if x.joined != 0 {
					x.call = poll
				}
				w.send(s, command{kind: x.call, token: x.token})
			})
		}
	case holding:
		if gate := passes && x0.wants > 0 && x0.reserved == 1; (w.renews || gate) && x0.renewing == 0 && s0.now < x0.deadline {
			do("renews", func(s *state, x *process) {
				c := command{kind: renew, token: x.token}
				x.renewing, x.renewalSent = 1, s.now
				if gate {
					x.reserves = 1
					if w.broken != blockIsReserved {
						c.upto = x.first + w.block - 1
					}
					if w.broken == reservedIfAnswered {
						x.reserved = w.block
					}
				}
				w.send(s, c)
			})
		}
		if x0.renewalReply != 0 {
			do("reads the answer to a renewal", w.readRenewal)
		}
		if s0.tells > 0 && s0.now < x0.deadline {
			tell := func(s *state, x *process) {
				s.tells--
				s.adopter = taker{phase: waiting, former: x.token}
				x.told = 1
			}
			do("gives its token away", tell)
			do("detaches", func(s *state, x *process) { tell(s, x); s.finish(x) })
		}
		do("releases", func(s *state, x *process) { w.letGo(s, x); s.finish(x) })
		if passes && w.mayPass(s0, x0) {
			do("passes the lock on", func(s *state, x *process) {
				if w.broken == passBeforeRelease {
					w.letGo(s, x) // and it failed
				}
				w.pass(s, x)
			})
		}
	}
}

// close are the steps of a Close: it ends the goroutines at the gate, finds the lease that is held, and returns when that
// is over. A process that waits leaves the line. The lease is released by its holder.
func (w *walk) close(s0 *state, p int, do func(string, func(*state, *process))) {
	switch x := &s0.of[p]; {
	case x.closing == 0 && s0.closes > 0:
		do("closes", func(s *state, x *process) {
			s.closes--
			x.closing, x.held = 1, x.passes
			if w.broken != closingPassesNone {
				x.wants = 0
			}
			if x.phase == waiting {
				w.send(s, command{kind: release | cancel, token: x.token})
				s.finish(x)
			}
		})
	case x.closing == 1 && (x.phase != holding || x.passes != x.held || s0.now >= x.deadline):
		do("has closed", func(s *state, x *process) { x.closing = 2 })
	}
}
