package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"time"
)

// checkpoints are where cycles looks at what the process holds.
var checkpoints = []string{"start", "25 %", "50 %", "75 %", "end"}

var cycles = workload{
	name:  "cycles",
	about: "one Locker takes and releases very many locks: does anything stay behind?",
	setup: func(fs *flag.FlagSet) func(context.Context, *bench) error {
		rounds := fs.Int("rounds", 1, "rounds")
		n := fs.Int("cycles", 100000, "acquires and releases per round and column")
		goroutines := fs.Int("goroutines", 16, "goroutines that share them")
		return func(ctx context.Context, b *bench) error {
			for _, c := range b.columns("leasehold") {
				for round := range *rounds {
					values, err := inChild(ctx, "cycles", c.name, "-cycles", strconv.Itoa(*n), "-goroutines", strconv.Itoa(*goroutines))
					if err != nil {
						return err
					}
					as := record{Column: c.name, Round: round}
					title := fmt.Sprintf("%d cycles by %d goroutines", *n, *goroutines)
					if err := b.addFootprints(as, title, values); err != nil {
						return err
					}
				}
			}
			return nil
		}
	},
	metrics: []metric{
		{"start", "start", "%.0f", highest},
		{"25 %", "25 %", "%.0f", highest},
		{"50 %", "50 %", "%.0f", highest},
		{"75 %", "75 %", "%.0f", highest},
		{"end", "end", "%.0f", highest},
		{"rate", "cycles/s", "%.0f", median},
		{"renewals", "renewals", "%.0f", sum},
		{"lost", "lost", "%.0f", sum},
	},
}

// footprints are what is looked at, with the titles of their tables.
var footprints = []string{"goroutines", "heap, KiB", "heap objects"}

// addFootprints makes a table of each.
func (b *bench) addFootprints(as record, title string, values map[string]float64) error {
	as.Case = title
	as.Values = map[string]float64{"rate": values["rate"], "renewals": values["renewals"], "lost": values["lost"]}
	if err := b.add(as); err != nil {
		return err
	}
	for _, f := range footprints {
		as.Case = title + ": " + f
		as.Values = map[string]float64{}
		for _, at := range checkpoints {
			as.Values[at] = values[f+" "+at]
		}
		if err := b.add(as); err != nil {
			return err
		}
	}
	return nil
}

// cyclesOne is the child's part.
func cyclesOne(fs *flag.FlagSet) func(context.Context, *server, column) (map[string]float64, error) {
	n := fs.Int("cycles", 100000, "cycles")
	goroutines := fs.Int("goroutines", 16, "goroutines")
	return func(ctx context.Context, s *server, c column) (map[string]float64, error) {
		const ttl = 300 * time.Millisecond
		cl, err := c.open(s.addr, ttl)
		if err != nil {
			return nil, err
		}
		defer cl.Close()
		warm := min(1000, *n)
		if err := runCycles(ctx, cl, warm, *goroutines, ttl); err != nil {
			return nil, err
		}
		values := map[string]float64{}
		var busy time.Duration
		for i, at := range checkpoints {
			if i > 0 {
				begun := time.Now()
				if err := runCycles(ctx, cl, *n/(len(checkpoints)-1), *goroutines, ttl); err != nil {
					return nil, err
				}
				busy += time.Since(begun)
			}
			lookAround(ctx, at, values)
		}
		values["rate"] = float64(*n) / busy.Seconds()
		if l, ok := cl.(*leaseholdClient); ok {
			stats := l.locker.Stats()
			values["renewals"], values["lost"] = float64(stats.Renewed), float64(stats.Lost)
		}
		return values, nil
	}
}

// runCycles takes and releases n locks, each with a name of its own. One in a thousand is held until it has been renewed.
func runCycles(ctx context.Context, cl client, n, goroutines int, ttl time.Duration) error {
	return each(n, goroutines, func(i int) error {
		l, err := cl.Lock(ctx, fmt.Sprintf("bench:lock:%016x", rand.Uint64()))
		if err != nil {
			return err
		}
		if i%1000 == 0 {
			pause(ctx, ttl/2)
		}
		return l.Unlock(context.WithoutCancel(ctx))
	})
}

// lookAround notes what the process holds when it has come to rest.
func lookAround(ctx context.Context, at string, values map[string]float64) {
	pause(ctx, 100*time.Millisecond)
	var mem runtime.MemStats
	runtime.GC()
	runtime.GC() // what a sync.Pool had kept back goes with the second
	runtime.ReadMemStats(&mem)
	values["goroutines "+at] = float64(runtime.NumGoroutine())
	values["heap, KiB "+at] = float64(mem.HeapAlloc) / 1024
	values["heap objects "+at] = float64(mem.HeapObjects)
}
