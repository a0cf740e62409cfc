package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// contest is many contenders for one lock. Each asks, holds, releases and
// asks again at once.
type contest struct {
	name  string
	hold  time.Duration
	start time.Time

	closed atomic.Bool // nobody asks any more, and who gets in leaves at once

	mu       sync.Mutex // guards what follows
	sections []section  // in the order in which they ended
	unserved []section  // asks that ctx ended; only who and asked are set
	errs     []error
}

// section is one stay in the critical section. Times are since the start.
type section struct {
	who     int
	asked   time.Duration // Lock was called
	entered time.Duration // Lock returned
	left    time.Duration // Unlock was called
}

// contend starts one contender for each client; the same client may be there
// more than once. wait returns when all have ended, which closed or ctx brings about.
func (k *contest) contend(ctx context.Context, clients []client) (wait func()) {
	k.start = time.Now()
	var wg sync.WaitGroup
	for who, cl := range clients {
		wg.Go(func() {
			if err := k.ask(ctx, who, cl); err != nil {
				k.mu.Lock()
				k.errs = append(k.errs, err)
				k.mu.Unlock()
			}
		})
	}
	return wg.Wait
}

// ask enters again and again.
func (k *contest) ask(ctx context.Context, who int, cl client) error {
	a, err := newAlarm()
	if err != nil {
		return err
	}
	defer a.close()
	for err == nil && ctx.Err() == nil && !k.closed.Load() {
		err = k.enter(ctx, who, cl, a)
	}
	return err
}

func (k *contest) enter(ctx context.Context, who int, cl client, a *alarm) error {
	s := section{who: who, asked: time.Since(k.start)}
	l, err := cl.Lock(ctx, k.name)
	s.entered = time.Since(k.start)
	if err != nil {
		if ctx.Err() == nil {
			return err
		}
		k.mu.Lock()
		k.unserved = append(k.unserved, s)
		k.mu.Unlock()
		return nil
	}
	if !k.closed.Load() {
		err = a.sleep(k.hold)
	}
	s.left = time.Since(k.start)
	k.mu.Lock()
	k.sections = append(k.sections, s)
	k.mu.Unlock()
	// What is held is given back although the contest may be over.
	return errors.Join(err, l.Unlock(context.WithoutCancel(ctx)))
}

// firstErr is the first trouble that a contender had, for the table to be believed.
func (k *contest) firstErr() error {
	return errors.Join(k.errs...)
}

// judge reduces what happened between from and to. Waits that were not over
// at the end count with what they had lasted by then: a contender that never got in must show.
func judge(sections, unserved []section, contenders int, from, to time.Duration) map[string]float64 {
	sections = slices.Clone(sections)
	slices.SortFunc(sections, func(a, b section) int { return int(a.entered - b.entered) })

	var (
		shares      = make([]float64, contenders)
		waits, gaps []float64
		n           float64
		same, over  float64
		inUse       time.Duration
		last        = -1 // who
		free        time.Duration
	)
	for _, s := range sections {
		if s.entered < from || s.entered > to {
			continue
		}
		shares[s.who]++
		waits = append(waits, millis(s.entered-s.asked))
		inUse += min(s.left, to) - s.entered
		if n++; n > 1 {
			if s.who == last {
				same++
			}
			if s.entered < free {
				over++
			} else {
				gaps = append(gaps, micros(s.entered-free))
			}
		}
		last, free = s.who, max(free, s.left)
	}
	for _, s := range unserved {
		if s.asked > to {
			continue
		}
		waits = append(waits, millis(to-s.asked))
	}

	elapsed := to - from
	fair := millis(elapsed) / n * float64(contenders) // everyone once
	return map[string]float64{
		"sections": n,
		"rate":     n / elapsed.Seconds(),
		"use":      100 * float64(inUse) / float64(elapsed),
		"jain":     jain(shares),
		"same":     100 * same / math.Max(1, n-1),
		"wait99":   percentile(waits, 99),
		"waitMax":  highest(waits),
		"fair99":   percentile(waits, 99) / fair,
		"fair":     highest(waits) / fair,
		"gapMean":  mean(gaps),
		"gap50":    percentile(gaps, 50),
		"gap99":    percentile(gaps, 99),
		"overlaps": over,
	}
}

// group is who contends: n clients that each have connections of their own, or
// n goroutines that share one client.
type group struct {
	n      int
	shared bool
	as     record
}

func groups(clients, process []int) []group {
	var all []group
	for _, n := range clients {
		all = append(all, group{n: n, as: record{Case: fmt.Sprintf("%d clients", n), N: n}})
	}
	for _, n := range process {
		all = append(all, group{n: n, shared: true, as: record{Case: fmt.Sprintf("%d goroutines of one client", n)}})
	}
	return all
}

// openClients makes one client for each of the group, the same one if it is
// shared. All have talked to the server when it returns.
func openClients(ctx context.Context, s *server, c column, g group) (clients []client, closeAll func(), err error) {
	closeAll = func() {
		for i, cl := range clients {
			if i == 0 || !g.shared {
				cl.Close()
			}
		}
	}
	for i := range g.n {
		if g.shared && i > 0 {
			clients = append(clients, clients[0])
			continue
		}
		cl, err := c.open(s.addr, ttl)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		clients = append(clients, cl)
		l, err := cl.TryLock(ctx, fmt.Sprintf("bench:warm:%d", i))
		if err == nil {
			err = l.Unlock(ctx)
		}
		if err != nil {
			closeAll()
			return nil, nil, err
		}
	}
	return clients, closeAll, nil
}
