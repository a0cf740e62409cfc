package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
)

var idle = workload{
	name:  "idle",
	about: "one process waits for many held keys: what does nothing cost?",
	setup: func(fs *flag.FlagSet) func(context.Context, *bench) error {
		rounds := fs.Int("rounds", 1, "rounds")
		waiters := fs.Int("waiters", 1000, "waiters, each with a key of its own")
		span := fs.Duration("for", 10*time.Second, "time per round and column")
		return func(ctx context.Context, b *bench) error {
			cols := b.columns("redsync", "redislock", "rueidislock", "leasehold", "leasehold by hand")
			as := record{Case: fmt.Sprintf("%d waiters on %d keys", *waiters, *waiters)}
			return b.interleave(ctx, *rounds, as, alone, cols, func(c column) (map[string]float64, error) {
				return inChild(ctx, "idle", c.name, "-waiters", strconv.Itoa(*waiters), "-for", span.String())
			})
		}
	},
	metrics: []metric{
		{"rate", "commands per second and key", "%.2f", median},
		{"subscriptions", "subscriptions", "%.0f", highest},
		{"connections", "connections", "%.0f", highest},
		{"cpu", "CPU of the process, %", "%.1f", median},
		{"redis", "CPU of Redis, %", "%.1f", median},
		{"goroutines", "goroutines per waiter", "%.2f", median},
	},
}

// idleOne is the child's part.
func idleOne(fs *flag.FlagSet) func(context.Context, *server, column) (map[string]float64, error) {
	waiters := fs.Int("waiters", 1000, "waiters")
	span := fs.Duration("for", 10*time.Second, "time")
	return func(ctx context.Context, s *server, c column) (map[string]float64, error) {
		cl, err := c.open(s.addr, ttl)
		if err != nil {
			return nil, err
		}
		defer cl.Close()
		baseline := runtime.NumGoroutine()

		// The keys are held by somebody who is no part of this process.
		holder := "somebody"
		if c.token != nil {
			if holder, err = c.token(ctx, s.addr); err != nil {
				return nil, err
			}
		}
		pipe := s.admin.Pipeline()
		for i := range *waiters {
			pipe.Set(ctx, c.redisKey(fmt.Sprintf("bench:lock:%d", i)), holder, time.Hour)
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return nil, err
		}

		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		var wg sync.WaitGroup
		trouble := make(chan error, *waiters)
		for i := range *waiters {
			wg.Go(func() {
				_, err := cl.Lock(ctx, fmt.Sprintf("bench:lock:%d", i))
				if err == nil {
					err = errors.New("a held lock was given away")
				}
				if ctx.Err() == nil {
					trouble <- err
				}
			})
		}
		defer wg.Wait()
		defer cancel()

		pause(ctx, *span/5) // subscriptions, first looks
		before, err := s.read(ctx)
		if err != nil {
			return nil, err
		}
		pause(ctx, *span)
		d, err := s.since(ctx, before)
		if err != nil {
			return nil, err
		}
		goroutines := runtime.NumGoroutine() - baseline
		list, err := s.admin.ClientList(ctx).Result()
		if err != nil {
			return nil, err
		}
		select {
		case err := <-trouble:
			return nil, err
		default:
		}

		client, _ := sent(d.calls, c.sends...)
		connections, subscriptions := parseClientList(list)
		return map[string]float64{
			"rate":          float64(client) / d.elapsed.Seconds() / float64(*waiters),
			"subscriptions": subscriptions,
			"connections":   connections - 1, // the admin's
			"cpu":           100 * d.client.Seconds() / d.elapsed.Seconds(),
			"redis":         100 * d.redis.Seconds() / d.elapsed.Seconds(),
			"goroutines":    float64(goroutines) / float64(*waiters),
		}, nil
	}
}

// parseClientList counts connections and their subscriptions of every kind.
func parseClientList(list string) (connections, subscriptions float64) {
	for line := range strings.Lines(list) {
		connections++
		for field := range strings.FieldsSeq(line) {
			name, value, _ := strings.Cut(field, "=")
			switch name {
			case "sub", "psub", "ssub":
				n, _ := strconv.ParseFloat(value, 64)
				subscriptions += n
			}
		}
	}
	return connections, subscriptions
}
