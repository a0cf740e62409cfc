package leasehold

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/fault"
)

// Release gives the lock back, to the first waiter if there is one. From the call on the lease has ended for its holder: it is
// neither valid nor renewed, [Lease.Done] is closed, its contexts end, and [Lease.Err] matches [ErrReleased]. What Release
// returns is what became of the key. It may be called again and again: after a success it returns nil and sends nothing.
//
// A context that has ended already does not stop it; Release then has a bound of its own, no longer than what is left of
// the lease. A context that ends during the call ends the wait for the answer.
//
// An error that matches [ErrLost] says that the lease had been lost before, or that Redis answered that the key was gone or
// somebody else's. After any other error, of the context or of Redis, the key may live until its TTL has passed: Release may be
// called again, and goes on by itself in the background while that is of use. If go-redis had to send the release twice and the
// second answer was "not yours", the first has done it; the Released hook hears that the release was not clean.
func (x *Lease) Release(ctx context.Context) error {
	if x == nil {
		return errNilLease
	}
	_ = x.check()
	x.l.life.Enter() // before the lease ends: Close waits for that, and then for the releases under way
	_ = x.end(ErrReleased)
	x.withdraw()
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	e, err, again := x.sendRelease(ctx, x.releaseBound())
	if again && x.repeats(true) {
		x.l.life.Go(x.releaseLater)
	}
	x.l.life.Leave()
	x.tell(e)
	return err
}

// releaseLater repeats a release while the key can be there.
func (x *Lease) releaseLater() {
	defer x.repeats(false)
	x.l.life.Retry(time.Until(x.ValidUntil())+clock.Margin(x.ttl)+x.o.lockDelay, fault.Backoff, func(ctx context.Context) bool {
		e, _, again := x.sendRelease(ctx, callBound)
		x.tell(e)
		return !again
	})
}

// sendRelease sends one release, unless it is known what became of the key. It returns the event that is to be told, Release's
// result, and whether sending another one is of use.
func (x *Lease) sendRelease(ctx context.Context, bound time.Duration) (e Event, result error, again bool) {
	log := &x.releases
	x.mu.Lock()
	settled := log.settled
	if !settled {
		log.open++
		log.written++ // counted before: of two at once, the later must not take the earlier's work for a loss
	}
	x.mu.Unlock()
	var what, n int
	var err error
	if !settled {
		what, n, err = x.tenure.Release(ctx, x.releaseHow(), bound)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if !settled {
		again = log.answered(what, n, err)
	}
	if log.settled {
		err = nil // what became of this one is no matter any more
	}
	return x.ending(err), x.released(err), again
}

// releases is what is known of a lease's releases. The lease's mutex guards it.
type releases struct {
	open    int   // sent and not answered
	written int   // how often one may have been written to a connection
	settled bool  // it is known what became of the key: no release is sent any more
	clean   bool  // settled: an answer says that the key was ours and is gone
	lost    error // settled: the key was not ours; nil: it was
	told    bool  // the hooks have heard how the lease ended
	repeats bool  // one is repeated in the background
}

// ended takes in why the lease has ended: that may say what became of the key.
func (log *releases) ended(reason error) {
	switch reason := reason.(type) {
	case *detachedError:
		log.told, log.settled = true, true // it is not ours to release, nor to tell
	case *lossError:
		log.told = true
		if reason.loss == LossGone || reason.loss == LossAdopted || reason.loss == LossForced {
			log.settled, log.lost = true, reason
		}
	}
}

// answered takes in the answer to one release, and reports whether sending another one is of use.
func (log *releases) answered(what, n int, err error) (again bool) {
	if fault.DidNothing(err, n) {
		n = 0 // that write has certainly done nothing
	}
	log.open--
	log.written += n - 1
	switch {
	case log.settled:
	case err != nil:
		return n > 0 || fault.Transient(err)
	case what == backend.ReleasedLock:
		log.settled, log.clean = true, true
	case log.written == 1:
		log.settled, log.lost = true, notOurs(what, "its release found that ")
	case log.open == 0: // else the one that did it has yet to be heard
		log.settled = true
	}
	return false
}

// released is the result of a release that met err. x.mu is held.
func (x *Lease) released(err error) error {
	over := reason(x.err)
	if errors.Is(over, ErrReleased) {
		over = x.releases.lost
	}
	switch {
	case over != nil && err != nil:
		return x.fail("release", fmt.Errorf("%w: %w", over, err))
	case over != nil:
		return x.fail("release", over)
	case err != nil:
		return x.fail("release", fmt.Errorf("the key may live until its ttl has passed: %w", err))
	}
	return nil
}

// ending is the event that tells how the lease ended, as far as a release that met err knows; the zero Event if that was told,
// or if another release will know more. x.mu is held.
func (x *Lease) ending(err error) (e Event) {
	log := &x.releases
	if log.told || !log.settled && log.open > 0 {
		return e
	}
	log.told = true
	if loss, ok := log.lost.(*lossError); ok {
		return x.lossEvent(loss)
	}
	e = x.event()
	e.Held, e.Clean, e.Err = x.held, log.clean, err
	if log.settled && !log.clean {
		e.Err = errUnconfirmed
	}
	return e
}

var errUnconfirmed = fmt.Errorf("%w: sent twice, and gone at the second answer", ErrReleased)

// lossEvent is the event of a lease that was lost.
func (x *Lease) lossEvent(loss *lossError) Event {
	e := x.event()
	e.Held, e.Loss, e.Err = x.held, loss.loss, loss
	return e
}

// tell tells the counters, the hooks and the log how the lease ended. Every lease has one such event; the zero Event is none.
func (x *Lease) tell(e Event) {
	switch {
	case e.Key == "":
	case e.Loss != "":
		x.l.stats.lost()
		x.o.hook(onLost, e)
		x.o.log(slog.LevelError, "leasehold: lease lost", e)
	default:
		x.l.stats.released(e.Clean)
		x.o.hook(onReleased, e)
		if e.Err != nil && e.Err != errUnconfirmed {
			x.o.log(slog.LevelWarn, "leasehold: release failed", e)
		}
	}
}

// repeats notes whether a release is repeated in the background, and reports whether that is news.
func (x *Lease) repeats(yes bool) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	news := x.releases.repeats != yes
	x.releases.repeats = yes
	return news
}

// releaseHow is how the lease is released. An acquire that arrived after the release would take the lock for a whole TTL,
// so where a copy of one may still come the release leaves a tombstone for it. Not always: that would be a write more for
// every lease. Where others may know the token, the release asks whether somebody has adopted the lease.
func (x *Lease) releaseHow() backend.How {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.resent:
		return backend.Cancel
	case x.told:
		return backend.Told
	}
	return backend.Plain
}

// releaseBound is how long one release may take.
func (x *Lease) releaseBound() time.Duration {
	return min(max(time.Until(x.ValidUntil()), minRelease), callBound)
}

// minRelease: a lease that is over is released all the same, for the sake of those who wait out its key.
const minRelease = 100 * time.Millisecond
