package line

import "strings"

// walk makes the states that can follow one state.
type walk struct {
	*model
	failed string // the property that the step in progress violates
	full   bool   // the step does not fit into the model
	emit   func(*state, step, string)
}

// fail notes a violation.
func (w *walk) fail(property string) {
	name, _, _ := strings.Cut(property, " ")
	watched := w.watch == "" || strings.Contains(w.watch, name)
	if w.failed == "" && watched && (w.only == "" || w.only == property) {
		w.failed = property
	}
}

// done emits a finished state.
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

// steps makes every state that can follow.
func (m *model) steps(s0 *state, emit func(*state, step, string)) {
	w := &walk{model: m, emit: emit}
	var s state
	for i, c := range s0.commands {
		if c.kind != 0 && (i == 0 || s0.commands[i-1] != c) {
			w.arrive(s0, i)
		}
	}
	for i, g := range s0.messages {
		if g.token == 0 {
			continue
		}
		c := ownerOf(g.token)
		cl := &s0.clients[c]
		if cl.paused == 0 && cl.dead == 0 && cl.call == 0 && cl.phase == waiting && s0.tokenOf(c) == g.token {
			s = *s0
			s.messages[i] = message{}
			w.readMessage(&s, c, g.fence)
			w.done(&s, step{what: "reads a message", who: int8(c)})
		}
		if !m.timed || s0.losses > 0 {
			s = *s0
			s.messages[i] = message{}
			if m.timed {
				s.losses--
				s.faulty()
			}
			w.done(&s, step{what: "a message is lost", who: nobody})
		}
	}
	for c := range int(m.clients) {
		w.client(s0, c)
	}
	w.foreigner(s0)
	w.faults(s0)
	if !m.timed || !urgent(s0) {
		s = *s0
		w.tick(&s)
		w.done(&s, step{what: "a tick passes", who: nobody})
	}
}

// arrive lets a command reach Redis, or vanish if nobody waits for it.
func (w *walk) arrive(s0 *state, i int) {
	c := s0.commands[i]
	s := *s0
	s.commands[i] = command{}
	answer, f := w.exec(&s, c)
	switch c.kind & verb {
	case renew, release, adopt, compareDelete, fastRelease:
		o := s0.lock.owner
		if o != 0 && o != c.token && o != c.former && (s.lock.owner != o || s.lock.left != s0.lock.left) {
			w.fail(touched)
		}
	}
	tell := func(s *state, answer reply, f uint8) {
		if answer == 0 || c.kind&orphan != 0 {
			return
		}
		cl := &s.foreign
		if c.token != foreigner {
			cl = &s.clients[ownerOf(c.token)]
		}
		cl.reply, cl.replyFence = answer, f
	}
	tell(&s, answer, f)
	st := step{what: "arrives", who: nobody, command: c}
	w.done(&s, st)
	if c.kind&verb == fastAcquire && answer == granted { // or the server's clock is not above the counter
		s = *s0
		s.commands[i] = command{}
		tell(&s, unusual, 0)
		w.done(&s, st)
	}
	if c.kind&orphan != 0 {
		s = *s0
		s.commands[i] = command{}
		w.done(&s, step{what: "vanishes", who: nobody, command: c})
	}
}

// client is what a client may do of itself.
func (w *walk) client(s0 *state, c int) {
	cl := &s0.clients[c]
	var s state
	do := func(what string, f func(cl *client)) {
		s = *s0
		f(&s.clients[c])
		w.done(&s, step{what: what, who: int8(c)})
	}
	if cl.dead != 0 {
		return
	}
	if cl.paused != 0 {
		do("goes on", func(cl *client) {
			cl.paused = 0
			if cl.phase == waiting {
				cl.due = 1
			}
		})
		return
	}
	if s0.pauses > 0 && cl.phase != idle {
		do("is paused", func(cl *client) { cl.paused = 1; s.pauses--; s.faulty() })
	}
	if s0.crashes > 0 && cl.phase != idle {
		do("crashes", func(cl *client) {
			s.crashes--
			s.faulty()
			w.abandon(&s, c)
			s.finish(c)
			if w.timed {
				cl.dead, cl.acquisitions = 1, 0
			}
		})
	}
	if cl.call != 0 && cl.reply != 0 {
		do("reads an answer", func(*client) { w.readReply(&s, c) })
	}
	if cl.call != 0 && s0.repeats > 0 {
		w.repeat(s0, c)
	}
	switch cl.phase {
	case idle:
		w.begin(s0, c)
	case trying, adopting:
		if w.quits {
			do("gives up", func(*client) { w.giveUp(&s, c) })
		}
	case waiting:
		if cl.call == 0 && (!w.timed || cl.due != 0) {
			do("polls", func(cl *client) {
				k := join
				if cl.joined != 0 {
					k = poll
				}
				w.call(&s, c, k)
			})
		}
		if cl.subscription == 1 {
			do("is subscribed", func(cl *client) {
				cl.subscription = 2
				if w.broken != pollWhenSubscribed {
					cl.due = 1
				}
			})
		}
		if w.quits {
			do("gives up", func(*client) { w.giveUp(&s, c) })
		}
	case holding:
		if w.renews && cl.call == 0 && cl.left > 0 {
			do("renews", func(*client) { w.call(&s, c, renew) })
		}
		kinds := []kind{release}
		if cl.stray != 0 && w.broken != strayBuries {
			kinds[0] |= cancel
		} else if w.flag {
			kinds = append(kinds, fastRelease)
		}
		for _, k := range kinds {
			do("releases", func(*client) {
				w.abandon(&s, c)
				w.send(&s, command{kind: k, token: s.tokenOf(c)})
				s.finish(c)
			})
		}
		if s0.tells > 0 && cl.left > 0 {
			tell := func() { s.tells--; s.told = s.tokenOf(c) }
			do("gives its token away", func(*client) { tell() })
			do("detaches", func(*client) { tell(); w.abandon(&s, c); s.finish(c) })
		}
	}
}

// begin is what a client may begin.
func (w *walk) begin(s0 *state, c int) {
	cl := &s0.clients[c]
	name := uint8(0)
	if s0.refersTo(nameOf(c, 0)) {
		name = 1
	}
	if cl.acquisitions == 0 || s0.refersTo(nameOf(c, name)) {
		return
	}
	var s state
	do := func(what string, f func(cl *client)) {
		s = *s0
		cl := &s.clients[c]
		cl.acquisitions--
		cl.name = name
		f(cl)
		w.done(&s, step{what: what, who: int8(c)})
	}
	if w.waits {
		do("waits", func(cl *client) { w.enter(&s, c, join) })
	}
	if w.tries {
		do("tries", func(cl *client) { cl.phase = trying; w.call(&s, c, try) })
	}
	if w.waits && w.flag {
		do("waits, fast", func(cl *client) { w.enter(&s, c, fastAcquire) })
	}
	if w.tries && w.flag {
		do("tries, fast", func(cl *client) { cl.phase = trying; w.call(&s, c, fastAcquire) })
	}
	if s0.told != 0 && ownerOf(s0.told) != c && !s0.isAdopted(s0.told) {
		do("adopts", func(cl *client) { cl.phase, cl.former = adopting, s.told; w.call(&s, c, adopt) })
	}
}

// isAdopted reports whether an adoption of the token is under way: one at a time.
func (s *state) isAdopted(t token) bool {
	for _, c := range s.commands {
		if c.kind != 0 && c.former == t {
			return true
		}
	}
	for i := range s.clients {
		if s.clients[i].former == t {
			return true
		}
	}
	return false
}

// foreigner is what the foreign client may do.
func (w *walk) foreigner(s0 *state) {
	x := &s0.foreign
	var s state
	do := func(what string, f func(x *client)) {
		s = *s0
		f(&s.foreign)
		w.done(&s, step{what: what, who: clients})
	}
	switch {
	case x.phase == idle && x.acquisitions > 0 && !s0.refersTo(foreigner):
		do("sends SET NX PX", func(x *client) {
			x.acquisitions--
			x.phase, x.call, x.age = trying, setNX, 0
			w.send(&s, command{kind: setNX, token: foreigner})
			s.faulty()
		})
	case x.phase == trying && x.reply != 0:
		do("reads an answer", func(x *client) {
			left := minus(w.ttl, x.age)
			if x.reply != granted || left == 0 {
				*x = client{acquisitions: x.acquisitions}
				return
			}
			*x = client{phase: holding, acquisitions: x.acquisitions, left: left}
		})
	case x.phase == holding:
		do("compares and deletes", func(x *client) {
			*x = client{acquisitions: x.acquisitions}
			w.send(&s, command{kind: compareDelete, token: foreigner})
		})
	}
}
