package leaseholdtest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/leaseholdtest"
)

// t is the parameter of your test. TestEveryExampleHolds sets it here.
var t *testing.T

func TestEveryExampleHolds(all *testing.T) {
	for name, example := range map[string]func(){
		"lost": ExampleEnv_Lose, "contended": ExampleEnv_Hold, "away": ExampleEnv_Outage,
		"expired": ExampleBubble, "without a bubble": ExampleNew,
	} {
		all.Run(name, func(one *testing.T) {
			t = one
			example()
		})
	}
}

// The lease is lost in the middle of the work. The work must stop, and the caller must hear of it.
func ExampleEnv_Lose() {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		err := env.Locker().WithLock(t.Context(), "invoice:7", 10*time.Second, func(ctx context.Context, lease *leasehold.Lease) error {
			env.Lose(lease)
			return ctx.Err() // what a call with this context returns now
		})
		if !errors.Is(err, leasehold.ErrLost) {
			t.Errorf("got %v, want the loss", err)
		}
	})
}

// Somebody else has the lock. Who tries hears so; who waits gets in when the other one is done.
func ExampleEnv_Hold() {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		holder, locker := env.Hold("invoice:7"), env.Locker()
		if _, err := locker.TryAcquire(t.Context(), "invoice:7", 10*time.Second); !errors.Is(err, leasehold.ErrHeld) {
			t.Errorf("got %v, want ErrHeld", err)
		}
		time.AfterFunc(time.Minute, func() { _ = holder.Release(context.Background()) })
		if _, err := locker.Acquire(t.Context(), "invoice:7", 10*time.Second); err != nil {
			t.Error(err)
		}
	})
}

// Redis is away for less than a lease can bear, and then for longer.
func ExampleEnv_Outage() {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		lease, err := env.Locker().TryAcquire(t.Context(), "invoice:7", 10*time.Second, leasehold.WithAutoRenew(true))
		env.Outage()
		time.Sleep(5 * time.Second)
		env.Back()
		time.Sleep(time.Minute)
		if err != nil || !lease.Valid() {
			t.Errorf("a lease of 10s did not outlive an outage of 5s: %v, %v", err, lease.Err())
		}
		env.Outage()
		if _, err := env.Locker().TryAcquire(t.Context(), "invoice:8", 10*time.Second); !errors.Is(err, leasehold.ErrUnavailable) {
			t.Errorf("got %v, want ErrUnavailable", err)
		}
		time.Sleep(10 * time.Second)
		if !errors.Is(lease.Err(), leasehold.ErrLost) {
			t.Errorf("a lease of 10s outlived an outage of 10s: %v", lease.Err())
		}
	})
}

// The holder has crashed. Nobody renews its lease, so the lock is free when its TTL has passed: not before, and not later.
func ExampleBubble() {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		locker := env.Locker()
		if _, err := locker.TryAcquire(t.Context(), "invoice:7", time.Hour); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour - time.Millisecond)
		if _, err := locker.TryAcquire(t.Context(), "invoice:7", time.Hour); !errors.Is(err, leasehold.ErrHeld) {
			t.Errorf("got %v, want ErrHeld", err)
		}
		time.Sleep(time.Millisecond)
		if _, err := locker.TryAcquire(t.Context(), "invoice:7", time.Hour); err != nil {
			t.Error(err)
		}
	})
}

// A test that needs no clock needs no bubble.
func ExampleNew() {
	env := leaseholdtest.New(t)
	env.Hold("invoice:7")
	_, err := env.Locker().TryAcquire(t.Context(), "invoice:7", 10*time.Second)
	if !errors.Is(err, leasehold.ErrHeld) {
		t.Errorf("got %v, want ErrHeld", err)
	}
}
