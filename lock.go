package leasehold

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/inflight"
	"github.com/go-leasehold/leasehold/internal/keep"
	"github.com/go-leasehold/leasehold/internal/roundtrip"
	"github.com/go-leasehold/leasehold/internal/token"
	"github.com/redis/go-redis/v9"
)

// callBound is the longest that one command is waited for; a caller's context or a lease's end may be sooner.
const callBound = backend.CallBound

// cancelBound is the longest that the clean-up of a failed attempt goes on.
const cancelBound = 10 * time.Second

// Locker takes leases on keys of one Redis deployment. Make one with [New] and share it; it is safe for concurrent use.
// What it is told at New never changes. It starts nothing until it is used, and keeps nothing for a key that is
// neither held nor waited for.
type Locker struct {
	id       string
	backend  backend.Backend
	bad      error // why no call can work
	defaults options
	clock    clock.Clock
	keeper   *keep.Keeper
	gates    gates
	wakes    *wakes // nil: there is no line, as in a quorum
	stats    counters
	retries  rarely

	closing  context.Context // ends when Close begins
	close    context.CancelFunc
	ending   context.Context // ends when Close has waited long enough
	end      context.CancelFunc
	shutting atomic.Bool
	shut     chan struct{} // closed when Close has ended
	shutErr  error
	calls    inflight.Group
}

// New returns a Locker on a single Redis, a primary with replicas, a cluster, or a [redis.Ring]. The client stays the
// caller's: it must outlive the Locker, and Close does not close it. New sends nothing and starts nothing; options that
// cannot be used are reported by the calls that they would govern.
func New(client redis.UniversalClient, opts ...Option) *Locker {
	defaults := *(&options{}).with(inNew, opts)
	s := newStore(client, defaults.prefix)
	l := newLocker(s, defaults)
	if roundtrip.IsNil(client) {
		l.bad = invalid("the redis client is nil")
	}
	l.wakes = newWakes(client, s.Topology(), defaults.prefix, l.id)
	return l
}

// newLocker makes a Locker without a line.
func newLocker(b backend.Backend, defaults options) *Locker {
	l := &Locker{
		id:       token.NewID(),
		backend:  b,
		defaults: defaults,
	}
	l.keeper = keep.New(&l.clock, b.Flush)
	l.shut = make(chan struct{})
	l.closing, l.close = context.WithCancel(context.Background())
	l.ending, l.end = context.WithCancel(context.Background())
	return l
}

// now reads both clocks.
func (l *Locker) now() clock.Moment { return l.clock.Now() }

func (l *Locker) isClosed() bool { return l.closing.Err() != nil }

// attempt is one call's try for the lock.
type attempt struct {
	op    string
	o     *options
	asks  backend.Request // the token is that of the tenure
	ttl   time.Duration
	auto  bool // renew in the background, if no option says otherwise
	busy  bool // for WithLock
	begun time.Time
	looks int

	tenure backend.Tenure
}

// renew gives the attempt another token: one that may have been given up is never used again.
func (a *attempt) renew(l *Locker) {
	a.asks.Token = token.New(l.id, a.o.owner)
	a.tenure = l.backend.Tenure(a.asks)
}

// prepare judges everything that an acquire was given, before anything is sent.
func (l *Locker) prepare(a *attempt, key string, ttl time.Duration, opts []Option) error {
	if err := l.address(a, key, opts); err != nil {
		return err
	}
	a.ttl = ttl
	a.asks.PX, a.asks.LockDelay = a.o.px(ttl), a.o.lockDelay
	a.asks.Replicas, a.asks.ReplicasWithin = a.o.replicas, a.o.replicasIn
	err := a.o.check(ttl)
	if err == nil {
		err = l.backend.Check(a.asks, ttl)
	}
	if err != nil {
		return a.fail(err)
	}
	a.begun = time.Now()
	if a.o.autoRenew != nil {
		a.auto = *a.o.autoRenew
	}
	return nil
}

// address judges what every call is given.
func (l *Locker) address(a *attempt, key string, opts []Option) error {
	a.o = l.defaults.with(inCall, opts)
	a.asks.Key = a.o.prefix + key
	err := l.bad
	if err == nil {
		err = a.o.checkKey(key)
	}
	if err == nil && l.isClosed() {
		err = ErrClosed
	}
	if err != nil {
		return a.fail(err)
	}
	return nil
}

func (a *attempt) fail(err error) error { return &Error{Op: a.op, Key: a.asks.Key, Err: err} }

// TryAcquire takes the lock if it is free and nobody waits for it; otherwise it answers [ErrHeld] at once. On any error no
// lease is held, and what Redis may have done all the same is undone in the background. It waits for Redis no longer
// than ctx, the TTL and 3 s allow, and tries once. A client that could never connect gets the 3 s whatever the TTL is: by then
// go-redis has said why.
func (l *Locker) TryAcquire(ctx context.Context, key string, ttl time.Duration, opts ...Option) (*Lease, error) {
	a := attempt{op: "acquire"}
	return l.take(ctx, &a, (*Locker).try, key, ttl, opts)
}

// Acquire takes the lock, waiting for it in the order of arrival until ctx ends. Trouble with Redis that time can cure is
// waited out as well ([ErrUnavailable]); trouble that it cannot cure (a wrong type, missing rights) ends the wait at once. On any
// error no lease is held; one that ended the wait matches the context's cause and what was last waited for.
//
// ctx bounds the call, not the lease. The lease is not renewed unless [WithAutoRenew] says so.
func (l *Locker) Acquire(ctx context.Context, key string, ttl time.Duration, opts ...Option) (*Lease, error) {
	a := attempt{op: "acquire"}
	return l.take(ctx, &a, (*Locker).wait, key, ttl, opts)
}

// WithLock waits for the lock as Acquire does, runs fn while it is held and renewed, and releases it when fn has returned,
// panicked or ended its goroutine.
//
// fn's context ends when the lease is lost, with a cause that matches [ErrLost]: fn must then stop, for somebody else may
// begin. It ends with ctx too, and when the Locker is closed; the lock is then still kept until fn has returned, since what
// fn does to unwind is as much in need of it. [FromContext] finds the lease in it, for what fn calls; and an acquire of the same
// key with it is refused with [ErrInvalid], since it would wait for fn. To work on, pass the lease; to begin something that is to
// wait until fn has returned, give it another context.
//
// WithLock returns fn's error. If the lease was lost before fn returned, an error matching ErrLost is joined to it, unless fn's
// error is that loss already, such as the cause of its context. That the release failed is no error: the work is done, the key
// goes with its TTL, and the hooks and the logger hear of it. If the lock was not won, fn is not run and the error is Acquire's.
func (l *Locker) WithLock(ctx context.Context, key string, ttl time.Duration, fn func(ctx context.Context, lease *Lease) error, opts ...Option) error {
	return l.with(ctx, (*Locker).wait, key, ttl, fn, opts)
}

// TryWithLock is WithLock for a lock that is free: otherwise it answers [ErrHeld] at once and does not run fn.
func (l *Locker) TryWithLock(ctx context.Context, key string, ttl time.Duration, fn func(ctx context.Context, lease *Lease) error, opts ...Option) error {
	return l.with(ctx, (*Locker).try, key, ttl, fn, opts)
}

func (l *Locker) with(ctx context.Context, how acquireFunc, key string, ttl time.Duration, fn func(context.Context, *Lease) error, opts []Option) error {
	a := attempt{op: "acquire", auto: true, busy: true}
	if fn == nil {
		a.asks.Key = l.defaults.prefix + key
		return a.fail(invalid("the function is nil"))
	}
	lease, err := l.take(ctx, &a, how, key, ttl, opts)
	if err != nil {
		return err
	}
	return lease.run(ctx, fn)
}

// acquireFunc is one way to take a lock; both are methods of the Locker.
type acquireFunc func(*Locker, context.Context, *attempt) (*Lease, Wake, error)

// take is every acquire: checks, hooks, and one way to take the lock in between.
func (l *Locker) take(ctx context.Context, a *attempt, how acquireFunc, key string, ttl time.Duration, opts []Option) (*Lease, error) {
	if err := l.prepare(a, key, ttl, opts); err != nil {
		return nil, err
	}
	if nested(ctx, a.asks.Key, func(x *Lease) bool { return x.l == l }) {
		return nil, a.fail(errNested)
	}
	l.calls.Enter()
	defer l.calls.Leave()
	a.renew(l)
	ctx = a.o.started(ctx, a.event())
	x, woken, err := how(l, ctx, a)
	if err == nil && !x.keep() {
		l.calls.Go(func() { l.cancel(a) })
		x, err = nil, ErrClosed
	}
	if err != nil {
		err = a.fail(err)
	}
	if err != nil {
		woken = ""
	}
	l.stats.acquired(woken, err)
	if len(a.o.hooks) > 0 {
		e := a.event()
		e.Waited, e.Attempts, e.Woken, e.Err = time.Since(a.begun), a.looks, woken, err
		if x != nil {
			e.FencingToken = x.fence
		}
		a.o.acquired(ctx, e)
	}
	return x, err
}

// try asks once.
func (l *Locker) try(ctx context.Context, a *attempt) (*Lease, Wake, error) {
	x, stray, err := l.ask(ctx, a, backend.Try)
	if stray {
		l.discard(a, err, nil)
	}
	return x, WokenAtOnce, err
}

// ask sends the command that takes the lock or does not. One that has only cleared dead places out of a long line is sent
// again: they refuse nobody the lock. It reports, with an error, whether the lock may have been taken all the same.
func (l *Locker) ask(ctx context.Context, a *attempt, how backend.Mode) (x *Lease, stray bool, _ error) {
	bound := min(a.ttl-clock.Margin(a.ttl), callBound)
	until := time.Now().Add(bound)
	for left := bound; left > 0; left = time.Until(until) {
		begun := l.now()
		a.looks++
		ans, n, err := a.tenure.Acquire(ctx, how, left)
		stray = stray || n > 1
		switch {
		case err != nil:
			return nil, stray || n > 0, err
		case ans.Uncleared:
			continue
		case ans.State == backend.Held:
			return nil, false, heldBy(ans)
		case ans.State == backend.Gone && how == backend.Adopt:
			return nil, false, notOurs(ans.Why, "")
		case ans.State != backend.Granted:
			return nil, true, fault.ErrReply
		}
		x = l.lease(a, begun, ans.Fence)
		x.stray = stray
		if x.deadline.Reached(l.now()) {
			break // or it would be a lease that nobody may trust
		}
		return x, false, nil
	}
	return nil, true, &fault.NoAnswer{Bound: bound}
}

// heldBy is what one has to wait for who was not granted the lock.
func heldBy(a backend.Answer) error {
	if a.Forever {
		return fault.ErrHeldForever
	}
	return ErrHeld
}

// lease makes the Lease of an attempt that was won by a call begun at that moment.
func (l *Locker) lease(a *attempt, begun clock.Moment, fence int64) *Lease {
	x := (&lease{l: l, key: a.asks.Key, token: a.asks.Token, o: a.o, tenure: a.tenure, ttl: a.ttl, fence: fence, begun: begun, busy: a.busy}).seal()
	x.auto = a.auto
	x.extend(begun)
	x.due = x.nextDue(begun, false)
	return x
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

// Inspect tells who holds a lock, for how long, and how many wait. It changes nothing, and what it tells may be over when it
// arrives: it is for people, and for nothing that must be safe.
func (l *Locker) Inspect(ctx context.Context, key string) (LockState, error) {
	a := attempt{op: "inspect"}
	if err := l.address(&a, key, nil); err != nil {
		return LockState{}, err
	}
	v, err := l.backend.Inspect(ctx, a.asks.Key, callBound)
	if err != nil {
		return LockState{}, a.fail(err)
	}
	return LockState{a.asks.Key, v.Held, v.Owner, v.Left, v.Fence, v.Waiters}, nil
}

// ForceRelease takes the lock from whoever holds it and gives it to the first waiter. It is for operators: a holder in another
// process is not told before its next renewal, and its late writes are stopped only by their fencing token; a lease of this
// Locker is lost at once. A key that is no lock, since it has another type, is deleted all the same. A lock that nobody holds is
// no error. After an error it may or may not have been done.
func (l *Locker) ForceRelease(ctx context.Context, key string) error {
	a := attempt{op: "force release"}
	if err := l.address(&a, key, nil); err != nil {
		return err
	}
	token, err := l.backend.Force(ctx, a.asks.Key, callBound)
	if err != nil {
		return a.fail(err)
	}
	l.bereave(a.asks.Key, token, lost(LossForced, "released by force"))
	a.o.log(slog.LevelWarn, "leasehold: lock released by force", a.event())
	return nil
}

// discard cancels an attempt that ended with err, and then calls then. The caller waits for it only where it is known that
// the lock was had: it should be free when the error is read.
func (l *Locker) discard(a *attempt, err error, then func()) {
	gone := *a // the attempt may go on with another token
	cancel := func() {
		l.cancel(&gone)
		if then != nil {
			then()
		}
	}
	var replicas *fault.Replicas
	if errors.As(err, &replicas) {
		cancel()
	} else {
		l.calls.Go(cancel)
	}
}

// cancel makes sure that nothing of an attempt's token is left or comes to be: neither a lock nor a place in the line.
func (l *Locker) cancel(a *attempt) {
	how := backend.Cancel
	if a.asks.Former != "" {
		how = backend.Return
	}
	l.retry(min(max(backend.WaiterTTL, time.Duration(a.asks.PX)*time.Millisecond), cancelBound), func(ctx context.Context) bool {
		_, _, err := a.tenure.Release(ctx, how, callBound)
		return err == nil || !fault.Transient(err)
	})
}

// retry calls f with growing pauses until it reports that it is done, until d has passed, or until Close has waited
// long enough.
func (l *Locker) retry(d time.Duration, f func(context.Context) bool) {
	ctx, cancel := context.WithTimeout(l.ending, d)
	defer cancel()
	for n := 0; !f(ctx); n++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(fault.Backoff(n)):
		}
	}
}
