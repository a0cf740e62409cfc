package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

var crash = workload{
	name:  "crash",
	about: "the holder dies: how long after the key's expiry does the waiter get in?",
	setup: func(fs *flag.FlagSet) func(context.Context, *bench) error {
		rounds := fs.Int("rounds", 3, "rounds")
		locks := fs.Int("locks", 24, "locks per round and column, each with a holder that dies and one waiter")
		life := fs.Duration("ttl", 500*time.Millisecond, "TTL of the locks")
		others := intsVar(fs, "others", "numbers of other `keys` with a TTL in the database", 0, 5000)
		giveUp := fs.Duration("give-up", time.Minute, "how long a waiter is waited for")
		return func(ctx context.Context, b *bench) error {
			cols := b.columns(waiting...)
			for _, n := range *others {
				as := record{Case: fmt.Sprintf("%d other keys with a TTL", n)}
				err := b.interleave(ctx, *rounds, as, alone, cols, func(c column) (map[string]float64, error) {
					return recoverAll(ctx, b.server, c, *locks, n, *life, *giveUp)
				})
				if err != nil {
					return err
				}
			}
			return nil
		}
	},
	metrics: []metric{
		{"locks", "crashes", "%.0f", sum},
		{"p50", "p50, ms", "%.1f", median},
		{"p90", "p90, ms", "%.1f", median},
		{"max", "max, ms", "%.1f", highest},
		{"never", "not served", "%.0f", sum},
	},
}

// recoverAll kills the holders of some locks, one after the other within one
// TTL, and reports how long after the expiry of its key each waiter got in.
func recoverAll(ctx context.Context, s *server, c column, locks, others int, ttl, giveUp time.Duration) (map[string]float64, error) {
	if err := s.fill(ctx, others); err != nil {
		return nil, err
	}
	waiter, err := c.open(s.addr, ttl)
	if err != nil {
		return nil, err
	}
	defer waiter.Close()
	ctx, cancel := context.WithTimeout(ctx, giveUp)
	defer cancel()

	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		delays []float64
		never  float64
		first  error
	)
	for i := range locks {
		wg.Go(func() {
			pause(ctx, ttl*time.Duration(i)/time.Duration(locks))
			delay, err := recoverOne(ctx, s, c, waiter, fmt.Sprintf("bench:lock:%d", i), ttl)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				delays = append(delays, millis(delay))
			case ctx.Err() != nil:
				never++
			case first == nil:
				first = err
			}
		})
	}
	wg.Wait()
	if first != nil {
		return nil, first
	}
	return map[string]float64{
		"locks": float64(locks),
		"p50":   percentile(delays, 50),
		"p90":   percentile(delays, 90),
		"max":   highest(delays),
		"never": never,
	}, nil
}

func recoverOne(ctx context.Context, s *server, c column, waiter client, name string, ttl time.Duration) (time.Duration, error) {
	holder, err := c.open(s.addr, ttl)
	if err != nil {
		return 0, err
	}
	defer holder.Close() // of what the dead holder has left in this process
	if _, err := holder.TryLock(ctx, name); err != nil {
		return 0, err
	}
	holder.Abandon()

	// The server's clock is this machine's, so its expiry can be compared.
	expires, err := s.admin.PExpireTime(ctx, c.redisKey(name)).Result()
	if err != nil {
		return 0, err
	}
	if expires <= 0 {
		return 0, fmt.Errorf("the abandoned key %s has no expiry", c.redisKey(name))
	}
	// A poller that began together with the TTL would be in step with it.
	pause(ctx, rand.N(ttl/2))
	l, err := waiter.Lock(ctx, name)
	entered := time.Now()
	if err != nil {
		return 0, err
	}
	return entered.Sub(time.UnixMilli(expires.Milliseconds())), l.Unlock(context.WithoutCancel(ctx))
}

// fill adds keys with a TTL that outlasts the measurement.
func (s *server) fill(ctx context.Context, n int) error {
	pipe := s.admin.Pipeline()
	for i := range n {
		pipe.Set(ctx, fmt.Sprintf("bench:other:%d", i), "", time.Hour)
	}
	if n == 0 {
		return nil
	}
	_, err := pipe.Exec(ctx)
	return err
}
