package line

import (
	"context"
	"math"
	mathrand "math/rand/v2"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/token"
)

// PollInterval is the longest time between two polls of a waiter. The waiter's heartbeat in Redis,
// good for [backend.WaiterTTL], survives one poll that is lost or late.
const PollInterval = time.Second

const (
	// foreignPollInterval is PollInterval for the head of the line behind a client of another
	// library, which tells nobody that it has released the lock.
	foreignPollInterval = 50 * time.Millisecond
	// pollGrid is the distance of the instants at which the waiters of one Line poll. Those that have
	// the same instant share a round trip: many who wait for keys of their own cost a fifth of what
	// they cost if each has its own.
	pollGrid = 20 * time.Millisecond
	// rankPause keeps those behind the head of the line from polling at the very instant of an
	// expiry, all at once.
	rankPause = 3 * time.Millisecond
	// maxLate is how many grants in a row may come too late to be trusted before the place is given
	// up.
	maxLate = 3
)

// place is one place in the line of a key, from its join to its end, under a token of its own. One
// goroutine uses it, but for messages, which the notifier sends.
//
// A place is joined by the first attempt that is answered, and kept by every later one, which
// polls. It ends with a grant, with the wait, or without either, as errGone. A place that has ended
// is never taken up again: its token may be buried, or on its way in a copy that go-redis has sent
// again.
//
// The clock rules are those of the line's protocol. The anchor is the moment before the last poll
// was sent that was answered "waiting"; next is the fencing token that the server would have given
// to a grant at that poll. A message with that number or a higher one says that the lock was handed
// over after that poll, so after the anchor; the poll had set the heartbeat to backend.WaiterTTL
// from then, and the lock was handed over for as long as the heartbeat lasts. So the key outlives
// anchor + WaiterTTL, or anchor + TTL where a renewal has set that, and a lease may be trusted
// until the smaller of them less the margin. Without the comparison an old message, of a grant that
// is over, would be trusted after a new poll.
type place struct {
	l  *Line
	w  *Waiter
	id string // of its token, in messages

	mode     backend.Mode // Join, and Poll once the token is known to stand in the line
	anchor   clock.Moment
	next     int64         // 0 before the first answer: then no message is believed
	failures int           // attempts in a row without an answer
	late     int           // grants in a row that came too late to be trusted
	sent     bool          // something of its token may have reached Redis
	resent   bool          // and something that was given up, or sent again, may still be on its way
	woken    Woken         // by what it was woken last
	phase    time.Duration // of its polls
	messages chan message  // of length one; the newest is kept
}

func newPlace(l *Line, w *Waiter) *place {
	return &place{
		l: l, w: w, id: token.WakeID(w.Token),
		mode:     backend.Join,
		anchor:   l.clock.Now(),
		phase:    l.phase + mathrand.N(PollInterval/pollGrid)*pollGrid,
		messages: make(chan message, 1),
	}
}

// wait joins the line and polls until the lock is granted. Its error is errGone if the place is
// gone.
func (p *place) wait(ctx context.Context) (Grant, error) {
	p.l.notifier.add(p)
	defer p.l.notifier.remove(p)
	for {
		begun := p.l.clock.Now()
		ans, err := p.send(ctx)
		pause, woken := time.Duration(0), ByPoll
		switch {
		case err != nil:
			pause, err = p.failed(ctx, err)
		case ans.State == backend.Granted:
			p.noteMissed(ans)
			if !p.l.isLate(p.w, begun) {
				return p.grant(begun, 0, ans.Fence, ans.Slot), nil
			}
			if err = p.tooLate(ctx); err == nil {
				continue // the lock is ours, and the next answer may come in time
			}
		case ans.State == backend.Waiting:
			pause, woken, err = p.waiting(ctx, begun, ans)
		case ans.State == backend.Gone:
			err = errGone
		default:
			err = fault.ErrReply
		}
		if err != nil {
			return Grant{}, err
		}
		if g, granted, err := p.sleep(ctx, pause, woken); granted || err != nil {
			return g, err
		}
	}
}

// send sends one attempt, and notes what may be on its way.
func (p *place) send(ctx context.Context) (backend.Answer, error) {
	p.w.Attempts++
	ans, writes, err := p.w.tenure.Acquire(ctx, p.mode, PollInterval+p.w.ReplicasWithin)
	p.sent = p.sent || writes > 0
	p.resent = p.resent || writes > 1 || err != nil && writes > 0
	return ans, err
}

// failed takes in that an attempt had no answer. It returns the time until the next one, or why
// there is none.
func (p *place) failed(ctx context.Context, err error) (pause time.Duration, _ error) {
	if over := p.l.over(ctx, p.w, err); over != nil {
		return 0, over
	}
	if !fault.Transient(err) {
		return 0, err
	}
	p.l.blame(p.w, err)
	p.failures++
	return fault.Backoff(p.failures - 1), nil
}

// tooLate takes in a grant that had come too late to be trusted. It returns nil if another attempt
// is to be made at once: the token has the lock, and the next answer, which counts from that
// attempt, may be quicker. A place that was too slow several times in a row is given up, or a
// process that is always too slow would keep the lock from others and never have it.
func (p *place) tooLate(ctx context.Context) error {
	if over := p.l.over(ctx, p.w, nil); over != nil {
		return over
	}
	p.l.blame(p.w, &fault.NoAnswer{Bound: p.w.TTL - clock.Margin(p.w.TTL)})
	if p.late++; p.late < maxLate {
		return nil
	}
	p.resent = true // so it is cancelled: others may be quick enough
	return errGone
}

// waiting takes in that the token stands in the line. It returns the time until the next poll, and
// by what the waiter is woken then; or an error if the wait would never end.
func (p *place) waiting(ctx context.Context, begun clock.Moment, ans backend.Answer) (time.Duration, Woken, error) {
	if !ans.Foreign {
		if err := p.w.Caller.Refuse(ctx, ans.Fence); err != nil {
			return 0, ByPoll, err
		}
	}
	p.mode, p.failures = backend.Poll, 0
	p.anchor, p.next = begun, max(min(ans.Fence, math.MaxInt64-1)+1, ans.Now)
	p.l.blame(p.w, heldBy(ans))
	p.l.notifier.listen(p)
	pause, woken := p.nextPoll(begun, ans)
	return pause - time.Since(begun.Time), woken, nil
}

// nextPoll is the time from a poll that was begun then to the next one, and by what the waiter is
// woken then. The next poll comes at the waiter's own instant of the interval; soon, if the holder
// will not tell of its release; at the moment at which the key expires, if that is sooner; and at
// once, if this poll has only cleared dead places away.
//
// Each place has its instant in every interval, or all who have polled at one instant, as after an
// outage, would go on doing so. It shares the instant with few others of its own Line. The next is
// half an interval away at least: who is served sooner, as most are, needs no poll for it.
func (p *place) nextPoll(begun clock.Moment, ans backend.Answer) (time.Duration, Woken) {
	if ans.Uncleared {
		return 0, ByPoll
	}
	pause, woken := PollInterval-(time.Duration(begun.UnixNano())+p.phase)%PollInterval, ByPoll
	if pause < PollInterval/2 {
		pause += PollInterval / 2
	}
	if ans.Foreign && ans.Rank == 0 {
		pause = foreignPollInterval - mathrand.N(foreignPollInterval/2)
	}
	// A poll within the last millisecond before that would find the key gone, or come for nothing.
	if expiry := ans.Left + time.Millisecond + time.Duration(ans.Rank)*rankPause; !ans.Forever && expiry < pause+time.Millisecond {
		pause, woken = expiry, ByExpiry
	}
	return pause, woken
}

// sleep waits for a message or for the time of the next poll. A message that can be trusted is a
// grant.
func (p *place) sleep(ctx context.Context, d time.Duration, woken Woken) (_ Grant, granted bool, _ error) {
	m, heard, err := p.l.pause(ctx, p.w, d, p.messages)
	switch {
	case err != nil:
		return Grant{}, false, err
	case !heard:
		p.woken = woken
		return Grant{}, false, nil
	case m == pollNow:
		p.woken = ByPoll
		return Grant{}, false, nil
	}
	p.woken = ByMessage
	g, trusted := p.trust(m)
	return g, trusted, nil
}

// trust turns a message into a grant, if it is to be trusted without a poll.
//
// For some leases a poll is needed, which confirms the grant and gives the full TTL: a lease that
// nobody renews, because Acquire cannot return it unconfirmed; one with a lock delay or replicas,
// because the hand-over sees to neither; one with a longest or least hold, which counts from now;
// one that would have to be renewed at once; and one of those that several hold, if the message
// names no slot: then a script that knows exclusive leases alone has handed the lock over, and the
// poll makes it one that others can join.
func (p *place) trust(m message) (_ Grant, trusted bool) {
	w := p.w
	life := min(backend.WaiterTTL, w.TTL)
	deadline := p.anchor.Plus(life - clock.Margin(life))
	if !w.AutoRenew || w.LockDelay > 0 || w.Replicas > 0 || w.MaxHold > 0 || w.MinHold > 0 || deadline.Plus(-life/3).Reached(p.l.clock.Now()) {
		return Grant{}, false
	}
	if !p.isPlausible(m.fence) || w.Kind != token.Exclusive && !m.placed {
		return Grant{}, false
	}
	return p.grant(p.anchor, life, m.fence, m.slot), true
}

// grant is the lock, had by a call that began at the anchor or handed over after it.
func (p *place) grant(anchor clock.Moment, life time.Duration, fence int64, slot int) Grant {
	return Grant{
		Token: p.w.Token, Tenure: p.w.tenure,
		Anchor: anchor, Life: life, Fence: fence, Slot: slot,
		Resent: p.resent, Woken: p.woken,
	}
}

// isPlausible reports whether the server can have given that fencing token since the last poll that
// was answered. Anybody may publish, and a number far above the server's own would lock all later
// holders out of a resource that checks it.
//
// A fencing token is the server's time in µs, or one more than the token before it where that is
// higher; no two grants fall into one µs. So since the poll they have risen by the time that has
// passed, at most. That time is measured here, from before the poll was sent to after the message
// has come, so it is the longer one; the margin is there for clocks that run at different rates,
// and is what it is for a lease. A true message fails only if the server's clock was set meanwhile,
// or a failover went to a server whose clock is another. That costs one poll.
func (p *place) isPlausible(fence int64) bool {
	since := p.l.clock.Now().Sub(p.anchor.Time)
	return p.next > 0 && fence >= p.next && fence-p.next <= (since+clock.Margin(since)).Microseconds()
}

// noteMissed tells the notifier of a grant that a poll has found, though a message should have told
// of it. No message was due for a grant that was made by this very poll, or by one before whose
// answer was lost or late; and one that came and was not trusted was not missed.
func (p *place) noteMissed(ans backend.Answer) {
	if ans.Found && p.mode == backend.Poll && p.late == 0 && !p.resent && p.woken != ByMessage {
		p.l.notifier.missed(p)
	}
}
