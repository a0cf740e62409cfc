package main

import (
	"context"
	"errors"
	"time"
)

// What the libraries mean, whatever they call it.
var (
	errHeld    = errors.New("held by another")
	errNotOurs = errors.New("not held by us")
)

// column is one library, or one variant of its options, as a column of every
// table. The libraries keep their defaults except where the name says otherwise.
type column struct {
	name string
	open func(addr string, ttl time.Duration) (client, error)

	// sends lists the commands that the library sends outside scripts, beyond
	// the usual ones; see sent.
	sends []string
	// renews says that the library renews its locks by itself. Where it does
	// not, the renew workload runs one goroutine with a ticker per lock, which
	// is what the documentation of those libraries proposes.
	renews bool
	// key is the Redis key of a lock's name; nil for the name itself.
	key func(name string) string
	// token answers what a holder of that library has at its key, for those
	// whose waiters tell; nil where any value will do.
	token func(ctx context.Context, addr string) (string, error)
}

func (c column) redisKey(name string) string {
	if c.key == nil {
		return name
	}
	return c.key(name)
}

// client is one client process as far as Redis can tell: connections of its
// own, shared by as many goroutines as like.
type client interface {
	// TryLock makes one attempt.
	TryLock(ctx context.Context, name string) (lock, error)
	// Lock waits until ctx ends. Where a library gives up earlier, it is asked again.
	Lock(ctx context.Context, name string) (lock, error)
	// Abandon drops the connections and releases nothing, as a crash does.
	Abandon()
	Close()
}

// lock is one acquisition. Adapters convert the library's own handle to a
// lock, where it can be done without an allocation, so as to add none to the count.
type lock interface {
	Unlock(ctx context.Context) error
	// Renew sets the lock back to its full TTL, which is the client's ttl.
	Renew(ctx context.Context, ttl time.Duration) error
}

// noWait is for the columns of bare commands, which have no way to wait.
type noWait struct{}

func (noWait) Lock(context.Context, string) (lock, error) {
	return nil, errors.ErrUnsupported
}

// columns are all that is measured, in the order of the tables. raw comes
// first: ratios are to it.
func columns() []column {
	return []column{
		rawColumn(),
		rawFenceColumn(), floorColumn(),
		redsyncColumn("redsync", 0),
		redsyncColumn("redsync 5ms", 5*time.Millisecond),
		redislockColumn("redislock", 100*time.Millisecond),
		redislockColumn("redislock 5ms", 5*time.Millisecond),
		rueidislockColumn(),
		leaseholdColumn("leasehold", true),
		leaseholdColumn("leasehold by hand", false),
	}
}
