package sim_test

import (
	"cmp"
	"strings"
	"time"

	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/token"
)

// What the referee says to a change of hands, and to none.

// passedOn judges a change of hands that an adoption makes, or that undoes one, and reports whether this is one. r.mu is held.
func (r *simReferee) passedOn(old, l *simLock, by string, args []string) bool {
	former := formerOf(args)
	adopted := former != "" && old.owner == former && l.owner == by
	undone := former != "" && old.owner == by && l.owner == former
	if !adopted && !undone {
		return false
	}
	from, to := r.token(old.owner), r.token(l.owner)
	l.moved = time.Now()
	if from.left, to.left = true, false; undone {
		to.over = false // it has the lock again, and whoever adopts it may have it
		return true
	}
	if to.over {
		r.violation("%s adopts a lease after it was undone", r.name(by))
	}
	from.over = true
	r.issues(l)
	return true
}

// rested judges a release that may have the lock rest, and reports whether it does. r.mu is held.
func (r *simReferee) rested(old, l *simLock, by string, args []string) bool {
	last, rests := token.Resting(l.owner)
	const most = 3 + 5 + 3 // where the arguments have the longest rest
	mayRest := len(args) > most && (args[1] == locktest.FinishScript.Hash || args[1] == locktest.FinishScript.Src) && args[most] != "0"
	since := time.Since(old.moved)
	if !rests {
		if mayRest && old.owner == by && since < r.rests {
			r.violation("%s is released after %v, and the lock does not rest", r.name(by), since)
		}
		return false
	}
	switch ends := since + l.ttl; {
	case !mayRest || last != by || old.owner != by:
		r.violation("a command of %s makes the lock of %s rest for %s", r.name(by), r.name(old.owner), r.name(last))
	case ends < r.rests, ends > r.rests+time.Millisecond && r.token(by).fence != "": // a lost counter makes the lease look younger
		r.violation("the lock of %s, won %v ago, rests for %v", r.name(by), since, l.ttl)
	}
	r.token(by).left, r.token(l.owner).foreign, l.moved = true, true, time.Now()
	return true
}

// issues judges the fencing token of a new owner. r.mu is held.
func (r *simReferee) issues(l *simLock) {
	fence := r.counter(l)
	if l.issued != "" && cmp.Or(cmp.Compare(len(fence), len(l.issued)), cmp.Compare(fence, l.issued)) <= 0 {
		r.violation("the fencing counter goes from %s to %s with a new owner", l.issued, fence)
	}
	l.issued, r.token(l.owner).fence = fence, fence
}

// counter returns the last fencing token in digits, "" if there is none.
func (r *simReferee) counter(l *simLock) string {
	fence, _ := r.m.Get(l.fence)
	return strings.TrimRight(fence, "+")
}

// flag judges the counter of a lock: digits alone say that there is neither a line nor a tombstone. r.mu is held.
func (r *simReferee) flag(l *simLock) {
	if fence, _ := r.m.Get(l.fence); fence == "" || strings.HasSuffix(fence, "+") {
		return
	}
	for _, k := range []string{l.line, l.undone} {
		if r.m.Exists(k) {
			r.violation("the fencing counter has no flag, and %s exists", k)
		}
	}
}

// leftFree judges a command of that token after which the lock is free. That is right if nobody waits, and else only behind as
// many of the dead as one run clears away; who was told so sends it again, the others find out at their next look. r.mu is held.
func (r *simReferee) leftFree(old, l *simLock, by, reply string) {
	says := append(strings.Fields(reply), "", "", "")
	told := says[0] == "HELD" && says[1] == "-2" || says[0] == "WAITING" && says[2] == "-2"
	switch {
	case told, old.owner != "" && len(l.tickets) > 0:
	case says[0] == "HELD", says[0] == "WAITING":
		r.violation("%s finds the lock free and leaves it free", r.name(by))
		return
	default:
		return
	}
	cleared := 0
	for t := range old.tickets {
		if _, stands := l.tickets[t]; stands {
			continue
		}
		if cleared++; old.good[t] > 0 {
			r.violation("%s clears %s away, whose mark is good for %v", r.name(by), r.name(t), old.good[t])
		}
	}
	if cleared < r.room {
		r.violation("%s leaves the lock free before a line of which it has cleared away only %d", r.name(by), cleared)
	}
	if told {
		r.excuse(0)
	} else {
		r.excuse(locktest.PollInterval)
	}
}

// handedOver judges a change of hands by a command of that token. r.mu is held.
func (r *simReferee) handedOver(old, l *simLock, by string) {
	now := time.Now()
	l.moved = now
	if old.owner != "" {
		r.token(old.owner).left = true
		if old.owner != by {
			r.violation("a command of %s takes the lock from %s", r.name(by), r.name(old.owner))
		}
	}
	if l.owner == "" || r.token(l.owner).foreign {
		return
	}
	if r.token(l.owner).over {
		r.violation("%s gets the lock after it was released", r.name(l.owner))
	}
	place, stood := old.tickets[l.owner]
	for t, p := range old.tickets {
		if t == l.owner || stood && p > place {
			continue
		}
		if old.good[t] > 0 {
			r.violation("the lock goes to %s and past %s, whose mark is good for %v", r.name(l.owner), r.name(t), old.good[t])
		}
		if h := r.token(t).host; h != nil && h.well(now) {
			r.violation("the lock goes to %s and past %s, whose host is well", r.name(l.owner), r.name(t))
		}
	}
	r.issues(l)
}
