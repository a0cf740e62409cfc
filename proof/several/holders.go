package several

// The holders of a lock, and who may join them.

// marker is what the key holds while leases of that kind live; 0 for exclusive ones.
func marker(kind uint8) token {
	switch {
	case kind == exclusive:
		return 0
	case kind == shared:
		return sharedMarker
	}
	return slotsMarker
}

// marked reports whether the key holds a marker.
func (s *state) marked() bool { return s.lock.owner == sharedMarker || s.lock.owner == slotsMarker }

// holderOf is the entry of t in H, or -1. Without I, entries are only tokens and times.
func (s *state) holderOf(t token) int {
	for i := range s.holders {
		if t != 0 && s.holders[i].token == t {
			return i
		}
	}
	return -1
}

func (s *state) removeHolder(i int) {
	copy(s.holders[i:], s.holders[i+1:])
	s.holders[maxHolders-1] = holder{}
	if s.holders[0].token == 0 {
		s.holdersLeft, s.blind = 0, 0
	}
}

// remake is what becomes of I if it is lost and somebody writes an entry: the others have none. No script may do that.
func (s *state) remake(i int) {
	if s.blind == 0 {
		return
	}
	for j := range s.holders {
		if j != i && s.holders[j].token != 0 {
			s.holders[j].fence, s.holders[j].slot = 0, untold
		}
	}
	s.blind = 0
}

// free deletes K, H and I.
func (s *state) free() {
	s.lock, s.holders, s.holdersLeft, s.blind = lock{}, [maxHolders]holder{}, 0, 0
}

// settle gives K, H and I the time of the last holder, or deletes them if there is none. K is a marker.
func (w *walk) settle(s *state) {
	var last uint8
	for _, h := range s.holders {
		last = max(last, minus(h.left, w.zero()))
	}
	if w.broken == keyIsRaised && s.lock.left > 0 {
		last = min(last, s.lock.left)
	}
	if w.broken == keyIsLowered {
		last = max(last, s.lock.left)
	}
	s.lock.left, s.holdersLeft = last, last
	if w.broken == holdersHaveTTL {
		s.holdersLeft = 0
	}
	if last == 0 || s.holders[0].token == 0 {
		s.free()
	}
}

// open is what each script of the new kind begins with. A token of a kind that several hold, which a script of today has
// set, becomes a marker with one holder; and holders whose time is over are removed.
func (w *walk) open(s *state) (converted bool) {
	o := s.lock.owner
	if o != 0 && o < foreigner && w.kindOf(o) != exclusive && w.broken != bareIsConverted {
		if s.missing != 0 {
			s.lock.fence = w.mint(s)
		}
		if s.counter != s.lock.fence {
			w.fail(fenceDiffers)
		}
		s.holders = [maxHolders]holder{{o, s.lock.left + w.zero(), s.counter, 0, s.lock.unconfirmed}}
		s.lock.owner, s.lock.fence, s.lock.unconfirmed, s.blind = marker(w.kindOf(o)), 0, 0, 0
		w.settle(s)
		return true
	}
	if s.marked() && w.broken != expiredAreRemoved {
		for i := 0; i < maxHolders; {
			if h := s.holders[i]; h.token != 0 && h.left <= w.zero() {
				s.removeHolder(i)
			} else {
				i++
			}
		}
	}
	return false
}

// fits reports whether a lease of t may begin beside those that live.
func (w *walk) fits(s *state, t token) bool {
	if s.lock.owner == 0 {
		return true
	}
	k := w.kindOf(t)
	if !s.marked() || k == exclusive || s.lock.owner != marker(k) && w.broken != kindsStayApart {
		return false
	}
	if (s.holders[0].token == 0 || s.blind != 0) && w.broken != lostClosesTheLock {
		return false
	}
	if k == shared {
		return true
	}
	inside, most := uint8(0), k-slots
	for _, h := range s.holders {
		if h.token == 0 {
			continue
		}
		inside++
		if k := w.kindOf(h.token); k > slots && w.broken != leastCounts {
			most = min(most, k-slots)
		}
	}
	if w.broken == slotsAreCounted {
		most++
	}
	return inside < most
}

// put makes t a holder.
func (w *walk) put(s *state, t token, left, unconfirmed uint8) (fence, slot uint8) {
	fence = w.mint(s)
	k := w.kindOf(t)
	if k == exclusive {
		s.lock = lock{t, left, fence, unconfirmed}
		return fence, 0
	}
	if s.lock.owner == 0 {
		s.lock = lock{owner: marker(k), left: left}
		if w.broken != staleAreDeleted {
			s.holders, s.blind = [maxHolders]holder{}, 0
		}
	}
	if k != shared && w.broken != slotsDiffer {
		var taken uint16
		for _, h := range s.holders {
			if h.token != 0 && s.blind == 0 {
				taken |= 1 << h.slot
			}
		}
		for taken&1 != 0 {
			slot++
			taken >>= 1
		}
	}
	i := s.holderOf(t)
	if i < 0 {
		for i = 0; i < maxHolders-1 && s.holders[i].token != 0; i++ {
		}
		if s.holders[i].token != 0 {
			w.full = true
			return fence, slot
		}
	}
	s.remake(i)
	s.holders[i] = holder{t, left + w.zero(), fence, slot, unconfirmed}
	w.settle(s)
	return fence, slot
}

// serve hands the lock to the heads of the line for as long as they fit, and clears the dead among them away. It reports
// whether me was served, and with what.
func (w *walk) serve(s *state, me token) (got bool, a answer) {
	for n := uint8(0); s.line[0].token != 0; {
		at, head := 0, s.line[0]
		if head.token != me && !w.lives(head) {
			s.removePlace(0)
			continue
		}
		if w.batch > 0 && n == w.batch {
			return got, a
		}
		if !w.fits(s, head.token) {
			if w.broken != readersKeepTheOrder {
				return got, a
			}
			for at = range s.line {
				if p := s.line[at]; p.token != 0 && w.lives(p) && w.fits(s, p.token) {
					break
				}
			}
			if head = s.line[at]; head.token == 0 || !w.lives(head) || !w.fits(s, head.token) {
				return got, a
			}
		}
		w.overtakes(s, head.token)
		s.removePlace(at)
		n++
		if head.token == me {
			fence, slot := w.put(s, me, w.ttlOf(me), 0)
			got, a = true, answer{granted, fence, slot}
		} else {
			fence, slot := w.put(s, head.token, minus(head.heartbeat, w.zero()), 1)
			w.tell(s, message{head.token, fence, slot})
		}
		if w.full || w.kindOf(head.token) == exclusive || w.broken == allWhoFit {
			return got, a
		}
	}
	return got, a
}

func (w *walk) tell(s *state, g message) {
	for i := range s.messages {
		if s.messages[i].token == 0 {
			s.messages[i] = g
			return
		}
	}
	w.full = true
}
