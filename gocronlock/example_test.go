package gocronlock_test

import (
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-co-op/gocron/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/gocronlock"
)

// Three schedulers, as on three machines, have the same job at the same time. One of them runs it.
func ExampleNewLocker() {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	locker := leasehold.New(client, leasehold.WithKeyPrefix("cron:"))
	defer locker.Close()

	at := gocron.OneTimeJobStartDateTime(time.Now().Add(500 * time.Millisecond))
	ran := make(chan struct{}, 3)
	for range 3 {
		s, err := gocron.NewScheduler(gocron.WithDistributedLocker(gocronlock.NewLocker(locker, 20*time.Second)))
		if err != nil {
			panic(err)
		}
		defer s.Shutdown()
		report := gocron.NewTask(func() {
			fmt.Println("reporting")
			ran <- struct{}{}
		})
		if _, err := s.NewJob(gocron.OneTimeJob(at), report, gocron.WithName("report")); err != nil {
			panic(err)
		}
		s.Start()
	}
	<-ran
	// Output:
	// reporting
}
