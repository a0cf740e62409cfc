package leasehold

import (
	"context"
	"errors"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/line"
)

// Adopt takes a lease over, from another process or from before a restart: its token's place is taken by the new lease's own, in
// one step, with a new and higher fencing token. So the former holder's renewals, its Release and its Close do not touch the
// lease any more, and the resource refuses its late writes. Have it call [Lease.Detach] first, and both never trust the lock
// at once. Otherwise it hears that it has lost its lease at its next renewal, or at once if it is this Locker's, and until then
// both do.
//
// Adopt never creates a lease. If the token does not hold the key, the error matches [ErrLost] and says why. Like TryAcquire
// it tries once, and waits for Redis no longer than ctx, ttl and 3 s allow.
//
// After any other error the lease is the former token's, as it was, and Adopt may be called again. Where that is not known yet,
// since the answer did not arrive, the lock is given back to the former token in the background, for 10 s at most; another Adopt
// of the same token by this Locker waits for that.
func (l *Locker) Adopt(ctx context.Context, key, token string, ttl time.Duration, opts ...Option) (*Lease, error) {
	a := attempt{op: "adopt"}
	a.asks.Former = token
	x, err := l.take(ctx, &a, (*Locker).adopt, key, ttl, opts)
	if err == nil {
		l.bereave(a.asks.Key, token, notOurs(backend.TokenSpent, ""))
	}
	return x, err
}

func (l *Locker) adopt(ctx context.Context, a *attempt) (line.Grant, error) {
	if a.asks.Former == "" {
		return line.Grant{}, invalid("the token is empty: want the Token of a lease")
	}
	g, err := l.line.Adopt(ctx, &a.asks)
	if gone, ok := errors.AsType[*line.GoneError](err); ok {
		err = notOurs(gone.Why, "")
	}
	return g, err
}

// Detach ends the lease here without a word to Redis, where it lives on for as long as it was last renewed, and returns its token:
// for [Locker.Adopt], in the process that takes the work over. It returns "" if the lease had ended before. Nothing renews it
// any more, Close leaves it alone, and it does not count as lost.
//
// From then on [Lease.Err] matches [ErrReleased], contexts of the lease have ended, and Release does nothing. Nobody holds the
// lock while nobody adopts it, but others wait until its TTL has passed.
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
	x.l.stats.detached.Add(1)
	x.o.hook(onDetached, e)
	return x.token
}

// detachedError is the end of a lease by Detach: each has its own, so that of several calls one gets the token.
type detachedError struct{ _ byte }

func (e *detachedError) Error() string {
	return ErrReleased.Error() + ": detached, for another to adopt it"
}

func (e *detachedError) Unwrap() error { return ErrReleased }

// bereave ends this Locker's own lease under that token: it is known that Redis has it no more.
func (l *Locker) bereave(key, token string, reason error) {
	for _, x := range leases(l.keeper.Live()) {
		if x.token == token && x.key == key {
			_ = x.end(reason)
		}
	}
}

// notOurs is the loss that lost.lua speaks of; where is "" or says when it was found.
func notOurs(why int, where string) error {
	loss, says := LossGone, "the key is gone"
	switch why {
	case backend.HeldByOther:
		says = "the key is now held by another"
	case backend.TokenSpent:
		loss, says = LossAdopted, "another has adopted the lease"
	case backend.NotALock:
		says = "the key is no lock any more: it has another type"
	}
	return lost(loss, where+says)
}
