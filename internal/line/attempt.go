package line

import (
	"context"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/fault"
)

// cancelBound is the longest that the cancellation of an attempt is retried.
const cancelBound = 10 * time.Second

// Try asks for the lock once. On any error no lock is held: an attempt whose outcome is not known
// is cancelled in the background. Try has no gate. It does not wait, so it need not queue, and a
// backend with a line refuses it the lock while somebody waits.
func (l *Line) Try(ctx context.Context, w *Waiter) (Grant, error) {
	l.newTenure(w)
	g, unsure, err := l.ask(ctx, w, backend.Try)
	if unsure {
		l.cancel(w, err, nil)
	}
	return g, err
}

// Adopt asks once to take over the lease of w.Former. A [GoneError] says that there is no such
// lease.
//
// Adoptions of one token wait for one another, and for the cancellation of one whose outcome is not
// known. Until the lock is given back to the token, the next would find that the lock is another's.
func (l *Line) Adopt(ctx context.Context, w *Waiter) (Grant, error) {
	if _, err := l.gates.enter(ctx, l.life.Draining(), w.Former); err != nil {
		return Grant{}, err
	}
	leave := func() { l.gates.leave(w.Former) }
	l.newTenure(w)
	g, unsure, err := l.ask(ctx, w, backend.Adopt)
	if unsure {
		l.cancel(w, err, leave)
	} else {
		leave()
	}
	return g, err
}

// ask sends the attempt that takes the lock or does not. An attempt that has only cleared dead
// places out of a long line is sent again, because they refuse nobody the lock. With an error, ask
// also reports whether the lock may have been taken all the same.
//
// The lease counts from before the attempt was sent, so a slow answer shortens it for its holder
// and never lengthens it. An answer that comes after the lease could be trusted is no grant, and
// the bound gives up where every answer would be one.
//
// A refusal is about one moment. Where the attempt was resent, another copy of it may still be on its
// way, and would take what is free by then, for nobody.
func (l *Line) ask(ctx context.Context, w *Waiter, how backend.Mode) (_ Grant, unsure bool, _ error) {
	resent := false
	bound := min(w.TTL-clock.Margin(w.TTL), backend.CallBound)
	until := time.Now().Add(bound)
	for left := bound; left > 0; left = time.Until(until) {
		begun := l.clock.Now()
		w.Attempts++
		ans, writes, err := w.tenure.Acquire(ctx, how, left)
		resent = resent || writes > 1
		switch {
		case err != nil:
			return Grant{}, resent || writes > 0, err
		case ans.Uncleared:
			continue
		case ans.State == backend.Held:
			return Grant{}, resent, heldBy(ans)
		case ans.State == backend.Gone && how == backend.Adopt:
			return Grant{}, resent, &GoneError{ans.Why}
		case ans.State != backend.Granted:
			return Grant{}, true, fault.ErrReply
		case l.isLate(w, begun):
			return Grant{}, true, &fault.NoAnswer{Bound: bound} // or it would be a lease that nobody may trust
		}
		return Grant{Token: w.Token, Tenure: w.tenure, Anchor: begun, Fence: ans.Fence, Slot: ans.Slot, Resent: resent}, false, nil
	}
	return Grant{}, true, &fault.NoAnswer{Bound: bound}
}

// isLate reports whether a lease that counts from that moment could not be trusted any more, by one
// clock or the other.
func (l *Line) isLate(w *Waiter, anchor clock.Moment) bool {
	return anchor.Plus(w.trust()).Reached(l.clock.Now())
}

// heldBy is the reason to wait of a caller that was not granted the lock.
func heldBy(a backend.Answer) error {
	if a.Forever {
		return fault.ErrHeldForever
	}
	return fault.ErrHeld
}

// Cancel gives back, in the background, a lock that w was granted and that is not wanted any more.
func (l *Line) Cancel(w *Waiter) { l.cancel(w, nil, nil) }

// cancel makes sure that nothing of the waiter's token is left or comes to be, neither a lock nor a
// place in the line, and then calls then, which may be nil. The attempt has ended with err.
//
// It does so in the background, which counts among the Locker's calls. The caller waits only where
// it is known that the lock was had: it should be free when the caller reads the error.
//
// It is retried for as long as the key or the place could live without it, since after that there
// is nothing to undo; and no longer than cancelBound, since a server that is away for so
// long has other waiters to think of. An error that time does not cure ends it: a retry would meet
// the error again.
func (l *Line) cancel(w *Waiter, err error, then func()) {
	tenure, how := w.tenure, backend.Cancel // the waiter may go on with another
	if w.Former != "" {
		how = backend.Return
	}
	bound := min(max(backend.WaiterTTL, time.Duration(w.PX)*time.Millisecond), cancelBound)
	f := func() {
		l.life.Retry(bound, fault.Backoff, func(ctx context.Context) bool {
			_, _, err := tenure.Release(ctx, how, backend.CallBound)
			return err == nil || !fault.Transient(err)
		})
		if then != nil {
			then()
		}
	}
	if fault.Has[*fault.Replicas](err) {
		f()
	} else {
		l.life.Go(f)
	}
}
