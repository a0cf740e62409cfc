package gocronlock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/election"
)

// ErrNotLeader is the answer of [Elector.IsLeader] while another scheduler leads, or none.
var ErrNotLeader = errors.New("gocronlock: not the leader")

// Elector is a gocron.Elector: one of all schedulers runs the jobs. Make it with [NewElector]. It is safe for concurrent use.
type Elector struct {
	term atomic.Pointer[leasehold.Lease] // the last one; nil: none yet
	err  atomic.Pointer[error]           // why it stands no more
	stop context.CancelFunc
	done chan struct{} // closed when it stands no more
}

var _ gocron.Elector = (*Elector)(nil)

// NewElector returns an Elector for gocron.WithDistributedElector, which stands for election until [Elector.Close]. All
// schedulers that share jobs have the same key. ttl is how long nobody runs them when a leader crashes: 10 to 30 s suits most.
//
// A run that is due right after the leader has changed can be started twice, if the clocks of the two differ: the old leader's
// had come to it, and the new one's comes to it again.
func NewElector(locker *leasehold.Locker, key string, ttl time.Duration, opts ...leasehold.Option) *Elector {
	ctx, stop := context.WithCancel(context.Background())
	e := &Elector{stop: stop, done: make(chan struct{})}
	go func() {
		defer close(e.done)
		err := election.Run(ctx, locker, key, ttl, func(ctx context.Context, term *leasehold.Lease) error {
			e.term.Store(term)
			<-ctx.Done()
			return context.Cause(ctx)
		}, opts...)
		e.err.Store(&err)
	}()
	return e
}

// IsLeader returns nil if this scheduler leads, by its own clocks and without a round trip. Otherwise the error matches
// [ErrNotLeader]; if it does not stand any more, the error says why.
func (e *Elector) IsLeader(context.Context) error {
	if e.term.Load().Valid() {
		return nil
	}
	if err := e.err.Load(); err != nil {
		return fmt.Errorf("%w: %w", ErrNotLeader, *err)
	}
	return ErrNotLeader
}

// Close gives the lead to the next scheduler, if this one has it, and returns when that is done. Shut the gocron scheduler
// down before, or its jobs run on while the next one begins. Close may be called more than once. It returns nil, or the error
// that had ended the standing before.
func (e *Elector) Close() error {
	e.stop()
	<-e.done
	if err := *e.err.Load(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
