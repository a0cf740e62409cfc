package line

import (
	"testing"

	"github.com/go-leasehold/leasehold/proof/explore"
)

func (m model) with(f func(*model)) *model { f(&m); return &m }

// Bases of the runs: what is not named is zero.
var (
	// three waiters, one acquisition each
	free = model{waiterTTL: 2, ttl: 3, clients: 3, acquisitions: 1, waits: true}
	// the same with the shortest times
	brief = model{waiterTTL: 1, ttl: 2, clients: 3, acquisitions: 1, waits: true}
	// two, with two acquisitions each
	two = model{waiterTTL: 2, ttl: 3, clients: 2, acquisitions: 2, waits: true}
	// two that try, wait and give up, with a command that is sent again: nothing may be left of them
	left = model{
		waiterTTL: 2, ttl: 3, clients: 2, acquisitions: 1, waits: true, tries: true, quits: true, repeats: 1, givenUp: true,
	}
	// a lease that is passed on
	pass = model{waiterTTL: 1, ttl: 2, clients: 2, acquisitions: 1, tries: true, tells: 1, givenUp: true}
	// three waiters behind a foreign holder, of whom two die; the clock waits for the rest
	dead = model{timed: true, waiterTTL: 2, ttl: 3, clients: 3, acquisitions: 1, waits: true, foreign: 1, crashes: 2, idle: 2}
	// three waiters for whom the clock waits, one acquisition each
	timed = model{timed: true, waiterTTL: 3, ttl: 4, clients: 3, acquisitions: 1, waits: true, quits: true, wait: 60}
)

// The protocol as it is. In timed runs the bound on an idle lock is 0 without a fault; 1, which is the time between two
// polls, if a message is lost; and the waiter's TTL, which is 3 or 2, if a client dies or is paused.
var whole = map[string]*model{
	"waiters that renew": brief.with(func(m *model) { m.renews = true }),
	"a TTL below the waiter's": two.with(func(m *model) {
		m.waiterTTL, m.ttl, m.acquisitions, m.renews, m.tries = 3, 2, 1, true, true
	}),
	"some try, some wait": brief.with(func(m *model) { m.tries = true }),
	"a deletion": two.with(func(m *model) {
		m.waiterTTL, m.ttl, m.acquisitions, m.tries, m.quits, m.deletions = 1, 2, 1, true, true, 1
	}),
	"a command sent again": two.with(func(m *model) {
		m.waiterTTL, m.ttl, m.acquisitions, m.tries, m.renews, m.repeats = 1, 2, 1, true, true, 1
	}),
	"messages are only hints": two.with(func(m *model) {
		m.waiterTTL, m.ttl, m.acquisitions, m.confirms, m.tries, m.renews = 1, 2, 1, true, true, true
	}),
	"beside a foreign client": two.with(func(m *model) {
		m.waiterTTL, m.ttl, m.acquisitions, m.tries, m.quits, m.foreign = 1, 2, 1, true, true, 1
	}),
	"the server's clock is set back": two.with(func(m *model) {
		m.waiterTTL, m.ttl, m.acquisitions, m.tries, m.renews, m.back = 1, 2, 1, true, true, 2
	}),
	"nothing is left":               left.with(func(m *model) { m.waiterTTL, m.ttl = 1, 2 }),
	"a lease passed on":             pass.with(func(m *model) { m.quits = true }),
	"a lease passed on among three": pass.with(func(m *model) { m.clients, m.renews, m.quits = 3, true, true }),
	"a lease passed on for a shorter time": pass.with(func(m *model) {
		m.ttl, m.adopterTTL, m.clients, m.quits, m.givenUp = 3, 1, 3, true, false
	}),
	"a lease passed on, a command twice": pass.with(func(m *model) { m.quits, m.repeats, m.renews = true, 1, true }),
	"a lease passed on, a counter lost":  pass.with(func(m *model) { m.clients, m.deletions, m.quits = 3, 1, true }),
	"timed: two die behind a foreigner":  &dead,
	"timed: one of the dead is cleared":  dead.with(func(m *model) { m.room = 1 }),
	"timed: no fault":                    timed.with(func(m *model) { m.subscribes = true }),
	"timed: two acquisitions each":       timed.with(func(m *model) { m.clients, m.acquisitions, m.subscribes = 2, 2, true }),
	"timed: three take turns":            timed.with(func(m *model) { m.acquisitions, m.quits, m.wait = 2, false, 8 }),
	"timed: some only try":               timed.with(func(m *model) { m.tries, m.wait = true, 0 }),
	"timed: two messages lost":           timed.with(func(m *model) { m.losses, m.idle = 2, 1 }),
	"timed: two of three crash":          timed.with(func(m *model) { m.crashes, m.idle = 2, 3 }),
	"timed: a pause and a crash":         timed.with(func(m *model) { m.crashes, m.pauses, m.idle = 1, 1, 3 }),
	"timed: the clock is set back":       timed.with(func(m *model) { m.back, m.crashes, m.idle, m.wait = 1, 1, 4, 0 }),
}

// The same with larger bounds.
var wide = map[string]*model{
	"three to whom messages are only hints": brief.with(func(m *model) { m.confirms = true }),
	"waiters that give up":                  brief.with(func(m *model) { m.quits = true }),
	"three waiters that renew":              free.with(func(m *model) { m.renews = true }),
	"three that may give up":                free.with(func(m *model) { m.quits = true }),
	"three that try or wait":                free.with(func(m *model) { m.tries = true }),
	"a deletion, three waiters":             brief.with(func(m *model) { m.deletions = 1 }),
	"a command sent again, three waiters":   brief.with(func(m *model) { m.repeats = 1 }),
	"two acquisitions each":                 two.with(func(m *model) { m.renews = true }),
	"two each, a command sent again":        two.with(func(m *model) { m.repeats = 1 }),
	"the same with renewals, a TTL below":   two.with(func(m *model) { m.ttl, m.renews, m.repeats = 1, true, 1 }),
	"beside a foreign client, renewals": two.with(func(m *model) {
		m.acquisitions, m.tries, m.renews, m.quits, m.foreign = 1, true, true, true, 2
	}),
	"all faults beside a foreign client": two.with(func(m *model) {
		m.waiterTTL, m.ttl, m.acquisitions, m.tries, m.crashes, m.deletions, m.repeats, m.foreign = 1, 2, 1, true, 1, 1, 1, 1
	}),
	"at most one of the dead is cleared": brief.with(func(m *model) { m.room = 1 }),
	"the same with a try and a crash":    brief.with(func(m *model) { m.tries, m.room, m.crashes = true, 1, 1 }),
	"the clock is set back twice":        brief.with(func(m *model) { m.back = 2 }),
	"nothing is left, longer":            &left,
	"a lease passed on in a line": pass.with(func(m *model) {
		m.waits, m.renews, m.quits, m.repeats = true, true, true, 1
	}),
	"a deletion, two acquisitions":            two.with(func(m *model) { m.waiterTTL, m.ttl, m.deletions = 1, 2, 1 }),
	"two each, a command sent again, shorter": two.with(func(m *model) { m.waiterTTL, m.ttl, m.repeats = 1, 2, 1 }),
	"the same with two acquisitions":          pass.with(func(m *model) { m.acquisitions, m.quits, m.repeats = 2, true, 1 }),
	"the clock is set back, two acquisitions": two.with(func(m *model) { m.waiterTTL, m.ttl, m.back = 1, 2, 1 }),
	"a TTL below the waiter's, and a foreigner": two.with(func(m *model) {
		m.waiterTTL, m.ttl, m.acquisitions, m.renews, m.foreign = 3, 2, 1, true, 1
	}),
	"timed: two die behind a foreigner": timed.with(func(m *model) { m.foreign, m.crashes, m.idle = 1, 2, 3 }),
	"timed: one of the dead is cleared": timed.with(func(m *model) { m.foreign, m.crashes, m.room, m.idle = 1, 2, 1, 3 }),
	"timed: all faults": timed.with(func(m *model) {
		m.crashes, m.pauses, m.losses, m.repeats, m.deletions, m.quits, m.idle, m.wait = 1, 1, 1, 1, 1, false, 3, 0
	}),
}

func TestTheLineHolds(t *testing.T) {
	for name, m := range whole {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			explore.Holds(t, m.explored())
		})
	}
}

func TestTheLineHoldsInLargeRuns(t *testing.T) {
	explore.Large(t)
	for name, m := range wide {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			explore.Holds(t, m.explored())
		})
	}
}

// Each rule left out, where the property must be seen to fail.
func TestNoRuleOfTheLineCanBeLeftOut(t *testing.T) {
	for _, c := range []struct {
		name     string
		rule     rule
		where    *model
		violates string
	}{
		{"a lease is trusted from its answer", trustFromSend, &free, twoTrust},
		{"an old message is trusted", compareFences, two.with(func(m *model) {
			m.waiterTTL, m.ttl, m.repeats = 1, 2, 1
		}), twoTrust},
		{"a message is trusted beyond the ttl", trustWithinTTL, two.with(func(m *model) {
			m.waiterTTL, m.ttl, m.acquisitions, m.foreign, m.renews = 3, 2, 1, 1, true
		}), twoTrust},
		{"a message is trusted from a poll that was not answered", anchorMovesWithAnswer, &two, twoTrust},
		{"a poll creates a place", pollCreatesNothing, two.with(func(m *model) {
			m.waiterTTL, m.ttl, m.quits, m.crashes, m.givenUp = 1, 2, true, 1, true
		}), leftBehind},
		{"a release by name", releaseCompares, &free, touched},
		{"a renewal sets the key whoever has it", renewalCompares, two.with(func(m *model) {
			m.acquisitions, m.renews, m.foreign = 1, true, 1
		}), twoTrust},
		{"a renewal creates the key", renewalCreatesNothing, left.with(func(m *model) {
			m.renews, m.repeats = true, 0
		}), leftBehind},
		{"an acquire that is sent again has another fencing token", sameLeaseSameFence, two.with(func(m *model) {
			m.repeats = 1
		}), fenceDiffers},
		{"a try passes the line", tryKeepsTheLine, brief.with(func(m *model) { m.tries, m.foreign = true, 1 }), passed},
		{"a try passes the rest of a long line", restIsNotPassed, brief.with(func(m *model) {
			m.tries, m.foreign, m.room = true, 1, 1
		}), passed},
		{"a try is refused because of the dead", deadRefuseNobody, free.with(func(m *model) {
			m.tries, m.crashes = true, 1
		}), tryRefused},
		{"a try that has cleared the dead away is refused", unclearedAsksAgain, free.with(func(m *model) {
			m.tries, m.crashes, m.room = true, 1, 1
		}), tryRefused},
		{"a line without a TTL", lineHasTTL, &free, noTTL},
		{"a cancellation without a tombstone", cancelBuries, &left, leftBehind},
		{"a release without one, of an acquire sent twice", strayBuries, &left, leftBehind},
		{"a refused try whose other copy comes late", refusedIsCancelled, &left, leftBehind},
		{"a refused adoption whose other copy comes late", refusedIsCancelled, pass.with(func(m *model) {
			m.acquisitions, m.repeats, m.quits = 2, 1, true
		}), leftBehind},
		{"a cancellation without a tombstone, timed", cancelBuries, timed.with(func(m *model) { m.acquisitions = 2 }), notServed},
		{"who gives up stays in the line", leaveLine, &timed, notServed},
		{"a grant lasts for the waiter's whole TTL", grantEndsWithHeartbeat, dead.with(func(m *model) { m.idle = 2 }), notServed},
		{"no heartbeats", heartbeatsCount, dead.with(func(m *model) { m.idle = 2 }), notServed},
		{"a heartbeat that ends now counts", heartbeatsEndInTime, &dead, notServed},
		{"a heartbeat from the future counts", futureIsDead, dead.with(func(m *model) { m.crashes, m.back = 1, 1 }), notServed},
		{"a poll does not renew the heartbeat", pollRenewsHeartbeat, &timed, notServed},
		{"no poll after the subscription", pollWhenSubscribed, timed.with(func(m *model) { m.subscribes = true }), notServed},
		{"no poll now and then", pollEveryTick, timed.with(func(m *model) { m.losses, m.idle = 1, 4 }), notServed},
		{"an adoption with the old fencing token", adoptMints, &pass, fenceFalls},
		{"an adoption that shortens the time", adoptKeepsTime, whole["a lease passed on for a shorter time"], twoTrust},
		{"a failed adoption that frees the lock", adoptGivesBack, whole["a lease passed on for a shorter time"], twoTrust},
		{"an adoption that does not bury the former token", adoptBuriesFormer, pass.with(func(m *model) {
			m.acquisitions, m.repeats = 2, 1
		}), leftBehind},
		{"a failed adoption that does not bury its own", adoptCancelBuries, whole["a lease passed on"], leftBehind},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := *c.where
			m.broken = c.rule
			m.watch, m.only = "", c.violates
			explore.Breaks(t, m.explored(), c.violates)
		})
	}
}

// What the protocol does not promise, in so many words: the model sees it, too.
func TestWhatTheLineDoesNotPromise(t *testing.T) {
	for _, c := range []struct {
		name     string
		where    *model
		violates string
	}{
		{"the server's clock is set forward", two.with(func(m *model) { m.forward = 1 }), twoTrust},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			explore.Breaks(t, c.where.explored(), c.violates)
		})
	}
}
