package keep

import "time"

const (
	// headroom is how much faster than usual renewals may follow each other when many are due at
	// once: after an outage, or when all leases were taken at one time.
	headroom = 1.5
	// burst is how many renewals may follow each other at once, however slow the usual rate is.
	burst = 256
	// pacing is how long renewals gather while they are paced.
	pacing = 20 * time.Millisecond
)

// pace is a token bucket that says how fast renewals may follow each other. It is filled at the
// rate at which the leases want to be renewed, and half as fast again. Without it an outage of a
// few seconds ends with every renewal that fell due in it at once, then with all their next
// renewals at once, and so on.
type pace struct {
	rate   float64 // renewals a second that the leases want
	credit float64
	paid   time.Time
}

// speed is how many renewals may follow each other in a second.
func (p *pace) speed() float64 { return headroom * p.rate }

// allows reports whether n renewals that wait may go on: all of them, or as many as one pacing
// interval brings, so that they share round trips.
func (p *pace) allows(n int) bool {
	return p.credit >= max(1, min(float64(n), p.speed()*pacing.Seconds()))
}

// refill adds the credit of the time that has passed. The bucket is full at first, so that a Locker
// with few leases is never paced; and it holds no more than a burst, or what the rate brings within
// Coalesce, so that a quiet hour does not pay for a stampede.
func (p *pace) refill(now time.Time) {
	speed := p.speed()
	if p.paid.IsZero() {
		p.credit = burst
	} else {
		p.credit += speed * now.Sub(p.paid).Seconds()
	}
	p.paid = now
	p.credit = min(p.credit, max(burst, speed*Coalesce.Seconds()))
}
