package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-leasehold/leasehold"
)

// What is in the account at first, and what is added.
const (
	opening = 100
	ashAdds = 30
	elmAdds = 50
)

// A lateWrite is what became of a write that came after its lease was over.
type lateWrite struct {
	validBefore bool          // the lease, when its holder asked for the last time
	validAfter  bool          // and when it had written
	late        time.Duration // from the end of the lease to the write
	first, next int64         // the fencing tokens of the late holder, and of the one who came meanwhile
	errs        [2]error      // what the two ledgers answered
	sums        [2]int        // what they have then
}

// writeLate has a holder write after another one has had the lock.
func (s *stage) writeLate(ctx context.Context) (string, error) {
	const key = "account"
	workers, dismiss := s.hire("ash", "elm")
	defer dismiss()
	ash, elm := workers[0], workers[1]
	ttl := 10 * s.beat
	set, script := plain(s.prefix+"set"), fenced(s.prefix+"script")
	books := account{set, script}
	row := func(who, what string, set, script any) { s.says(who, "%-38s%6v%15v", what, set, script) }
	s.note("%38s%6s%15s", "", "SET", "FencedScript")

	// Without renewals: a process that is paused sends none.
	lease, err := ash.locker.TryAcquire(ctx, key, ttl)
	if err != nil {
		return "", err
	}
	f := lateWrite{first: lease.FencingToken()}
	errs := books.add(ctx, ash.client, f.first, [2]int{}, opening)
	ashSaw, err := books.read(ctx, ash.client, f.first)
	if err := errors.Join(errs[0], errs[1], err); err != nil {
		return "", err
	}
	row(ash.name, fmt.Sprintf("has the lock for %v and reads", ttl), ashSaw[0], ashSaw[1])
	f.validBefore = lease.Valid()
	s.says(ash.name, "asks Valid: %v. It will add %d – and is paused", f.validBefore, ashAdds)

	// From here to its late write nothing of ash's runs.
	next, err := elm.locker.Acquire(ctx, key, ttl)
	if err != nil {
		return "", fmt.Errorf("elm did not get in: %w", err)
	}
	f.next = next.FencingToken()
	elmSaw, err := books.read(ctx, elm.client, f.next)
	if err != nil {
		return "", err
	}
	row(elm.name, "has the lock and reads", elmSaw[0], elmSaw[1])
	errs = books.add(ctx, elm.client, f.next, elmSaw, elmAdds)
	if err := errors.Join(errs[0], errs[1], next.Release(ctx)); err != nil {
		return "", err
	}
	row(elm.name, fmt.Sprintf("writes %d more and lets go", elmAdds), elmSaw[0]+elmAdds, elmSaw[1]+elmAdds)
	if err := pause(ctx, 4*s.beat); err != nil {
		return "", err
	}

	f.late = time.Since(lease.ValidUntil())
	f.errs = books.add(ctx, ash.client, f.first, ashSaw, ashAdds)
	f.validAfter = lease.Valid()
	row(ash.name, fmt.Sprintf("wakes up, writes %d more than it read", ashAdds), ashSaw[0]+ashAdds, outcome(f.errs[1]))
	f.sums, err = account{set, plain(script)}.read(ctx, elm.client, 0) // as anybody can who only looks
	if err != nil {
		return "", err
	}
	s.note("%-38s%s%s", "which leaves", s.paint(red, fmt.Sprintf("%6d", f.sums[0])), s.paint(green, fmt.Sprintf("%15d", f.sums[1])))
	if err := f.check(); err != nil {
		return "", err
	}
	s.note("")
	s.note("SET lost elm's %d. FencedScript refused fencing token", elmAdds)
	s.note("%d, since it had seen %d.", f.first, f.next)
	return fmt.Sprintf("refused %v after its lease; with SET it undid elm's %d", ms(f.late), elmAdds), nil
}

func outcome(err error) string {
	if errors.Is(err, leasehold.ErrStale) {
		return "refused"
	}
	return "not refused"
}

func (f lateWrite) check() error {
	const both = opening + elmAdds
	var stale *leasehold.StaleError
	switch {
	case !f.validBefore:
		return errors.New("ash's lease was not valid before the pause")
	case f.late <= 0 || f.validAfter:
		return errors.New("ash's write was not late")
	case f.errs[0] != nil:
		return fmt.Errorf("ash's SET failed: %w", f.errs[0])
	case f.sums[0] != opening+ashAdds:
		return fmt.Errorf("the SET went well: the account has %d, and elm's %d are not lost", f.sums[0], elmAdds)
	case f.errs[1] == nil:
		return errors.New("the late write was not refused")
	case !errors.As(f.errs[1], &stale):
		return fmt.Errorf("the late write failed, but not for its fencing token: %w", f.errs[1])
	case stale.Token != f.first || stale.Highest != f.next:
		return fmt.Errorf("the late write was refused for other fencing tokens than %d and %d: %w", f.first, f.next, stale)
	case f.sums[1] != both:
		return fmt.Errorf("the fenced account has %d, not %d", f.sums[1], both)
	}
	return nil
}
