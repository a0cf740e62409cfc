package line

import (
	"testing"

	"github.com/go-leasehold/leasehold/proof/explore"
)

// Full and short scripts side by side: a client may send either at any time. Fast scripts are for
// a lone caller, so whoever asks for more is covered. What has to be shown, and where:
//
//	no two hold the lock                            every run: S1
//	a fast acquire that was cancelled and is late   "two that try, wait and give up", "a command sent again": S4
//	a join beside a fast release                    "timed: no fault": L1, a bound of 0
//	a crash while somebody waits                    "timed: a crash": L1, a bound of the waiter's TTL
//	the counter is evicted or deleted               "a deletion", "a lease passed on, a counter lost"
//	fencing tokens rise                             every run: S2. A fast acquire may find the clock not above the counter.
//	somebody writes a plain number over the flag    "the flag is deleted", which also says what gets weaker
//	a foreign client                                "beside a foreign client"
//	the order of calls in a batch                   every run: each is a step, so any order is explored
//	the flag goes again                             TestTheFlagGoesByItself
//
// Not shown: a server that refuses a write, since the script then does nothing; and a failover.
var flagged = map[string]*model{
	"two that try, wait and give up": left.with(func(m *model) { m.flag, m.waiterTTL, m.ttl, m.repeats = true, 1, 2, 0 }),
	"beside a foreign client": two.with(func(m *model) {
		m.flag, m.waiterTTL, m.ttl, m.acquisitions, m.foreign = true, 1, 2, 1, 1
	}),
	"a lease passed on":                 pass.with(func(m *model) { m.flag, m.quits = true, true }),
	"a lease passed on, a counter lost": pass.with(func(m *model) { m.flag, m.quits, m.deletions = true, true, 1 }),
	"a deletion": two.with(func(m *model) {
		m.flag, m.waiterTTL, m.ttl, m.acquisitions, m.tries, m.deletions = true, 1, 2, 1, true, 1
	}),
	"a command sent again": left.with(func(m *model) { m.flag, m.waiterTTL, m.ttl, m.waits = true, 1, 2, false }),
	"timed: no fault":      calm.with(func(m *model) {}),
	"timed: a crash":       calm.with(func(m *model) { m.crashes, m.idle = 1, 2 }),
	"timed: a deletion":    calm.with(func(m *model) { m.clients, m.deletions, m.idle = 2, 1, 2 }),
	// Somebody writes a plain number over a flagged counter. Then nobody is handed the lock, and a newcomer may pass; but
	// no two hold it, and who waits finds it at the next poll.
	"timed: the flag is deleted": calm.with(func(m *model) {
		m.clients, m.deletions, m.hand, m.idle, m.watch = 2, 1, true, 1, "S1 S2 S3 L1"
	}),
	"the flag is deleted": left.with(func(m *model) {
		m.flag, m.hand, m.waiterTTL, m.ttl, m.repeats, m.deletions, m.watch = true, true, 1, 2, 0, 1, "S1 S2 S3"
	}),
}

// The same with larger bounds.
var flaggedWide = map[string]*model{
	"two acquisitions each":           two.with(func(m *model) { m.flag, m.waiterTTL, m.ttl = true, 1, 2 }),
	"three waiters":                   brief.with(func(m *model) { m.flag = true }),
	"three that try or wait":          brief.with(func(m *model) { m.flag, m.tries = true, true }),
	"three that give up":              brief.with(func(m *model) { m.flag, m.quits = true, true }),
	"two, a command sent again":       left.with(func(m *model) { m.flag, m.waiterTTL, m.ttl = true, 1, 2 }),
	"two acquisitions each, renewals": two.with(func(m *model) { m.flag, m.renews = true, true }),
	"a deletion, two acquisitions":    two.with(func(m *model) { m.flag, m.waiterTTL, m.ttl, m.deletions = true, 1, 2, 1 }),
	"a lease passed on in a line": pass.with(func(m *model) {
		m.flag, m.waits, m.quits, m.repeats = true, true, true, 1
	}),
	"timed: two acquisitions each": timed.with(func(m *model) { m.flag, m.clients, m.acquisitions, m.wait = true, 2, 2, 0 }),
	"timed: two of three crash":    timed.with(func(m *model) { m.flag, m.crashes, m.idle = true, 2, 3 }),
	"timed: two messages lost":     timed.with(func(m *model) { m.flag, m.losses, m.idle = true, 2, 1 }),
}

// calm: three waiters for whom the clock waits, with the shortest times that tell a poll from the waiter's TTL.
var calm = model{
	flag: true, timed: true, waiterTTL: 2, ttl: 3, clients: 3, acquisitions: 1, waits: true, quits: true, tries: true,
}

func TestTheFlagHolds(t *testing.T) {
	for name, m := range flagged {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			explore.Holds(t, m.explored())
		})
	}
}

func TestTheFlagHoldsInLargeRuns(t *testing.T) {
	explore.Large(t)
	for name, m := range flaggedWide {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			explore.Holds(t, m.explored())
		})
	}
}

// Each rule of the flag left out. Invariant I fails, where it is what the rule is for; and so does what rests on it.
func TestNoRuleOfTheFlagCanBeLeftOut(t *testing.T) {
	lost := two.with(func(m *model) { m.flag, m.waiterTTL, m.ttl, m.deletions = true, 1, 2, 1 })
	for _, c := range []struct {
		name     string
		rule     rule
		where    *model
		violates string
	}{
		{"a join does not set it", joinFlags, &calm, flagless},
		{"a join does not set it: a newcomer passes", joinFlags, &calm, passed},
		{"a join does not set it: nobody is handed the lock", joinFlags, &calm, notServed},
		{"a cancellation does not set it", cancelFlags, flagged["two that try, wait and give up"], flagless},
		{"a cancellation does not set it: its attempt comes late", cancelFlags, flagged["two that try, wait and give up"], leftBehind},
		{"an adoption does not set it", adoptFlags, flagged["a lease passed on"], flagless},
		{"an adoption does not set it: the former attempt comes late", adoptFlags,
			pass.with(func(m *model) { m.flag, m.repeats = true, 1 }), leftBehind},
		{"a full acquire clears it too soon", clearOnlyIfNothing, brief.with(func(m *model) { m.flag = true }), flagless},
		{"a full acquire clears it too soon: nobody is handed the lock", clearOnlyIfNothing, &calm, notServed},
		{"a hand-over drops it", handOverKeepsFlag, brief.with(func(m *model) { m.flag = true }), flagless},
		{"a hand-over drops it: nobody is handed the lock", handOverKeepsFlag, &calm, notServed},
		{"a new counter does not have it", newCounterFlagged, lost, flagless},
		{"a missing counter proves that there is nobody", missingProvesNothing, lost, passed},
		{"a fast release does not ask", fastReleaseAsks, &calm, notServed},
		{"a fast acquire leaves the key behind", fastAcquireGivesBack, two.with(func(m *model) { m.flag = true }), fenceFalls},
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

// When the line and the tombstones have expired, a full acquire takes the flag away, and the fast scripts are of use again.
func TestTheFlagGoesByItself(t *testing.T) {
	m := left.with(func(m *model) { m.flag, m.waiterTTL, m.ttl, m.only = true, 1, 2, flagGone })
	explore.Breaks(t, m.explored(), flagGone)
}
