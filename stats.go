package leasehold

import "sync"

// Stats are the counters of a [Locker] since New, and its two gauges.
type Stats struct {
	Held    int // leases that have not ended for their holders
	Waiting int // acquires that wait

	Acquired            int64
	GaveUp              int64
	Retried             int64 // times that a waiting acquire found Redis unavailable
	Renewed             int64
	RenewalsFailed      int64 // renewals that Redis did not confirm
	Lost                int64 // a lease that has ended is counted here, or in one of the next two
	Released            int64
	ReleasesUnconfirmed int64 // leases whose release failed or was not confirmed
	Detached            int64

	AcquiredAtOnce    int64 // of Acquired, by what ended the wait: see Wake
	AcquiredByMessage int64
	AcquiredByExpiry  int64
	AcquiredByPoll    int64
}

// counters are the Stats as they are counted. A mutex takes all of them to one moment, so that the sums are right in
// every copy; it costs a few ns for an acquire, beside its round trip.
type counters struct {
	mu  sync.Mutex // guards now
	now Stats      // without Held and Acquired, which Stats adds
}

// count changes the counters.
func (c *counters) count(change func(now *Stats)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.now)
}

// Stats returns the counters as they stand.
func (l *Locker) Stats() Stats {
	var s Stats
	l.stats.count(func(now *Stats) { s = *now })
	s.Held = l.keeper.Len()
	s.Acquired = s.AcquiredAtOnce + s.AcquiredByMessage + s.AcquiredByExpiry + s.AcquiredByPoll
	return s
}

// ended counts the end of an acquire.
func (s *Stats) ended(woken Wake, err error) {
	switch {
	case err != nil:
		s.GaveUp++
	case woken == WokenByMessage:
		s.AcquiredByMessage++
	case woken == WokenByExpiry:
		s.AcquiredByExpiry++
	case woken == WokenByPoll:
		s.AcquiredByPoll++
	default:
		s.AcquiredAtOnce++
	}
}
