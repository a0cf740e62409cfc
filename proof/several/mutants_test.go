package several

import (
	"testing"

	"github.com/go-leasehold/leasehold/proof/explore"
)

// Each rule left out, where the property must be seen to fail.
func TestNoRuleOfSeveralHoldersCanBeLeftOut(t *testing.T) {
	for _, c := range []struct {
		name     string
		rule     rule
		where    *model
		violates string
	}{
		{"the holders of a former marker stay", staleAreDeleted, brief.of(n1, n1, n1).with(func(m *model) {
			m.deletions = 1
		}), sameSlot},
		{"the key is not raised to the last holder", keyIsRaised, free.of(s, s, e).with(func(m *model) {
			m.ttls = [clients]uint8{3, 3, 2}
		}), tooMany},
		{"the key is not lowered when the last holder leaves", keyIsLowered, timed.of(s, s, e).with(func(m *model) {
			m.ttls, m.crashes, m.idle = [clients]uint8{2, 6, 4}, 1, 3
		}), notServed},
		{"holders whose time is over stay", expiredAreRemoved, timed.of(n2, n2, n2).with(func(m *model) {
			m.crashes, m.idle, m.renews = 1, 3, true
		}), notServed},
		{"a marker whose holders are lost is joined", lostClosesTheLock, brief.of(s, s, e).with(func(m *model) {
			m.deletions, m.holdersOnly = 1, true
		}), tooMany},
		{"a marker whose entries are lost is joined", lostClosesTheLock, brief.of(n2, n2).with(func(m *model) {
			m.deletions, m.holdersOnly = 1, true
		}), sameSlot},
		{"a release that finds the holders lost frees the key", lostKeepsTheKey, brief.of(s, s, e).with(func(m *model) {
			m.deletions, m.holdersOnly = 1, true
		}), tooMany},
		{"a renewal makes its lost entry anew", renewalCreatesNothing, brief.of(n1, n1, n1).with(func(m *model) {
			m.deletions, m.holdersOnly, m.renews = 1, true, true
		}), sameSlot},
		{"who leaves the line does not serve it", leaverServes, timed.of(s, s, e), notServed},
		{"a poll serves a free lock only", pollServes, timed.of(s, s, e).with(func(m *model) {
			m.crashes, m.idle = 1, 3
		}), notServed},
		{"a release serves one head", allWhoFit, timed.of(s, s, e), notServed},
		{"a waiter that fits passes one that does not", readersKeepTheOrder, free.of(s, s, e), passed},
		{"a newcomer that fits passes the line", newcomersKeepTheOrder, free.of(s, s, e), passed},
		{"one slot too many", slotsAreCounted, free.of(n2, n2, n2), sameSlot},
		{"only the newcomer's n counts", leastCounts, free.of(n1, n2, n2), tooMany},
		{"slots without numbers of their own", slotsDiffer, free.of(n2, n2, n2), sameSlot},
		{"shared leases and slots mix", kindsStayApart, free.of(n2, s, e), tooMany},
		{"a poll is answered the counter", ownFence, brief.of(s, s, e), fenceDiffers},
		{"a release of a shared lease frees the key", releaseIsOwn, brief.of(s, s, e), touched},
		{"a lease is trusted from its message", trustFromSend, free.of(s, s, e), tooMany},
		{"a slot is guessed", slotIsTold, brief.of(n2, n2, e).with(today(2)), sameSlot},
		{"what an old version hands over stays exclusive", bareIsConverted, timed.of(s, s, e).with(today(2)).with(func(m *model) {
			m.idle = 1
		}), notServed},
		{"what today's scripts hand over is not confirmed at once", bareIsConfirmed, timed.of(s, s, e).with(plain), notServed},
		{"who converts a token does not serve the line", conversionServes, timed.of(s, s, e).with(plain), notServed},
		{"an exclusive waiter is cancelled by today's script", none, timed.of(s, s, e).with(today(2)), notServed},
		{"holders without a TTL", holdersHaveTTL, brief.of(s, s, e), noTTL},
		{"an adoption with the old fencing token", adoptMints, pass.of(s, s, e), fenceFalls},
		{"an adoption with another slot", adoptKeepsSlot, pass.of(n2, n2, n2), sameSlot},
		{"an adoption with another n", adoptKeepsKind, pass.of(n2, n2, n1), tooMany},
		{"an adoption that shortens the time", adoptKeepsTime, whole["a slot passed on for a shorter time"], sameSlot},
		{"an adoption whose entry is lost", adoptNeedsEntry, pass.of(n3, n3, n3).with(func(m *model) {
			m.ttl, m.deletions, m.holdersOnly, m.acquisitions = 1, 1, true, 2
		}), sameSlot},
		{"a cancelled adoption that frees the slot", adoptGivesBack, whole["a slot passed on for a shorter time"], sameSlot},
		{"an adoption that does not bury the former token", adoptBuriesFormer, pass.of(n1, n1).with(func(m *model) {
			m.repeats = 1
		}), leftBehind},
		{"a closed waiter stays in the line", closeCancels, timed.of(s, s, e).with(func(m *model) {
			m.quits, m.closes = false, 2
		}), notServed},
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

// The same, where it takes longer to be seen.
func TestNoRuleOfSeveralHoldersCanBeLeftOutInLargeRuns(t *testing.T) {
	explore.Large(t)
	for _, c := range []struct {
		name     string
		rule     rule
		where    *model
		violates string
	}{
		{"an old message is trusted", compareFences, twice.of(s, e).with(func(m *model) { m.repeats = 1 }), tooMany},
		{"newcomers that pass the line starve an exclusive waiter", newcomersKeepTheOrder, timed.of(s, s, e).with(func(m *model) {
			m.acquisitions, m.quits, m.wait = 3, false, 8
		}), waitsLong},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := *c.where
			m.broken, m.only = c.rule, c.violates
			explore.Breaks(t, m.explored(), c.violates)
		})
	}
}

// What the protocol does not promise: the model sees it, too.
func TestWhatSeveralHoldersDoNotPromise(t *testing.T) {
	for _, c := range []struct {
		name     string
		where    *model
		violates string
	}{
		{"the server's clock is set forward", brief.of(s, e).with(func(m *model) { m.forward = 1 }), tooMany},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			explore.Breaks(t, c.where.explored(), c.violates)
		})
	}
}
