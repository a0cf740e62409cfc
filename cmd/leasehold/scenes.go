package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-leasehold/leasehold"
)

// Each scene collects facts while it plays and then has them judged by a function that knows nothing else.
var scenes = []scene{
	{"Taking turns", "Five workers want one invoice. Each has a client and a Locker of its own,\n" +
		"as five processes have.", (*stage).takeTurns},
	{"A death", "ash dies with the lock in its hands. elm waits, and nobody will release it.", (*stage).succeed},
	{"A long job", "ash works four times as long as its lease lasts, and keeps it by renewing.", (*stage).workLong},
	{"A late write", "ash is paused between its last check and its write, until its lease is over.\n" +
		"Each write is made twice: by SET, and by a FencedScript to another key.", (*stage).writeLate},
}

// A turn is the time that a worker had the lock, since the start.
type turn struct {
	who          string
	from, to     time.Duration
	fencingToken int64
	err          error // what WithLock returned
}

// takeTurns has workers queue for a lock and add to one total.
func (s *stage) takeTurns(ctx context.Context) (string, error) {
	workers, dismiss := s.hire("ash", "elm", "fir", "oak", "yew")
	defer dismiss()
	total := plain(s.prefix + "total")
	if err := total.write(ctx, workers[0].client, 0, 0); err != nil {
		return "", err
	}

	turns := make([]turn, len(workers))
	everybody := make(chan struct{}) // closed when all the others wait for the first one
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	queue := func() error {
		defer close(everybody)
		for i, w := range workers {
			all.Go(func() { turns[i] = s.takeTurn(ctx, w, total, everybody) })
			// The order of arrival is this one only if each has arrived before the next one is sent.
			if err := s.waiters(ctx, w, invoice, i); err != nil {
				cancel()
				return err
			}
			if i > 0 {
				s.says(w.name, "waits in line, %d before it", i)
			}
		}
		return nil
	}
	err := queue()
	all.Wait()
	if err != nil {
		return "", err
	}
	if err := checkTurns(turns); err != nil {
		return "", err
	}

	s.println("")
	begin, end := turns[0].from, turns[len(turns)-1].to
	for _, t := range turns {
		s.bar(t.who, t.from-begin, t.to-begin, end-begin)
	}
	sum, err := total.read(ctx, workers[0].client, 0)
	if want := amount * len(turns); err == nil && sum != want {
		err = fmt.Errorf("the total is %d, not %d: an addition was lost", sum, want)
	}
	return fmt.Sprintf("%d turns in the order of arrival, none overlapped; total %d", len(turns), sum), err
}

const (
	invoice = "invoice" // the lock
	amount  = 100       // what each worker adds to the total
)

// takeTurn is one worker's part of it.
func (s *stage) takeTurn(ctx context.Context, w *worker, total ledger, everybody <-chan struct{}) turn {
	t := turn{who: w.name}
	t.err = w.locker.WithLock(ctx, invoice, 10*s.beat, func(ctx context.Context, lease *leasehold.Lease) error {
		t.from, t.fencingToken = time.Since(s.start), lease.FencingToken()
		defer func() { t.to = time.Since(s.start) }()
		sum, err := total.read(ctx, w.client, t.fencingToken)
		if err != nil {
			return err
		}
		s.says(w.name, "has the lock; reads a total of %d", sum)
		if err := pause(ctx, 4*s.beat); err != nil {
			return err
		}
		<-everybody
		s.says(w.name, "writes %d and lets go", sum+amount)
		return total.write(ctx, w.client, t.fencingToken, sum+amount)
	})
	return t
}

// checkTurns judges the turns, which are in the order in which the workers came. It reports all that is wrong: a lock that
// was lost need not show as an overlap, since a worker that hears of the loss in time ends its turn before the next one
// begins.
func checkTurns(turns []turn) error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for i, t := range turns {
		switch {
		case t.fencingToken == 0:
			wrong("%s had no turn: %w", t.who, t.err)
			continue
		case errors.Is(t.err, leasehold.ErrLost):
			wrong("%s lost the lock in its turn: %w", t.who, t.err)
		case t.err != nil:
			wrong("%s did not end its turn: %w", t.who, t.err)
		}
		if i == 0 {
			continue
		}
		switch before := turns[i-1]; {
		case before.fencingToken == 0: // there is nothing to compare
		case t.to <= before.from:
			wrong("%s had its turn before %s, who had come first", t.who, before.who)
		case t.from < before.to:
			wrong("the turns of %s and %s overlapped", before.who, t.who)
		case t.fencingToken <= before.fencingToken:
			wrong("the fencing token of %s is not higher than that of %s before it", t.who, before.who)
		}
	}
	return errors.Join(errs...)
}

// A succession is how a lock went from a holder that died to the next.
type succession struct {
	validUntil time.Time // the last moment at which the dead one could have trusted its lease
	expiry     time.Time // when Redis let the key go
	next       time.Time // when the next one had the lock
	rise       int64     // from the dead one's fencing token to the next one's
	end        error     // what became of the dead one's lease
}

// soon bounds the delay after an expiry. A waiter wakes at the time that Redis told it; if it missed that, it
// looks again every second at the latest.
const soon = time.Second

// succeed has a holder die and another one wait for its lock.
func (s *stage) succeed(ctx context.Context) (string, error) {
	const key = "shipment"
	workers, dismiss := s.hire("ash", "elm")
	defer dismiss()
	ash, elm := workers[0], workers[1]
	ttl := 12 * s.beat

	renewed := leasehold.WithHooks(leasehold.Hooks{Renewed: func(leasehold.Event) { s.says(ash.name, "renews") }})
	asked := time.Now()
	lease, err := ash.locker.TryAcquire(ctx, key, ttl, leasehold.WithAutoRenew(true), renewed)
	if err != nil {
		return "", err
	}
	margin := asked.Add(ttl).Sub(lease.ValidUntil()) // Redis keeps the key for so much longer than ash trusts it
	s.says(ash.name, "has the lock for %v", ttl)

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var next *leasehold.Lease
	var won time.Time
	acquired := make(chan error, 1)
	go func() {
		var err error
		next, err = elm.locker.Acquire(ctx, key, ttl)
		won = time.Now()
		acquired <- err
	}()
	if err := s.waiters(ctx, elm, key, 1); err != nil {
		return "", err
	}
	s.says(elm.name, "waits in line")
	if err := pause(ctx, 5*s.beat); err != nil {
		return "", err
	}
	_ = ash.client.Close()
	s.says(ash.name, "dies: no renewals, no release. Its lease has %v left", ms(time.Until(lease.ValidUntil())))

	if err := <-acquired; err != nil {
		return "", fmt.Errorf("elm did not get in: %w", err)
	}
	f := succession{
		validUntil: lease.ValidUntil(),
		expiry:     lease.ValidUntil().Add(margin),
		next:       won,
		rise:       next.FencingToken() - lease.FencingToken(),
		end:        lease.Err(),
	}
	s.says(elm.name, "has the lock, %v after it expired", ms(f.delay()))
	if err := next.Release(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("elm got in %v after the dead worker's lease ran out", ms(f.delay())), f.check()
}

func (f succession) delay() time.Duration { return f.next.Sub(f.expiry) }

func (f succession) check() error {
	switch {
	case f.next.Before(f.validUntil):
		return fmt.Errorf("elm got in %v before ash's lease was over", ms(f.validUntil.Sub(f.next)))
	case f.delay() > soon:
		return fmt.Errorf("elm got in only %v after ash's lease ran out", ms(f.delay()))
	case !errors.Is(f.end, leasehold.ErrLost):
		return fmt.Errorf("ash's lease did not run out: %v", f.end)
	case f.rise <= 0:
		return errors.New("elm's fencing token is not higher than ash's")
	}
	return nil
}

// A longJob is what became of a lease that had to outlive its TTL.
type longJob struct {
	ttl, held time.Duration
	renewals  int
	refused   int   // tries of another's
	valid     bool  // the lease, at the end of the job
	after     error // what another's try met once the lock was released
}

const tries = 4

// workLong has a holder work for longer than its TTL while another one tries to get in.
func (s *stage) workLong(ctx context.Context) (string, error) {
	const key = "report"
	workers, dismiss := s.hire("ash", "elm")
	defer dismiss()
	ash, elm := workers[0], workers[1]
	f := longJob{ttl: 7 * s.beat}

	var renewals atomic.Int64
	count := leasehold.WithHooks(leasehold.Hooks{Renewed: func(leasehold.Event) { renewals.Add(1) }})
	try := func() error {
		lease, err := elm.locker.TryAcquire(ctx, key, f.ttl)
		if err != nil {
			return err
		}
		return lease.Release(ctx)
	}
	err := ash.locker.WithLock(ctx, key, f.ttl, func(ctx context.Context, lease *leasehold.Lease) error {
		begun := time.Now()
		s.says(ash.name, "has the lock for %v, and work for %v", f.ttl, tries*f.ttl)
		for range tries {
			if err := pause(ctx, f.ttl/2); err != nil {
				return err
			}
			err := try()
			if !errors.Is(err, leasehold.ErrHeld) {
				return fmt.Errorf("elm was not refused as long as ash worked: %v", err)
			}
			f.refused++
			s.says(elm.name, "tries: %v (renewals of ash's so far: %d)", leasehold.ErrHeld, renewals.Load())
			if err := pause(ctx, f.ttl/2); err != nil {
				return err
			}
		}
		f.held, f.valid, f.renewals = time.Since(begun), lease.Valid(), int(renewals.Load())
		return nil
	}, count)
	if err != nil {
		return "", fmt.Errorf("ash's job failed: %w", err)
	}
	s.says(ash.name, "is done and lets go")
	if f.after = try(); f.after == nil {
		s.says(elm.name, "tries: has the lock")
	}
	return fmt.Sprintf("%d renewals kept a lease of %v for %v; %d tries refused", f.renewals, f.ttl, ms(f.held), f.refused), f.check()
}

func (f longJob) check() error {
	switch {
	case f.held < 3*f.ttl:
		return fmt.Errorf("the job took %v, which does not outlive a ttl of %v three times", f.held, f.ttl)
	case !f.valid:
		return errors.New("the lease was not valid until the end of the job")
	case f.renewals < 3:
		return fmt.Errorf("%d renewals cannot have kept the lease", f.renewals)
	case f.refused != tries:
		return fmt.Errorf("%d tries were refused, not %d", f.refused, tries)
	case f.after != nil:
		return fmt.Errorf("elm did not get in after the job: %w", f.after)
	}
	return nil
}

// ms rounds for people.
func ms(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
