package election_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/election"
)

// exampleRedis starts a Redis for one example.
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

func ExampleRun() {
	ctx := context.Background()
	client, _, stop := exampleRedis()
	defer stop()
	locker := leasehold.New(client, leasehold.WithOwner("api-1"))
	defer locker.Close()

	err := election.Run(ctx, locker, "billing", 10*time.Second, func(ctx context.Context, term *leasehold.Lease) error {
		// Lead here until ctx ends. Give ctx to every call, and term.FencingToken() to every write.
		fmt.Println("leading under", term.Key())
		return errors.New("the disk is full")
	})
	if of, ok := errors.AsType[*election.TermError](err); ok { // else it was not elected
		fmt.Println("the function says:", of.Err)
	}
	// Output:
	// leading under billing
	// the function says: the disk is full
}

// A term that is lost is followed by another one, of this process or of a different one. Only the function's own word ends Run.
func ExampleRun_lost() {
	ctx := context.Background()
	client, server, stop := exampleRedis()
	defer stop()
	locker := leasehold.New(client)
	defer locker.Close()

	terms := 0
	err := election.Run(ctx, locker, "billing", time.Second, func(ctx context.Context, term *leasehold.Lease) error {
		if terms++; terms == 2 {
			fmt.Println("leading again")
			return nil
		}
		server.Del("billing") // by an operator, say; the next renewal finds out
		<-ctx.Done()
		fmt.Println(context.Cause(ctx))
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// leasehold: hold "billing": lease lost: the key is gone
	// leading again
	// <nil>
}

// A process that is to end leads until another one stands. Nothing is led twice, and there is no gap in between. Where the next
// process always stands before this one is told to end, it is enough to end the context of Run.
func ExampleRun_deploy() {
	client, _, stop := exampleRedis()
	defer stop()

	leads, sigterm, ended := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		locker := leasehold.New(client)
		defer locker.Close()
		ended <- election.Run(context.Background(), locker, "billing", time.Second, func(ctx context.Context, term *leasehold.Lease) error {
			fmt.Println("the old process leads")
			close(leads)
			<-sigterm // work until then
			select {
			case <-term.Contended(): // and until somebody else can
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()

	<-leads
	close(sigterm)
	locker := leasehold.New(client)
	defer locker.Close()
	err := election.Run(context.Background(), locker, "billing", time.Second, func(ctx context.Context, term *leasehold.Lease) error {
		fmt.Println("the new process leads")
		return nil
	})
	fmt.Println(<-ended, err)
	// Output:
	// the old process leads
	// the new process leads
	// <nil> <nil>
}

func ExampleObserve() {
	ctx := context.Background()
	client, _, stop := exampleRedis()
	defer stop()
	locker := leasehold.New(client, leasehold.WithOwner("api-1"))
	defer locker.Close()
	term, err := locker.TryAcquire(ctx, "billing", time.Second) // as Run does
	if err != nil {
		fmt.Println(err)
		return
	}

	for leader, err := range election.Observe(ctx, locker, "billing") {
		switch {
		case err != nil:
			fmt.Println("it is not known who leads:", err)
		case leader == election.Leader{}:
			fmt.Println("nobody leads")
			return
		default:
			fmt.Println(leader.Owner, "leads, term", leader.Term-term.FencingToken()+1)
			_ = term.Release(ctx)
		}
	}
	// Output:
	// api-1 leads, term 1
	// nobody leads
}
