package leasehold

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/diagnose"
	"github.com/go-leasehold/leasehold/internal/line"
	"github.com/go-leasehold/leasehold/internal/token"
)

// Adopt takes a lease over, from another process or from before a restart. In one step the token of the new lease
// replaces the former token, with a new and higher fencing token. So the renewals, the Release and the Close of the
// former holder no longer touch the lease, and the resource refuses its late writes. Have the former holder call
// [Lease.Detach] first: then the two never trust the lock at once. Otherwise the former holder learns of the loss at
// its next renewal, or at once if its lease is of this Locker. Until then both trust the lock.
//
// In Redis the lease keeps the time that the former holder has left, if that is more than ttl; [Lease.Extend] shortens
// it. Adopt never creates a lease. If the token does not hold the key, the error matches [ErrLost] and says why. Like
// TryAcquire it tries once, and waits for Redis no longer than ctx, ttl and 3 s allow.
//
// After any other error the former token has the lease, as before, and Adopt may be called again. If no answer arrived,
// this is not known yet: the lock is given back to the former token in the background, for at most 10 s. Another Adopt
// of the same token by this Locker waits for that.
func (l *Locker) Adopt(ctx context.Context, key, former string, ttl time.Duration, opts ...Option) (*Lease, error) {
	a := attempt{op: "adopt"}
	a.asks.Former = former
	le, err := l.take(ctx, &a, (*Locker).adopt, key, ttl, opts)
	if err == nil {
		l.bereave(a.asks.Key, former, notOurs(backend.TokenSpent, ""))
	}
	return le, err
}

func (l *Locker) adopt(ctx context.Context, a *attempt) (line.Grant, error) {
	if a.asks.Former == "" {
		return line.Grant{}, invalid("the token is empty: want the Token of a lease")
	}
	if token.KindOf(a.asks.Former) != token.Exclusive {
		return line.Grant{}, invalid("the token is of a lease WithShared or WithSlots: only an exclusive lease can be adopted")
	}
	g, err := l.line.Adopt(ctx, &a.asks)
	if gone, ok := errors.AsType[*line.GoneError](err); ok {
		err = notOurs(gone.Why, "")
	}
	return g, err
}

// bereave ends this Locker's own lease under that token: it is known that Redis has it no more.
func (l *Locker) bereave(key, token string, reason error) {
	for _, le := range leases(l.keeper.Live()) {
		if le.is(key, token) {
			_ = le.end(reason)
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
	Owner        string        // the holder's WithOwner label; "" where several may hold it
	TTL          time.Duration // until the key expires, lock delay included; -1 if never, which no lease of ours has
	FencingToken int64         // of the last lease, over or not; 0 if none is known
	Waiters      int           // who wait for it and are alive; those behind the first thousand are counted alive or not
	Resting      bool          // it is taken, and no lease holds it: its last one, the owner's, was released under WithMinHold
	Holders      int           // how many leases hold it: 0 or 1, or more with WithShared and WithSlots
}

// Inspect tells who holds a lock, for how long, and how many wait. It changes nothing. Its answer may be out of date
// when it arrives, so use it to inform people, and not where safety depends on it.
func (l *Locker) Inspect(ctx context.Context, key string) (LockState, error) {
	a := attempt{op: "inspect"}
	if err := l.address(&a, key, nil); err != nil {
		return LockState{}, err
	}
	v, err := l.backend.Inspect(ctx, a.asks.Key, backend.CallBound)
	if err != nil {
		return LockState{}, a.fail(err)
	}
	if v.Held && !v.Resting {
		v.Holders = max(v.Holders, 1)
	}
	return LockState{a.asks.Key, v.Held, v.Owner, v.Left, v.Fence, v.Waiters, v.Resting, v.Holders}, nil
}

// ForceRelease takes the lock from its holder and gives it to the first waiter. It is for operators. A lease of this
// Locker is lost at once. A holder in another process learns of it at its next renewal, and only the fencing token
// stops its late writes. A key of another type is deleted too. Holders of WithShared and WithSlots all lose the lock, and
// learn of it at their next renewals. It is no error if nobody holds the lock. After an error the lock may or may not have
// been taken away.
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

// Finding is what one check of [Locker.Diagnose] has found. The zero Finding says nothing.
type Finding struct {
	Check, Server string // what was looked at, and where; "": everywhere
	// Level is slog.LevelError where locks do not work or are not safe, slog.LevelWarn where something should be changed
	// or could not be checked, and slog.LevelInfo where nothing is wrong.
	Level slog.Level
	Found string // what is there
	Why   string // why it matters; "" if nothing is wrong
	// Advice is what to do; "" if nothing is to be done.
	Advice string
}

// Diagnose looks for what is wrong with this Redis for locks: its version, memory, persistence, replicas and clock, the
// state of a cluster or of a quorum's nodes, each right that leasehold needs, and the time of a round trip. It changes
// nothing, takes a moment, and is meant for the start of a program. Without the rights to call CONFIG and INFO it checks
// what it can, and a Finding says what it could not. It looks at each client for at most 15 s. It may be called at any
// time. The error says that no server could be reached, or that ctx has ended. The findings until then come with it.
func (l *Locker) Diagnose(ctx context.Context) (found []Finding, _ error) {
	if l.bad != nil {
		return nil, &Error{Op: "diagnose", Err: l.bad}
	}
	all, err := diagnose.Run(ctx, diagnose.Config{Clients: l.clients, Prefix: l.defaults.prefix, Quarantine: l.defaults.quarantine})
	for _, f := range all {
		found = append(found, Finding(f))
	}
	if err != nil {
		err = &Error{Op: "diagnose", Err: err}
	}
	return found, err
}
