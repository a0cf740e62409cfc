// Package clock reads the two clocks by which a lease is judged, and has the margin by which it is trusted less than Redis
// keeps it.
package clock

import "time"

// Moment is one instant, read from both clocks of this machine. Go's monotonic clock stands still while a machine is
// suspended, and the wall clock does not; the wall clock can be set, and the monotonic clock cannot. A lease trusts neither
// alone. Neither reading is ever sent to Redis or compared with another machine's.
type Moment struct {
	time.Time       // for the monotonic reading
	Wall      int64 // ns since 1970
}

// Plus returns the moment d later by both clocks.
func (m Moment) Plus(d time.Duration) Moment { return Moment{m.Add(d), m.Wall + int64(d)} }

// Reached reports whether m, a deadline, has come by either clock.
func (m Moment) Reached(now Moment) bool { return !now.Before(m.Time) || now.Wall >= m.Wall }

// Clock reads both clocks. The zero value reads the machine's.
type Clock struct {
	Wall func(time.Time) int64 // the wall clock in ns since 1970, nil for the machine's: a test moves it alone
}

// Now reads both clocks.
func (c *Clock) Now() Moment {
	t := time.Now()
	if c.Wall == nil {
		return Moment{t, t.UnixNano()}
	}
	return Moment{t, c.Wall(t)}
}

// Millis is a time in whole milliseconds, rounded up: what Redis is told must not be over sooner.
func Millis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

// Margin is by how much less than its TTL a lease is trusted: for the rate at which two clocks may drift apart, and for the
// rounding of Redis.
func Margin(ttl time.Duration) time.Duration { return max(2*time.Millisecond, ttl/100) }
