package several

import (
	"testing"

	"github.com/go-leasehold/leasehold/proof/explore"
)

func (m model) with(f func(*model)) *model { f(&m); return &m }

// of gives the clients their kinds.
func (m model) of(kinds ...uint8) *model {
	m.clients = uint8(len(kinds))
	copy(m.kinds[:], kinds)
	return &m
}

// Kinds, by one letter or by n.
const (
	e, s       = exclusive, shared
	n1, n2, n3 = slots + 1, slots + 2, slots + 3
)

// Bases of the runs: what is not named is zero.
var (
	// one acquisition each
	free = model{waiterTTL: 2, ttl: 3, acquisitions: 1, waits: true}
	// the same with the shortest times
	brief = model{waiterTTL: 1, ttl: 2, acquisitions: 1, waits: true}
	// two acquisitions each
	twice = model{waiterTTL: 1, ttl: 2, acquisitions: 2, waits: true}
	// they try, wait and give up, and a command is sent again: nothing may be left of them
	left = model{waiterTTL: 1, ttl: 2, acquisitions: 1, waits: true, tries: true, quits: true, repeats: 1, givenUp: true}
	// a lease is passed on
	pass = model{waiterTTL: 1, ttl: 2, acquisitions: 1, tries: true, tells: 1, givenUp: true}
	// the clock waits for them
	timed = model{timed: true, waiterTTL: 3, ttl: 4, acquisitions: 1, waits: true, quits: true, wait: 60}
)

func today(c int) func(*model) { return func(m *model) { m.old[c] = true } }

// plain: the exclusive clients use today's scripts for all but their cancellation.
func plain(m *model) {
	m.plain = true
	for c, k := range m.kinds {
		m.old[c] = k == exclusive
	}
}

// The protocol as it is. In timed runs the bound on an idle lock is 0 without a fault; 1, which is the time between two
// polls, if a message is lost; and the waiter's TTL, which is 3, if a client dies or is paused.
var whole = map[string]*model{
	"three shared":              brief.of(s, s, s),
	"a shared and an exclusive": free.of(s, e).with(func(m *model) { m.tries, m.renews = true, true }),
	"two slots for two and an exclusive": brief.of(n2, e).with(func(m *model) {
		m.tries, m.quits, m.renews = true, true, true
	}),
	"nothing is left of shared leases": left.of(s, s),
	"a deletion: shared": brief.of(s, s).with(func(m *model) {
		m.tries, m.deletions, m.renews = true, 1, true
	}),
	"a deletion: slots of different n": brief.of(n1, n2).with(func(m *model) {
		m.tries, m.deletions, m.renews = true, 1, true
	}),
	"a deletion: beside today's scripts": brief.of(s, e).with(func(m *model) { m.old[1], m.deletions = true, 1 }),
	"holders or their entries lost": brief.of(n1, n2).with(func(m *model) {
		m.deletions, m.holdersOnly, m.renews, m.quits = 1, true, true, true
	}),
	"the counter lost": brief.of(s, e).with(func(m *model) {
		m.deletions, m.counterOnly, m.renews, m.tries = 2, true, true, true
	}),
	"the counter lost beside today's scripts": brief.of(n2, e).with(plain).with(func(m *model) {
		m.deletions, m.counterOnly, m.renews = 2, true, true
	}),
	"the clock is set back: shared": brief.of(s, e).with(func(m *model) { m.back, m.tries, m.renews = 2, true, true }),
	"the clock is set back: slots": brief.of(n1, n2).with(func(m *model) {
		m.back, m.tries, m.renews = 2, true, true
	}),
	"the clock is set forward": brief.of(s, e).with(func(m *model) {
		m.forward, m.tries, m.renews, m.watch = 1, true, true, "S3 S4 L2 L3"
	}),
	"the clock is set forward: slots": brief.of(n1, n2).with(func(m *model) {
		m.forward, m.tries, m.renews, m.watch = 1, true, true, "S3 S4 L2 L3"
	}),
	"closed":                   left.of(s, e).with(func(m *model) { m.closes, m.repeats = 2, 0 }),
	"closed: slots":            left.of(n1, n2).with(func(m *model) { m.closes, m.repeats = 2, 0 }),
	"a shared lease passed on": pass.of(s, s, e).with(func(m *model) { m.quits = true }),
	"a slot passed on":         pass.of(n2, n2, n2).with(func(m *model) { m.quits = true }),
	"a slot passed on for a shorter time": pass.of(n1, n1, n1).with(func(m *model) {
		m.ttl, m.ttls, m.quits = 2, [clients]uint8{3, 1, 2}, true
	}),
	"a slot passed on, a command sent again": pass.of(n1, n1).with(func(m *model) {
		m.quits, m.renews, m.repeats = true, true, 1
	}),
	"a slot passed on, the clock is set back": pass.of(n1, n1, n2).with(func(m *model) { m.back = 1 }),
	"an adopter of an old version":            pass.of(s, s, e).with(today(2)),
	"timed: two shared and an exclusive":      timed.of(s, s, e),
	"timed: a shared and two exclusive":       timed.of(s, e, e),
	"timed: slots of different n":             timed.of(n2, n2, n3),
	"timed: all kinds on one key":             timed.of(n2, s, e),
	"timed: some only try":                    timed.of(s, s, e).with(func(m *model) { m.tries, m.wait = true, 0 }),
	"timed: different TTLs, a crash": timed.of(n2, n2, n2).with(func(m *model) {
		m.ttls, m.crashes, m.idle = [clients]uint8{2, 4, 4}, 1, 3
	}),
	"timed: two messages lost":             timed.of(s, s, e).with(func(m *model) { m.losses, m.idle = 2, 1 }),
	"timed: two messages lost, slots":      timed.of(n2, n2, n2).with(func(m *model) { m.losses, m.idle = 2, 1 }),
	"timed: two of three crash":            timed.of(s, s, e).with(func(m *model) { m.crashes, m.idle = 2, 3 }),
	"timed: two of three crash, slots":     timed.of(n2, n2, n2).with(func(m *model) { m.crashes, m.idle = 2, 3 }),
	"timed: beside an old version":         timed.of(s, s, e).with(today(2)).with(func(m *model) { m.idle = 1 }),
	"timed: beside today's scripts":        timed.of(s, s, e).with(plain),
	"timed: beside today's scripts, slots": timed.of(n2, n2, e).with(plain),
	"timed: beside today's scripts, a crash": timed.of(s, s, e).with(plain).with(func(m *model) {
		m.crashes, m.losses, m.idle = 1, 1, 3
	}),
	"timed: one grant by each script": timed.of(s, s, e).with(func(m *model) { m.batch, m.idle = 1, 1 }),
	"timed: two are closed":           timed.of(s, s, e).with(func(m *model) { m.quits, m.closes, m.idle = false, 2, 3 }),
	"timed: the clock is set back": timed.of(n2, n2, e).with(func(m *model) {
		m.quits, m.back, m.crashes, m.idle, m.wait = false, 1, 1, 4, 0
	}),
	"timed: the clock is set forward": timed.of(n2, n2, e).with(func(m *model) {
		m.quits, m.forward, m.idle, m.watch = false, 1, 1, "L1 L2 L3"
	}),
	"timed: the counter lost, a crash": timed.of(s, s, e).with(plain).with(func(m *model) {
		m.quits, m.deletions, m.counterOnly, m.crashes, m.idle, m.wait = false, 1, true, 1, 3, 0
	}),
}

// The same with larger bounds.
var wide = map[string]*model{
	"a slot passed on, a deletion": pass.of(n1, n1, n2).with(func(m *model) {
		m.quits, m.deletions, m.givenUp = true, 1, false
	}),
	"nothing is left of a slot":               left.of(n2, e),
	"an adopter of an old version, in a line": pass.of(s, s, e).with(today(2)).with(func(m *model) { m.waits = true }),
	"two shared and an exclusive":             free.of(s, s, e),
	"a shared and two exclusive":              brief.of(s, e, e),
	"three for two slots":                     free.of(n2, n2, n2),
	"slots of different n":                    brief.of(n2, n2, n3),
	"one slot for two, two for one":           brief.of(n1, n1, n2),
	"all kinds on one key":                    brief.of(n2, s, e),
	"TTLs below and above the waiter's":       free.of(s, s, e).with(func(m *model) { m.ttls = [clients]uint8{1, 3, 2} }),
	"renewals":                                brief.of(s, s, e).with(func(m *model) { m.renews = true }),
	"renewals, slots":                         brief.of(n2, n2, n3).with(func(m *model) { m.renews = true }),
	"some give up":                            brief.of(s, s, e).with(func(m *model) { m.quits = true }),
	"some give up, slots":                     brief.of(n2, n2, e).with(func(m *model) { m.quits = true }),
	"some only try":                           brief.of(s, s, e).with(func(m *model) { m.tries = true }),
	"a deletion, three clients":               brief.of(s, s, e).with(func(m *model) { m.deletions = 1 }),
	"a deletion, slots":                       brief.of(n2, n2, n3).with(func(m *model) { m.deletions = 1 }),
	"holders or their entries lost, renewals": brief.of(s, s, e).with(func(m *model) {
		m.deletions, m.holdersOnly, m.renews = 1, true, true
	}),
	"entries of slots lost, renewals": brief.of(n2, n2, n3).with(func(m *model) {
		m.deletions, m.holdersOnly, m.renews = 1, true, true
	}),
	"the counter lost, three clients": brief.of(s, s, e).with(plain).with(func(m *model) {
		m.deletions, m.counterOnly = 1, true
	}),
	"a command sent again, slots": brief.of(n2, n2, n2).with(func(m *model) { m.repeats = 1 }),
	"beside a foreign client": brief.of(s, s).with(func(m *model) {
		m.renews, m.foreign, m.quits = true, 2, true
	}),
	"beside a foreign client, slots": brief.of(n2, n2).with(func(m *model) {
		m.renews, m.foreign, m.quits = true, 2, true
	}),
	"beside an old version":                  brief.of(s, s, e).with(today(2)).with(func(m *model) { m.renews = true }),
	"beside an old version, slots":           brief.of(n2, n2, e).with(today(2)),
	"two acquisitions":                       twice.of(s, e).with(func(m *model) { m.renews = true }),
	"two acquisitions, a command sent again": twice.of(s, e).with(func(m *model) { m.repeats = 1 }),
	"two acquisitions of slots, sent again":  twice.of(n1, n2).with(func(m *model) { m.repeats = 1 }),
	"beside today's scripts": brief.of(s, s, e).with(plain).with(func(m *model) {
		m.renews, m.quits = true, true
	}),
	"beside today's scripts, one slot":        brief.of(n2, e, e).with(plain).with(func(m *model) { m.tries = true }),
	"a deletion beside an old version":        brief.of(s, s, e).with(today(2)).with(func(m *model) { m.deletions = 1 }),
	"the clock is set back, three clients":    brief.of(s, s, e).with(func(m *model) { m.back = 1 }),
	"the clock is set back, three for slots":  brief.of(n2, n2, n3).with(func(m *model) { m.back = 1 }),
	"the clock is set back beside an old one": brief.of(s, s, e).with(today(2)).with(func(m *model) { m.back = 1 }),
	"closed, three clients":                   brief.of(s, s, e).with(func(m *model) { m.closes, m.givenUp = 2, true }),
	"a shared lease passed on in a line": pass.of(s, s, e).with(func(m *model) {
		m.waits, m.quits, m.renews = true, true, true
	}),
	"a slot passed on in a line": pass.of(n1, n1, n2).with(func(m *model) {
		m.waits, m.quits, m.renews = true, true, true
	}),
	"a slot passed on in a line, sent again": pass.of(n2, n2).with(func(m *model) {
		m.waits, m.quits, m.repeats = true, true, 1
	}),
	"entries lost while a slot is passed on": pass.of(n2, n2, n2).with(func(m *model) {
		m.quits, m.renews, m.deletions, m.holdersOnly, m.givenUp = true, true, 1, true, false
	}),
	"timed: shared, two acquisitions": timed.of(s, s, e).with(func(m *model) {
		m.acquisitions, m.quits, m.wait = 2, false, 8
	}),
	"timed: slots, two acquisitions": timed.of(n2, n2, n2).with(func(m *model) {
		m.acquisitions, m.quits, m.wait = 2, false, 4
	}),
	"timed: two die behind a foreigner": timed.of(s, s, e).with(func(m *model) { m.foreign, m.crashes, m.idle = 1, 2, 3 }),
	"timed: two die behind a foreigner, slots": timed.of(n1, n1, n1).with(func(m *model) {
		m.foreign, m.crashes, m.idle = 1, 2, 3
	}),
	"timed: a pause and a crash": timed.of(s, s, e).with(func(m *model) { m.crashes, m.pauses, m.idle = 1, 1, 3 }),
	"timed: a crash and a deletion": timed.of(s, s, e).with(func(m *model) {
		m.crashes, m.deletions, m.quits, m.idle, m.wait = 1, 1, false, 3, 0
	}),
	"timed: crash, loss, a command sent again": timed.of(s, s, e).with(func(m *model) {
		m.crashes, m.losses, m.repeats, m.quits, m.idle, m.wait = 1, 1, 1, false, 3, 0
	}),
}

func TestSeveralHoldersHold(t *testing.T) {
	for name, m := range whole {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			explore.Holds(t, m.explored())
		})
	}
}

func TestSeveralHoldersHoldInLargeRuns(t *testing.T) {
	explore.Large(t)
	for name, m := range wide {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			explore.Holds(t, m.explored())
		})
	}
}
