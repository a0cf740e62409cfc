// Package backend is the contract between the machines that take and keep leases and what keeps the locks: a single Redis, a
// quorum of nodes, or another store to come. It knows none of them.
package backend

import (
	"context"
	"time"

	"github.com/go-leasehold/leasehold/internal/token"
)

// WaiterTTL is for how long a waiter counts as alive after each of its polls. It is also the longest time for which a lock that
// was handed over is held without a further call. It belongs to the protocol: the scripts are given it when they are loaded,
// and the clock rules of the waiters depend on it.
const WaiterTTL = 2500 * time.Millisecond

// CallBound is the longest that one command is waited for; a caller's context or a lease's end may be sooner.
const CallBound = 3 * time.Second

// Backend keeps locks. Its methods are safe for concurrent use. Each is bounded by ctx and by bound, whichever ends first,
// whatever the client does. Its error is the end of the context (fault.Wait), fault.NoAnswer, or what the client said
// (fault.Error).
type Backend interface {
	// Tenure begins the life of a token. It sends nothing.
	Tenure(Request) Tenure
	// Check judges what a lease of that TTL asks for, before anything is sent.
	Check(r Request, ttl time.Duration) error
	// Inspect tells what is known of a lock, and changes nothing.
	Inspect(ctx context.Context, key string, bound time.Duration) (View, error)
	// Force takes the lock from whoever holds it. It returns the token that has lost the lock, if that is known.
	Force(ctx context.Context, key string, bound time.Duration) (token string, _ error)
	// Flush sends the renewals that were queued by RenewLater.
	Flush()
	// Close waits until nothing is under way, or until ctx ends, and reports which.
	Close(ctx context.Context) bool
}

// Request is what a tenure asks for. It never changes.
type Request struct {
	Key            string // the Redis key, prefix included
	Kind           token.Kind
	Token          string // proves the ownership of one attempt, and then of its lease
	Former         string // the token whose lease is to be adopted; "": the tenure begins with the lock or without
	PX             int64  // ms for which an acquire sets the key: the TTL and the lock delay
	LockDelay      time.Duration
	Replicas       int // that must acknowledge an acquire
	ReplicasWithin time.Duration
	CounterLife    time.Duration // of the fencing counter after a release for which nobody waited; 0: as the backend has it
	MinHold        time.Duration // after an acquire, for which a release with Rest leaves the lock taken
}

// Tenure is what one token has on the servers, from its first attempt to its last release. Its methods are safe for concurrent
// use, but an Acquire is not called beside another.
type Tenure interface {
	// Acquire sends one attempt. It also returns how often the attempt may have been written to a connection: 0 is a certain
	// "never", and the client writes it again after most failures.
	Acquire(ctx context.Context, how Mode, bound time.Duration) (_ Answer, writes int, _ error)
	// Renew puts the time of the renewal on the key. It returns the number of waiters, 0 if that was not asked, or below 0 why
	// the lease is lost: one of the reasons below.
	Renew(ctx context.Context, r Renewal, bound time.Duration) (waiters int, _ error)
	// RenewLater is Renew without waiting. The renewal is sent by Flush, with the others that were queued until then, or
	// before. Then is called once, from another goroutine, and must not block; it is not called after a Withdraw that
	// succeeded.
	RenewLater(r Renewal, then func(p Pending, waiters int, err error)) Pending
	// Lane names what a renewal is sent to: one server that is slow holds up no renewal that is sent to another.
	Lane() any
	// Release gives the lock back, or a place in the line. It returns what that found: ReleasedLock, ReleasedPlace or a reason
	// below 0; and how often it may have been written. "Not yours", answered to a command that was written once, is about the
	// time before the command; written twice, the first may have done the work.
	Release(ctx context.Context, how How, bound time.Duration) (found, writes int, _ error)
	// Detach leaves the lease to others: nothing new is taken for it.
	Detach()
}

// Renewal is what a renewal asks for.
//
// Renewals may arrive in another order than they were sent in, be it because the client sends one again whose reply was lost. So
// none takes time from a key that has more, but for one that is to shorten it.
type Renewal struct {
	PX           int64 // ms for which the key is to last from now: the TTL and the lock delay
	CountWaiters bool
	// Shorten, if it is set, makes the key last for PX and no longer. It is called at most once, when it is certain that no copy of
	// the renewal arrives any more, so perhaps never. It must not block, and RenewLater knows nothing of it.
	Shorten func()
}

// Mode is the word for the scripts that renew.
func (r Renewal) Mode() string {
	if r.Shorten != nil {
		return "shorten"
	}
	return ""
}

// Pending is a renewal that was queued.
type Pending interface {
	// Withdraw takes the renewal back if it has not been sent, and reports whether it could.
	Withdraw() bool
	// Silence is the error of the renewal when it has no answer after bound, with the cause as far as it is known.
	Silence(bound time.Duration) error
}

// Mode is a way to acquire.
type Mode int

// The ways to acquire.
const (
	Try   Mode = iota // take the lock if it is free and nobody alive waits
	Join              // the same, but stand in the line otherwise
	Poll              // a later call of one who stands there
	Adopt             // take over the lease of Request.Former
)

// How is a way to release.
type How int

// The ways to release.
const (
	Plain  How = iota // the end of a lease
	Told              // the same of a lease whose token others may know: it says whether the lease was adopted
	Cancel            // the end of an attempt, whatever came of it: nothing of the token is left, nor comes to be
	Return            // the same of an attempt to adopt: the lock goes back to the former token
)

// Rest is added to Plain, Told or Cancel at the end of a lease. The lock is then given back, and rests until Request.MinHold has
// passed since it was won, by the clock of what keeps it: nobody can have it. It is for tenures whose Acquire has answered Granted.
const Rest How = 1 << 8

// State is what an attempt found.
type State int

// The states of an attempt. The zero State is none of them.
const (
	Granted State = 1 + iota // the token holds the lock
	Held                     // somebody else does
	Waiting                  // the token stands in the line
	Gone                     // the token has no place in the line any more, or what was to be adopted is not there
)

// Answer is the outcome of one attempt.
type Answer struct {
	State   State
	Fence   int64 // Granted: the lease's fencing token; Waiting: the last one that was given
	Left    time.Duration
	Forever bool // the key has no TTL
	Found   bool // Granted: before this call, so by a release, or by a command that was sent before
	// Nobody holds the lock, but of a long line this call has only cleared dead places away: ask again.
	Uncleared bool
	Slot      int // Granted: which one of the lease's kind it is; 0 but for slots
	// Of one who waits:
	Rank    int   // how many stand before it
	Now     int64 // the server's time in µs
	Foreign bool  // the holder is no client of ours
	Several bool  // others hold the lock together, or may before the next poll: those who stand before it
	Why     int   // Gone, to an attempt to adopt: the reason
}

// What Release found.
const (
	ReleasedLock  = 1
	ReleasedPlace = 2
)

// The reasons for which a token does not hold its lock.
const (
	NotHeld     = -1 // nobody holds it
	HeldByOther = -2
	TokenSpent  = -3 // the token was given up: somebody has adopted the lease, or the attempt was cancelled
	NotALock    = -4 // the key has another type
)

// View is what is known of a lock at one instant.
type View struct {
	Held    bool
	Resting bool          // held by no lease: its last was released, and it rests
	Owner   string        // the holder's label
	Holders int           // how many there are
	Left    time.Duration // until the key expires; -1: never
	Fence   int64         // the last fencing token; 0: none is known
	Waiters int           // who wait and are alive
}
