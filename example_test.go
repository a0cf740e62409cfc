package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-leasehold/leasehold"
)

// exampleRedis starts a Redis for one example. Its time stands still until FastForward is called, so no key of an example
// expires by accident.
func exampleRedis() (client *redis.Client, server *miniredis.Miniredis, stop func()) {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	client = redis.NewClient(&redis.Options{Addr: server.Addr()})
	return client, server, func() {
		_ = client.Close()
		server.Close()
	}
}

func ExampleLocker_WithLock() {
	ctx := context.Background()
	client, _, stop := exampleRedis()
	defer stop()
	locker := leasehold.New(client)
	defer locker.Close()

	err := locker.WithLock(ctx, "invoice:7", 10*time.Second, func(ctx context.Context, lease *leasehold.Lease) error {
		// Work here for as long as needed. Give ctx to every call, and lease.FencingToken() to every write.
		fmt.Println("paying under", lease.Key())
		return nil
	})
	fmt.Println(err)
	// Output:
	// paying under invoice:7
	// <nil>
}

// The context of the function says that the lease is lost, and why. The error of WithLock says it again, for a function that
// did not look at its context.
func ExampleLocker_WithLock_lost() {
	ctx := context.Background()
	client, server, stop := exampleRedis()
	defer stop()
	locker := leasehold.New(client)
	defer locker.Close()

	err := locker.WithLock(ctx, "invoice:7", 10*time.Second, func(ctx context.Context, lease *leasehold.Lease) error {
		server.Del("invoice:7") // an operator deletes the key; the next renewal finds that out
		<-ctx.Done()
		fmt.Println(context.Cause(ctx))
		return ctx.Err()
	}, leasehold.WithRenewEvery(20*time.Millisecond))

	fmt.Println(errors.Is(err, leasehold.ErrLost))
	// Output:
	// leasehold: hold "invoice:7": lease lost: the key is gone
	// true
}

// The repository writes with the fencing token of the lease under which it is called, whoever took it.
func ExampleFromContext() {
	client, _, stop := exampleRedis()
	defer stop()
	locker := leasehold.New(client)
	defer locker.Close()

	pay := func(ctx context.Context, invoice string) error {
		lease, ok := leasehold.FromContext(ctx)
		if !ok {
			return errors.New("pay wants to be called under the lease of the invoice")
		}
		fmt.Println("paying", invoice, "under", lease.Key(), lease.FencingToken() > 0) // UPDATE … WHERE fencing_token <= $1
		return nil
	}
	ctx := context.Background()
	fmt.Println(pay(ctx, "7"))
	fmt.Println(locker.WithLock(ctx, "invoice:7", 10*time.Second, func(ctx context.Context, _ *leasehold.Lease) error {
		return pay(ctx, "7")
	}))
	// Output:
	// pay wants to be called under the lease of the invoice
	// paying 7 under invoice:7 true
	// <nil>
}

func ExampleLocker_TryAcquire() {
	ctx := context.Background()
	client, _, stop := exampleRedis()
	defer stop()
	locker := leasehold.New(client)
	defer locker.Close()

	lease, err := locker.TryAcquire(ctx, "invoice:7", 10*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = locker.TryAcquire(ctx, "invoice:7", 10*time.Second)
	fmt.Println(err)
	fmt.Println(errors.Is(err, leasehold.ErrHeld))

	fmt.Println(lease.Release(ctx))
	// Output:
	// leasehold: acquire "invoice:7": held by another
	// true
	// <nil>
}

// The context bounds the wait. The error names both what the call waited for and what ended the wait.
func ExampleLocker_Acquire() {
	ctx := context.Background()
	client, _, stop := exampleRedis()
	defer stop()
	locker := leasehold.New(client)
	defer locker.Close()

	lease, err := locker.Acquire(ctx, "invoice:7", 10*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Release(ctx)

	short, cancel := context.WithTimeout(ctx, 250*time.Millisecond)
	defer cancel()
	_, err = locker.Acquire(short, "invoice:7", 10*time.Second)
	fmt.Println(err)
	fmt.Println(errors.Is(err, leasehold.ErrHeld), errors.Is(err, context.DeadlineExceeded))
	// Output:
	// leasehold: acquire "invoice:7": held by another: context deadline exceeded
	// true true
}

// WithWait bounds the wait and not the work, which may take as long as its context allows.
func ExampleWithWait() {
	ctx := context.Background()
	client, _, stop := exampleRedis()
	defer stop()
	locker := leasehold.New(client, leasehold.WithWait(250*time.Millisecond))
	defer locker.Close()

	err := locker.WithLock(ctx, "invoice:7", 10*time.Second, func(ctx context.Context, _ *leasehold.Lease) error {
		err := locker.WithLock(context.Background(), "invoice:7", 10*time.Second, pay) // another request, say
		fmt.Println(err)
		fmt.Println(errors.Is(err, leasehold.ErrHeld), errors.Is(err, context.DeadlineExceeded))
		_, bounded := ctx.Deadline()
		fmt.Println("the work is bounded:", bounded)
		return nil
	})
	fmt.Println(err)
	// Output:
	// leasehold: acquire "invoice:7": held by another: WithWait(250ms) is over
	// true false
	// the work is bounded: false
	// <nil>
}

// pay is some work under a lease.
func pay(context.Context, *leasehold.Lease) error { return nil }

// After Acquire only the holder renews the lease.
// The job runs once on all machines, though their clocks reach the hour one after the other.
func ExampleWithMinHold() {
	ctx := context.Background()
	client, server, stop := exampleRedis()
	defer stop()

	for _, machine := range []string{"a", "b", "c"} {
		locker := leasehold.New(client, leasehold.WithMinHold(time.Minute))
		err := locker.TryWithLock(ctx, "report", 20*time.Second, func(ctx context.Context, lease *leasehold.Lease) error {
			fmt.Println(machine, "writes the report")
			return nil
		})
		fmt.Println(machine, "somebody else has it:", errors.Is(err, leasehold.ErrHeld))
		_ = locker.Close() // a deploy
		server.FastForward(300 * time.Millisecond)
	}

	operator := leasehold.New(client)
	defer operator.Close()
	state, err := operator.Inspect(ctx, "report")
	fmt.Println("resting:", state.Resting, err)
	server.FastForward(time.Minute)
	state, err = operator.Inspect(ctx, "report")
	fmt.Println("resting:", state.Resting, err)
	// Output:
	// a writes the report
	// a somebody else has it: false
	// b somebody else has it: true
	// c somebody else has it: true
	// resting: true <nil>
	// resting: false <nil>
}

// A program that locks each order once leaves no counter behind for a week.
func ExampleWithCounterLife() {
	ctx := context.Background()
	client, server, stop := exampleRedis()
	defer stop()
	locker := leasehold.New(client, leasehold.WithCounterLife(10*time.Minute))
	defer locker.Close()

	err := locker.WithLock(ctx, "order:7", 10*time.Second, func(ctx context.Context, lease *leasehold.Lease) error {
		fmt.Println("while it is held:", server.TTL("leasehold:counter:{order:7}"))
		return nil
	})
	fmt.Println("then:", server.TTL("leasehold:counter:{order:7}"), err)
	// Output:
	// while it is held: 168h0m0s
	// then: 10m0s <nil>
}

func ExampleLease_Renew() {
	ctx := context.Background()
	client, server, stop := exampleRedis()
	defer stop()
	locker := leasehold.New(client)
	defer locker.Close()

	lease, err := locker.Acquire(ctx, "invoice:7", 10*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Release(ctx)

	before := lease.ValidUntil()
	fmt.Println(lease.Renew(ctx), lease.ValidUntil().After(before))

	server.Del("invoice:7")
	err = lease.Renew(ctx) // it never takes the lock again, because somebody may have had it in between
	fmt.Println(errors.Is(err, leasehold.ErrLost), lease.Valid())
	// Output:
	// <nil> true
	// true false
}

// The first step is long, and the last ones are short: should the process die in one, others wait for 5 s only.
func ExampleLease_Extend() {
	ctx := context.Background()
	client, server, stop := exampleRedis()
	defer stop()
	locker := leasehold.New(client)
	defer locker.Close()

	lease, err := locker.Acquire(ctx, "invoice:7", 10*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Release(ctx)

	fmt.Println(lease.Extend(ctx, time.Minute), server.TTL("invoice:7"))
	fmt.Println(lease.Extend(ctx, 5*time.Second), server.TTL("invoice:7"))
	fmt.Println(lease.Renew(ctx), server.TTL("invoice:7"))
	fmt.Println(lease.Extend(ctx, 0))
	// Output:
	// <nil> 1m0s
	// <nil> 5s
	// <nil> 5s
	// leasehold: extend "invoice:7": invalid argument: ttl 0s: want 10ms to ten years
}

func ExampleLease_EnsureFor() {
	ctx := context.Background()
	client, _, stop := exampleRedis()
	defer stop()
	locker := leasehold.New(client)
	defer locker.Close()

	lease, err := locker.Acquire(ctx, "invoices", 10*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Release(ctx)

	for _, invoice := range []int{7, 8} {
		if err := lease.EnsureFor(ctx, 2*time.Second); err != nil { // one invoice may take as long
			fmt.Println(err)
			return
		}
		fmt.Println("paying", invoice)
	}
	// Output:
	// paying 7
	// paying 8
}

// The resource decides whether a write is allowed. Here the resource is in this process and uses a Guard. A resource in Redis
// uses FencedScript, and one in SQL a column.
func ExampleLease_FencingToken() {
	ctx := context.Background()
	client, server, stop := exampleRedis()
	defer stop()
	locker := leasehold.New(client)
	defer locker.Close()
	var ledger leasehold.Guard

	first, err := locker.TryAcquire(ctx, "invoice:7", 50*time.Millisecond)
	if err != nil {
		fmt.Println(err)
		return
	}
	<-first.Done()                            // the holder was paused for longer than its TTL,
	server.FastForward(50 * time.Millisecond) // so its key is gone
	second, err := locker.TryAcquire(ctx, "invoice:7", 10*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}

	fmt.Println(second.FencingToken() > first.FencingToken())
	fmt.Println(ledger.Admit("invoice:7", second.FencingToken()))
	err = ledger.Admit("invoice:7", first.FencingToken()) // the late write of the first holder
	fmt.Println(errors.Is(err, leasehold.ErrStale))
	// Output:
	// true
	// <nil>
	// true
}

// The token of a lease passes it from one process to another: Detach gives the lease up here, and Adopt takes it over there,
// with a higher fencing token. So the resource refuses writes of the former holder that are still on their way.
func ExampleLocker_Adopt() {
	ctx := context.Background()
	client, _, stop := exampleRedis()
	defer stop()
	dispatcher, worker := leasehold.New(client), leasehold.New(client)
	defer worker.Close()

	lease, err := dispatcher.TryAcquire(ctx, "invoice:7", 10*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	token := lease.Detach() // is sent to the worker with the job
	fmt.Println(lease.Err())
	fmt.Println(dispatcher.Close()) // this does not touch the lease

	adopted, err := worker.Adopt(ctx, "invoice:7", token, 10*time.Second, leasehold.WithAutoRenew(true))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(adopted.FencingToken() > lease.FencingToken())

	_, err = worker.Adopt(ctx, "invoice:7", token, 10*time.Second)
	fmt.Println(err)
	fmt.Println(adopted.Release(ctx))
	// Output:
	// leasehold: hold "invoice:7": lease released: detached, for another to adopt it
	// <nil>
	// true
	// leasehold: adopt "invoice:7": lease lost: another has adopted the lease
	// <nil>
}

// The process is asked to end. What has begun is finished, and nothing begins.
func ExampleLocker_Shutdown() {
	ctx := context.Background()
	client, _, stop := exampleRedis()
	defer stop()
	locker := leasehold.New(client)

	if _, err := locker.TryAcquire(ctx, "invoice:8", 10*time.Second, leasehold.WithAutoRenew(true)); err != nil {
		fmt.Println(err)
		return
	}
	running, done := make(chan struct{}), make(chan error)
	go func() {
		done <- locker.WithLock(ctx, "invoice:7", 10*time.Second, func(ctx context.Context, _ *leasehold.Lease) error {
			close(running)
			err := locker.WithLock(context.Background(), "invoice:8", 10*time.Second, pay) // waits until the Locker drains
			fmt.Println("nothing begins:", errors.Is(err, leasehold.ErrClosed))
			fmt.Println("the work goes on:", ctx.Err())
			return nil
		})
	}()
	<-running
	grace, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	err := locker.Shutdown(grace)
	fmt.Println(<-done, err)
	// Output:
	// nothing begins: true
	// the work goes on: <nil>
	// <nil> <nil>
}

func ExampleLocker_Inspect() {
	ctx := context.Background()
	client, _, stop := exampleRedis()
	defer stop()
	locker := leasehold.New(client, leasehold.WithOwner("billing-3"))
	defer locker.Close()

	lease, err := locker.TryAcquire(ctx, "invoice:7", 10*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Release(ctx)

	state, err := locker.Inspect(ctx, "invoice:7")
	fmt.Println(err)
	fmt.Println(state.Held, state.Owner, state.TTL, state.Waiters)
	fmt.Println(state.FencingToken == lease.FencingToken())
	// Output:
	// <nil>
	// true billing-3 10s 0
	// true
}

func ExampleWithHooks() {
	ctx := context.Background()
	client, _, stop := exampleRedis()
	defer stop()
	locker := leasehold.New(client, leasehold.WithHooks(leasehold.Hooks{
		Acquired: func(_ context.Context, e leasehold.Event) { fmt.Println("acquired", e.Key, e.Woken) },
		Released: func(e leasehold.Event) { fmt.Println("released", e.Key, e.Clean) },
	}))
	defer locker.Close()

	err := locker.WithLock(ctx, "invoice:7", 10*time.Second, func(context.Context, *leasehold.Lease) error { return nil })
	fmt.Println(err)
	// Output:
	// acquired invoice:7 at once
	// released invoice:7 true
	// <nil>
}

func ExampleWithLogger() {
	ctx := context.Background()
	client, server, stop := exampleRedis()
	defer stop()
	handler := slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "fencing_token" {
				return slog.Attr{} // different in each run
			}
			return a
		},
	})
	locker := leasehold.New(client, leasehold.WithLogger(slog.New(handler)), leasehold.WithOwner("billing-3"))
	defer locker.Close()

	lease, err := locker.TryAcquire(ctx, "invoice:7", 10*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	server.Del("invoice:7")
	fmt.Println(errors.Is(lease.Renew(ctx), leasehold.ErrLost))
	// Output:
	// level=ERROR msg="leasehold: lease lost" key=invoice:7 owner=billing-3 reason="lease lost: the key is gone"
	// true
}
