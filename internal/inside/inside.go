// Package inside lets the tests of all folders look into a Locker and a Lease, which the public API does not show. The root
// package sets the functions; no program has a use for them.
package inside

import (
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/inflight"
	"github.com/go-leasehold/leasehold/internal/keep"
	"github.com/go-leasehold/leasehold/internal/line"
	"github.com/go-leasehold/leasehold/internal/script"
)

// Locker is what a Locker is made of.
type Locker struct {
	ID      string
	Clock   *clock.Clock
	Backend backend.Backend
	Keeper  *keep.Keeper
	Line    *line.Line
	Life    *inflight.Life
}

// Lease is the state of a Lease at one instant. To take it changes nothing, unlike the methods of the Lease, which end it when its
// time is over.
type Lease struct {
	Token    string
	TTL      time.Duration
	Begun    clock.Moment // before the attempt that won was first sent
	Deadline clock.Moment
	Now      clock.Moment // by the clocks of its Locker
	Ended    bool         // for its holder
	Contexts int
	Schedule keep.Schedule
}

// The ways in. Of takes a *leasehold.Locker, and State takes a *leasehold.Lease.
var (
	Of    func(locker any) Locker
	State func(lease any) Lease
)

// Six are the scripts of a single Redis.
type Six struct{ Acquire, Adopt, Renew, Release, Finish, Inspect *script.Script }

// Scripts are the scripts that Lockers run. A test may break one with Set.
var Scripts Six
