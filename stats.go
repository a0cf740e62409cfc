package leasehold

import "sync/atomic"

// Stats are the counters of a [Locker] since New, and its two gauges.
type Stats struct {
	Held    int // leases that have not ended for their holders
	Waiting int // acquires that wait

	Acquired            int64
	GaveUp              int64
	Retried             int64 // times that an acquire which waits found Redis unavailable
	Renewed             int64
	RenewalsFailed      int64 // renewals without a yes
	Lost                int64 // a lease that has ended is counted here, or in one of the next two
	Released            int64
	ReleasesUnconfirmed int64 // leases whose release failed or was not confirmed
	Detached            int64

	AcquiredAtOnce    int64 // of Acquired, by what ended the wait: see Wake
	AcquiredByMessage int64
	AcquiredByExpiry  int64
	AcquiredByPoll    int64
}

// counters are the Stats as they are counted.
type counters struct {
	waiting                             atomic.Int64
	gaveUp, retried, renewals, failures atomic.Int64
	losses, releases, unclean, detached atomic.Int64
	atOnce, byMessage, byExpiry, byPoll atomic.Int64
}

// Stats returns the counters as they stand.
func (l *Locker) Stats() Stats {
	c := &l.stats
	s := Stats{
		Held:                l.keeper.Len(),
		Waiting:             int(c.waiting.Load()),
		GaveUp:              c.gaveUp.Load(),
		Retried:             c.retried.Load(),
		Renewed:             c.renewals.Load(),
		RenewalsFailed:      c.failures.Load(),
		Lost:                c.losses.Load(),
		Released:            c.releases.Load(),
		ReleasesUnconfirmed: c.unclean.Load(),
		Detached:            c.detached.Load(),
		AcquiredAtOnce:      c.atOnce.Load(),
		AcquiredByMessage:   c.byMessage.Load(),
		AcquiredByExpiry:    c.byExpiry.Load(),
		AcquiredByPoll:      c.byPoll.Load(),
	}
	s.Acquired = s.AcquiredAtOnce + s.AcquiredByMessage + s.AcquiredByExpiry + s.AcquiredByPoll
	return s
}

func (c *counters) acquired(woken Wake, err error) {
	switch {
	case err != nil:
		c.gaveUp.Add(1)
	case woken == WokenByMessage:
		c.byMessage.Add(1)
	case woken == WokenByExpiry:
		c.byExpiry.Add(1)
	case woken == WokenByPoll:
		c.byPoll.Add(1)
	default:
		c.atOnce.Add(1)
	}
}

func (c *counters) renewed(err error) {
	if err == nil {
		c.renewals.Add(1)
	} else {
		c.failures.Add(1)
	}
}

func (c *counters) lost() { c.losses.Add(1) }

func (c *counters) released(clean bool) {
	if clean {
		c.releases.Add(1)
	} else {
		c.unclean.Add(1)
	}
}
