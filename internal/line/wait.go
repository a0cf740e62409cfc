package line

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/go-leasehold/leasehold/internal/fault"
)

// errGone ends a stay at a place without a result: a place was skipped after a pause, flushed, or
// deleted by hand, or was given up. The wait goes on at another place.
var errGone = errors.New("the place in the line is gone")

// errWithin is the cause of the context of a wait whose own bound has passed.
var errWithin = errors.New("the wait has had its time")

// Wait waits until the lock is granted, in the order of arrival, until ctx ends, w.Within has passed
// or the Locker closes. It waits out what time can cure. After an error no lock is held, or it is
// being given back in the background. An error that ended the wait matches both what was waited for
// and what ended the wait.
//
// The bound of a wait is the deadline of a context, so a waiter whose time is over leaves every
// queue as one whose caller has left. But its error matches none of a context's: the caller's has
// not ended.
func (l *Line) Wait(ctx context.Context, w *Waiter) (Grant, error) {
	switch {
	case w.Within == nil:
		return l.wait(ctx, w)
	case *w.Within == 0:
		return l.Try(ctx, w)
	}
	bounded, cancel := context.WithTimeoutCause(ctx, *w.Within, errWithin)
	defer cancel()
	g, err := l.wait(bounded, w)
	if cut, ok := err.(*fault.Wait); ok && cut.Ended == errWithin {
		err = fault.Overdue(cut.Reason, *w.Within)
	}
	return g, err
}

// wait is Wait without a bound of its own.
//
// The goroutine is in the gate of the key for the whole wait, over all its places, and leaves it
// when the outcome of its last attempt is known. Were the gate opened before, the next goroutine of
// the process would meet the lock or the place of an attempt that nobody wants any more, and would
// wait for that.
func (l *Line) wait(ctx context.Context, w *Waiter) (Grant, error) {
	if ctx.Err() != nil {
		return Grant{}, fault.Ended(ctx, nil)
	}
	reason, err := l.gates.enter(ctx, l.life.Draining(), w.Key)
	if err != nil {
		return Grant{}, err
	}
	w.reason = reason
	leave := func() { l.gates.leave(w.Key) }
	if l.notifier == nil {
		defer leave()
		return l.poll(ctx, w)
	}
	for {
		l.newTenure(w)
		p := newPlace(l, w)
		g, err := p.wait(ctx)
		switch {
		case err == errGone:
			if p.resent {
				l.cancel(w, nil, nil)
			}
			continue
		case err == nil || !p.sent:
			leave()
		default:
			// The next one's turn comes when the outcome of this attempt is known, or has stopped
			// mattering.
			l.cancel(w, err, leave)
		}
		return g, err
	}
}

// poll is how a waiter waits without a line: it tries, and pauses after a failure. Each try has a
// token of its own, so the cancellation of one that failed cannot undo the next.
func (l *Line) poll(ctx context.Context, w *Waiter) (Grant, error) {
	for woken := AtOnce; ; woken = ByPoll {
		g, err := l.Try(ctx, w)
		if err == nil {
			g.Woken = woken
			return g, nil
		}
		if over := l.over(ctx, w, err); over != nil {
			return Grant{}, over
		}
		if !errors.Is(err, fault.ErrHeld) && !fault.Transient(err) {
			return Grant{}, err
		}
		l.blame(w, err)
		if _, _, err := l.pause(ctx, w, fault.Backoff(w.Attempts), nil); err != nil {
			return Grant{}, err
		}
	}
}

// pause waits for a message, until d has passed, or for the end of the wait, which is its error.
// The goroutine of the call owns the timer. A place that is not told of anything has no channel of
// messages, and nil is one that brings none.
func (l *Line) pause(ctx context.Context, w *Waiter, d time.Duration, messages <-chan message) (m message, heard bool, _ error) {
	timer := time.NewTimer(max(d, time.Millisecond))
	defer timer.Stop()
	select {
	case m = <-messages:
		return m, true, nil
	case <-timer.C:
		return m, false, nil
	case <-ctx.Done():
	case <-l.life.Draining():
	}
	return m, false, l.over(ctx, w, nil)
}

// blame notes what the waiter waits for, for itself and for those behind it in the gate, and tells
// the caller if that is Redis. Those behind have sent nothing, so they know no more than the one
// that is in.
func (l *Line) blame(w *Waiter, reason error) {
	if errors.Is(reason, fault.ErrHeld) && w.reason == reason {
		return // most often
	}
	w.reason = reason
	l.gates.blame(w.Key, reason)
	if fault.Unavailable(reason) {
		w.Caller.Retrying(reason)
	}
}

// over returns the error with which the wait must end, nil if it goes on. last is the error of the
// last attempt, nil if it had none: that is what was waited for, unless it says no more than that
// the context has ended.
func (l *Line) over(ctx context.Context, w *Waiter, last error) error {
	reason := w.reason
	if cut, isCut := last.(*fault.Wait); !isCut {
		reason = cmp.Or(last, reason)
	} else if reason == nil {
		reason = cut.Reason
	}
	switch {
	case ctx.Err() != nil:
		return fault.Ended(ctx, reason)
	case l.life.IsDraining():
		return &fault.Wait{Reason: reason, Ended: fault.ErrClosed}
	}
	return nil
}
