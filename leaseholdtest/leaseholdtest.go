// Package leaseholdtest helps to test code that takes locks. It brings a Redis along, takes locks away, and cuts
// connections. It needs no server, no port and no set-up.
//
// Most tests should use [Bubble]. It runs a test in a bubble of testing/synctest, where time passes only while every goroutine
// waits. So an hour of renewals takes milliseconds, and a TTL ends at its exact instant. [New] is for tests that cannot run in
// a bubble, such as a benchmark, or code that opens connections of its own.
//
//	func TestAPaymentStopsWhenItsLeaseIsLost(t *testing.T) {
//		leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
//			err := env.Locker().WithLock(t.Context(), "invoice:7", 10*time.Second, func(ctx context.Context, lease *leasehold.Lease) error {
//				env.Lose(lease)
//				return ctx.Err() // what a call with this context returns now
//			})
//			if !errors.Is(err, leasehold.ErrLost) {
//				t.Errorf("got %v, want the loss", err)
//			}
//		})
//	}
//
// The Redis is miniredis, which runs the scripts of this library. It has another Lua than Redis, and no ACL, cluster or
// failover. So test here what your code does with its locks, and test your own scripts against the server that you use.
//
// Import this package from _test.go files only. Nothing else of this library imports it, so a program that uses leasehold
// contains neither miniredis nor this package.
package leaseholdtest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

// holdTTL outlives every test: a lock that Hold takes is held until it is released.
const holdTTL = 24 * time.Hour

// Env is the Redis of one test, as the code under test sees it. Make it with [New] or [Bubble]; the zero Env is of no use.
// Several goroutines may use it at once. But [Env.Hold] can stop the test, so call it, like t.Fatal, in the goroutine of the test.
type Env struct {
	t      testing.TB
	client *redis.Client   // for the code under test
	wire   *redistest.Wire // carries client
	apart  *redis.Client   // for everybody else: no outage reaches it
}

// New starts a Redis for the test on a loopback port. The Redis ends with the test, and so does everything that was made
// from the Env. The time is that of the machine, so a TTL takes as long as in production.
func New(t testing.TB) *Env {
	t.Helper()
	server, apart := redistest.Mini(t)
	server.ClockTTL(true)
	proxy := redistest.Proxy(t, server.Addr())
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	return &Env{t: t, client: client, wire: &proxy.Wire, apart: apart}
}

// Bubble runs fn in a bubble of testing/synctest with a Redis in it. The connections are in memory, and the server's TTLs
// and its TIME follow the bubble's clock. time.Sleep moves that clock; synctest.Wait waits until all goroutines wait.
//
// The rules of synctest.Test apply. What fn starts must end before the bubble does: a goroutine that is left over fails the
// test. Everything that talks to this Redis must be made inside fn, from [Env.Locker] or [Env.Client], because a real
// connection stops the clock while somebody reads from it. The clock also stands still while a goroutine waits for a mutex.
func Bubble(t *testing.T, fn func(t *testing.T, env *Env)) {
	t.Helper()
	redistest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, dial func(...func(*redis.Options)) *redis.Client) {
		var fault *redistest.DialFault
		client := dial(func(o *redis.Options) {
			fault = redistest.FaultyDialer(o.Dialer)
			o.Dialer = fault.Dial
		})
		fn(t, &Env{t: t, client: client, wire: &fault.Wire, apart: dial()})
	})
}

// Client returns the client for the code under test. Each call returns the same client, and the test closes it at its end. In
// an Env of [New], code that makes a client of its own can use the address in Client().Options().Addr. [Env.Outage] affects
// that client too.
func (e *Env) Client() *redis.Client { return e.client }

// Locker makes a Locker on [Env.Client] for the code under test. Two of them behave like two processes. Each is
// closed at the end of the test, after an outage that is still on has ended. If Close then returns an error, for example because
// a function of WithLock does not return, the test fails.
func (e *Env) Locker(opts ...leasehold.Option) *leasehold.Locker {
	return e.locker(e.client, opts)
}

func (e *Env) locker(client *redis.Client, opts []leasehold.Option) *leasehold.Locker {
	l := leasehold.New(client, opts...)
	e.t.Cleanup(func() {
		e.Back() // otherwise Close would wait for as long as it may
		if err := l.Close(); err != nil {
			e.t.Errorf("leaseholdtest: %v", err)
		}
	})
	return l
}

// Hold takes the lock for another process, which no [Env.Outage] affects. The lock is held until the test releases the lease,
// or ends. opts are the options of that process's Locker, such as leasehold.WithOwner, or the leasehold.WithKeyPrefix that the
// code under test uses. If the lock is not free, the test fails.
func (e *Env) Hold(key string, opts ...leasehold.Option) *leasehold.Lease {
	e.t.Helper()
	lease, err := e.locker(e.apart, opts).TryAcquire(context.Background(), key, holdTTL)
	if err != nil {
		e.t.Fatalf("leaseholdtest: hold: %v", err)
	}
	return lease
}

// Lose takes a lease from its holder, as a failover, an eviction or an operator may do. When it returns, the lease has ended
// with leasehold.ErrLost, its contexts have ended, and the lock is free.
//
// The test fails if the lease is not held in this Redis, or during an outage. A fake that the code under test calls with the
// context of its work finds the lease with leasehold.FromContext. If the test cannot get the lease, delete the key with
// [Env.Client]: the holder then learns of the loss at its next renewal.
func (e *Env) Lose(lease *leasehold.Lease) {
	e.t.Helper()
	ctx := context.Background()
	if err := e.apart.Del(ctx, lease.Key()).Err(); err != nil {
		e.t.Errorf("leaseholdtest: lose: %v", err)
		return
	}
	// The holder renews at once, and not at its next turn. So the test need not wait or guess when the holder learns of the loss.
	if err := lease.Renew(ctx); !errors.Is(err, leasehold.ErrLost) {
		e.t.Errorf("leaseholdtest: lose: the lease is not lost, but: %v", err)
	}
}

// Outage takes Redis away from the code under test until [Env.Back]: connections that are open are cut, and new ones are
// refused. The data stays, and the TTLs go on running.
func (e *Env) Outage() { e.wire.Refuse() }

// Back ends an [Env.Outage]. Without one it does nothing.
func (e *Env) Back() { e.wire.Pass() }
