package keep

import (
	"math/rand/v2"
	"time"
)

const (
	// firstRetry is the pause after a first failed renewal. It doubles with each further failure.
	firstRetry = 50 * time.Millisecond
	// The bounds of a renewal's timeout.
	minTimeout, maxTimeout = 20 * time.Millisecond, 3 * time.Second
)

// Schedule says when one client is to be renewed, and when a renewal that was begun counts as failed.
//
//	due      the next renewal is planned: Start, Renewed and Failed plan it, Hasten moves it forward
//	begun    a renewal is queued or under way: Begin has set the time at which it counts as failed
//	overdue  it has not been answered by then: it is given up, and Failed plans the next
//
// It belongs to the client, whose mutex guards it. The zero value has Every to be set, and Start to
// be called.
type Schedule struct {
	Every time.Duration // between two renewals; it may change between two calls

	due       time.Time // of the next renewal
	overdueAt time.Time // when the renewal that is queued or under way counts as failed
	failures  int       // in a row
}

// Start plans the first renewal of a lease that was won by a call begun at that moment.
func (s *Schedule) Start(begun time.Time) { s.due = s.next(begun, false) }

// Hasten moves the next renewal forward to at, if it is later.
func (s *Schedule) Hasten(at time.Time) {
	if at.Before(s.due) {
		s.due = at
	}
}

// Renewed plans the next renewal after one that was begun at that moment and came through. After
// trouble, which has many leases renewed at one time, the next renewals are spread more widely.
func (s *Schedule) Renewed(begun time.Time) {
	trouble := s.failures > 0 || begun.Sub(s.due) > s.Every/8
	s.due, s.failures = s.next(begun, trouble), 0
}

// Failed plans the next try after a renewal that failed: soon, with jitter and growing pauses, and
// while the deadline leaves time for more.
func (s *Schedule) Failed(now, deadline time.Time) {
	pause := firstRetry << min(s.failures, 10)
	pause = min(pause, s.Every/2, deadline.Sub(now)/4)
	pause = max(pause, 5*time.Millisecond)
	s.failures++
	s.due = now.Add(pause/2 + rand.N(pause/2))
}

// next is a renewal's time after one that was begun then. Jitter makes it a little earlier than
// Every, so that leases that were taken together do not stay together.
func (s *Schedule) next(begun time.Time, trouble bool) time.Time {
	early := s.Every / 10
	if trouble {
		early = s.Every
	}
	return begun.Add(s.Every - rand.N(early+1))
}

// IsDue reports whether it is time for a renewal, or so nearly that it may share the round trip of
// another. What has just failed is never early.
func (s *Schedule) IsDue(now time.Time) bool {
	if s.failures == 0 {
		now = now.Add(min(Coalesce, s.Every/8))
	}
	return !now.Before(s.due)
}

// Timeout is after how long a renewal counts as failed: it must not hold up the next one.
func (s *Schedule) Timeout() time.Duration { return timeout(s.Every) }

func timeout(every time.Duration) time.Duration { return min(max(every/2, minTimeout), maxTimeout) }

// Begin notes that a renewal is queued or sent now.
func (s *Schedule) Begin(now time.Time) { s.overdueAt = now.Add(s.Timeout()) }

// IsOverdue reports whether the renewal that is queued or under way counts as failed.
func (s *Schedule) IsOverdue(now time.Time) bool { return !now.Before(s.overdueAt) }

// Plan is when the client wants its next turn, and at its deadline at the latest. Waits says that a
// renewal is queued or under way.
func (s *Schedule) Plan(waits bool, deadline time.Time) Plan {
	switch {
	case waits && s.overdueAt.Before(deadline):
		return Plan{Next: s.overdueAt}
	case !waits && s.due.Before(deadline):
		return Plan{Next: s.due, Early: s.failures == 0}
	}
	return Plan{Next: deadline}
}

// Due is when the next renewal is due.
func (s *Schedule) Due() time.Time { return s.due }
