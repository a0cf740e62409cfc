package leasehold

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/line"
)

// Adopt takes a lease over, from another process or from before a restart: its token's place is taken by the new
// lease's own, in one step, with a new and higher fencing token. So the former holder's renewals, its Release and its
// Close do not touch the lease any more, and the resource refuses its late writes. Have it call [Lease.Detach] first,
// and both never trust the lock at once. Otherwise it hears that it has lost its lease at its next renewal, or at once
// if it is this Locker's, and until then both do.
//
// Adopt never creates a lease. If the token does not hold the key, the error matches [ErrLost] and says why. Like
// TryAcquire it tries once, and waits for Redis no longer than ctx, ttl and 3 s allow.
//
// After any other error the lease is the former token's, as it was, and Adopt may be called again. Where that is not
// known yet, since the answer did not arrive, the lock is given back to the former token in the background, for 10 s at
// most; another Adopt of the same token by this Locker waits for that.
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

// bereave ends this Locker's own lease under that token: it is known that Redis has it no more.
func (l *Locker) bereave(key, token string, reason error) {
	for _, x := range leases(l.keeper.Live()) {
		if x.is(key, token) {
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

// LockState is what Redis says of a lock at one instant.
type LockState struct {
	Key          string        // the Redis key
	Held         bool          //
	Owner        string        // the holder's WithOwner label
	TTL          time.Duration // until the key expires, lock delay included; -1 if never, which no lease of ours has
	FencingToken int64         // of the last lease, over or not; 0 if none is known
	Waiters      int           // who wait for it and are alive; those behind the first thousand are counted alive or not
}

// Inspect tells who holds a lock, for how long, and how many wait. It changes nothing, and what it tells may be over
// when it arrives: it is for people, and for nothing that must be safe.
func (l *Locker) Inspect(ctx context.Context, key string) (LockState, error) {
	a := attempt{op: "inspect"}
	if err := l.address(&a, key, nil); err != nil {
		return LockState{}, err
	}
	v, err := l.backend.Inspect(ctx, a.asks.Key, backend.CallBound)
	if err != nil {
		return LockState{}, a.fail(err)
	}
	return LockState{a.asks.Key, v.Held, v.Owner, v.Left, v.Fence, v.Waiters}, nil
}

// ForceRelease takes the lock from whoever holds it and gives it to the first waiter. It is for operators: a holder in
// another process is not told before its next renewal, and its late writes are stopped only by their fencing token; a
// lease of this Locker is lost at once. A key that is no lock, since it has another type, is deleted all the same. A
// lock that nobody holds is no error. After an error it may or may not have been done.
func (l *Locker) ForceRelease(ctx context.Context, key string) error {
	a := attempt{op: "force release"}
	if err := l.address(&a, key, nil); err != nil {
		return err
	}
	token, err := l.backend.Force(ctx, a.asks.Key, backend.CallBound)
	if err != nil {
		return a.fail(err)
	}
	l.bereave(a.asks.Key, token, lost(LossForced, "released by force"))
	a.o.log(slog.LevelWarn, "leasehold: lock released by force", a.event())
	return nil
}
