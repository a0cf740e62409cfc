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

// end is the one way out of "held": the first reason stays. It returns the reason that stands, and no mutex is held
// while those who wait for it are told.
func (x *Lease) end(reason error) error {
	x.mu.Lock()
	if x.err != nil {
		defer x.mu.Unlock()
		return x.err
	}
	x.err = &Error{Op: "hold", Key: x.key, Err: reason}
	x.held = time.Since(x.begun.Time)
	loss, isLost := reason.(*lossError)
	x.releases.ended(reason)
	if x.done != nil {
		close(x.done)
	}
	x.mu.Unlock()
	x.l.keeper.Remove(&x.entry)
	x.endContexts(x.err)
	if isLost {
		x.tell(x.lossEvent(loss))
	}
	return x.err
}

// Release gives the lock back, to the first waiter if there is one. The call itself ends the lease for its holder: the
// lease is neither valid nor renewed, [Lease.Done] is closed, its contexts end, and [Lease.Err] matches [ErrReleased].
// The result of Release says what happened to the key. Release may be called again. After a success it returns nil and
// sends nothing.
//
// A context that has ended already does not stop Release, which then has a bound of its own, no longer than the rest of
// the lease. A context that ends during the call ends the wait for the answer.
//
// An error that matches [ErrLost] says that the lease had been lost before, or that Redis answered that the key was
// gone or another holder's. After any other error, of the context or of Redis, the key may live until its TTL has
// passed. Release may be called again, and a retry runs in the background while that is of use. If go-redis had to send
// the release twice and the second answer was "not yours", the first copy has done the work: the Released hook is told
// that the release was not clean.
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
		e, _, again := x.sendRelease(ctx, backend.CallBound)
		x.tell(e)
		return !again
	})
}

// sendRelease sends one release, unless it is known what became of the key. It returns the event that is to be told,
// Release's result, and whether sending another one is of use.
func (x *Lease) sendRelease(ctx context.Context, bound time.Duration) (e Event, result error, again bool) {
	log := &x.releases
	x.mu.Lock()
	settled := log.Settled
	if !settled {
		log.Begin()
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
		if again = log.Answered(what, n, err); log.Found < 0 && log.lost == nil {
			log.lost = notOurs(log.Found, "its release found that ")
		}
	}
	if log.Settled {
		err = nil // what became of this one is no matter any more
	}
	return x.ending(err), x.released(err), again
}

// releases is what is known of a lease's releases. The lease's mutex guards it.
type releases struct {
	backend.Releases
	lost    error // the key was not ours; nil: it was, as far as is known
	told    bool  // the hooks have heard how the lease ended
	repeats bool  // a release is repeated in the background
}

// ended takes in why the lease has ended: that may say what became of the key.
func (log *releases) ended(reason error) {
	switch reason := reason.(type) {
	case *detachedError:
		log.told, log.Settled = true, true // it is not ours to release, nor to tell
	case *lossError:
		log.told = true
		if reason.loss == LossGone || reason.loss == LossAdopted || reason.loss == LossForced {
			log.Settled, log.lost = true, reason
		}
	}
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

// ending is the event that tells how the lease ended, as far as a release that met err knows; the zero Event if that
// was told, or if another release will know more. x.mu is held.
func (x *Lease) ending(err error) (e Event) {
	log := &x.releases
	if log.told || !log.Settled && log.IsOpen() {
		return e
	}
	log.told = true
	if loss, ok := log.lost.(*lossError); ok {
		return x.lossEvent(loss)
	}
	e = x.event()
	e.Held, e.Clean, e.Err = x.held, log.Clean, err
	if log.Settled && !log.Clean {
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

// tell tells the counters, the hooks and the log how the lease ended. Every lease has one such event; the zero Event is
// none.
func (x *Lease) tell(e Event) {
	switch {
	case e.Key == "":
	case e.Loss != "":
		x.l.stats.count(func(now *Stats) { now.Lost++ })
		x.o.hook(onLost, e)
		x.o.log(slog.LevelError, "leasehold: lease lost", e)
	default:
		x.l.stats.count(func(now *Stats) {
			if e.Clean {
				now.Released++
			} else {
				now.ReleasesUnconfirmed++
			}
		})
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

// releaseHow is how the lease is released. An acquire that arrived after the release would take the lock for a whole
// TTL, so where a copy of one may still come the release leaves a tombstone for it. Not always: that would be a write
// more for every lease. Where others may know the token, the release asks whether somebody has adopted the lease.
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
	return min(max(time.Until(x.ValidUntil()), minRelease), backend.CallBound)
}

// minRelease: a lease that is over is released all the same, for the sake of those who wait out its key.
const minRelease = 100 * time.Millisecond

// run is WithLock after the lock was won: fn, then the release, also when fn panics or ends its goroutine.
func (x *Lease) run(ctx context.Context, fn func(context.Context, *Lease) error) (err error) {
	inner, cancel := x.Context(ctx)
	defer cancel()
	defer func() {
		released := x.Release(context.WithoutCancel(ctx))
		if !errors.Is(released, ErrLost) {
			return // fn had the lock to its end; how the release went is for the hooks and the log
		}
		over := x.Err()
		if !errors.Is(over, ErrLost) {
			over = x.fail("hold", released)
		}
		if err == nil {
			err = over
		} else if !errors.Is(err, reason(over)) { // else fn has returned that very loss
			err = errors.Join(err, over)
		}
	}()
	return fn(inner, x)
}

// Detach ends the lease in this process and returns its token, for [Locker.Adopt] in the process that takes the work
// over. It sends nothing: in Redis the lease lives for as long as it was last renewed. Detach returns "" if the lease
// had ended before. Nothing renews the lease any more, Close does not touch it, and it does not count as lost.
//
// From then on [Lease.Err] matches [ErrReleased], the contexts of the lease have ended, and Release does nothing. Until
// somebody adopts the lease nobody holds the lock, but others wait until its TTL has passed.
func (x *Lease) Detach() string {
	if x == nil || x.check() != nil {
		return ""
	}
	mine := &detachedError{}
	if reason(x.end(mine)) != mine {
		return ""
	}
	x.withdraw() // a renewal that has been sent only lengthens the key, if nobody has adopted it
	x.tenure.Detach()
	e := x.event()
	e.Held = x.held // it does not change any more
	x.l.stats.count(func(now *Stats) { now.Detached++ })
	x.o.hook(onDetached, e)
	return x.token
}

// detachedError is the end of a lease by Detach: each has its own, so that of several calls one gets the token.
type detachedError struct{ _ byte }

func (e *detachedError) Error() string {
	return ErrReleased.Error() + ": detached, for another to adopt it"
}

func (e *detachedError) Unwrap() error { return ErrReleased }
