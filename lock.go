package leasehold

import (
	"context"
	"log/slog"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/inflight"
	"github.com/go-leasehold/leasehold/internal/inside"
	"github.com/go-leasehold/leasehold/internal/keep"
	"github.com/go-leasehold/leasehold/internal/line"
	"github.com/go-leasehold/leasehold/internal/roundtrip"
	"github.com/go-leasehold/leasehold/internal/token"
	"github.com/redis/go-redis/v9"
)

// Locker takes leases on keys of one Redis deployment. Make one with [New] and share it; it is safe for concurrent use.
// Its settings never change. It starts nothing until it is used, and keeps nothing for a key that is neither held nor
// waited for.
type Locker struct {
	id       string
	backend  backend.Backend
	bad      error // why no call can work
	defaults options
	clock    clock.Clock
	keeper   *keep.Keeper
	line     *line.Line
	stats    counters
	clients  []redis.UniversalClient // for Diagnose
	retries  clock.Rarely            // of what Retrying tells

	life *inflight.Life // draining from Shutdown on, closing from Close on, and at its end when Close has waited long enough
	shut *inflight.Once // by the first of Shutdown and Close
}

// New returns a Locker on a single Redis, a primary with replicas, a cluster, or a [redis.Ring]. The client stays the
// caller's: it must live longer than the Locker, and Close does not close it. New sends nothing and starts nothing.
// Invalid options are reported by the calls that would use them.
func New(client redis.UniversalClient, opts ...Option) *Locker {
	defaults := *(&options{}).with(inNew, opts)
	s := newStore(client, defaults.prefix)
	l := newLocker(s, s.Client, defaults)
	l.clients = []redis.UniversalClient{client}
	if roundtrip.IsNil(client) {
		l.bad = invalid("the redis client is nil")
	}
	return l
}

// newLocker makes a Locker. Its waiters are told of grants by messages, which the client receives; nil: they poll.
func newLocker(b backend.Backend, messages *roundtrip.Client, defaults options) *Locker {
	l := &Locker{
		id: token.NewID(), backend: b, defaults: defaults, life: inflight.NewLife(), shut: inflight.NewOnce(),
	}
	l.keeper = keep.New(&l.clock, b.Flush)
	l.line = line.New(line.Config{
		ID: l.id, Prefix: defaults.prefix, Backend: b, Client: messages, Clock: &l.clock, Life: l.life,
	})
	return l
}

func init() {
	inside.Of = func(l any) inside.Locker {
		x := l.(*Locker)
		return inside.Locker{ID: x.id, Clock: &x.clock, Backend: x.backend, Keeper: x.keeper, Line: x.line, Life: x.life}
	}
	inside.Scripts = inside.Six{Acquire: acquireScript, Adopt: adoptScript, Renew: renewScript,
		Release: releaseScript, Finish: finishScript, Inspect: inspectScript}
	inside.State = func(x any) inside.Lease { return x.(*Lease).inside() }
}

// attempt is one call's try for the lock.
type attempt struct {
	l      *Locker
	op     string
	o      *options
	asks   line.Waiter
	scoped bool // for WithLock
	begun  time.Time
}

// prepare judges everything that an acquire was given, before anything is sent.
func (l *Locker) prepare(a *attempt, key string, ttl time.Duration, opts []Option) error {
	if err := l.address(a, key, opts); err != nil {
		return err
	}
	a.asks.PX, a.asks.LockDelay = a.o.px(ttl), a.o.lockDelay
	a.asks.Kind = a.o.kind
	a.asks.Replicas, a.asks.ReplicasWithin, a.asks.MinHold = a.o.replicas, a.o.replicasIn, a.o.minHold
	a.asks.CounterLife = a.o.counterLife
	a.asks.Owner, a.asks.TTL, a.asks.MaxHold, a.asks.Within = a.o.owner, ttl, a.o.maxHold, a.o.wait
	err := a.o.check(ttl)
	if err == nil {
		err = l.backend.Check(a.asks.Request, ttl)
	}
	if err == nil && l.life.IsDraining() {
		err = ErrClosed
	}
	if err != nil {
		return a.fail(err)
	}
	a.begun = time.Now()
	if a.o.autoRenew != nil {
		a.asks.AutoRenew = *a.o.autoRenew
	}
	a.l, a.asks.Caller = l, a
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
	if err == nil && l.life.IsClosing() {
		err = ErrClosed
	}
	if err != nil {
		return a.fail(err)
	}
	return nil
}

func (a *attempt) fail(err error) error { return &Error{Op: a.op, Key: a.asks.Key, Err: err} }

// TryAcquire is the short form of Acquire with WithWait(0). It takes the lock if it is free and nobody waits for it.
// Otherwise it returns [ErrHeld] at once. After any error no lease is held, and whatever Redis may have done all the
// same is cancelled in the background. TryAcquire tries once, and waits for Redis no longer than ctx, the TTL and 3 s
// allow. A client that has never been able to connect gets 3 s whatever the TTL is, because by then go-redis has said
// why.
func (l *Locker) TryAcquire(ctx context.Context, key string, ttl time.Duration, opts ...Option) (*Lease, error) {
	a := attempt{op: "acquire"}
	return l.take(ctx, &a, (*Locker).try, key, ttl, opts)
}

// Acquire waits for the lock, in order of arrival, until it has the lock, ctx ends, or the time of [WithWait] is over.
// While Redis is unavailable ([ErrUnavailable]) it retries. Any other error of Redis (a wrong type, missing rights)
// ends the wait at once. After any error no lease is held. The error matches the last reason to wait, and if ctx ended
// the wait also the cause of ctx.
//
// ctx bounds the call, not the lease. The lease is not renewed unless [WithAutoRenew] says so.
func (l *Locker) Acquire(ctx context.Context, key string, ttl time.Duration, opts ...Option) (*Lease, error) {
	a := attempt{op: "acquire"}
	return l.take(ctx, &a, (*Locker).wait, key, ttl, opts)
}

// WithLock waits for the lock as Acquire does, runs fn while the lease is held and renewed, and releases the lock when
// fn has returned, panicked or ended its goroutine. ctx bounds the wait and the work together. [WithWait] bounds the
// wait alone.
//
// The context of fn ends when the lease is lost, with a cause that matches [ErrLost]. Then fn must stop, because
// somebody else may begin. The context also ends with ctx, and when the Locker is closed. In both cases the lock is
// kept until fn has returned, because fn needs it to unwind. [FromContext] finds the lease in the context, for the
// functions that fn calls. An acquire of the same key with this context would wait for fn, so it returns [ErrInvalid].
// Pass the lease to work on under it. To start something that waits until fn has returned, use another context.
//
// WithLock returns the error of fn. If the lease was lost before fn returned, an error that matches ErrLost is joined
// to it, unless the error of fn is that loss already, for example the cause of its context. A failed release is not an
// error of WithLock: the work is done, the key expires with its TTL, and the hooks and the logger are told. If the lock
// was not won, fn does not run, and the error is that of Acquire.
func (l *Locker) WithLock(ctx context.Context, key string, ttl time.Duration, fn func(ctx context.Context, lease *Lease) error, opts ...Option) error {
	return l.with(ctx, (*Locker).wait, key, ttl, fn, opts)
}

// TryWithLock is the short form of WithLock with WithWait(0). If the lock is not free, it returns [ErrHeld] at once and
// does not run fn.
func (l *Locker) TryWithLock(ctx context.Context, key string, ttl time.Duration, fn func(ctx context.Context, lease *Lease) error, opts ...Option) error {
	return l.with(ctx, (*Locker).try, key, ttl, fn, opts)
}

func (l *Locker) with(ctx context.Context, how acquireFunc, key string, ttl time.Duration, fn func(context.Context, *Lease) error, opts []Option) error {
	a := attempt{op: "acquire", scoped: true}
	a.asks.AutoRenew = true
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

// acquireFunc is one way to take a lock; they are methods of the Locker.
type acquireFunc func(*Locker, context.Context, *attempt) (line.Grant, error)

func (l *Locker) try(ctx context.Context, a *attempt) (line.Grant, error) {
	return l.line.Try(ctx, &a.asks)
}

func (l *Locker) wait(ctx context.Context, a *attempt) (line.Grant, error) {
	if a.o.wait == nil || *a.o.wait > 0 {
		l.stats.count(func(now *Stats) { now.Waiting++ })
		defer l.stats.count(func(now *Stats) { now.Waiting-- })
	}
	return l.line.Wait(ctx, &a.asks)
}

// take is every acquire: checks, hooks, and one way to take the lock in between.
func (l *Locker) take(ctx context.Context, a *attempt, how acquireFunc, key string, ttl time.Duration, opts []Option) (*Lease, error) {
	if err := l.prepare(a, key, ttl, opts); err != nil {
		return nil, err
	}
	if nested(ctx, a.asks.Key, func(le *Lease) bool { return le.isOf(l) }) {
		return nil, a.fail(errNested)
	}
	l.life.Enter()
	defer l.life.Leave()
	ctx = a.o.started(ctx, a.event())
	le, woken, err := l.win(ctx, a, how)
	if err != nil {
		err = a.fail(err)
	}
	l.stats.count(func(now *Stats) { now.ended(woken, err) })
	if len(a.o.hooks) > 0 {
		e := a.event()
		e.Waited, e.Attempts, e.Woken, e.Err = time.Since(a.begun), a.asks.Attempts, woken, err
		if le != nil {
			e.FencingToken = le.FencingToken()
		}
		a.o.acquired(ctx, e)
	}
	return le, err
}

// win takes the lock and has the lease kept.
func (l *Locker) win(ctx context.Context, a *attempt, how acquireFunc) (*Lease, Wake, error) {
	g, err := how(l, ctx, a)
	if err != nil {
		return nil, "", err
	}
	le := newLease(l, a, g)
	if !le.keep() {
		l.line.Cancel(&a.asks)
		return nil, "", ErrClosed
	}
	return le, wakes[g.Woken], nil
}

// wakes are the names under which hooks hear what woke a waiter.
var wakes = [...]Wake{
	line.AtOnce: WokenAtOnce, line.ByMessage: WokenByMessage, line.ByExpiry: WokenByExpiry, line.ByPoll: WokenByPoll,
}

// Refuse keeps a call from a wait for the lease of its own context, also where that is another Locker's of the same
// Redis: no other key's lease has that fencing token.
func (a *attempt) Refuse(ctx context.Context, fence int64) error {
	if nested(ctx, a.asks.Key, func(le *Lease) bool { return le.FencingToken() == fence }) {
		return errNested
	}
	return nil
}

// Retrying tells, rarely, that a wait has found Redis unavailable and goes on: an outage is news of the Locker's and
// not of each wait.
func (a *attempt) Retrying(err error) {
	a.l.stats.count(func(now *Stats) { now.Retried++ })
	if !a.o.hears(onRetrying) || !a.l.retries.Due(10*time.Second) {
		return
	}
	e := a.event()
	e.Waited, e.Attempts, e.Err = time.Since(a.begun), a.asks.Attempts, err
	a.o.hook(onRetrying, e)
	a.o.log(slog.LevelWarn, "leasehold: waiting for redis", e)
}
