package turns

import (
	"testing"

	"github.com/go-leasehold/leasehold/proof/explore"
)

func (m model) with(f func(*model)) *model { f(&m); return &m }

// Bases of the runs: what is not named is zero.
var (
	// The first process wants three leases and the second one, of two stays in the line each.
	base = model{waiterTTL: 2, ttl: 3, d: 2, block: 3, wants: [processes]uint8{3, 1}, stays: 2}
	// the same with two leases, one stay and the shortest times
	brief = model{waiterTTL: 1, ttl: 2, d: 2, block: 2, wants: [processes]uint8{2, 1}, stays: 1}
	// the clock waits for them, and a section takes a tick
	timed = model{timed: true, waiterTTL: 5, ttl: 6, d: 2, block: 5, wants: [processes]uint8{5, 2}, stays: 2, wait: 2}
	// the server's clock is in the fencing tokens: three units to a tick
	clock = model{waiterTTL: 2, ttl: 3, d: 2, block: 3, wants: [processes]uint8{2, 1}, stays: 1, perTick: 3, end: 4}
)

// The protocol as it is.
var whole = map[string]*model{
	"two leases and one":              &brief,
	"both pass":                       brief.with(func(m *model) { m.wants = [processes]uint8{2, 2} }),
	"a crash":                         brief.with(func(m *model) { m.crashes = 1 }),
	"a deletion":                      brief.with(func(m *model) { m.deletions = 1 }),
	"a lease passed on to an adopter": brief.with(func(m *model) { m.tells = 1 }),
	"a command sent again":            brief.with(func(m *model) { m.repeats = 1 }),
	"closed":                          brief.with(func(m *model) { m.closes = 1 }),
	"the counter lost":                clock.with(func(m *model) { m.losses = 1 }),
	"the server's clock set back":     clock.with(func(m *model) { m.back = 1 }),
	"timed: the other process waits":  &timed,
}

// The same with larger bounds.
var wide = map[string]*model{
	"two leases and one, two stays":          brief.with(func(m *model) { m.stays = 2 }),
	"two stays, a crash":                     brief.with(func(m *model) { m.stays, m.crashes = 2, 1 }),
	"two stays, a deletion":                  brief.with(func(m *model) { m.stays, m.deletions = 2, 1 }),
	"two stays, an adopter":                  brief.with(func(m *model) { m.stays, m.tells = 2, 1 }),
	"two stays, a command sent again":        brief.with(func(m *model) { m.stays, m.repeats = 2, 1 }),
	"two stays, the counter lost":            clock.with(func(m *model) { m.stays, m.losses = 2, 1 }),
	"two stays, the server's clock set back": clock.with(func(m *model) { m.stays, m.back = 2, 1 }),
	"three leases and one":                   &base,
	"three and one, more renewals":           base.with(func(m *model) { m.renews = true }),
	"three and two":                          base.with(func(m *model) { m.wants = [processes]uint8{3, 2} }),
	"an old version, two and two": brief.with(func(m *model) {
		m.old, m.stays, m.wants = true, 2, [processes]uint8{2, 2}
	}),
	"d is longer than the trust":        brief.with(func(m *model) { m.stays, m.d = 2, 4 }),
	"an old version, three and two":     base.with(func(m *model) { m.old, m.wants = true, [processes]uint8{3, 2} }),
	"three and one, a crash":            base.with(func(m *model) { m.waiterTTL, m.ttl, m.crashes = 1, 2, 1 }),
	"three and one, a deletion":         base.with(func(m *model) { m.waiterTTL, m.ttl, m.deletions = 1, 2, 1 }),
	"three and one, an adopter":         base.with(func(m *model) { m.waiterTTL, m.ttl, m.tells = 1, 2, 1 }),
	"an adopter, and one is closed":     brief.with(func(m *model) { m.tells, m.closes = 1, 1 }),
	"three and one, closed":             base.with(func(m *model) { m.closes = 2 }),
	"the counter lost, the key deleted": clock.with(func(m *model) { m.losses, m.deletions = 1, 1 }),
}

func TestLocalTurnsHold(t *testing.T) {
	for name, m := range whole {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			explore.Holds(t, m.explored())
		})
	}
}

func TestLocalTurnsHoldInLargeRuns(t *testing.T) {
	explore.Large(t)
	for name, m := range wide {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			explore.Holds(t, m.explored())
		})
	}
}

// Each rule left out, where the property must be seen to fail.
func TestNoRuleOfLocalTurnsCanBeLeftOut(t *testing.T) {
	for _, c := range []struct {
		name     string
		rule     rule
		where    *model
		violates string
	}{
		{"a passed lease is trusted for a whole TTL", passKeepsDeadline, &base, twoTrust},
		{"a renewal counts from its answer", renewalFromSend, &base, twoTrust},
		{"the lock is passed after the deadline", passInTime, brief.with(func(m *model) { m.d = 4 }), fenceFalls},
		{"the lock is passed after a release was sent", passBeforeRelease, &base, twoTrust},
		{"the block is not reserved", blockIsReserved, &base, fenceFalls},
		{"the lock is passed before the block is known to be reserved", reservedIfAnswered, &base, fenceFalls},
		{"passes are faster than the clock", clockIsAhead, clock.with(func(m *model) {
			m.perTick, m.block, m.d, m.losses, m.deletions, m.wants, m.end = 1, 4, 3, 1, 1, [processes]uint8{4, 1}, 5
		}), fenceFalls},
		{"a lease whose token was told is passed on", toldIsNotPassed, base.with(func(m *model) { m.tells = 1 }), twoTrust},
		{"the process goes on for ever", turnsAreBounded, &timed, waitsLong},
		{"a copy of the acquire is forgotten at a pass", strayStays, brief.with(func(m *model) { m.repeats = 1 }), leftBehind},
		{"a process that closes passes the lock on", closingPassesNone, brief.with(func(m *model) { m.closes = 1 }), outlives},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := *c.where
			m.broken, m.only = c.rule, c.violates
			explore.Breaks(t, m.explored(), c.violates)
		})
	}
}
