package worker_test

import (
	"context"
	"fmt"
	"os/signal"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/examples/worker"
)

// A main function. SIGTERM, which a deploy sends, ends ctx.
func ExamplePool() {
	server := miniredis.NewMiniRedis()
	if err := server.Start(); err != nil {
		panic(err)
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	jobs := make(chan string, 1)
	jobs <- "invoice:7"
	close(jobs) // this worker has one job

	pool := worker.Pool{
		Locker: leasehold.New(client), Size: 200, Grace: 20 * time.Second,
		Do: func(ctx context.Context, job string) error {
			lease, _ := leasehold.FromContext(ctx)
			fmt.Println("working on", job, "under", lease.Key(), lease.FencingToken() > 0)
			return nil
		},
		Failed: func(job string, err error) { fmt.Println(job, err) },
	}
	fmt.Println(pool.Run(ctx, jobs))
	// Output:
	// working on invoice:7 under job:invoice:7 true
	// <nil>
}
