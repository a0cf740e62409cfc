package turns

import "slices"

// walk makes the states that can follow one state.
type walk struct {
	*model
	failed string // the property that the step in progress violates
	full   bool   // the step does not fit into the model
	emit   func(*state, step, string)
}

func (w *walk) fail(property string) {
	if w.failed == "" && (w.only == "" || w.only == property) {
		w.failed = property
	}
}

func (w *walk) done(s *state, st step) {
	w.judge(s)
	w.tidy(s)
	failed, full := w.failed, w.full
	w.failed, w.full = "", false
	if full && failed == "" {
		if w.broken != none {
			return
		}
		failed = tooSmall
	}
	w.emit(s, st, failed)
}

// judge checks the properties of a state.
func (w *walk) judge(s *state) {
	trusting := 0
	for p := range s.of {
		x := &s.of[p]
		if x.phase == holding && s.now < x.deadline {
			if s.excused&bit(x.token) == 0 {
				trusting++
			}
			if x.closing == 2 {
				w.fail(outlives)
			}
		}
	}
	if s.adopter.phase == holding && s.now < s.adopter.deadline && s.excused&bit(adopter) == 0 {
		trusting++
	}
	if trusting > 1 {
		w.fail(twoTrust)
	}
	o := s.owner
	underWay := func(c command) bool { return c.token == o }
	if o != 0 && s.ended&bit(o) != 0 && !slices.ContainsFunc(s.commands[:], underWay) {
		w.fail(leftBehind)
	}
}

// steps makes every state that can follow.
func (m *model) steps(s0 *state, emit func(*state, step, string)) {
	w := &walk{model: m, emit: emit}
	for i, c := range s0.commands {
		if c.kind != 0 && (i == 0 || s0.commands[i-1] != c) {
			w.arrive(s0, i)
		}
	}
	for i, g := range s0.messages {
		if g.token == 0 {
			continue
		}
		p := processOf(g.token)
		if x := &s0.of[p]; x.call == 0 && x.phase == waiting && x.token == g.token {
			s := *s0
			s.messages[i] = message{}
			w.readMessage(&s, &s.of[p], g.fence)
			w.done(&s, step{what: "reads a message", who: int8(p)})
		}
		if !m.timed {
			s := *s0
			s.messages[i] = message{}
			w.done(&s, step{what: "a message is lost", who: nobody})
		}
	}
	for p := range s0.of {
		w.process(s0, p)
	}
	w.adopterSteps(s0)
	w.faults(s0)
	if (m.perTick == 0 || s0.now < m.end) && !(m.timed && w.urgent(s0)) {
		s := *s0
		w.tick(&s)
		w.done(&s, step{what: "a tick passes", who: nobody})
	}
}

func (w *walk) arrive(s0 *state, i int) {
	c := s0.commands[i]
	s := *s0
	s.commands[i] = command{}
	answer, f := w.exec(&s, c)
	switch {
	case answer == 0 || c.kind&orphan != 0:
	case c.kind == adopt:
		s.adopter.reply, s.adopter.replyFence = answer, f
	case c.kind == renew:
		s.of[processOf(c.token)].renewalReply = answer
	default:
		x := &s.of[processOf(c.token)]
		x.reply, x.replyFence = answer, f
	}
	w.done(&s, step{what: "arrives", who: nobody, command: c})
	if c.kind&orphan != 0 {
		s = *s0
		s.commands[i] = command{}
		w.done(&s, step{what: "vanishes", who: nobody, command: c})
	}
}

// adopterSteps are those of the process that was told a token. It adopts when the former holder has ended its lease.
func (w *walk) adopterSteps(s0 *state) {
	s := *s0
	switch a := &s.adopter; {
	case a.phase == waiting && a.calls == 0:
		a.calls, a.sent = 1, s.now
		w.send(&s, command{kind: adopt, token: adopter})
		w.done(&s, step{what: "adopts", who: processes})
	case a.phase == waiting && a.reply != 0:
		former := a.former
		if a.reply == granted && s.now < a.sent+w.ttl {
			w.begin(&s, adopter, a.replyFence)
			for p := range s.of { // whoever trusts it still hears at the next renewal
				if x := &s.of[p]; x.token == former && x.phase == holding && x.told != 0 {
					s.excused |= bit(former)
				}
			}
			s.ended |= bit(former)
			*a = taker{phase: holding, deadline: a.sent + w.ttl}
		} else {
			*a = taker{phase: over, former: former}
			w.send(&s, command{kind: adopt | cancel, token: adopter})
		}
		w.done(&s, step{what: "reads an answer", who: processes})
	case a.phase == holding:
		w.send(&s, command{kind: release, token: adopter})
		*a = taker{phase: over}
		w.done(&s, step{what: "releases", who: processes})
	}
}

func (w *walk) faults(s0 *state) {
	s := *s0
	if s0.deletions > 0 && s0.owner != 0 {
		s.deletions--
		s.excused |= bit(s.owner)
		if s.owner == adopter { // it took the lease of one who may trust it still
			for p := range s.of {
				if s.of[p].phase == holding {
					s.excused |= bit(s.of[p].token)
				}
			}
		}
		s.owner, s.expires = 0, 0
		w.done(&s, step{what: "the key is deleted", who: nobody})
	}
	// A counter that is ahead of the clock is not promised to survive a loss.
	if s = *s0; s0.losses > 0 && s0.counter != 0 && s0.now > s0.written && s0.ahead == 0 {
		s.losses--
		s.counter = 0
		w.done(&s, step{what: "the counter is lost", who: nobody})
	}
	if s = *s0; s0.back > 0 && w.perTick*s0.now > s0.behind {
		s.back--
		s.behind += w.perTick
		s.ahead = 1
		w.done(&s, step{what: "the server's clock is set back", who: nobody})
	}
}

// urgent reports whether something must happen before a tick passes, in a timed run. A section takes a tick.
func (w *walk) urgent(s *state) bool {
	for i := range s.commands {
		if s.commands[i].kind != 0 {
			return true
		}
	}
	for i := range s.messages {
		if s.messages[i].token != 0 {
			return true
		}
	}
	for p := range s.of {
		x := &s.of[p]
		if x.reply != 0 || x.renewalReply != 0 || x.due != 0 || x.phase == holding && s.now > x.begun ||
			x.phase == idle && x.wants > 0 && x.stay < w.stays {
			return true
		}
	}
	return false
}

func (w *walk) tick(s *state) {
	for p := range s.of {
		x := &s.of[p]
		if !w.timed || x.phase != waiting {
			continue
		}
		if x.waited++; x.waited > w.wait {
			w.fail(waitsLong)
		}
		if x.call == 0 {
			x.due = 1
		}
	}
	s.now++
	if s.owner != 0 && s.now >= s.expires {
		s.owner, s.expires = 0, 0
	}
}
