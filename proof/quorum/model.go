// Package quorum checks the protocol of leasehold's quorums.
//
// The model has three nodes and two or three attempts to take one lock. Time passes in ticks. A message is delivered at any
// later moment, in any order, or never; its reply arrives at once or never; with a budget, a copy of it is delivered as well.
// A node may lose all its data and restart, its clock may run ahead by a tick, and, where there are no clocks at all, any key
// may vanish at any moment. A client that stops is one that sends nothing more, which every message that is never
// delivered already covers.
//
// What is looked at, with the names of the documentation:
//
//	E   at most one lease is trusted at any instant
//	O1  a lease whose attempt began after another was handed out has the higher fencing token
//	O2  no two leases share a fencing token
//
// The tests run the protocol as it is, which must pass, and with one rule left out at a time, which must fail: a model that
// misses a broken rule proves nothing. What is not modelled: five nodes, the cap on proposals, the expiry of the counter, a
// node that comes back with a part of its data, and whether the Go code follows the rules, which the simulation in the package
// itself is for.
package quorum

const (
	nodes    = 3
	majority = 2
	maxTries = 3
	unit     = 4 // of a counter, to the tick: TIME counts much faster than a TTL
)

// A rule of the protocol that can be left out.
type rule int

const (
	none                  rule = iota
	raise                      // a node accepts the fencing token before it counts
	acceptByMajority           // and a majority of nodes does
	raiseOnlyOwn               // the raise writes only where its token holds the key
	renewByMajority            // the deadline moves when a majority has confirmed the lease
	deadlineFromSend           // it counts from before the first send
	marginForDrift             // less a margin
	newToken                   // the next attempt has a token of its own
	quarantineAfterLoss        // a node that restarted votes for nobody
	quarantineCoversTTL        // as long as any lease lasts
	uptimeInTheScript          // which is looked at in the step that grants
	noFaithInCounters          // whatever has survived
	refillAsksUptime           // the holder gets such a node back no sooner than others
	renewalCreatesNothing      // a renewal does not give a key back
	timeFloor                  // a counter is never below the node's clock
	adoptMints                 // an adoption has a candidate of its own, above the counter
	adoptKeepsTime             // it does not shorten the time of the key
	raiseKeepsTime             // nor does a raise
	adoptGivesBack             // what an adoption that failed has taken is the former token's again
)

// model is what one check explores.
type model struct {
	tries      int
	oneClient  bool // the first two attempts are one client's, one after the other
	ttl        uint8
	margin     uint8
	quarantine uint8
	ticks      uint8 // that pass in all
	skew       uint8 // of the third node's clock, constant
	clockless  bool  // keys vanish at any moment, TIME answers anything, and no deadline stops a hand-out

	losses, vanishings, copies, drifts, renewals uint8 // how often it may happen

	repliesArrive bool // never lost, unless the message was
	proposals     bool // an attempt may propose a fencing token above every clock
	adopts        bool // the second attempt adopts the lease of the first
	formerLives   bool // which goes on; else it is detached
	adopterTTL    uint8
	renewers      int // so many attempts renew what they got
	quitters      int // so many attempts may give up, or release what they got
	broken        rule
	only          string // the one property that is looked at; "": all
}

type phase uint8

const (
	idle phase = iota
	asking
	raising
	held
	over   // was handed out
	failed // was not
)

// Messages under way from an attempt to a node, and what came back.
const (
	acquireMsg uint8 = 1 << iota
	raiseMsg
	releaseMsg
	renewMsg
	refillMsg
	wasOld // uptimeInTheScript is broken: the node's uptime was looked at before, and was enough
)

const (
	accepted uint8 = 1 << iota
	renewed
	absent
)

// link is what is between one attempt and one node.
type link struct {
	msgs, got uint8
	candidate uint8 // 0: not granted
}

type node struct {
	key     uint8 // the holder's token; 0: free
	left    uint8 // ticks until it expires
	counter uint8
	up      uint8 // ticks since the start, no more than matter
	skew    uint8
	links   [maxTries]link
}

type try struct {
	phase         phase
	begun, until  uint8
	proposal      uint8
	fence         uint8
	before        uint8 // the highest fencing token handed out when it began
	renewing      bool
	renewalBegun  uint8
	renewalsSoFar uint8
}

// state is one state of the model. It is comparable, and nodes that differ in their order only are one state.
type state struct {
	now                                uint8
	losses, vanishings, copies, drifts uint8
	tries                              [maxTries]try
	nodes                              [nodes]node
}

func (m *model) start() state {
	s := state{losses: m.losses, vanishings: m.vanishings, copies: m.copies, drifts: m.drifts}
	for i := range s.nodes {
		s.nodes[i].up = m.quarantineLength()
	}
	s.nodes[nodes-1].skew = m.skew
	m.tidy(&s)
	return s
}

func (m *model) quarantineLength() uint8 {
	switch m.broken {
	case quarantineAfterLoss:
		return 0
	case quarantineCoversTTL:
		return m.quarantine - 1
	}
	return m.quarantine
}

func (m *model) token(t int) uint8 {
	if m.broken == newToken && m.oneClient && t == 1 {
		t = 0
	}
	return uint8(t) + 1
}

// adopter reports whether an attempt takes a lease over, and from whom: 0 is nobody.
func (m *model) adopter(t int) (yes bool, from uint8) {
	if m.adopts && t == 1 {
		return true, m.token(0)
	}
	return false, 0
}

// quits reports whether an attempt may give up, or release what it got.
func (m *model) quits(t int) bool { return t < m.quitters && (!m.adopts || t == 1) }

func (m *model) ttlOf(t int) uint8 {
	if yes, _ := m.adopter(t); yes {
		return m.adopterTTL
	}
	return m.ttl
}

// The scripts, each one atomic step on one node.

func (m *model) young(n *node) bool {
	if m.broken == noFaithInCounters && n.counter > 0 {
		return false
	}
	return n.up < m.quarantineLength()
}

func (m *model) acquire(s *state, n *node, t int, time uint8) {
	adopts, from := m.adopter(t)
	switch id := m.token(t); {
	case m.broken == uptimeInTheScript && n.links[t].msgs&wasOld == 0:
	case m.broken != uptimeInTheScript && m.young(n):
	case n.key == id:
	case n.key == from:
		n.key, n.left = id, max(n.left, m.ttlOf(t))
		if adopts && m.broken == adoptKeepsTime {
			n.left = m.ttlOf(t)
		}
		if adopts && m.broken == adoptMints {
			return
		}
		f := max(n.counter+1, s.tries[t].proposal)
		if m.broken != timeFloor {
			f = max(f, time)
		}
		n.counter = f
	}
}

func (m *model) renew(s *state, n *node, t int) (mine bool) {
	f := s.tries[t].fence
	if n.key == 0 && m.broken == renewalCreatesNothing {
		n.key = m.token(t)
	}
	if n.key != m.token(t) {
		if m.broken == raiseOnlyOwn {
			n.counter = max(n.counter, f)
		}
		return m.broken == raiseOnlyOwn && n.counter == f
	}
	n.left, n.counter = m.ttlOf(t), max(n.counter, f)
	return true
}

// raise is a renewal that leaves the time alone.
func (m *model) raise(s *state, n *node, t int) (mine bool) {
	left := n.left
	mine = m.renew(s, n, t)
	if m.broken != raiseKeepsTime {
		n.left = left
	}
	return mine
}

func (m *model) refill(s *state, n *node, t int) {
	if n.key == 0 && (m.broken == refillAsksUptime || !m.young(n)) {
		n.key, n.left = m.token(t), m.ttlOf(t)
		n.counter = max(n.counter, s.tries[t].fence)
	}
}

func (m *model) release(s *state, n *node, t int) {
	if n.key != m.token(t) {
		return
	}
	n.key = 0
	if adopts, from := m.adopter(t); adopts && s.tries[t].phase == failed && m.broken != adoptGivesBack {
		n.key = from
	}
}

// The client.

// granted takes in a node's answer to acquire.
func (m *model) granted(s *state, n *node, t int) string {
	y := &s.tries[t]
	if y.phase != asking && y.phase != raising || n.key != m.token(t) || n.links[t].candidate > 0 {
		return ""
	}
	n.links[t].candidate = n.counter
	if y.phase == raising {
		m.accept(n, t, y.fence)
	} else if count(s, func(n *node) bool { return n.links[t].candidate > 0 }) >= majority {
		y.phase = raising
		for i := range s.nodes {
			y.fence = max(y.fence, s.nodes[i].links[t].candidate)
		}
		for i := range s.nodes {
			m.accept(&s.nodes[i], t, y.fence)
		}
	}
	return m.handOut(s, t)
}

// accept counts a node whose candidate is the fencing token, and has a lower one raised.
func (m *model) accept(n *node, t int, f uint8) {
	switch l := &n.links[t]; {
	case l.candidate == 0:
	case l.candidate == f || m.broken == raise:
		l.got |= accepted
	case l.candidate < f:
		l.msgs |= raiseMsg
	}
}

// handOut makes a lease of an attempt as soon as it can. It answers the property that this violates.
func (m *model) handOut(s *state, t int) string {
	y := &s.tries[t]
	need := majority
	if m.broken == acceptByMajority {
		need = 1
	}
	if y.phase != raising || count(s, func(n *node) bool { return n.links[t].got&accepted != 0 }) < need {
		return ""
	}
	until := y.begun + m.ttlOf(t) - m.margin
	switch {
	case m.broken == deadlineFromSend:
		until = s.now + m.ttlOf(t) - m.margin
	case m.broken == marginForDrift:
		until = y.begun + m.ttlOf(t)
	}
	if !m.clockless && s.now >= until {
		return ""
	}
	y.phase, y.until = held, until
	if y.fence <= y.before {
		return "O1"
	}
	for u := range m.tries {
		if o := s.tries[u]; u != t && (o.phase == held || o.phase == over) && o.fence == y.fence {
			return "O2"
		}
	}
	return ""
}

// confirmed moves the deadline once a majority has confirmed the lease, and only then sends refills.
func (m *model) confirmed(s *state, t int) {
	y := &s.tries[t]
	need := majority
	if m.broken == renewByMajority {
		need = 1
	}
	if y.phase != held || !y.renewing || count(s, func(n *node) bool { return n.links[t].got&renewed != 0 }) < need {
		return
	}
	y.renewing = false
	y.until = max(y.until, y.renewalBegun+m.ttlOf(t)-m.margin)
	for i := range s.nodes {
		l := &s.nodes[i].links[t]
		if l.got&absent != 0 {
			l.msgs |= refillMsg
		}
		l.got &^= renewed | absent
	}
}

func count(s *state, f func(*node) bool) (n int) {
	for i := range s.nodes {
		if f(&s.nodes[i]) {
			n++
		}
	}
	return n
}

// trusted reports how many leases are trusted at this instant, but for one that somebody has adopted: its holder hears of that
// with its next renewal only.
func (m *model) trusted(s *state) (n int) {
	for t := range m.tries {
		adopted := m.adopts && t == 0 && (s.tries[1].phase == held || s.tries[1].phase == over)
		if s.tries[t].phase == held && !adopted {
			n++ // tidy ends those whose time is over
		}
	}
	return n
}
