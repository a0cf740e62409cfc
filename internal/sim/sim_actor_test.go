package sim_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/inside"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/roundtrip"
	"github.com/redis/go-redis/v9"
)

// simActor is a goroutine that uses a Locker, and judges each call by what it is promised.
type simActor struct {
	h   *simHistory
	p   *simHost
	rng *rand.Rand
}

// live acts until the history or the Locker ends.
func (a *simActor) live() {
	for a.h.ending.Err() == nil && a.p.quit.Err() == nil {
		a.pause(a.h.think)
		key := a.h.keys[a.rng.IntN(len(a.h.keys))]
		if a.chance(a.h.tries) {
			a.try(key)
			continue
		}
		patience := []time.Duration{0, 30 * time.Millisecond, time.Second, 10 * time.Second, time.Minute}[a.rng.IntN(5)]
		a.acquire(key, patience, a.chance(a.h.cancels))
	}
}

func (a *simActor) chance(p float64) bool { return a.rng.Float64() < p }

func (a *simActor) upTo(d time.Duration) time.Duration { return time.Duration(a.rng.Int64N(int64(d))) }

func (a *simActor) pause(most time.Duration) { time.Sleep(a.upTo(most)) }

func (a *simActor) ttl() time.Duration { return a.h.ttls[a.rng.IntN(len(a.h.ttls))] }

// minHold has some locks rest.
func (a *simActor) minHold() leasehold.Option {
	if a.h.rests > 0 && a.chance(0.5) {
		return leasehold.WithMinHold(a.h.rests)
	}
	return leasehold.Option{}
}

// life has some counters forgotten sooner.
func (a *simActor) life() leasehold.Option {
	if a.chance(0.5) {
		return leasehold.WithCounterLife(a.h.life)
	}
	return leasehold.Option{}
}

var (
	errPatience = errors.New("the actor's patience is over")
	errWhim     = errors.New("the actor thinks better of it")
)

// acquire waits for the lock and uses it. Without patience it waits until it must have it.
func (a *simActor) acquire(key string, patience time.Duration, whim bool) {
	must := patience > 30*time.Second && !whim
	ctx, cancel := context.WithTimeoutCause(context.Background(), patience, errPatience)
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	w := &simWaiter{host: a.p, begun: time.Now()}
	defer context.AfterFunc(ctx, func() { a.h.judge.gaveUp(w) })()
	last := w.begun.Add(patience)
	if whim {
		d := a.upTo(patience/2 + time.Millisecond)
		defer time.AfterFunc(d, func() { end(errWhim) }).Stop()
		last = w.begun.Add(d)
	}
	auto := a.chance(a.h.renews)
	done := a.h.judge.waits(w, key)
	lease, err := a.p.locker.Acquire(ctx, key, a.ttl(), leasehold.WithAutoRenew(auto), a.minHold(), a.life())
	done()
	now := time.Now()
	if err == nil {
		a.use(lease, auto, w.begun)
		return
	}
	over := ctx.Err() != nil
	switch {
	case now.After(last.Add(time.Millisecond)):
		a.fail("Acquire returns %v after its context ended: %v", now.Sub(last), err)
	case over && errors.Is(err, ctx.Err()) && errors.Is(err, context.Cause(ctx)):
		if must && a.p.quit.Err() == nil {
			a.fail("was not served in %v: %v", patience, err)
		}
	case a.p.quit.Err() != nil && (errors.Is(err, leasehold.ErrClosed) || errors.Is(err, redis.ErrClosed)):
	default:
		a.fail("Acquire cannot explain %v (context: %v)", err, context.Cause(ctx))
	}
	a.explained(err, key)
}

// try asks once and uses the lock.
func (a *simActor) try(key string) {
	begun, ttl := time.Now(), a.ttl()
	well := a.p.well(begun)
	patience := []time.Duration{a.h.slow, time.Second, time.Minute}[a.rng.IntN(3)]
	ctx, cancel := context.WithTimeoutCause(context.Background(), patience, errPatience)
	defer cancel()
	auto := a.chance(a.h.renews)
	bound := min(ttl, backend.CallBound)
	if inside.Of(a.p.locker).Backend.(interface{ IsUnknown() bool }).IsUnknown() {
		bound = roundtrip.FirstBound // no server was ever heard
	}
	lease, err := a.p.locker.TryAcquire(ctx, key, ttl, leasehold.WithAutoRenew(auto), a.minHold(), a.life())
	if took := time.Since(begun); took > min(patience, bound)+time.Millisecond {
		a.fail("TryAcquire took %v", took)
	}
	if err == nil {
		a.use(lease, auto, time.Time{})
		return
	}
	switch {
	case errors.Is(err, leasehold.ErrHeld):
	case ctx.Err() != nil && errors.Is(err, errPatience):
	case a.p.quit.Err() != nil && (errors.Is(err, leasehold.ErrClosed) || errors.Is(err, redis.ErrClosed)):
	case ttl < a.h.judge.round() && errors.As(err, new(*fault.NoAnswer)): // too short for what else was going on
	case well && a.p.well(time.Now()):
		a.fail("TryAcquire cannot explain %v", err)
	}
	a.explained(err, key)
}

// explained looks at the form of an error.
func (a *simActor) explained(err error, key string) {
	var e *leasehold.Error
	if !errors.As(err, &e) || e.Op != "acquire" || e.Key != key || errors.Is(err, redis.Nil) {
		a.fail("not an Error of acquire: %#v", err)
	}
}

// use holds a lease for a while, and ends it in one of many ways.
func (a *simActor) use(x *leasehold.Lease, auto bool, called time.Time) {
	mine := &simHolder{host: a.p, lease: x}
	a.h.judge.begins(mine, called)
	well := a.p.well(time.Now())
	a.pause(a.h.hold)
	for !auto && a.chance(a.h.renews) || a.chance(0.2) {
		a.renew(x)
		a.pause(a.h.hold)
	}
	if auto && inside.State(x).TTL > locktest.PollInterval && well && a.p.well(time.Now()) && !x.Valid() && a.p.quit.Err() == nil && !a.h.judge.robbed(x) {
		a.fail("a lease that is renewed was lost: %v", x.Err())
	}
	if time.Now().After(x.ValidUntil().Add(time.Millisecond)) {
		select {
		case <-x.Done():
		default:
			a.fail("a lease is not done at its deadline")
		}
	}
	a.h.judge.ends(mine)
	switch {
	case !auto && a.chance(a.h.forgets):
	case a.chance(a.h.passes):
		a.pass(x)
	default:
		a.release(x)
	}
}

// pass has another host adopt the lease, or the same one, which uses it then.
func (a *simActor) pass(x *leasehold.Lease) {
	valid, well, until := x.Valid(), a.p.well(time.Now()), x.ValidUntil()
	byHand := a.h.judge.byHandOf(x.Key())
	token := x.Detach()
	if detached := x.Err() != nil && strings.Contains(x.Err().Error(), "detached"); detached != (token != "") {
		a.fail("detached %v, with token %q: %v", detached, token, x.Err())
	}
	if token == "" {
		a.release(x)
		return
	}
	if !valid {
		a.fail("a lease that was over is detached")
	}
	b := *a
	b.p = a.h.hosts[a.rng.IntN(len(a.h.hosts))]
	for range 3 {
		a.pause(a.h.think)
		begun, ttl, auto := time.Now(), a.ttl(), a.chance(a.h.renews)
		well = well && b.p.well(begun)
		patience := []time.Duration{a.h.slow, time.Second, time.Minute}[a.rng.IntN(3)]
		ctx, cancel := context.WithTimeoutCause(context.Background(), patience, errPatience)
		y, err := b.p.locker.Adopt(ctx, x.Key(), token, ttl, leasehold.WithAutoRenew(auto))
		over := ctx.Err() != nil
		cancel()
		if err == nil {
			b.use(y, auto, time.Time{})
			return
		}
		sound := well && b.p.well(time.Now()) && time.Now().Before(until) && !a.h.judge.robbed(x) && b.p.quit.Err() == nil
		// An adoption that failed may have had the lock when it was deleted.
		sound = sound && byHand == a.h.judge.byHandOf(x.Key())
		switch {
		case over && errors.Is(err, errPatience):
		case ttl < a.h.judge.round() && errors.As(err, new(*fault.NoAnswer)):
		case sound:
			b.fail("Adopt cannot explain %v", err)
		}
		if errors.Is(err, leasehold.ErrLost) {
			return
		}
	}
}

func (a *simActor) renew(x *leasehold.Lease) {
	valid := x.Valid()
	var err error
	if a.chance(0.4) {
		ctx, cancel := context.WithTimeoutCause(context.Background(), a.upTo(2*time.Second), errPatience)
		err = x.Extend(ctx, a.ttl())
		cancel()
	} else {
		err = x.Renew(context.Background())
	}
	switch {
	case err == nil && !valid:
		a.fail("a lease that was over is renewed")
	case errors.Is(err, leasehold.ErrLost) && x.Valid():
		a.fail("lost at its renewal, and valid: %v", err)
	}
}

func (a *simActor) release(x *leasehold.Lease) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), a.upTo(time.Minute), errPatience)
	defer cancel()
	if a.chance(0.3) {
		cancel() // which does not stop it
	}
	valid, well, begun := x.Valid(), a.p.well(time.Now()), time.Now()
	until := x.ValidUntil()
	err := x.Release(ctx)
	if took := time.Since(begun); took > backend.CallBound+time.Millisecond {
		a.fail("Release took %v", took)
	}
	if x.Valid() {
		a.fail("a lease is valid after its release: %v", err)
	}
	sound := valid && well && a.p.well(time.Now()) && time.Now().Before(until) && !a.h.judge.robbed(x) && a.p.quit.Err() == nil
	switch {
	case sound && err != nil && !(ctx.Err() != nil && errors.Is(err, errPatience)):
		a.fail("Release of a good lease: %v", err)
	case err == nil && !valid && !errors.Is(x.Err(), leasehold.ErrReleased):
		a.fail("Release of a lease that was over returns nil: %v", x.Err())
	}
	if err == nil {
		if again := x.Release(ctx); again != nil {
			a.fail("the second Release: %v", again)
		}
	}
}

func (a *simActor) fail(format string, args ...any) { a.h.judge.fail(a.p, format, args...) }
