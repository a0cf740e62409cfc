// Package gocronlock has several schedulers of go-co-op/gocron share their jobs, over leases of leasehold.
//
//	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(gocronlock.NewLocker(locker, 20*time.Second)))
//
// A [Locker] spreads the jobs: each run of a job is somebody's. An [Elector] keeps them together: one scheduler runs all jobs,
// and another one does when it is gone. Both start a run at most once. Neither repeats one: a run is left out where Redis cannot
// be asked, and one whose process crashes stays half done.
//
// gocron does not tell a job that its lock is lost. A job that writes where two must not write should take a lease of its own,
// with leasehold's WithLock, and give its fencing token to what it writes to.
package gocronlock

import (
	"context"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/go-leasehold/leasehold"
)

// Locker is a gocron.Locker: of all schedulers whose clocks say that a job is due, one runs it. Make it with [NewLocker]; the
// zero Locker is of no use. It is safe for concurrent use, and has nothing to close.
type Locker struct {
	locker *leasehold.Locker
	ttl    time.Duration
	opts   []leasehold.Option
}

var _ gocron.Locker = (*Locker)(nil)

// NewLocker returns a Locker for gocron.WithDistributedLocker. The key of a job is its name, so give it one with gocron.WithName
// that is the same in all processes and in every version of the program, and the leasehold.Locker a prefix with
// leasehold.WithKeyPrefix.
//
// The clocks of two machines differ, and the later one must find the lock taken although the job is done. So a lock is kept
// for at least half the TTL after it was won, by the clock of Redis, whatever happens to this process: see
// leasehold.WithMinHold, which is an option for another time. Then it is free, or when the job has ended, whichever is later. So
// the TTL has to be more than twice the most that the clocks differ by, and less than the time between two runs. While the job
// runs, the lease is renewed. The lock of a quorum cannot rest, so for one Lock returns leasehold.ErrInvalid.
//
// An invalid TTL or option is reported by Lock, for which gocron has the listener AfterLockError.
func NewLocker(locker *leasehold.Locker, ttl time.Duration, opts ...leasehold.Option) *Locker {
	return &Locker{locker, ttl, append([]leasehold.Option{leasehold.WithAutoRenew(true), leasehold.WithMinHold(max(ttl/2, 0))}, opts...)}
}

// Lock takes the lock for one run. Any error has gocron leave the run out: leasehold.ErrHeld says that another scheduler has
// it, or has just had it.
func (l *Locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	lease, err := l.locker.TryAcquire(ctx, key, l.ttl, l.opts...)
	if err != nil {
		return nil, err
	}
	return run{lease}, nil
}

// run is one run of a job.
type run struct{ lease *leasehold.Lease }

// Unlock ends the run. The lock rests if it is too early for another one.
func (r run) Unlock(ctx context.Context) error { return r.lease.Release(ctx) }
