package turns

import (
	"cmp"
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
		Eventful: func(s *state) bool {
			return slices.ContainsFunc(s.of[:], func(x process) bool { return x.passes > 0 })
		},
		Show: show,
	}
}

// tidy forgets what cannot matter any more.
func (w *walk) tidy(s *state) {
	if w.losses == 0 {
		s.written, s.ahead = 0, 0
	}
	for i, g := range s.messages { // that nobody will act on
		if g.token != 0 {
			if x := &s.of[processOf(g.token)]; x.phase != waiting || x.token != g.token {
				s.messages[i] = message{}
			}
		}
	}
	var known uint8
	see := func(t token) {
		if t != 0 {
			known |= bit(t)
		}
	}
	see(s.owner)
	see(s.adopter.former)
	if s.adopter.phase != idle {
		see(adopter)
	}
	for i := range s.line {
		p := &s.line[i]
		forget(&p.until, 0, s.now)
		see(p.token)
	}
	for _, c := range s.commands {
		see(c.token)
	}
	for p := range s.of {
		x := &s.of[p]
		see(x.token)
		forget(&x.anchor, min(w.waiterTTL, w.ttl), s.now)
		forget(&x.sent, w.ttl, s.now)
		forget(&x.renewalSent, w.ttl, s.now)
		if w.broken != passInTime {
			forget(&x.deadline, 0, s.now)
		}
		forget(&x.from, w.d, s.now)
		if w.perTick == 0 {
			x.won = 0
		}
		if !w.timed {
			x.waited, x.begun = 0, 0
		}
	}
	forget(&s.adopter.deadline, 0, s.now)
	forget(&s.adopter.sent, w.ttl, s.now)
	s.tombs &= known
	s.ended &= known
	s.excused &= known
}

// forget sets an instant to none if it is over after that time.
func forget(at *uint8, life, now uint8) {
	if *at > 0 && *at+life <= now {
		*at = 0
	}
}

// canonical makes one state of those that differ in the order of what is under way; and, where the clock is not in the
// fencing tokens, of those that differ in the date, or in fencing tokens of the same order.
func (m *model) canonical(s *state) {
	if m.perTick == 0 {
		shift(s)
		m.rank(s)
	}
	slices.SortFunc(s.commands[:], func(a, b command) int {
		return cmp.Or(cmp.Compare(b.kind, a.kind), cmp.Compare(b.token, a.token), cmp.Compare(b.upto, a.upto))
	})
	slices.SortFunc(s.messages[:], func(a, b message) int {
		return cmp.Or(cmp.Compare(b.token, a.token), cmp.Compare(b.fence, a.fence))
	})
}

// shift makes now the first instant.
func shift(s *state) {
	at := func(times ...*uint8) {
		for _, t := range times {
			if *t != 0 {
				*t = *t + start - s.now
			}
		}
	}
	at(&s.expires, &s.written, &s.adopter.sent, &s.adopter.deadline)
	for i := range s.line {
		at(&s.line[i].until)
	}
	for p := range s.of {
		x := &s.of[p]
		at(&x.sent, &x.anchor, &x.deadline, &x.from, &x.won, &x.begun, &x.renewalSent)
	}
	s.now = start
}

// rank renumbers the fencing tokens. Those of a block that may be reserved keep their distance.
func (m *model) rank(s *state) {
	var seen uint64
	all := make([]*uint8, 0, 24)
	note := func(f *uint8, n uint8) {
		all = append(all, f)
		for i := range n {
			seen |= 1 << (*f + i)
		}
	}
	note(&s.counter, 1)
	note(&s.highest, 1)
	note(&s.adopter.replyFence, 1)
	for i := range s.messages {
		note(&s.messages[i].fence, 1)
	}
	for i := range s.commands {
		note(&s.commands[i].upto, 1)
	}
	for p := range s.of {
		x := &s.of[p]
		note(&x.replyFence, 1)
		note(&x.high, 1)
		if x.phase == holding {
			note(&x.first, m.block)
		}
	}
	explore.RankAmong(seen, all)
}

// step names one.
type step struct {
	what    string
	who     int8 // a process; processes is the adopter
	command command
}

const nobody int8 = -1

func (st step) String() string {
	who := ""
	switch {
	case st.who == processes:
		who = "the adopter "
	case st.who >= 0:
		who = string(rune('P'+st.who)) + " "
	case st.command.kind != 0:
		who = st.command.String() + " "
	}
	return who + st.what
}

func (c command) String() string {
	what := [...]string{"", "join", "poll", "renew", "release", "adopt"}[c.kind&verb]
	if c.kind&cancel != 0 {
		what = "cancellation by " + what
	}
	if c.kind&orphan != 0 {
		what = "abandoned " + what
	}
	if c.upto > 0 {
		what += fmt.Sprintf(" up to %d", c.upto)
	}
	return what + " " + tokenName(c.token)
}

func tokenName(t token) string {
	switch t {
	case 0:
		return "-"
	case adopter:
		return "adopter's"
	}
	return fmt.Sprintf("%c%d", 'P'+processOf(t), (t-1)%maxStays)
}

// show prints a state in one line.
func show(s *state) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d: lock %s until %d, counter %d, line", s.now, tokenName(s.owner), s.expires, s.counter)
	for _, p := range s.line {
		if p.token != 0 {
			fmt.Fprintf(&b, " %s until %d", tokenName(p.token), p.until)
		}
	}
	for p := range s.of {
		switch x := &s.of[p]; x.phase {
		case holding:
			fmt.Fprintf(&b, "; %s holds until %d with %d, %d reserved", tokenName(x.token), x.deadline, x.first+x.passes, x.reserved)
		case waiting:
			fmt.Fprintf(&b, "; %s waits above %d, anchor %d", tokenName(x.token), x.high, x.anchor)
		}
		if c := s.of[p].closing; c > 0 {
			fmt.Fprintf(&b, "; %c %s", 'P'+p, [...]string{"", "closes", "has closed"}[c])
		}
	}
	if s.adopter.phase == holding {
		fmt.Fprintf(&b, "; the adopter holds until %d", s.adopter.deadline)
	}
	for _, c := range s.commands {
		if c.kind != 0 {
			fmt.Fprintf(&b, "; %s under way", c)
		}
	}
	for _, g := range s.messages {
		if g.token != 0 {
			fmt.Fprintf(&b, "; message to %s of %d", tokenName(g.token), g.fence)
		}
	}
	return b.String()
}
