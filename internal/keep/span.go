package keep

import "time"

// Span is the TTL of a lease, which extensions change. It says how far the yes to a renewal may be
// trusted: a holder must never trust its lease for longer than the key lasts, and renewals and
// extensions may arrive, and be answered, in any order. Four rules see to that:
//
//   - A renewal takes no time from the key, so a late one does no harm. A cut, which is an extension
//     to a shorter TTL, has to take time.
//   - A cut is in force before it is sent, and for as long as a copy of it may still arrive.
//   - A renewal that was begun before the end of an extension may have run before it. So its yes
//     moves no deadline. The round tells: it counts the beginnings and ends of extensions.
//   - The extensions of one lease take turns, for which the caller cares. Of two at once nobody could
//     tell which one the key has followed last.
//
// It belongs to the lease, whose mutex guards it. Make one with [NewSpan].
type Span struct {
	ttl   time.Duration // the last one that was confirmed
	most  time.Duration // the longest that the key may have been given
	round int
	open  int           // of each cut: its call, and what may still arrive of it
	cut   time.Duration // the shortest TTL of the open cuts
}

// NewSpan returns the span of a lease that was won with that TTL, whose key may have been given more.
func NewSpan(ttl, most time.Duration) Span { return Span{ttl: ttl, most: most} }

// TTL is what renewals ask for.
func (s *Span) TTL() time.Duration { return s.ttl }

// Trusted is for how long a renewal may be trusted.
func (s *Span) Trusted() time.Duration {
	if s.open > 0 {
		return min(s.ttl, s.cut)
	}
	return s.ttl
}

// Round is the round to which the yes of a renewal belongs that is begun now.
func (s *Span) Round() int { return s.round }

// Begin begins an extension, and reports whether it is a cut.
func (s *Span) Begin(ttl time.Duration) (cuts bool) {
	s.round++
	if ttl >= s.most {
		s.most = ttl
		return false
	}
	if s.open == 0 || ttl < s.cut {
		s.cut = ttl
	}
	s.open += 2
	return true
}

// End ends the call of an extension. It returns the round to which its own yes belongs.
func (s *Span) End(ttl time.Duration, cuts, confirmed bool) (round int) {
	s.round++
	if cuts {
		s.open--
	}
	if confirmed {
		s.ttl = ttl
	}
	return s.round
}

// Settle notes that nothing of a cut arrives any more.
func (s *Span) Settle() { s.open-- }
