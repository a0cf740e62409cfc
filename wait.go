package leasehold

import (
	"cmp"
	"context"
	"errors"
	"math"
	mathrand "math/rand/v2"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/token"
)

// How an Acquire waits. Two lines stand behind each other: the gate, in which the goroutines of this process wait for
// one another, and the line in Redis (handover.lua), in which one of them at a time stands for the key. So a process with a
// thousand waiters takes its turns with one that has a single waiter, and costs Redis no more.

const (
	// tick is the longest time between two looks of a waiter. Its mark, good for claim, survives one look that is
	// lost or late.
	tick = time.Second
	// plainTick is tick for the first of the line behind a client of another library, which tells nobody that it has let go.
	plainTick = 50 * time.Millisecond
	// rankPause keeps those behind the head of the line from all looking at the instant of an expiry.
	rankPause = 3 * time.Millisecond
	// maxSlow is how many answers in a row may come too late to be trusted before the place in the line is given up.
	maxSlow = 3
)

// wait is Acquire's way to the lock.
func (l *Locker) wait(ctx context.Context, a *attempt) (*Lease, Wake, error) {
	if ctx.Err() != nil {
		return nil, "", fault.Ended(ctx, nil)
	}
	l.stats.waiting.Add(1)
	defer l.stats.waiting.Add(-1)
	reason, err := l.gates.enter(ctx, l.closing.Done(), a.asks.Key)
	if err != nil {
		return nil, "", err
	}
	for {
		s := stay{l: l, a: a, reason: reason}
		stand := s.stand
		if l.wakes == nil {
			stand = s.poll // a quorum has no line
		}
		x, err := stand(ctx)
		if err == nil && x == nil {
			if s.stray {
				l.discard(a, nil, nil)
			}
			a.renew(l) // a stay that was over is never taken up again
			reason = s.reason
			continue
		}
		if err == nil || !s.sent {
			l.gates.leave(a.asks.Key)
		} else {
			// The next one's turn comes when this one's outcome is known, or has stopped mattering.
			l.discard(a, err, func() { l.gates.leave(a.asks.Key) })
		}
		return x, s.woken, err
	}
}

// stay is one stay in the line of a key, under a token of its own.
//
// The clock rules are those of the line's protocol. The anchor is the moment before the last look was sent that was
// answered "waiting", or before the first was; next is the fencing token that the server would have given to a grant at that
// look. A message with that one or a higher says that the lock was handed over after that look, so after the anchor; the look
// had set the mark to claim from then, and the lock was handed over for as long as the mark lasts. So the key outlives
// anchor + claim, or anchor + ttl where a renewal has set that, and a lease may be trusted until the smaller of them less the
// margin. Without the comparison an old message, of a grant that is over, would be trusted from a new look.
type stay struct {
	l      *Locker
	a      *attempt
	anchor clock.Moment
	next   int64         // 0 before the first answer: then no message is believed
	sent   bool          // something of its token may have reached Redis
	stray  bool          // and something that was given up, or sent again, may still be on its way
	reason error         // what it waits for
	woken  Wake          // by what it was woken last
	phase  time.Duration // of its looks
	grants chan grant    // length one, the newest is kept
}

// grant is what a release tells the waiter to whom it hands the lock: the fencing token. 0 is no grant, only "look".
type grant int64

func (s *stay) wakeID() string { return token.WakeID(s.a.asks.Token) }

// stand waits in the line until the lock is had. It returns neither a lease nor an error when the stay is over without
// either: skipped after a pause, flushed, or deleted by hand.
func (s *stay) stand(ctx context.Context) (*Lease, error) {
	s.woken = WokenAtOnce
	s.phase = mathrand.N(tick)
	s.anchor = s.l.now()
	s.grants = make(chan grant, 1)
	s.l.wakes.enter(s)
	defer s.l.wakes.leave(s)

	how, failures, slow := backend.Join, 0, 0
	for {
		begun := s.l.now()
		s.a.looks++
		ans, n, err := s.a.tenure.Acquire(ctx, how, tick+s.a.o.replicasIn)
		s.sent = s.sent || n > 0
		s.stray = s.stray || n > 1 || err != nil && n > 0
		var pause time.Duration
		woken := WokenByPoll
		switch {
		case err != nil:
			if over := s.over(ctx, err); over != nil {
				return nil, over
			}
			if !fault.Transient(err) {
				return nil, err
			}
			s.blame(err)
			pause = fault.Backoff(failures)
			failures++
		case ans.State == backend.Granted:
			if ans.Found && how == backend.Poll && slow == 0 && !s.stray && s.woken != WokenByMessage {
				s.l.wakes.missed(s)
			}
			x := s.l.lease(s.a, begun, ans.Fence)
			if !x.deadline.Reached(s.l.now()) {
				x.stray = s.stray
				return x, nil
			}
			if over := s.over(ctx, nil); over != nil {
				return nil, over
			}
			s.blame(&fault.NoAnswer{Bound: s.a.ttl - clock.Margin(s.a.ttl)})
			if slow++; slow == maxSlow {
				s.stray = true // undone: others may be quick enough
				return nil, nil
			}
			continue // too slow to be trusted: look again
		case ans.State == backend.Gone:
			return nil, nil
		case ans.State == backend.Waiting && !ans.Foreign && nested(ctx, s.a.asks.Key, func(x *Lease) bool { return x.fence == ans.Fence }):
			return nil, errNested // by another Locker of this Redis: no other key's lease has that number
		case ans.State == backend.Waiting:
			how, failures = backend.Poll, 0
			s.anchor, s.next = begun, max(min(ans.Fence, math.MaxInt64-1)+1, ans.Now)
			s.blame(heldBy(ans))
			s.l.wakes.listen(s)
			pause, woken = s.nextLook(begun, ans)
			pause -= time.Since(begun.Time)
		default:
			return nil, fault.ErrReply
		}
		x, err := s.sleep(ctx, pause, woken)
		if x != nil || err != nil {
			return x, err
		}
	}
}

// nextLook is the time from a look that was begun then to the next one, and by what the waiter is woken then.
//
// Each stay has an instant of its own in every tick, or all who have looked at one instant, as after an outage, would go on
// doing so. That is half a tick away at least: who is served sooner, as most are, needs no look for it.
func (s *stay) nextLook(begun clock.Moment, ans backend.Answer) (time.Duration, Wake) {
	if ans.Uncleared {
		return 0, WokenByPoll
	}
	pause, woken := tick-(time.Duration(begun.UnixNano())+s.phase)%tick, WokenByPoll
	if pause < tick/2 {
		pause += tick / 2
	}
	if ans.Foreign && ans.Rank == 0 {
		pause = plainTick - mathrand.N(plainTick/2)
	}
	if expiry := ans.Left + time.Millisecond + time.Duration(ans.Rank)*rankPause; !ans.Forever && expiry < pause {
		pause, woken = expiry, WokenByExpiry
	}
	return pause, woken
}

// poll asks once, and pauses if the lock is not to be had: what waits without a line. Every try is a stay of its own, with a
// token of its own: what the clean-up of the last one still has to undo must not be this one's.
func (s *stay) poll(ctx context.Context) (*Lease, error) {
	if s.woken = WokenByPoll; s.a.looks == 0 {
		s.woken = WokenAtOnce
	}
	x, _, err := s.l.try(ctx, s.a)
	if err == nil {
		return x, nil
	}
	if over := s.over(ctx, err); over != nil {
		return nil, over
	}
	if !errors.Is(err, ErrHeld) && !fault.Transient(err) {
		return nil, err
	}
	s.blame(err)
	return s.sleep(ctx, fault.Backoff(s.a.looks), WokenByPoll)
}

// sleep waits for a message or the time to look again. A message that can be trusted is the lease.
func (s *stay) sleep(ctx context.Context, pause time.Duration, woken Wake) (*Lease, error) {
	timer := time.NewTimer(max(pause, time.Millisecond))
	defer timer.Stop()
	select {
	case g := <-s.grants:
		if s.woken = WokenByMessage; g == 0 {
			s.woken = WokenByPoll
		}
		return s.trust(g), nil
	case <-timer.C:
		s.woken = woken
		return nil, nil
	case <-ctx.Done():
	case <-s.l.closing.Done():
	}
	return nil, s.over(ctx, nil)
}

// trust turns a message into a lease, or into nil: look.
//
// For some leases a look is needed, which is the confirmation and gives the full ttl: one that nobody renews, as Acquire
// cannot return it unconfirmed; one with a lock delay or replicas, since the hand-over sees to neither; one with a longest
// hold, which counts from now; and one that would have to be renewed at once.
func (s *stay) trust(g grant) *Lease {
	life := min(backend.WaiterTTL, s.a.ttl)
	deadline := s.anchor.Plus(life - clock.Margin(life))
	o := s.a.o
	if !s.a.auto || o.lockDelay > 0 || o.replicas > 0 || o.maxHold > 0 || deadline.Plus(-life/3).Reached(s.l.now()) {
		return nil
	}
	if !s.plausible(int64(g)) {
		return nil
	}
	x := s.l.lease(s.a, s.anchor, int64(g))
	if deadline.Before(x.deadline.Time) {
		x.deadline = deadline
	}
	if due := x.deadline.Add(-life / 3); due.Before(x.due) {
		x.due = due
	}
	x.stray = s.stray
	return x
}

// plausible reports whether the server can have given that fencing token since the last look that was answered. Anybody may
// publish, and a number far above the server's own would lock all later holders out of a resource that checks it.
//
// A fencing token is the server's time in µs, or one more than the token before it where that is higher; no two grants fall
// into one µs. So since the look they have risen by the time that has passed, at most. That time is measured here, from
// before the look was sent to after the message has come, so it is the longer one; the margin is there for clocks that run at
// different rates, and is what it is for a lease. A true message fails only if the server's clock was set meanwhile, or a
// failover went to a server whose clock is another. That costs one look.
func (s *stay) plausible(fence int64) bool {
	since := s.l.now().Sub(s.anchor.Time)
	return s.next > 0 && fence >= s.next && fence-s.next <= (since+clock.Margin(since)).Microseconds()
}

// blame notes what the stay waits for, and tells it if that is Redis.
func (s *stay) blame(reason error) {
	if errors.Is(reason, ErrHeld) && s.reason == reason {
		return // most often
	}
	s.reason = reason
	s.l.gates.blame(s.a.asks.Key, reason)
	if fault.Unavailable(reason) {
		s.l.retrying(s.a, reason)
	}
}

// over is why the wait must end, if it must. The error of the last look, if it had one, is what was waited for, unless it says no
// more than that the wait is over.
func (s *stay) over(ctx context.Context, last error) error {
	reason := s.reason
	if cut, isCut := last.(*fault.Wait); !isCut {
		reason = cmp.Or(last, reason)
	} else if reason == nil {
		reason = cut.Reason
	}
	switch {
	case ctx.Err() != nil:
		return fault.Ended(ctx, reason)
	case s.l.isClosed():
		return &fault.Wait{Reason: reason, Ended: ErrClosed}
	}
	return nil
}
