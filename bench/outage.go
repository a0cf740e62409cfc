package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-leasehold/leasehold"
)

var outage = workload{
	name:  "outage",
	about: "many renewed leases, and the server stands still for a while",
	setup: func(fs *flag.FlagSet) func(context.Context, *bench) error {
		rounds := fs.Int("rounds", 2, "rounds")
		leases := fs.Int("leases", 10000, "number of `leases`")
		life := fs.Duration("ttl", 10*time.Second, "TTL; the server stands still for half of it, then for one and a half")
		return func(ctx context.Context, b *bench) error {
			cols := b.columns("leasehold")
			for _, o := range []struct {
				title   string
				lasting time.Duration
				watch   func(*bereaved, context.Context, time.Duration) (map[string]float64, error)
			}{
				{"half the TTL", *life / 2, (*bereaved).recovers},
				{"one and a half TTLs", *life * 3 / 2, (*bereaved).isTold},
			} {
				as := record{Case: fmt.Sprintf("%d leases, TTL %v, an outage of %s", *leases, *life, o.title)}
				err := b.interleave(ctx, *rounds, as, alone, cols, func(c column) (map[string]float64, error) {
					h := bereave(b.server, c, *leases, *life)
					defer h.Close()
					if err := h.take(ctx); err != nil {
						return nil, err
					}
					return o.watch(h, ctx, o.lasting)
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
		{"jeopardy", "in jeopardy", "%.0f", highest},
		{"back", "all held again after, ms", "%.0f", highest},
		{"usual", "commands/s before", "%.0f", median},
		{"usualPeak", "busiest second before", "%.0f", highest},
		{"peak", "busiest second after", "%.0f", highest},
		{"surge", "after ÷ before", "%.2f", highest},
		{"ended", "ended", "%.0f", sum},
		{"p50", "told after p50, ms", "%.1f", median},
		{"p99", "p99, ms", "%.1f", median},
		{"max", "max, ms", "%.1f", highest},
		{"hookMax", "by hook, max, ms", "%.1f", highest},
		{"never", "never told", "%.0f", sum},
	},
}

// bereaved is a process that holds many leases on a server that will stand still.
type bereaved struct {
	*keeping
	*leaseholdClient
	s *server
	c column

	done sync.WaitGroup // of the goroutines that wait for Done

	mu       sync.Mutex  // guards what follows
	toldHook []time.Time // by lease, as are the others; zero: not yet
	toldDone []time.Time
	trouble  []bool // in jeopardy
	troubled int    // how many are
	most     int    // at once
	allHeld  time.Time
}

func bereave(s *server, c column, leases int, ttl time.Duration) *bereaved {
	h := &bereaved{
		s: s, c: c,
		toldHook: make([]time.Time, leases), toldDone: make([]time.Time, leases), trouble: make([]bool, leases),
	}
	rdb := redis.NewClient(&redis.Options{Addr: s.addr})
	locker := leasehold.New(rdb, leasehold.WithAutoRenew(true), leasehold.WithHooks(leasehold.Hooks{
		Jeopardy: func(e leasehold.Event) { h.turns(e, true) },
		Renewed:  func(e leasehold.Event) { h.turns(e, false) },
		Lost: func(e leasehold.Event) {
			now := time.Now()
			h.mu.Lock()
			defer h.mu.Unlock()
			h.toldHook[leaseNumber(e.Key)] = now
		},
	}))
	h.leaseholdClient = &leaseholdClient{rdb: rdb, locker: locker, ttl: ttl}
	h.keeping = newKeeping(h.leaseholdClient, leases, ttl)
	return h
}

// leaseNumber is which of a keeping's names the key is.
func leaseNumber(key string) int {
	i, _ := strconv.Atoi(key[strings.LastIndexByte(key, ':')+1:])
	return i
}

// turns notes that a lease is in jeopardy from now on, or held.
func (h *bereaved) turns(e leasehold.Event, trouble bool) {
	i := leaseNumber(e.Key)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.trouble[i] == trouble:
		return
	case trouble:
		h.troubled++
		h.most = max(h.most, h.troubled)
	default:
		if h.troubled--; h.troubled == 0 {
			h.allHeld = time.Now()
		}
	}
	h.trouble[i] = trouble
}

// take acquires all, evenly over the time between two renewals of a lease, so that the renewals before the outage are as even,
// and waits until each has been renewed.
func (h *bereaved) take(ctx context.Context) error {
	every := h.keeping.ttl / 3
	begun := time.Now()
	err := each(len(h.names), takers, func(i int) (err error) {
		pause(ctx, time.Until(begun.Add(every*time.Duration(i)/time.Duration(len(h.names)))))
		h.held[i], err = h.TryLock(ctx, h.names[i])
		return err
	})
	pause(ctx, every)
	return err
}

// stop has the server stand still, and go on after d or when ctx ends.
func (h *bereaved) stop(ctx context.Context, d time.Duration) error {
	if err := h.s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	pause(ctx, d)
	return h.s.cmd.Process.Signal(syscall.SIGCONT)
}

// recovers measures an outage that the leases outlast.
func (h *bereaved) recovers(ctx context.Context, lasting time.Duration) (map[string]float64, error) {
	usual, err := h.sample(ctx, nil, h.keeping.ttl)
	if err != nil {
		return nil, err
	}
	if err := h.stop(ctx, lasting); err != nil {
		return nil, err
	}
	// What waited in the sockets was sent during the outage, and is done after it.
	resumed := time.Now()
	after, err := h.sample(ctx, []sentBy{{resumed, usual[len(usual)-1].commands}}, h.keeping.ttl)
	if err != nil {
		return nil, err
	}
	lost, err := h.lost(ctx, h.s, h.c)
	if err != nil {
		return nil, err
	}

	h.mu.Lock()
	defer h.mu.Unlock()
	back := max(0, millis(h.allHeld.Sub(resumed)))
	if h.troubled > 0 {
		back = math.NaN()
	}
	before, peak := busiest(usual, h.keeping.ttl*9/10), busiest(after, time.Second)
	return map[string]float64{
		"lost":      float64(lost),
		"jeopardy":  float64(h.most),
		"back":      back,
		"usual":     before,
		"usualPeak": busiest(usual, time.Second),
		"peak":      peak,
		"surge":     peak / before,
	}, nil
}

// isTold measures an outage that no lease outlasts. Each has a goroutine that waits for Done, as a holder would.
func (h *bereaved) isTold(ctx context.Context, lasting time.Duration) (map[string]float64, error) {
	for i, l := range h.held {
		done := (*leasehold.Lease)(l.(*leaseholdLock)).Done()
		h.done.Go(func() {
			<-done
			now := time.Now()
			h.mu.Lock()
			defer h.mu.Unlock()
			h.toldDone[i] = now
		})
	}
	pause(ctx, h.keeping.ttl/3)
	if err := h.stop(ctx, lasting); err != nil {
		return nil, err
	}
	pause(ctx, time.Second)

	h.mu.Lock()
	defer h.mu.Unlock()
	var byDone, byHook []float64
	never := 0
	for i, l := range h.held {
		until := (*leasehold.Lease)(l.(*leaseholdLock)).ValidUntil()
		if h.toldDone[i].IsZero() || h.toldHook[i].IsZero() {
			never++
			continue
		}
		byDone = append(byDone, millis(h.toldDone[i].Sub(until)))
		byHook = append(byHook, millis(h.toldHook[i].Sub(until)))
	}
	return map[string]float64{
		"ended":   float64(len(byDone)),
		"p50":     percentile(byDone, 50),
		"p99":     percentile(byDone, 99),
		"max":     highest(byDone),
		"hookMax": highest(byHook),
		"never":   float64(never),
	}, nil
}

// Close ends every lease, and so the goroutines that wait for that.
func (h *bereaved) Close() {
	h.leaseholdClient.Close()
	h.done.Wait()
}

// sentBy is how many commands clients had sent by then.
type sentBy struct {
	at       time.Time
	commands int64
}

// sample asks the server ten times a second, for so long, and adds to what is given.
func (h *bereaved) sample(ctx context.Context, samples []sentBy, lasting time.Duration) ([]sentBy, error) {
	for begun := time.Now(); ; {
		in, err := h.s.info(ctx)
		if err != nil {
			return nil, err
		}
		commands, _ := sent(in.calls, h.c.sends...)
		samples = append(samples, sentBy{time.Now(), commands})
		if time.Since(begun) >= lasting {
			return samples, nil
		}
		pause(ctx, 100*time.Millisecond)
	}
}

// busiest is the rate per second in the window, as long as that or a little longer, in which it was highest; NaN if there is
// no such window.
func busiest(samples []sentBy, window time.Duration) float64 {
	rate := math.NaN()
	for i, from := range samples {
		for _, to := range samples[i:] {
			if d := to.at.Sub(from.at); d >= window {
				if r := float64(to.commands-from.commands) / d.Seconds(); !(r <= rate) {
					rate = r
				}
				break
			}
		}
	}
	return rate
}
