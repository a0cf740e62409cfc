package line

// The scripts, each a step of its own. They are written as the Lua files are, in the same order, so that the two can be
// read side by side.

// kind is a command, with what is said of it.
type kind = uint8

const (
	try kind = 1 + iota
	join
	poll
	renew
	release
	adopt
	setNX         // of the foreign client
	compareDelete // of the foreign client
	fastAcquire   // of fast.go
	fastRelease   // of fast.go

	verb   kind = 15
	orphan kind = 16 // nobody listens for the answer
	cancel kind = 32 // a release, or an adoption, that cancels what an attempt may have done
)

// reply is what a script answers.
type reply = uint8

const (
	granted   reply = 1 + iota
	held            // somebody else has the lock
	uncleared       // nobody has it, but the run has only cleared the dead away
	waits           // we stand in the line
	waitsFree       // and nobody has the lock, as with uncleared
	gone
	yes
	no
	unusual // a fast script has done nothing
)

// exec runs one script and answers.
func (w *walk) exec(s *state, c command) (reply, uint8) {
	switch c.kind & verb {
	case try, join, poll:
		return w.acquire(s, c.token, c.kind&verb)
	case renew:
		if s.lock.owner != c.token && !w.renewsAnyway(s) {
			return no, 0
		}
		s.lock.owner = c.token // as it is, but where a rule is broken
		s.lock.left, s.lock.unconfirmed = w.ttlOf(c), 0
		return yes, 0
	case release:
		w.release(s, c.token, c.kind&cancel != 0)
	case adopt:
		return w.adopt(s, c)
	case setNX:
		if s.lock.owner != 0 {
			return held, 0
		}
		s.lock = lock{owner: foreigner, left: w.ttl}
		return granted, 0
	case compareDelete:
		if s.lock.owner == foreigner {
			s.lock = lock{}
		}
	case fastAcquire:
		return w.fastAcquire(s, c.token)
	case fastRelease:
		w.fastRelease(s, c.token)
	}
	return 0, 0
}

func (w *walk) renewsAnyway(s *state) bool {
	return w.broken == renewalCompares || w.broken == renewalCreatesNothing && s.lock.owner == 0
}

// ttlOf is the lease's time for which a command asks: that of a token which has adopted its lease is another.
func (w *walk) ttlOf(c command) uint8 {
	if c.former != 0 && w.adopterTTL != 0 {
		return w.adopterTTL
	}
	return w.ttl
}

// acquire is acquire.lua.
func (w *walk) acquire(s *state, me token, mode kind) (reply, uint8) {
	if s.lock.owner == me {
		s.lock.left, s.lock.unconfirmed = w.ttl, 0
		if s.missing != 0 || w.broken == sameLeaseSameFence {
			old := s.lock.fence
			s.lock.fence = w.mint(s, keep)
			if s.lock.fence != old && w.broken == sameLeaseSameFence {
				w.fail(fenceDiffers)
			}
		}
		if s.counter != s.lock.fence {
			w.fail(fenceDiffers)
		}
		return granted, s.counter
	}
	if mode == poll && s.placeOf(me) < 0 && w.broken != pollCreatesNothing {
		return gone, 0
	}
	if mode != poll && s.tombs&bit(me) != 0 {
		return gone, 0
	}
	if s.lock.owner == 0 {
		before := *s
		found := s.line[0].token != 0 || s.graves != 0
		var head place
		cleared := true
		switch {
		case w.broken == tryKeepsTheLine && mode == try:
		case w.broken == deadRefuseNobody && mode == try && s.line[0].token != 0: // it does not ask who lives
			if !w.anybodyLives(s) {
				w.fail(tryRefused)
			}
			return held, 0
		default:
			head, cleared = w.firstLive(s, me)
		}
		switch {
		case head.token == me || head.token == 0 && (cleared || w.broken == restIsNotPassed):
			w.overtakes(&before, me)
			how := keep
			if mode != poll && !found || w.broken == clearOnlyIfNothing {
				how = clear
			}
			return granted, w.give(s, me, w.ttl, 0, how)
		case head.token != 0:
			w.overtakes(&before, head.token)
			w.handOver(s, head)
		}
	}
	if mode == try {
		if s.lock.owner == 0 {
			return uncleared, 0
		}
		return held, 0
	}
	w.stand(s, me)
	if s.lock.owner == 0 {
		return waitsFree, s.counter
	}
	return waits, s.counter // a counter that is missing is answered as the clock, which is not behind it
}

// release is release.lua, and with cancel what becomes of an attempt that was given up.
func (w *walk) release(s *state, me token, cancels bool) {
	s.ended |= bit(me)
	if s.lock.owner == me || w.broken == releaseCompares && s.lock.owner != 0 && s.placeOf(me) < 0 {
		if head, _ := w.firstLive(s, 0); head.token != 0 {
			w.handOver(s, head)
		} else {
			s.lock = lock{}
		}
	} else if i := s.placeOf(me); i >= 0 && w.broken != leaveLine {
		s.removePlace(i)
	}
	if cancels && w.broken != cancelBuries {
		w.bury(s, me, w.broken != cancelFlags)
	}
}

// adopt is adopt.lua.
func (w *walk) adopt(s *state, c command) (reply, uint8) {
	me := c.token
	if c.kind&cancel != 0 {
		s.ended |= bit(me)
		if w.broken != adoptCancelBuries {
			w.bury(s, me, w.broken != cancelFlags)
		}
		if s.lock.owner == me {
			if w.broken == adoptGivesBack {
				s.lock = lock{}
				return 0, 0
			}
			s.tombs &^= bit(c.former)
			s.lock.owner, s.lock.fence = c.former, s.counter
			s.returned |= bit(c.former)
		}
		return 0, 0
	}
	switch {
	case s.lock.owner == me && s.missing == 0:
		if s.counter != s.lock.fence {
			w.fail(fenceDiffers)
		}
		return granted, s.counter
	case s.lock.owner == me:
	case s.lock.owner != c.former || s.tombs&bit(me) != 0:
		return gone, 0
	}
	f := s.counter
	if w.broken != adoptMints {
		f = w.mint(s, keep)
	}
	if s.lock.owner != me {
		left := s.lock.left
		if left < w.ttlOf(c) || w.broken == adoptKeepsTime {
			left = w.ttlOf(c)
		}
		s.lock.left = left
		if w.broken != adoptBuriesFormer {
			w.bury(s, c.former, w.broken != adoptFlags)
		}
	}
	s.lock.owner, s.lock.fence, s.lock.unconfirmed = me, f, 0
	return granted, f
}

// bury is tombstone.lua. Tombstones are kept for a minute, which no command is under way for.
func (w *walk) bury(s *state, t token, flags bool) {
	s.tombs |= bit(t)
	if w.flag {
		s.graves = 1
		if flags && s.missing == 0 {
			s.flagged = 1
		}
	}
}

// give sets the key.
func (w *walk) give(s *state, t token, left, unconfirmed uint8, how flagging) uint8 {
	f := w.mint(s, how)
	s.lock = lock{t, left, f, unconfirmed}
	return f
}

// handOver is the part of handover.lua that hands the lock to a waiter, for as long as its heartbeat is good.
func (w *walk) handOver(s *state, p place) {
	left := minus(p.heartbeat, w.fresh()-w.waiterTTL)
	if w.broken == grantEndsWithHeartbeat || left == 0 {
		left = w.waiterTTL
	}
	f := w.give(s, p.token, left, 1, keep)
	if w.subscribes && s.clients[ownerOf(p.token)].subscription != 2 {
		return // it is published to nobody
	}
	for i := range s.messages {
		if s.messages[i].token == 0 {
			s.messages[i] = message{p.token, f}
			return
		}
	}
	w.full = true
}

// firstLive is the part of handover.lua that clears the dead away. It takes the first live place out of the line, or that
// of me whether it lives or not. Not cleared: the run has cleared away as many as it may, and somebody may live behind
// them.
func (w *walk) firstLive(s *state, me token) (head place, cleared bool) {
	for room := w.room; s.line[0].token != 0; {
		head = s.line[0]
		s.removePlace(0)
		if head.token == me || w.lives(head) {
			return head, true
		}
		if room--; room == 0 {
			return place{}, false
		}
	}
	return place{}, true
}

// lives judges a waiter by its heartbeat.
func (w *walk) lives(p place) bool {
	switch w.broken {
	case heartbeatsCount:
		return true
	case futureIsDead:
		return p.heartbeat > w.zero()
	}
	return p.heartbeat > w.zero() && p.heartbeat <= w.fresh()
}

// fresh is a heartbeat that is renewed now.
func (w *walk) fresh() uint8 {
	if w.broken == heartbeatsEndInTime {
		return w.zero() + w.waiterTTL + 1
	}
	return w.zero() + w.waiterTTL
}

func (w *walk) anybodyLives(s *state) bool {
	for _, p := range s.line {
		if p.token != 0 && w.lives(p) {
			return true
		}
	}
	return false
}

// stand gives me a place at the end of the line, or renews its heartbeat.
func (w *walk) stand(s *state, me token) {
	i := s.placeOf(me)
	switch {
	case i < 0:
		for i = range s.line {
			if s.line[i].token == 0 {
				break
			}
		}
		if s.line[i].token != 0 {
			w.full = true
			return
		}
		s.line[i] = place{me, w.fresh(), w.fresh()}
		if w.flag && s.missing == 0 && w.broken != joinFlags {
			s.flagged = 1
		}
	case w.broken != pollRenewsHeartbeat:
		s.line[i].heartbeat = w.fresh()
	}
	if w.broken != lineHasTTL {
		s.lineLeft = 2 * w.waiterTTL
	}
}

func (s *state) placeOf(t token) int {
	for i := range s.line {
		if s.line[i].token == t {
			return i
		}
	}
	return -1
}

func (s *state) removePlace(i int) {
	copy(s.line[i:], s.line[i+1:])
	s.line[maxPlaces-1] = place{}
	if s.line[0].token == 0 {
		s.lineLeft = 0
	}
}
