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
func (le *Lease) end(reason error) error {
	le.mu.Lock()
	if le.err != nil {
		defer le.mu.Unlock()
		return le.err
	}
	le.err = &Error{Op: "hold", Key: le.key, Err: reason}
	le.held = time.Since(le.begun.Time)
	loss, isLost := reason.(*lossError)
	le.releases.ended(reason)
	if le.done != nil {
		close(le.done)
	}
	le.mu.Unlock()
	le.l.keeper.Remove(&le.entry)
	le.endContexts(le.err)
	if isLost {
		le.tell(le.lossEvent(loss))
	}
	return le.err
}

// Release gives the lock back, to the first waiter if there is one, or when the time of [WithMinHold] is over. The call
// itself ends the lease for its holder: the lease is neither valid nor renewed, [Lease.Done] is closed, its contexts
// end, and [Lease.Err] matches [ErrReleased]. The result of Release says what happened to the key. Release may be called
// again. After a success it returns nil and sends nothing.
//
// A context that has ended already does not stop Release, which then has a bound of its own, no longer than the rest of
// the lease. A context that ends during the call ends the wait for the answer.
//
// An error that matches [ErrLost] says that the lease had been lost before, or that Redis answered that the key was
// gone or another holder's. After any other error, of the context or of Redis, the key may live until its TTL has
// passed. Release may be called again, and a retry runs in the background while that is of use. If go-redis had to send
// the release twice and the second answer was "not yours", the first copy has done the work: the Released hook is told
// that the release was not clean.
func (le *Lease) Release(ctx context.Context) error {
	if le == nil {
		return errNilLease
	}
	_ = le.check()
	le.l.life.Enter() // before the lease ends: Close waits for that, and then for the releases under way
	_ = le.end(ErrReleased)
	le.withdraw()
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	e, err, again := le.sendRelease(ctx, le.releaseBound())
	if again && le.repeats(true) {
		le.l.life.Go(le.releaseLater)
	}
	le.l.life.Leave()
	le.tell(e)
	return err
}

// releaseLater repeats a release while the key can be there.
func (le *Lease) releaseLater() {
	defer le.repeats(false)
	le.l.life.Retry(time.Until(le.ValidUntil())+clock.Margin(le.span.TTL())+le.o.lockDelay, fault.Backoff, func(ctx context.Context) bool {
		e, _, again := le.sendRelease(ctx, backend.CallBound)
		le.tell(e)
		return !again
	})
}

// sendRelease sends one release, unless it is known what became of the key. It returns the event that is to be told,
// Release's result, and whether sending another one is of use.
func (le *Lease) sendRelease(ctx context.Context, bound time.Duration) (e Event, result error, again bool) {
	log := &le.releases
	le.mu.Lock()
	settled := log.Settled
	if !settled {
		log.Begin()
	}
	le.mu.Unlock()
	var what, n int
	var err error
	if !settled {
		what, n, err = le.tenure.Release(ctx, le.releaseHow(), bound)
	}
	le.mu.Lock()
	defer le.mu.Unlock()
	if !settled {
		if again = log.Answered(what, n, err); log.Lost && log.lost == nil {
			log.lost = notOurs(log.Found, "its release found that ")
		}
	}
	if log.Settled {
		err = nil // what became of this one is no matter any more
	}
	return le.ending(err), le.released(err), again
}

// releases is what is known of a lease's releases. The lease's mutex guards it.
type releases struct {
	backend.Releases
	lost     error // the key was not ours; nil: it was, as far as is known
	reported bool  // the hooks have heard how the lease ended
	repeats  bool  // a release is repeated in the background
}

// ended takes in why the lease has ended: that may say what became of the key.
func (log *releases) ended(reason error) {
	switch reason := reason.(type) {
	case *detachedError:
		log.reported, log.Settled = true, true // it is not ours to release, nor to tell
	case *lossError:
		log.reported = true
		if reason.loss == LossGone || reason.loss == LossAdopted || reason.loss == LossForced {
			log.Settled, log.lost = true, reason
		}
	}
}

// released is the result of a release that met err. le.mu is held.
func (le *Lease) released(err error) error {
	over := reason(le.err)
	if errors.Is(over, ErrReleased) {
		over = le.releases.lost
	}
	switch {
	case over != nil && err != nil:
		return le.fail("release", fmt.Errorf("%w: %w", over, err))
	case over != nil:
		return le.fail("release", over)
	case err != nil:
		return le.fail("release", fmt.Errorf("the key may live until its ttl has passed: %w", err))
	}
	return nil
}

// ending is the event that tells how the lease ended, as far as a release that met err knows; the zero Event if that
// was told, or if another release will know more. le.mu is held.
func (le *Lease) ending(err error) (e Event) {
	log := &le.releases
	if log.reported || !log.Settled && log.IsOpen() {
		return e
	}
	log.reported = true
	if loss, ok := log.lost.(*lossError); ok {
		return le.lossEvent(loss)
	}
	e = le.event()
	e.Held, e.Clean, e.Err = le.held, log.Clean, err
	if log.Settled && !log.Clean {
		e.Err = errUnconfirmed
	}
	return e
}

var errUnconfirmed = fmt.Errorf("%w: sent twice, and gone at the second answer", ErrReleased)

// lossEvent is the event of a lease that was lost.
func (le *Lease) lossEvent(loss *lossError) Event {
	e := le.event()
	e.Held, e.Loss, e.Err = le.held, loss.loss, loss
	return e
}

// tell tells the counters, the hooks and the log how the lease ended. Every lease has one such event; the zero Event is
// none.
func (le *Lease) tell(e Event) {
	switch {
	case e.Key == "":
	case e.Loss != "":
		le.l.stats.count(func(now *Stats) { now.Lost++ })
		le.o.hook(onLost, e)
		le.o.log(slog.LevelError, "leasehold: lease lost", e)
	default:
		le.l.stats.count(func(now *Stats) {
			if e.Clean {
				now.Released++
			} else {
				now.ReleasesUnconfirmed++
			}
		})
		le.o.hook(onReleased, e)
		if e.Err != nil && e.Err != errUnconfirmed {
			le.o.log(slog.LevelWarn, "leasehold: release failed", e)
		}
	}
}

// repeats notes whether a release is repeated in the background, and reports whether that is news.
func (le *Lease) repeats(yes bool) bool {
	le.mu.Lock()
	defer le.mu.Unlock()
	news := le.releases.repeats != yes
	le.releases.repeats = yes
	return news
}

// releaseHow is how the lease is released. An acquire that arrived after the release would take the lock for a whole
// TTL, so where a copy of one may still come the release leaves a tombstone for it. Not always: that would be a write
// more for every lease. Where others may know the token, the release asks whether somebody has adopted the lease. A
// lease that was lost does not rest: nobody knows whether its work was done.
func (le *Lease) releaseHow() (how backend.How) {
	le.mu.Lock()
	defer le.mu.Unlock()
	switch {
	case le.resent:
		how = backend.Cancel
	case le.shared:
		how = backend.Told
	}
	if le.o.minHold > 0 && errors.Is(le.err, ErrReleased) {
		how |= backend.Rest
	}
	return how
}

// releaseBound is how long one release may take.
func (le *Lease) releaseBound() time.Duration {
	return min(max(time.Until(le.ValidUntil()), minRelease), backend.CallBound)
}

// minRelease: a lease that is over is released all the same, for the sake of those who wait out its key.
const minRelease = 100 * time.Millisecond

// run is WithLock after the lock was won: fn, then the release, also when fn panics or ends its goroutine.
func (le *Lease) run(ctx context.Context, fn func(context.Context, *Lease) error) (err error) {
	inner, cancel := le.Context(ctx)
	defer cancel()
	defer func() {
		released := le.Release(context.WithoutCancel(ctx))
		if !errors.Is(released, ErrLost) {
			return // fn had the lock to its end; how the release went is for the hooks and the log
		}
		over := le.Err()
		if !errors.Is(over, ErrLost) {
			over = le.fail("hold", released)
		}
		if err == nil {
			err = over
		} else if !errors.Is(err, reason(over)) { // else fn has returned that very loss
			err = errors.Join(err, over)
		}
	}()
	return fn(inner, le)
}

// Detach ends the lease in this process and returns its token, for [Locker.Adopt] in the process that takes the work
// over. It sends nothing: in Redis the lease lives for as long as it was last renewed. Detach returns "" if the lease
// had ended before. Nothing renews the lease any more, Close does not touch it, and it does not count as lost.
//
// From then on [Lease.Err] matches [ErrReleased], the contexts of the lease have ended, and Release does nothing. Until
// somebody adopts the lease nobody holds the lock, but others wait until its TTL has passed.
func (le *Lease) Detach() string {
	if le == nil || le.check() != nil {
		return ""
	}
	mine := &detachedError{}
	if reason(le.end(mine)) != mine {
		return ""
	}
	le.withdraw() // a renewal that has been sent only lengthens the key, if nobody has adopted it
	le.tenure.Detach()
	e := le.event()
	e.Held = le.held // it does not change any more
	le.l.stats.count(func(now *Stats) { now.Detached++ })
	le.o.hook(onDetached, e)
	return le.token
}

// detachedError is the end of a lease by Detach: each has its own, so that of several calls one gets the token.
type detachedError struct{ _ byte }

func (e *detachedError) Error() string {
	return ErrReleased.Error() + ": detached, for another to adopt it"
}

func (e *detachedError) Unwrap() error { return ErrReleased }
