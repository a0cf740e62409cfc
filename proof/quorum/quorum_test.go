package quorum

import (
	"slices"
	"testing"

	"github.com/go-leasehold/leasehold/proof/explore"
)

// sane: two attempts, no faults but slow and lost messages.
var sane = model{tries: 2, ttl: 2, quarantine: 2, ticks: 3, skew: 1}

func (m model) with(f func(*model)) model { f(&m); return m }

// The protocol as it is, under each kind of fault.
var whole = map[string]model{
	"slow and lost messages":  sane,
	"proposals":               sane.with(func(m *model) { m.proposals, m.ticks = true, 2 }),
	"giving up":               sane.with(func(m *model) { m.quitters, m.ticks = 1, 2 }),
	"a copy":                  sane.with(func(m *model) { m.copies, m.ticks = 1, 2 }),
	"a clock ahead":           sane.with(func(m *model) { m.ttl, m.margin, m.quarantine, m.drifts = 3, 1, 3, 1 }),
	"two losses":              sane.with(func(m *model) { m.losses, m.ticks = 2, 2 }),
	"two renewals and a loss": sane.with(func(m *model) { m.losses, m.renewals, m.renewers, m.ticks, m.repliesArrive = 1, 2, 1, 2, true }),
	"a loss and a renewal":    sane.with(func(m *model) { m.losses, m.renewals, m.renewers, m.ticks = 1, 1, 1, 2 }),
	"one client, two tries":   sane.with(func(m *model) { m.tries, m.oneClient, m.quitters, m.ticks, m.skew = 3, true, 1, 0, 0 }),
	"an adoption and a loss": sane.with(func(m *model) {
		m.tries, m.adopts, m.adopterTTL, m.losses, m.ticks, m.skew, m.repliesArrive = 3, true, 2, 1, 2, 0, true
	}),
	"an adoption without clocks": sane.with(func(m *model) {
		m.adopts, m.formerLives, m.adopterTTL, m.clockless, m.vanishings, m.copies, m.ticks = true, true, 2, true, 2, 1, 0
	}),
	"an adoption beside the former holder's renewal": sane.with(func(m *model) {
		m.tries, m.adopts, m.formerLives, m.adopterTTL, m.renewals, m.renewers, m.ticks, m.skew, m.repliesArrive = 3, true, true, 2, 1, 1, 2, 0, true
	}),
	"an adoption": sane.with(func(m *model) {
		m.tries, m.adopts, m.adopterTTL, m.quitters, m.ticks, m.skew, m.repliesArrive = 3, true, 2, 2, 1, 0, true
	}),
	"an adoption for a shorter time, beside the former holder": sane.with(func(m *model) {
		m.tries, m.adopts, m.formerLives, m.adopterTTL, m.quitters, m.ticks, m.repliesArrive = 3, true, true, 1, 2, 1, true
	}),
	"no clocks":            sane.with(func(m *model) { m.clockless, m.vanishings, m.ticks = true, 3, 0 }),
	"no clocks and a copy": sane.with(func(m *model) { m.clockless, m.vanishings, m.copies, m.ticks = true, 2, 1, 0 }),
}

// Those that take more than a second or two.
var large = []string{
	"a clock ahead", "two losses", "two renewals and a loss", "a loss and a renewal", "no clocks", "no clocks and a copy",
	"an adoption beside the former holder's renewal", "an adoption for a shorter time, beside the former holder",
	"a refill in the quarantine", "a renewal creates the key",
}

func TestTheProtocolHolds(t *testing.T) {
	for name, m := range whole {
		t.Run(name, func(t *testing.T) {
			if slices.Contains(large, name) {
				explore.Large(t)
			}
			t.Parallel()
			explore.Holds(t, m.explored())
		})
	}
}

// Each rule left out, where the property must be seen to fail.
func TestNoRuleCanBeLeftOut(t *testing.T) {
	for _, c := range []struct {
		name     string
		rule     rule
		where    string
		violates string
	}{
		{"no raise", raise, "slow and lost messages", "O1"},
		{"no raise, without clocks", raise, "no clocks", "O1"},
		{"accepted by a minority", acceptByMajority, "slow and lost messages", "O1"},
		{"a raise whoever holds the key", raiseOnlyOwn, "no clocks and a copy", "O2"},
		{"a renewal by a minority", renewByMajority, "a loss and a renewal", "E"},
		{"the deadline counts from the reply", deadlineFromSend, "slow and lost messages", "E"},
		{"no margin", marginForDrift, "a clock ahead", "E"},
		{"the same token for the next try", newToken, "one client, two tries", "E"},
		{"no quarantine", quarantineAfterLoss, "two losses", "E"},
		{"a quarantine shorter than the TTL", quarantineCoversTTL, "two losses", "E"},
		{"the uptime is read before the acquire", uptimeInTheScript, "two losses", "E"},
		{"a counter that survived ends the quarantine", noFaithInCounters, "two losses", "E"},
		{"a refill in the quarantine", refillAsksUptime, "two renewals and a loss", "E"},
		{"a renewal creates the key", renewalCreatesNothing, "a loss and a renewal", "E"},
		{"no floor of time", timeFloor, "two losses", "O1"},
		{"an adoption with the old fencing token", adoptMints, "an adoption", "O1"},
		{"an adoption that shortens", adoptKeepsTime, "an adoption for a shorter time, beside the former holder", "E"},
		{"a raise that shortens", raiseKeepsTime, "an adoption for a shorter time, beside the former holder", "E"},
		{"a failed adoption that frees", adoptGivesBack, "an adoption for a shorter time, beside the former holder", "E"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if slices.Contains(large, c.name) {
				explore.Large(t)
			}
			t.Parallel()
			m := whole[c.where]
			m.broken, m.only = c.rule, c.violates
			explore.Breaks(t, m.explored(), c.violates)
		})
	}
}
