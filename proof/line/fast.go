package line

// The short scripts (internal/short), and the flag of the fencing counter on which they rely. Their runs set the model's flag.
//
// The fencing counter is digits, or digits and a flag. Invariant I: digits alone prove that there is neither line nor
// tombstone. Whatever makes a place or a tombstone sets the flag in the same script; a hand-over keeps it; an acquire that
// finds neither line nor tombstone clears it. A counter that is missing proves nothing, and is not made by setting the
// flag. One that is written where there was none has the flag, unless the same script has found neither line nor tombstone.
//
// So a lone caller needs the key and the counter only. Its scripts do what is certainly ordinary, and else nothing: the
// caller then sends the full script.
//
// That effects of one script reach a replica together is taken for granted. Batches of such scripts are no more than
// several of them in one step, for different keys.

// flagging is what a new fencing token does to the flag.
type flagging bool

const (
	keep  flagging = false // it stays as it is; a counter that was missing has it
	clear flagging = true  // there is neither line nor tombstone
)

// mint is token.lua: the next fencing token.
func (w *walk) mint(s *state, how flagging) uint8 {
	if w.flag {
		if how == clear && s.flagged != 0 && w.only == flagGone {
			w.fail(flagGone)
		}
		switch {
		case how == clear, w.broken == handOverKeepsFlag, w.broken == newCounterFlagged && s.missing != 0:
			s.flagged = 0
		case s.missing != 0:
			s.flagged = 1
		}
	}
	s.counter++
	s.missing = 0
	return s.counter
}

// plain reports whether the counter proves that there is neither line nor tombstone.
func (w *walk) plain(s *state) bool {
	return s.flagged == 0 && (s.missing == 0 || w.broken == missingProvesNothing)
}

// fastAcquire takes a free lock whose counter is plain. Where it is not, the key and the counter are put back as they were.
// So they are where the server's clock is not above the counter, which may be at any time: see the callers.
func (w *walk) fastAcquire(s *state, me token) (reply, uint8) {
	switch {
	case s.lock.owner != 0:
	case w.plain(s):
		w.overtakes(s, me)
		s.missing = 0
		s.counter++
		s.lock = lock{me, w.ttl, s.counter, 0}
		return granted, s.counter
	case w.broken == fastAcquireGivesBack:
		s.lock = lock{me, w.ttl, s.counter, 0}
	}
	return unusual, 0
}

// fastRelease deletes the key if the counter is plain. Where it is not, the caller sends the full release.
func (w *walk) fastRelease(s *state, me token) {
	if s.lock.owner == me && (w.plain(s) || w.broken == fastReleaseAsks) {
		s.ended |= bit(me)
		s.lock = lock{}
		return
	}
	w.send(s, command{kind: release, token: me})
}
