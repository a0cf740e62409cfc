package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"sync"
	"time"
)

var uncontended = workload{
	name:  "uncontended",
	about: "one goroutine acquires and releases (use -pin)",
	setup: func(fs *flag.FlagSet) func(context.Context, *bench) error {
		rounds := fs.Int("rounds", 21, "rounds")
		cycles := fs.Int("cycles", 2000, "cycles per round and column")
		wait := fs.Bool("wait", false, "take the lock by the call that waits, where there is one, in place of the one that tries")
		return func(ctx context.Context, b *bench) error {
			cols := b.columns("raw", "raw+fence", "floor", "redislock", "redsync", "rueidislock", "leasehold", "leasehold by hand")
			as := record{Case: "one goroutine"}
			if *wait {
				as.Case += ", by the call that waits"
			}
			return b.interleave(ctx, *rounds, as, perRaw("us"), cols, func(c column) (map[string]float64, error) {
				return cycle(ctx, b.server, c, *cycles, *wait)
			})
		}
	},
	metrics: []metric{
		{"us", "µs per cycle", "%.0f", median},
		{"best", "best round", "%.0f", slices.Min[[]float64]},
		{"ratio", "ratio to raw", "%.2f", median},
		{"client", "client CPU, µs", "%.0f", median},
		{"redis", "Redis CPU, µs", "%.0f", median},
		{"allocs", "allocations", "%.0f", median},
		{"bytes", "bytes", "%.0f", median},
		{"sent", "commands sent", "%.2f", median},
		{"script", "commands in scripts", "%.2f", median},
		{"reads", "server reads", "%.2f", median},
	},
}

const ttl = 10 * time.Second // of every lock that is to outlast its measurement

func cycle(ctx context.Context, s *server, c column, cycles int, wait bool) (map[string]float64, error) {
	cl, err := c.open(s.addr, ttl)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	take := cl.TryLock
	if wait && slices.Contains(waiting, c.name) {
		take = cl.Lock
	}
	run := func(n int) error {
		for range n {
			l, err := take(ctx, "bench:lock")
			if err != nil {
				return err
			}
			if err := l.Unlock(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	if err := run(100); err != nil { // connections, scripts, caches
		return nil, err
	}
	before, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	if err := run(cycles); err != nil {
		return nil, err
	}
	d, err := s.since(ctx, before)
	if err != nil {
		return nil, err
	}
	n := float64(cycles)
	client, script := sent(d.calls, c.sends...)
	return map[string]float64{
		"us":     micros(d.elapsed) / n,
		"best":   micros(d.elapsed) / n,
		"client": micros(d.client) / n,
		"redis":  micros(d.redis) / n,
		"allocs": d.mallocs / n,
		"bytes":  d.bytes / n,
		"sent":   float64(client) / n,
		"script": float64(script) / n,
		"reads":  d.reads / n,
	}, nil
}

var parallel = workload{
	name:  "parallel",
	about: "goroutines that share a client, each with a key of its own",
	setup: func(fs *flag.FlagSet) func(context.Context, *bench) error {
		rounds := fs.Int("rounds", 11, "rounds")
		goroutines := fs.Int("goroutines", 64, "goroutines and keys")
		span := fs.Duration("for", 500*time.Millisecond, "time per round and column")
		return func(ctx context.Context, b *bench) error {
			cols := b.columns("raw", "raw+fence", "floor", "redislock", "redsync", "rueidislock", "leasehold", "leasehold by hand")
			as := record{Case: fmt.Sprintf("%d goroutines, %d keys", *goroutines, *goroutines)}
			return b.interleave(ctx, *rounds, as, perRaw("cycles"), cols, func(c column) (map[string]float64, error) {
				return cyclesInParallel(ctx, b.server, c, *goroutines, *span)
			})
		}
	},
	metrics: ofParallel,
}

var ofParallel = []metric{
	{"cycles", "cycles per second", "%.0f", median},
	{"ratio", "ratio to raw", "%.2f", median},
	{"client", "client CPU, µs per cycle", "%.1f", median},
	{"redis", "Redis CPU, µs per cycle", "%.1f", median},
	{"reads", "server reads per cycle", "%.2f", median},
}

func cyclesInParallel(ctx context.Context, s *server, c column, goroutines int, span time.Duration) (map[string]float64, error) {
	cl, err := c.open(s.addr, ttl)
	if err != nil {
		return nil, err
	}
	defer cl.Close()

	// All cycle for the given time; the first error is the answer.
	run := func(span time.Duration) (cycles int, err error) {
		var (
			wg  sync.WaitGroup
			mu  sync.Mutex
			end = time.Now().Add(span)
		)
		for i := range goroutines {
			wg.Go(func() {
				name := fmt.Sprintf("bench:lock:%d", i)
				n, e := 0, error(nil)
				for e == nil && time.Now().Before(end) {
					var l lock
					if l, e = cl.TryLock(ctx, name); e == nil {
						e = l.Unlock(ctx)
						n++
					}
				}
				mu.Lock()
				cycles += n
				if err == nil {
					err = e
				}
				mu.Unlock()
			})
		}
		wg.Wait()
		return cycles, err
	}

	if _, err := run(span / 10); err != nil {
		return nil, err
	}
	before, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	cycles, err := run(span)
	if err != nil {
		return nil, err
	}
	d, err := s.since(ctx, before)
	if err != nil {
		return nil, err
	}
	n := float64(cycles)
	return map[string]float64{
		"cycles": n / d.elapsed.Seconds(),
		"client": micros(d.client) / n,
		"redis":  micros(d.redis) / n,
		"reads":  d.reads / n,
	}, nil
}
