package main

import (
	"context"
	"flag"
	"strings"
	"time"
)

// waiting are the columns that have a way to wait for a lock.
var waiting = []string{"redsync", "redsync 5ms", "redislock", "redislock 5ms", "rueidislock", "leasehold", "leasehold by hand"}

var contended = workload{
	name:  "contended",
	about: "many clients want one lock: acquire, hold, release, again at once",
	setup: func(fs *flag.FlagSet) func(context.Context, *bench) error {
		rounds := fs.Int("rounds", 3, "rounds")
		span := fs.Duration("for", 10*time.Second, "time per round and column")
		warm := fs.Duration("warm", 500*time.Millisecond, "time before that which does not count")
		hold := fs.Duration("hold", 2*time.Millisecond, "time in the critical section")
		clients := intsVar(fs, "n", "numbers of `clients`, each with connections of its own", 2, 8, 32, 128)
		process := intsVar(fs, "process", "numbers of `goroutines` that share one client", 64)
		return func(ctx context.Context, b *bench) error {
			cols := b.columns(waiting...)
			for _, g := range groups(*clients, *process) {
				err := b.interleave(ctx, *rounds, g.as, perBestPeer, cols, func(c column) (map[string]float64, error) {
					return contendFor(ctx, b.server, c, g, *hold, *warm, *span)
				})
				if err != nil {
					return err
				}
			}
			return nil
		}
	},
	metrics: []metric{
		{"rate", "sections/s", "%.0f", median},
		{"perPeer", "ratio to best peer", "%.2f", median},
		{"use", "in use, %", "%.0f", median},
		{"jain", "Jain", "%.3f", median},
		{"same", "same again, %", "%.1f", median},
		{"wait99", "wait p99, ms", "%.0f", median},
		{"waitMax", "wait max, ms", "%.0f", highest},
		{"fair99", "p99 ÷ fair", "%.2f", median},
		{"fair", "max ÷ fair", "%.2f", highest},
		{"gapMean", "gap mean, µs", "%.0f", median},
		{"gap50", "gap p50, µs", "%.0f", median},
		{"gap99", "gap p99, µs", "%.0f", median},
		{"sent", "commands/section", "%.2f", median},
		{"client", "client CPU, µs", "%.0f", median},
		{"redis", "Redis CPU, µs", "%.0f", median},
		{"overlaps", "overlaps", "%.0f", sum},
	},
}

// perBestPeer compares each column's sections per second with those of the peer that had the most in the round.
func perBestPeer(turns []turn, measured []map[string]float64) {
	var peers []float64
	for i, t := range turns {
		if !isOwn(t.as.Column) {
			peers = append(peers, measured[i]["rate"])
		}
	}
	for i := range turns {
		measured[i]["perPeer"] = measured[i]["rate"] / highest(peers) // NaN without peers
	}
}

// isOwn tells this library's columns from its peers'.
func isOwn(column string) bool { return strings.HasPrefix(column, "leasehold") }

func contendFor(ctx context.Context, s *server, c column, g group, hold, warm, span time.Duration) (map[string]float64, error) {
	clients, closeAll, err := openClients(ctx, s, c, g)
	if err != nil {
		return nil, err
	}
	defer closeAll()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	k := &contest{name: "bench:lock", hold: hold}
	wait := k.contend(ctx, clients)

	pause(ctx, warm)
	before, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	pause(ctx, span)
	d, err := s.since(ctx, before)
	if err != nil {
		return nil, err
	}
	from := before.at.Sub(k.start)
	cancel()
	wait()
	if err := k.firstErr(); err != nil {
		return nil, err
	}

	values := judge(k.sections, k.unserved, g.n, from, from+d.elapsed)
	sections := values["sections"]
	client, _ := sent(d.calls, c.sends...)
	values["sent"] = float64(client) / sections
	values["client"] = micros(d.client) / sections
	values["redis"] = micros(d.redis) / sections
	return values, nil
}

// pause waits for real time to pass; the callers look at ctx themselves.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

var liveness = workload{
	name:  "liveness",
	about: "contend, then all release and nobody asks again: is everyone who waits served?",
	setup: func(fs *flag.FlagSet) func(context.Context, *bench) error {
		runs := fs.Int("runs", 5, "runs per case and column")
		span := fs.Duration("for", 3*time.Second, "time of contention before")
		hold := fs.Duration("hold", 2*time.Millisecond, "time in the critical section")
		clients := intsVar(fs, "n", "numbers of `clients`, each with connections of its own", 8, 32)
		process := intsVar(fs, "process", "numbers of `goroutines` that share one client", 64)
		return func(ctx context.Context, b *bench) error {
			cols := b.columns("redsync", "redislock", "redislock 5ms", "rueidislock", "leasehold", "leasehold by hand")
			for _, g := range groups(*clients, *process) {
				err := b.interleave(ctx, *runs, g.as, alone, cols, func(c column) (map[string]float64, error) {
					return serveAll(ctx, b.server, c, g, *hold, *span)
				})
				if err != nil {
					return err
				}
			}
			return nil
		}
	},
	metrics: []metric{
		{"run", "runs", "%.0f", sum},
		{"waiters", "waiters", "%.0f", sum},
		{"soon", "served within 200 ms", "%.0f", sum},
		{"late", "within 5 s", "%.0f", sum},
		{"hung", "not in 5 s", "%.0f", sum},
		{"hungRuns", "runs with such", "%.0f", sum},
		{"last", "last served after, ms", "%.0f", median},
		{"lastMax", "at worst, ms", "%.0f", highest},
	},
}

// patience is how long a waiter of a free lock is given before it counts as hung.
const patience = 5 * time.Second

func serveAll(ctx context.Context, s *server, c column, g group, hold, span time.Duration) (map[string]float64, error) {
	clients, closeAll, err := openClients(ctx, s, c, g)
	if err != nil {
		return nil, err
	}
	defer closeAll()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	k := &contest{name: "bench:lock", hold: hold}
	wait := k.contend(ctx, clients)
	pause(ctx, span)
	k.closed.Store(true)
	closed := time.Since(k.start)
	giveUp := time.AfterFunc(patience, cancel)
	wait()
	giveUp.Stop()
	if err := k.firstErr(); err != nil {
		return nil, err
	}
	return judgeLiveness(k.sections, k.unserved, closed), nil
}

// judgeLiveness looks at those who waited when the contest was closed.
func judgeLiveness(sections, unserved []section, closed time.Duration) map[string]float64 {
	v := map[string]float64{"run": 1, "soon": 0, "late": 0, "hung": float64(len(unserved)), "hungRuns": 0}
	for _, s := range sections {
		if s.entered <= closed {
			continue
		}
		delay := s.entered - closed
		if delay <= 200*time.Millisecond {
			v["soon"]++
		}
		v["late"]++
		v["last"] = max(v["last"], millis(delay))
	}
	v["waiters"] = v["late"] + v["hung"]
	if v["hung"] > 0 {
		v["hungRuns"] = 1
		v["last"] = millis(patience)
	}
	v["lastMax"] = v["last"]
	return v
}
