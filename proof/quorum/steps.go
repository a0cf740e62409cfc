package quorum

import (
	"fmt"
	"strings"

	"github.com/go-leasehold/leasehold/proof/explore"
)

// step is one thing that happens.
type step struct {
	what      string
	lost      bool // and the reply is lost
	try, node int8 // -1: none
}

// successors calls emit with every state that can come next; the state is emit's until it returns.
func (m *model) successors(s *state, emit func(*state, step, string)) {
	var x state
	do := func(what string, lost bool, t, i int, f func(*state) string) {
		x = *s
		violated := f(&x)
		m.tidy(&x)
		if violated == "" && !m.clockless && m.trusted(&x) > 1 {
			violated = "E"
		}
		emit(&x, step{what, lost, int8(t), int8(i)}, violated)
	}
	always := func(f func(*state)) func(*state) string { return func(x *state) string { f(x); return "" } }

	if s.now < m.ticks {
		do("a tick passes", false, -1, -1, always(func(x *state) {
			x.now++
			for i := range x.nodes {
				m.pass(&x.nodes[i])
			}
		}))
	}
	for i := range s.nodes {
		if s.losses > 0 {
			do("loses its data and restarts", false, -1, i, always(func(x *state) {
				x.losses--
				n := &x.nodes[i]
				n.key, n.up = 0, 0
				if m.broken != noFaithInCounters {
					n.counter = 0
				}
			}))
		}
		if s.vanishings > 0 && s.nodes[i].key != 0 {
			do("its key vanishes", false, -1, i, always(func(x *state) { x.vanishings--; x.nodes[i].key = 0 }))
		}
		if s.drifts > 0 {
			do("its clock runs ahead", false, -1, i, always(func(x *state) { x.drifts--; m.pass(&x.nodes[i]) }))
		}
	}
	for t := range m.tries {
		m.client(s, t, do)
		for i := range s.nodes {
			m.deliver(s, t, i, do)
		}
	}
}

// pass lets a tick pass on a node.
func (m *model) pass(n *node) {
	n.left = max(n.left, 1) - 1
	n.up = min(n.up+1, m.quarantineLength())
}

type doFunc func(what string, lost bool, t, i int, f func(*state) string)

// client does what a client may do of itself.
func (m *model) client(s *state, t int, do doFunc) {
	switch y := s.tries[t]; y.phase {
	case idle:
		if t > 0 && !m.adopts && s.tries[t-1].phase == idle { // clients are alike
			return
		}
		if former := s.tries[0].phase; m.adopts && t == 1 && former != held && former != over {
			return
		}
		if m.oneClient && t == 1 && s.tries[0].phase != over && s.tries[0].phase != failed {
			return
		}
		m.begin(t, 0, do)
		if m.proposals {
			m.begin(t, (s.now+m.skew)*unit+unit/2, do)
		}
	case asking, raising:
		if m.quits(t) {
			do("gives up", false, t, -1, func(x *state) string { m.end(x, t, failed); return "" })
		}
	case held:
		if m.quits(t) {
			do("releases", false, t, -1, func(x *state) string { m.end(x, t, over); return "" })
		}
		if !y.renewing && y.renewalsSoFar < m.renewals && t < m.renewers {
			do("renews", false, t, -1, func(x *state) string {
				y := &x.tries[t]
				y.renewing, y.renewalBegun = true, x.now
				y.renewalsSoFar++
				for i := range x.nodes {
					x.nodes[i].links[t].msgs |= renewMsg
				}
				return ""
			})
		}
	}
}

func (m *model) begin(t int, proposal uint8, do doFunc) {
	do("begins", false, t, -1, func(x *state) string {
		y := &x.tries[t]
		y.phase, y.begun, y.proposal = asking, x.now, proposal
		if m.adopts && t == 1 && !m.formerLives {
			x.tries[0].phase = over // it sends nothing more
		}
		for u := range m.tries {
			if o := x.tries[u]; o.phase == held || o.phase == over {
				y.before = max(y.before, o.fence)
			}
		}
		for i := range x.nodes {
			n := &x.nodes[i]
			n.links[t].msgs |= acquireMsg
			if m.broken == uptimeInTheScript && !m.young(n) {
				n.links[t].msgs |= wasOld
			}
		}
		return ""
	})
}

func (m *model) end(x *state, t int, p phase) {
	x.tries[t].phase = p
	for i := range x.nodes {
		x.nodes[i].links[t].msgs |= releaseMsg
	}
}

// deliver delivers the messages from an attempt to a node, each with its reply heard or lost.
func (m *model) deliver(s *state, t, i int, do doFunc) {
	if s.nodes[i].links[t].msgs == 0 {
		return
	}
	land := func(msg uint8, what string, f func(x *state, n *node, heard bool) string) {
		if s.nodes[i].links[t].msgs&msg == 0 {
			return
		}
		for _, heard := range []bool{true, false} {
			if !heard && (m.repliesArrive || msg&(refillMsg|releaseMsg) != 0) {
				continue // nobody waits for the latter
			}
			for _, copied := range []bool{false, true} {
				if copied && s.copies == 0 {
					continue
				}
				do(what, !heard, t, i, func(x *state) string {
					n := &x.nodes[i]
					if copied {
						x.copies--
					} else {
						n.links[t].msgs &^= msg
					}
					return f(x, n, heard)
				})
			}
		}
	}
	times := []uint8{(s.now + s.nodes[i].skew) * unit}
	if m.clockless {
		times = []uint8{0, unit}
	}
	for _, time := range times {
		land(acquireMsg, "acquire lands", func(x *state, n *node, heard bool) string {
			m.acquire(x, n, t, time)
			if !heard {
				return ""
			}
			return m.granted(x, n, t)
		})
	}
	land(raiseMsg, "raise lands", func(x *state, n *node, heard bool) string {
		if m.raise(x, n, t) && heard && n.counter == x.tries[t].fence {
			n.links[t].got |= accepted
		}
		return m.handOut(x, t)
	})
	land(renewMsg, "renewal lands", func(x *state, n *node, heard bool) string {
		free := n.key == 0
		mine := m.renew(x, n, t)
		switch y := &x.tries[t]; {
		case !heard || y.phase != held:
		case mine && y.renewing:
			n.links[t].got |= renewed
		case free && y.renewing:
			n.links[t].got |= absent
		case free && !mine:
			n.links[t].msgs |= refillMsg // late, and the round was confirmed without it
		}
		m.confirmed(x, t)
		return ""
	})
	land(refillMsg, "refill lands", func(x *state, n *node, _ bool) string { m.refill(x, n, t); return "" })
	land(releaseMsg, "release lands", func(x *state, n *node, _ bool) string { m.release(x, n, t); return "" })
}

// tidy makes one state of those that differ in nothing that matters any more.
func (m *model) tidy(s *state) {
	for t := range m.tries {
		y := &s.tries[t]
		if y.phase == held && !m.clockless && s.now >= y.until {
			y.phase = over
		}
		done := y.phase == over || y.phase == failed
		if done {
			y.begun, y.until, y.before, y.renewing, y.renewalBegun, y.renewalsSoFar = 0, 0, 0, false, 0, 0
		}
		for i := range s.nodes {
			n := &s.nodes[i]
			l := &n.links[t]
			if y.phase != asking && y.phase != raising {
				l.candidate, l.got = 0, l.got&^accepted
			}
			if !y.renewing {
				l.got &^= renewed | absent
			}
			// A command for a key that its token neither has nor can get changes nothing.
			if done && n.key != m.token(t) && l.msgs&(acquireMsg|refillMsg) == 0 &&
				!(m.adopts && t == 0) && m.broken != raiseOnlyOwn && m.broken != renewalCreatesNothing && m.broken != newToken {
				l.msgs = 0
			}
			if l.msgs&acquireMsg == 0 {
				l.msgs &^= wasOld
			}
		}
	}
	for i := range s.nodes {
		if n := &s.nodes[i]; n.left == 0 && !m.clockless || n.key == 0 {
			n.key, n.left = 0, 0
		}
	}
}

// sortNodes makes one state of those whose nodes differ in their order only.
func sortNodes(s *state) {
	for _, p := range [...][2]int{{0, 1}, {1, 2}, {0, 1}} {
		if a, b := &s.nodes[p[0]], &s.nodes[p[1]]; b.less(a) {
			*a, *b = *b, *a
		}
	}
}

// words packs a node.
func (n *node) words() (a, b uint64) {
	l := &n.links
	a = pack(n.skew, n.key, n.left, n.counter, n.up, l[0].msgs, l[0].got, l[0].candidate)
	b = pack(l[1].msgs, l[1].got, l[1].candidate, l[2].msgs, l[2].got, l[2].candidate, 0, 0)
	return a, b
}

func (n *node) less(o *node) bool {
	a, b := n.words()
	c, d := o.words()
	return a < c || a == c && b < d
}

func pack(a, b, c, d, e, f, g, h uint8) uint64 {
	return uint64(a) | uint64(b)<<8 | uint64(c)<<16 | uint64(d)<<24 | uint64(e)<<32 | uint64(f)<<40 | uint64(g)<<48 | uint64(h)<<56
}

// explored is the model as package explore wants it.
func (m *model) explored() explore.Model[state, step] {
	return explore.Model[state, step]{
		Start: m.start(),
		Steps: func(s *state, emit func(*state, step, string)) {
			m.successors(s, func(x *state, st step, violated string) {
				if m.only != "" && violated != m.only {
					violated = ""
				}
				emit(x, st, violated)
			})
		},
		Canonical: sortNodes,
		Bounds:    m,
		Eventful:  func(s *state) bool { return m.trusted(s) > 0 },
	}
}

func (st step) String() string {
	var b strings.Builder
	if st.try >= 0 {
		fmt.Fprintf(&b, "attempt %d ", st.try)
	}
	if st.node >= 0 {
		fmt.Fprintf(&b, "node %d: ", st.node)
	}
	b.WriteString(st.what)
	if st.lost {
		b.WriteString(", its reply is lost")
	}
	return b.String()
}
