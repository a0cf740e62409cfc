package roundtrip

import (
	"context"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/push"
)

const (
	// quick is how fast the server has to answer, in the mean, for a caller to lead.
	quick = 5 * time.Millisecond
	// slow is what the mean becomes when a caller led in vain, and what it is before the first
	// answer. About eight quick answers bring it below quick.
	slow = 8 * quick
	// lately is for how long an answer counts.
	lately = time.Second
	// ledTime is how long a caller leads at most.
	ledTime = 25 * time.Millisecond
	// ledSpare is how much of ledTime may be gone when a round trip begins, so that one context
	// serves all that begin within that time.
	ledSpare = 5 * time.Millisecond
	// enoughToLead is what the context and the bound of a caller have to leave. The ordinary way
	// then has at least half of it if the caller leads in vain.
	enoughToLead = 2 * ledTime
)

// A leader has what a caller needs to make its own round trip. A lone caller does so where it can:
// it leads. To hand the command to a goroutine, and to get the answer back, makes the scheduler of
// Go wake an idle thread each time, if there is one: with GOMAXPROCS=2 that took between a seventh
// and a third of the time of an acquire and release on one CPU. A caller that leads wakes nobody.
//
// A caller must not be held by code of the user's, and not by a server that is silent. Hence the
// conditions, which leads checks for each command:
//
//   - The client is go-redis's own for one server, not a wrapper, and has no hooks at the moment.
//     So a hook that hangs, panics or ends its goroutine has a goroutine of the sender's, as ever.
//     The same goes for the functions of Options that go-redis would call in the caller's
//     goroutine.
//   - Nothing is queued or under way, and the last round trip was not for several commands. So
//     commands share round trips, and overtake none, as ever.
//   - The server has answered lately, and in less than quick in the mean of the last answers.
//   - The caller has time for an attempt in vain. go-redis gets a context that ends within ledTime,
//     and a client that heeds contexts while it reads and writes. So a context of the caller's that
//     is cancelled while the caller leads is noticed that much later; nothing else is.
//
// What has no answer by then is sent once more, on the ordinary way: go-redis has returned, so
// nothing of the command is under way any more, but the server may have got it. That is how
// go-redis itself repeats a command, and counts as it does, at each write of the token.
//
// Rejected: a goroutine that is parked between commands, because a thread is woken all the same. A
// coroutine (iter.Pull) for go-redis wakes nobody. But the goroutine of a timer would have to yield
// in its place to free the caller, and such a switch from another thread crashes a program in which
// the caller is bound to its thread. The client's own ReadTimeout is too long a limit (5 s by
// default). A timer for each command may wake a thread, too.
type leader struct {
	client *redis.Client // one that heeds contexts and shares the pool of the user's client
	hooks  *atomic.Pointer[hooks]

	// These are guarded by the sender's mu.
	mean  time.Duration // a moving mean of the times of round trips
	heard time.Time     // when the server answered last
	until time.Time     // the deadline of term
	term  context.Context
	end   context.CancelFunc // of term
}

// hooks is the beginning of what go-redis calls hooksState: a client's hooks at one moment.
type hooks struct{ list []redis.Hook }

// newLeader returns nil for a client with which nobody can lead. It sends nothing.
func newLeader(client redis.UniversalClient) (l *leader) {
	c, ok := client.(*redis.Client)
	if !ok {
		return nil
	}
	defer func() {
		if recover() != nil { // a client that nobody made, such as a nil one
			l = nil
		}
	}()
	o, at := c.Options(), hooksOf(c)
	_, isGoRedis := o.PushNotificationProcessor.(*push.Processor)
	switch {
	case at == nil, !isGoRedis,
		o.MaxRetries <= 0,                     // a caller that leads in vain has its command repeated
		o.ReadTimeout < 0, o.WriteTimeout < 0, // go-redis sets no deadlines then, whatever the context says
		o.OnConnect != nil, o.Limiter != nil,
		o.CredentialsProvider != nil, o.CredentialsProviderContext != nil, o.StreamingCredentialsProvider != nil:
		return nil
	}
	l = &leader{client: c, hooks: at, mean: slow, end: func() {}}
	if !o.ContextTimeoutEnabled {
		// WithTimeout shares the pool, and copies the options. It also leaves the hooks behind, of
		// which there are none while anybody leads.
		l.client = c.WithTimeout(o.ReadTimeout)
		copied := l.client.Options()
		if copied == o {
			return nil
		}
		copied.WriteTimeout, copied.ContextTimeoutEnabled = o.WriteTimeout, true
	}
	return l
}

// hooksOf finds where a client has its hooks. There is no method that tells, so it looks into the
// client, and returns nil if a release of go-redis keeps its hooks otherwise: then nobody leads, and
// no more is lost than that.
//
// Rejected: a hook of our own, which is called when another one is added. It does not show those
// that were there before, and the client is the user's.
func hooksOf(c *redis.Client) (at *atomic.Pointer[hooks]) {
	defer func() { _ = recover() }() // of reflect, when there is no such field
	state := reflect.ValueOf(c).Elem().FieldByName("baseClient").Elem().FieldByName("hooksMixin").FieldByName("state")
	pointer := state.Type().Elem()
	load, _ := state.Type().MethodByName("Load")
	if pointer.PkgPath() != "sync/atomic" || !strings.HasPrefix(pointer.Name(), "Pointer[") {
		return nil
	}
	if first := load.Type.Out(0).Elem().Field(0); first.Type != reflect.TypeFor[[]redis.Hook]() {
		return nil
	}
	return (*atomic.Pointer[hooks])(state.UnsafePointer())
}

// leads makes the round trip of a command in the goroutine of its caller, if it may, and reports
// whether the server has answered. If not, nothing of the command is under way.
func (s *sender) leads(ctx context.Context, c *Command, bound time.Duration) (answered bool) {
	l := s.leader
	// Whoever has the mutex is here as well.
	if l == nil || s.crowded.Load() || len(l.hooks.Load().list) > 0 || bound < enoughToLead || ctx.Err() != nil || !s.mu.TryLock() {
		return false
	}
	now := time.Now()
	end, ends := ctx.Deadline()
	if len(s.queue) > 0 || s.counted+s.writtenOff > 0 || l.mean >= quick || now.Sub(l.heard) > lately ||
		ends && end.Sub(now) < enoughToLead {
		s.mu.Unlock()
		return false
	}
	// From here on it is a trip like the others, of a single round.
	var t trip
	s.counted++
	s.goroutines.Enter()
	s.occupy(&t, now)
	c.with.Store(s)
	c.led = led{l.at(now), ctx}
	s.mu.Unlock()

	defer s.goroutines.Leave()
	defer func() { s.end(&t, nil) }()
	c.sendOne(l.client, &c.led)
	if !fault.IsSaid(c.err) {
		c.reply, c.err, c.spent = nil, nil, time.Since(now)
		s.mu.Lock()
		l.mean = slow
		s.mu.Unlock()
		return false
	}
	c.conclude()
	t.answered, c.private = c.key, true
	return true
}

// at returns the context for a round trip that begins now. The sender's mu is held.
func (l *leader) at(now time.Time) context.Context {
	if l.until.Sub(now) < ledTime-ledSpare {
		l.end() // nobody uses it any more
		l.until = now.Add(ledTime)
		l.term, l.end = context.WithDeadline(context.Background(), l.until)
	}
	return l.term
}

// note takes in that a round trip was answered. One that took very long counts as slow, and is
// forgotten as soon. The sender's mu is held.
func (l *leader) note(since time.Time) {
	l.heard = time.Now()
	l.mean += (min(l.heard.Sub(since), slow) - l.mean) / 4
}

// led is the context of a round trip that its caller leads: it ends by its term, and has the values
// of the caller's context.
type led struct {
	context.Context
	values context.Context
}

func (l *led) Value(key any) any { return l.values.Value(key) }
