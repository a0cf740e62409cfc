package several

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-leasehold/leasehold/proof/explore"
)

// explored is the model as package explore wants it.
func (m *model) explored() explore.Model[state, step] {
	return explore.Model[state, step]{
		Start:     m.start(),
		Steps:     m.steps,
		Bounds:    m,
		Canonical: m.canonical,
		Eventful:  func(s *state) bool { return s.highest != [5]uint8{} },
		Show:      show,
	}
}

// references is the set of the tokens of which Redis or the network knows.
func (s *state) references() (set uint8) {
	add := func(t token) {
		if t != 0 {
			set |= bit(t)
		}
	}
	if s.lock.owner <= foreigner {
		add(s.lock.owner)
	}
	for _, h := range s.holders {
		add(h.token)
	}
	add(s.told)
	for _, p := range s.line {
		add(p.token)
	}
	for _, c := range s.commands {
		add(c.token)
		add(c.former)
	}
	for _, g := range s.messages {
		add(g.token)
	}
	return set
}

func (s *state) refersTo(t token) bool { return s.references()&bit(t) != 0 }

// tidy forgets what cannot matter any more.
func (w *walk) tidy(s *state) {
	for i, g := range s.messages { // that nobody will act on
		if g.token != 0 {
			c := ownerOf(g.token)
			if cl := &s.clients[c]; cl.dead != 0 || cl.phase != waiting || s.tokenOf(c) != g.token {
				s.messages[i] = message{}
			}
		}
	}
	if !s.marked() {
		s.closed = 0
		if w.broken != staleAreDeleted { // nobody else ever reads them
			s.holders, s.holdersLeft, s.blind = [maxHolders]holder{}, 0, 0
		}
	}
	if !w.timed {
		s.closed = 0
	}
	known := s.references()
	for c := range s.clients {
		cl := &s.clients[c]
		if cl.phase != idle {
			known |= bit(s.tokenOf(c))
		}
		if cl.former != 0 {
			known |= bit(cl.former)
		}
		if cl.left == 0 {
			cl.fence, cl.slot = 0, 0
		}
	}
	if s.foreign.phase != idle {
		known |= bit(foreigner)
	}
	for _, set := range []*uint8{&s.tombs, &s.excused, &s.ended, &s.returned} {
		*set &= known
	}
	if !w.givenUp {
		s.ended, s.returned = 0, 0
	}
	if !w.timed {
		s.lineLeft = min(s.lineLeft, 1)
	}
	if s.told == 0 {
		s.toldFence = 0
	}
}

// canonical makes one state of those that differ in the names of clients and of their tokens, in the order of what is under
// way, or in fencing tokens of the same order.
func (m *model) canonical(s *state) {
	m.rename(s)
	rank(s)
	slices.SortFunc(s.commands[:], func(a, b command) int { return b.order() - a.order() })
	slices.SortFunc(s.messages[:], func(a, b message) int { return b.order() - a.order() })
	slices.SortFunc(s.holders[:], func(a, b holder) int { return int(b.token) - int(a.token) })
}

func (c command) order() int { return int(c.kind)<<16 | int(c.token)<<8 | int(c.former) }
func (g message) order() int { return int(g.token)<<16 | int(g.fence)<<8 | int(g.slot) }

func (m *model) rename(s *state) {
	known := s.references()
	var keys [clients]uint64
	order := [clients]int{0, 1, 2}
	for c := range s.clients {
		keys[c] = s.sortKey(c)
	}
	for i := 1; i < clients; i++ {
		for j := i; j > 0 && m.alike(order[j], order[j-1]) && keys[order[j]] > keys[order[j-1]]; j-- {
			order[j], order[j-1] = order[j-1], order[j]
		}
	}
	to := [slotsMarker + 1]token{foreigner: foreigner, sharedMarker: sharedMarker, slotsMarker: slotsMarker}
	old := s.clients
	for at, from := range order {
		cl := old[from]
		a, b := nameOf(from, 0), nameOf(from, 1)
		// The token in use comes first, or else the one that has left traces.
		if cl.phase != idle && cl.name == 1 || cl.phase == idle && known&bit(a) == 0 && known&bit(b) != 0 {
			a, b = b, a
		}
		to[a], to[b] = nameOf(at, 0), nameOf(at, 1)
		cl.name = 0
		s.clients[at] = cl
	}
	s.lock.owner, s.told = to[s.lock.owner], to[s.told]
	for i := range s.holders {
		s.holders[i].token = to[s.holders[i].token]
	}
	for i := range s.line {
		s.line[i].token = to[s.line[i].token]
	}
	for i := range s.commands {
		s.commands[i].token, s.commands[i].former = to[s.commands[i].token], to[s.commands[i].former]
	}
	for i := range s.messages {
		s.messages[i].token = to[s.messages[i].token]
	}
	for c := range s.clients {
		s.clients[c].former = to[s.clients[c].former]
	}
	for _, set := range []*uint8{&s.tombs, &s.excused, &s.ended, &s.returned} {
		var renamed uint8
		for t := token(1); t <= foreigner; t++ {
			if *set&bit(t) != 0 {
				renamed |= bit(to[t])
			}
		}
		*set = renamed
	}
}

// alike reports whether two clients differ in what they do only.
func (m *model) alike(a, b int) bool {
	takePart := (a < int(m.clients)) == (b < int(m.clients))
	return takePart && m.kinds[a] == m.kinds[b] && m.ttls[a] == m.ttls[b] && m.old[a] == m.old[b]
}

// sortKey orders clients by what they do and by what is known of their tokens. Two that have one key and differ all the
// same cost a state more, and nothing else.
func (s *state) sortKey(c int) (key uint64) {
	cl := &s.clients[c]
	for name := range uint8(perClient) {
		t := nameOf(c, name)
		var at uint64
		if s.lock.owner == t {
			at = 8
		}
		if i := s.holderOf(t); i >= 0 {
			at = 8 + uint64(s.holders[i].left&7)
		}
		if i := s.placeOf(t); i >= 0 {
			at |= uint64(i + 1)
		}
		if name == cl.name {
			at <<= 4
		}
		key |= at
	}
	for i, f := range [...]uint8{
		cl.due, cl.dead, cl.paused, cl.acquisitions, cl.age, cl.trust, cl.left, cl.reply, cl.call, cl.phase,
	} {
		key |= uint64(f&15) << (12 + 4*i)
	}
	return key
}

// rank renumbers the fencing tokens: only their order matters.
func rank(s *state) {
	var in [8 + maxMessages + maxHolders + 3*clients]*uint8
	all := append(in[:0], &s.counter, &s.lock.fence, &s.toldFence)
	for i := range s.highest {
		all = append(all, &s.highest[i])
	}
	for i := range s.holders {
		all = append(all, &s.holders[i].fence)
	}
	for i := range s.messages {
		all = append(all, &s.messages[i].fence)
	}
	for c := range s.clients {
		cl := &s.clients[c]
		all = append(all, &cl.high, &cl.replyFence, &cl.fence)
	}
	explore.Rank(all)
}

// step names one.
type step struct {
	what    string
	who     int8 // a client; clients is the foreign one
	command command
}

const nobody int8 = -1

var kindNames = [...]string{
	"", "try", "join", "poll", "renew", "release", "adopt", "SET NX PX", "compare and delete",
}

func (st step) String() string {
	who := ""
	switch {
	case st.who == clients:
		who = "foreigner "
	case st.who >= 0:
		who = string(rune('A'+st.who)) + " "
	case st.command.kind != 0:
		who = st.command.String() + " "
	}
	return who + st.what
}

func (c command) String() string {
	what := kindNames[c.kind&verb]
	if c.kind&cancel != 0 {
		what = "cancellation of " + what
	}
	if c.kind&orphan != 0 {
		what = "abandoned " + what
	}
	return what + " " + tokenName(c.token)
}

func tokenName(t token) string {
	switch t {
	case 0:
		return "-"
	case foreigner:
		return "x"
	case sharedMarker:
		return "shared"
	case slotsMarker:
		return "slots"
	}
	return string(rune('A'+ownerOf(t))) + strings.Repeat("'", int(t-1)%perClient)
}

// show prints a state in one line.
func show(s *state) string {
	var b strings.Builder
	fmt.Fprintf(&b, "lock %s for %d, counter %d", tokenName(s.lock.owner), s.lock.left, s.counter)
	if s.missing != 0 {
		b.WriteString(" missing")
	}
	if s.marked() {
		b.WriteString(", holders")
		for _, h := range s.holders {
			if h.token != 0 {
				fmt.Fprintf(&b, " %s:%d with %d slot %d", tokenName(h.token), h.left, h.fence, h.slot)
			}
		}
		if s.blind != 0 {
			b.WriteString(" (entries lost)")
		}
	}
	b.WriteString(", line")
	for _, p := range s.line {
		if p.token != 0 {
			fmt.Fprintf(&b, " %s:%d", tokenName(p.token), p.heartbeat)
		}
	}
	for t := token(1); t < foreigner; t++ {
		if s.tombs&bit(t) != 0 {
			fmt.Fprintf(&b, " tomb of %s", tokenName(t))
		}
	}
	for c := range s.clients {
		cl := &s.clients[c]
		if cl.phase == idle {
			continue
		}
		fmt.Fprintf(&b, "; %s %s", tokenName(s.tokenOf(c)), [...]string{"", "tries", "waits", "holds", "adopts"}[cl.phase])
		switch {
		case cl.phase == holding:
			fmt.Fprintf(&b, " with %d slot %d, trusts it for %d", cl.fence, cl.slot, cl.left)
		case cl.phase == waiting:
			fmt.Fprintf(&b, " above %d, would trust for %d", cl.high, cl.trust)
		}
		if cl.call != 0 {
			fmt.Fprintf(&b, ", calls %s since %d", kindNames[cl.call&verb], cl.age)
		}
		if cl.reply != 0 {
			b.WriteString(", answered")
		}
		if cl.paused != 0 {
			b.WriteString(", paused")
		}
	}
	if s.foreign.phase != idle {
		fmt.Fprintf(&b, "; the foreign client trusts for %d", s.foreign.left)
	}
	for _, c := range s.commands {
		if c.kind != 0 {
			fmt.Fprintf(&b, "; %s under way", c)
		}
	}
	for _, g := range s.messages {
		if g.token != 0 {
			fmt.Fprintf(&b, "; message to %s of %d slot %d", tokenName(g.token), g.fence, g.slot)
		}
	}
	if s.idle > 0 {
		fmt.Fprintf(&b, "; idle for %d", s.idle)
	}
	return b.String()
}
