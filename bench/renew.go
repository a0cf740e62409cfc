package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

var renew = workload{
	name:  "renew",
	about: "many leases renewed by one process for a long time",
	setup: func(fs *flag.FlagSet) func(context.Context, *bench) error {
		rounds := fs.Int("rounds", 2, "rounds")
		leases := intsVar(fs, "leases", "numbers of `leases`", 10000, 50000)
		life := fs.Duration("ttl", 10*time.Second, "TTL; renewed every third of it")
		span := fs.Duration("for", 30*time.Second, "time per round and column")
		return func(ctx context.Context, b *bench) error {
			cols := b.columns("raw", "redislock", "redsync", "rueidislock", "leasehold")
			for _, n := range *leases {
				as := record{Case: fmt.Sprintf("%d leases, TTL %v", n, *life)}
				err := b.interleave(ctx, *rounds, as, alone, cols, func(c column) (map[string]float64, error) {
					return inChild(ctx, "renew", c.name, "-leases", strconv.Itoa(n), "-ttl", life.String(), "-for", span.String())
				})
				if err != nil {
					return err
				}
			}
			return nil
		}
	},
	metrics: []metric{
		{"lost", "lost", "%.0f", sum},
		{"rate", "renewals/s", "%.0f", median},
		{"client", "client CPU, µs per renewal", "%.1f", median},
		{"redis", "Redis CPU, µs per renewal", "%.1f", median},
		{"reads", "server reads per renewal", "%.3f", median},
		{"bytes", "memory, bytes per lease", "%.0f", median},
		{"goroutines", "goroutines", "%.0f", highest},
		{"cores", "client cores", "%.2f", median},
	},
}

// renewOne is the child's part.
func renewOne(fs *flag.FlagSet) func(context.Context, *server, column) (map[string]float64, error) {
	leases := fs.Int("leases", 10000, "leases")
	ttl := fs.Duration("ttl", 10*time.Second, "TTL")
	span := fs.Duration("for", 30*time.Second, "time")
	return func(ctx context.Context, s *server, c column) (map[string]float64, error) {
		cl, err := c.open(s.addr, *ttl)
		if err != nil {
			return nil, err
		}
		defer cl.Close()
		k := newKeeping(cl, *leases, *ttl)
		if err := k.warm(ctx); err != nil {
			return nil, err
		}
		memory, goroutines := settledMemory(), runtime.NumGoroutine()

		ctx, cancel := context.WithCancel(ctx)
		defer k.tickers.Wait()
		defer cancel()
		if err := k.take(ctx, !c.renews); err != nil {
			return nil, err
		}
		pause(ctx, *ttl/3)

		before, err := s.read(ctx)
		if err != nil {
			return nil, err
		}
		pause(ctx, *span)
		d, err := s.since(ctx, before)
		if err != nil {
			return nil, err
		}
		goroutines = runtime.NumGoroutine() - goroutines
		memory = settledMemory() - memory
		lost, err := k.lost(ctx, s, c)
		if err != nil {
			return nil, err
		}

		sent, _ := sent(d.calls, c.sends...)
		// Nothing else is sent. One command may renew many leases, with a PEXPIRE for each.
		renewals := float64(max(sent, d.calls["pexpire"]))
		return map[string]float64{
			"lost":       float64(lost),
			"rate":       renewals / d.elapsed.Seconds(),
			"client":     micros(d.client) / renewals,
			"redis":      micros(d.redis) / renewals,
			"reads":      d.reads / renewals,
			"bytes":      memory / float64(*leases),
			"goroutines": float64(goroutines),
			"cores":      d.client.Seconds() / d.elapsed.Seconds(),
		}, nil
	}
}

// keeping is many leases of one client. What it keeps itself is allocated
// before the memory is first looked at.
type keeping struct {
	cl      client
	ttl     time.Duration
	names   []string
	held    []lock
	tickers sync.WaitGroup
}

func newKeeping(cl client, n int, ttl time.Duration) *keeping {
	k := &keeping{cl: cl, ttl: ttl, names: make([]string, n), held: make([]lock, n)}
	for i := range k.names {
		k.names[i] = fmt.Sprintf("bench:lock:%d", i)
	}
	return k
}

const takers = 64

// warm opens the connections that take will use.
func (k *keeping) warm(ctx context.Context) error {
	return each(min(takers, len(k.names)), takers, func(i int) error {
		l, err := k.cl.TryLock(ctx, k.names[i])
		if err != nil {
			return err
		}
		return l.Unlock(ctx)
	})
}

// take acquires all and, if asked to, gives each a goroutine with a ticker.
func (k *keeping) take(ctx context.Context, tick bool) error {
	return each(len(k.names), takers, func(i int) (err error) {
		if k.held[i], err = k.cl.TryLock(ctx, k.names[i]); err == nil && tick {
			k.tickers.Go(func() { k.renewUntil(ctx, k.held[i]) })
		}
		return err
	})
}

// each calls f for the first n numbers, by so many goroutines. Each ends with its first error.
func each(n, goroutines int, f func(i int) error) error {
	var (
		next atomic.Int64
		wg   sync.WaitGroup
		errs = make([]error, goroutines)
	)
	for t := range goroutines {
		wg.Go(func() {
			for errs[t] == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				errs[t] = f(i)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// renewUntil is the loop that the libraries without renewal leave to their
// user. A failed renewal is tried again at the next tick.
func (k *keeping) renewUntil(ctx context.Context, l lock) {
	ticker := time.NewTicker(k.ttl / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			_ = l.Renew(ctx, k.ttl) // a loss shows in the database at the end
		}
	}
}

// lost counts the keys that are gone (nobody would have made one again) and
// the leases that their holder was told to be over.
func (k *keeping) lost(ctx context.Context, s *server, c column) (int, error) {
	const batch = 1000
	lost := 0
	for from := 0; from < len(k.names); from += batch {
		names := k.names[from:min(from+batch, len(k.names))]
		keys := make([]string, len(names))
		for i, name := range names {
			keys[i] = c.redisKey(name)
		}
		there, err := s.admin.Exists(ctx, keys...).Result()
		if err != nil {
			return 0, err
		}
		lost += len(names) - int(there)
	}
	told := 0
	for _, l := range k.held {
		if t, ok := l.(interface{ Lost() bool }); ok && t.Lost() {
			told++
		}
	}
	return max(lost, told), nil
}

// settledMemory is the resident memory after everything that is garbage has been returned.
func settledMemory() float64 {
	runtime.GC()
	debug.FreeOSMemory()
	return residentBytes()
}
