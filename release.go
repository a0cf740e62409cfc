package leasehold

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"
)

// Release gives the lock back, to the first waiter if there is one. It may be called again and again: after a success it
// returns nil and sends nothing.
//
// A context that has ended already does not stop it; Release then has a bound of its own, no longer than what is left of
// the lease. A context that ends during the call ends the wait for the answer.
//
// An error that matches [ErrLost] says that the lease did not last until now. After any other error, of the context or of
// Redis, the key may live until its TTL has passed: the lease is not renewed any more and not valid, Release may be
// called again, and goes on by itself in the background while that is of use. If go-redis had to send the release twice and the second
// answer was "not yours", the first has done it: the lease is released, and the Released hook hears that it is not clean.
func (x *Lease) Release(ctx context.Context) error {
	if x == nil {
		return errNilLease
	}
	if sent, err := x.beginRelease(); !sent {
		return err
	}
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	what, n, err := x.l.store.release(ctx, &x.r, x.releaseMode(), x.releaseBound())
	err, again := x.releaseAnswered(what, n, err)
	if again {
		x.l.calls.Go(x.releaseLater)
	}
	return err
}

// beginRelease ends all renewing, and reports false with Release's result if there is nothing to send.
func (x *Lease) beginRelease() (bool, error) {
	_ = x.check()
	x.mu.Lock()
	if x.settled {
		err := x.err
		x.mu.Unlock()
		if errors.Is(err, ErrReleased) {
			return false, nil
		}
		return false, x.fail("release", err)
	}
	x.releasing = true
	x.unheard++
	x.releases++ // counted before: of two at once, the later must not take the earlier's work for a loss
	x.mu.Unlock()
	x.l.keeper.withdraw(x)
	return true, nil
}

// releaseMode is how the lease is released. An acquire that arrived after the release would take the lock for a whole TTL,
// so where a copy of one may still come the release leaves a tombstone for it. Not always: that would be a write more for
// every lease.
func (x *Lease) releaseMode() string {
	if x.stray {
		return modeUndo
	}
	return modeRelease
}

// releaseBound is how long one release may take.
func (x *Lease) releaseBound() time.Duration {
	return min(max(time.Until(x.ValidUntil()), minRelease), callBound)
}

// minRelease: a lease that is over is released all the same, for the sake of those who wait out its key.
const minRelease = 100 * time.Millisecond

// releaseAnswered takes in the outcome of a release and makes it Release's result. It reports whether sending it again is
// of use.
func (x *Lease) releaseAnswered(what int, n sent, err error) (_ error, again bool) {
	var server redis.Error
	if err != nil && errors.As(err, &server) && n == 1 {
		n = 0 // refused: that write has certainly done nothing
	}
	x.mu.Lock()
	x.releases += n - 1
	x.unheard--
	e := x.r.event(x.fence)
	e.Held, e.Err = time.Since(x.begun.Time), err
	ours := what == releasedLock || x.releases > 1
	// Of several releases one is told, and of a failure's repetitions the first.
	told := x.settled || err != nil && x.failed
	x.failed = err != nil
	if err == nil && what != releasedLock && x.unheard > 0 {
		told = true // the one that did it has yet to be heard
	} else if err == nil {
		x.settled = true
		e.Clean = what == releasedLock
		if !e.Clean {
			e.Err = errUnconfirmed
		}
	}
	x.mu.Unlock()

	over := x.check()
	switch {
	case err != nil:
		again = n > 0 || transient(err)
	case ours:
		over = x.end(ErrReleased)
	default:
		over = x.end(lost(LossGone, "at its release the key was gone or somebody else's"))
	}
	if errors.Is(over, ErrLost) { // which was told
		if err != nil {
			over = fmt.Errorf("%w: %w", reason(over), err)
		}
		return x.fail("release", over), again
	}
	if !told {
		x.l.stats.released(e.Clean)
		x.r.o.hook(onReleased, e)
	}
	if err == nil {
		return nil, false
	}
	if !told {
		x.r.o.log(slog.LevelWarn, "leasehold: release failed", e)
	}
	return x.fail("release", fmt.Errorf("the key may live until its ttl has passed: %w", err)), again
}

var errUnconfirmed = fmt.Errorf("%w: sent twice, and gone at the second answer", ErrReleased)

// releaseLater repeats a release while the key can be there.
func (x *Lease) releaseLater() {
	x.l.retry(time.Until(x.ValidUntil())+margin(x.ttl)+x.r.o.lockDelay, func(ctx context.Context) bool {
		if sent, _ := x.beginRelease(); !sent {
			return true
		}
		what, n, err := x.l.store.release(ctx, &x.r, x.releaseMode(), callBound)
		_, again := x.releaseAnswered(what, n, err)
		return !again
	})
}

// settle notes that no release need be sent any more.
func (x *Lease) settle() {
	x.mu.Lock()
	x.settled = true
	x.mu.Unlock()
}
