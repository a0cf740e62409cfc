package roundtrip

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/inflight"
	"github.com/redis/go-redis/v9"
)

const (
	// freeTrips is how many round trips are under way before commands begin to share the next ones.
	// With two, one batch gathers while the other is on its way. A lone caller never meets the
	// limit.
	freeTrips = 2
	// maxTrips bounds the round trips when some have stalled.
	maxTrips = 16
	// maxBatch bounds the commands of one round trip.
	maxBatch = 256
	// stall is how long a command waits for a round trip before another one is started beside those
	// that are under way: one dead connection, or one slow node of a cluster, must not hold up the
	// rest.
	stall = 20 * time.Millisecond
	// overdue is how long a round trip counts as one that is under way. One that has stalled for
	// ever, as on a connection that a balancer has forgotten, must not count against new ones for
	// ever.
	overdue = time.Second
	// maxOverdue bounds the round trips that count no more, since each has a goroutine, and most a
	// connection.
	maxOverdue = 64
	// FirstBound is how long a command is waited for by a client that could never connect. By then
	// go-redis, with its defaults, has said why.
	FirstBound = 3 * time.Second
	// silence is how long there may be no answer until the connections are suspected, and the slots
	// of a cluster.
	silence = 250 * time.Millisecond
)

// sender sends the commands for one server, several in a round trip where several are ready.
//
// A caller does not sit in go-redis itself, but for a moment where nothing else can hold it there
// (see lead.go). By default go-redis leaves a command that is on the wire only after its own
// timeouts, whatever becomes of the context; here the caller's context and bound end the caller's
// wait, and the round trip goes on by itself. That is why each round trip has a goroutine (see
// trip.go). The goroutine ends with the last command that was ready, so an idle sender has none.
// This is group commit: what becomes ready while round trips are under way shares the next one.
//
// Rejected: a goroutine that collects batches, since a lone caller would pay for its wake-up and
// its patience; and go-redis's own AutoPipeline, for the same reason.
//
// Lock order: a caller may hold the mutex of a lease, of a tenure or of a node while it calls a
// sender; a sender holds mu while it calls nothing but its inflight.Group. Commands are answered,
// and hooks of the client run, without mu.
type sender struct {
	client   redis.UniversalClient
	topology *Topology
	way      *way
	leader   *leader     // nil: no caller leads
	used     time.Time   // of a node's sender: when it was last asked for, guarded by Client.mu
	crowded  atomic.Bool // the last round trip that began was for several commands
	apart    atomic.Bool // the server has refused a run of a script for several keys
	run      func()      // s.trips, bound once: a go statement with it allocates nothing
	waits    sync.Pool   // of *wait; not global, since a test's bubble may own its channels

	mu         sync.Mutex // guards what follows
	queue      []*Command // ready to be sent
	dequeued   time.Time  // when commands were last taken out of the queue
	counted    int        // goroutines that count as a round trip under way
	writtenOff int        // goroutines whose round trip is overdue, and counts no more
	slots      [maxTrips]slot
	started    int64       // round trips, ever
	stallTimer *time.Timer // runs while commands are queued behind freeTrips; it is stopped by close, and not waited for
	silent     time.Time   // since when there has been no answer; zero: nobody has asked since the last
	scouted    time.Time   // when scouts were sent last
	goroutines inflight.Group
}

// slot is the place of a round trip that is under way and counts.
type slot struct {
	since time.Time // zero: the slot is free
	trip  int64     // whose it is
}

func newSender(client redis.UniversalClient, t *Topology) *sender {
	s := &sender{client: client, topology: t, way: &way{client: client}, leader: newLeader(client)}
	s.run = s.trips
	s.waits.New = func() any {
		t := time.NewTimer(time.Hour)
		t.Stop()
		return &wait{make(chan struct{}, 1), t}
	}
	return s
}

// await sends the command and waits for its answer, no longer than ctx and bound allow. How the
// command is sent, send says.
func (s *sender) await(ctx context.Context, c *Command, bound time.Duration, send func(*Command)) (any, int, error) {
	if ctx.Err() != nil {
		return nil, c.Writes(), fault.Ended(ctx, nil)
	}
	w := s.waits.Get().(*wait)
	w.timer.Reset(bound - c.spent)
	c.wait, c.values.Context = w, ctx
	send(c)
	var err error
	for err == nil {
		select {
		case <-w.done:
			w.timer.Stop()
			s.waits.Put(w)
			return c.reply, c.Writes(), c.err
		case <-ctx.Done():
			err = fault.Unanswered(ctx, c.Silence(0))
			w.timer.Stop()
		case <-w.timer.C:
			if bound < FirstBound && c.Writes() == 0 && s.way.unknown() {
				w.timer.Reset(FirstBound - bound)
				bound = FirstBound
				continue
			}
			err = c.Silence(bound)
		}
	}
	if c.Withdraw() {
		s.waits.Put(w)
		return nil, c.Writes(), err
	}
	return nil, max(1, c.Writes()), err // it may be on its way; its round trip still knows w
}

// send queues the command and sees to it that the command is sent soon.
func (s *sender) send(c *Command) {
	s.mu.Lock()
	c.with.Store(s)
	s.queue = append(s.queue, c)
	s.dispatch()
	s.mu.Unlock()
}

// enqueue queues the command. It is sent by the next flush, or by any round trip before.
func (s *sender) enqueue(c *Command) {
	s.mu.Lock()
	c.with.Store(s)
	s.queue = append(s.queue, c)
	s.mu.Unlock()
}

// flush has the queue sent.
func (s *sender) flush() {
	s.mu.Lock()
	if len(s.queue) > 0 {
		s.dispatch()
	}
	s.mu.Unlock()
}

// dispatch sees to it that what is queued is sent soon: by a round trip of its own, or by those
// that are under way. s.mu is held.
func (s *sender) dispatch() {
	if s.counted >= freeTrips {
		s.writeOff()
	}
	switch {
	case s.counted < freeTrips:
		s.launch()
	case s.stallTimer == nil:
		s.dequeued = time.Now()
		s.stallTimer = time.AfterFunc(stall, s.unstall)
	}
}

// launch starts a goroutine of round trips. s.mu is held.
func (s *sender) launch() {
	s.counted++
	s.goroutines.Enter()
	go s.run()
}

// writeOff frees the slots of round trips that are overdue, so that others can be started. s.mu is
// held.
func (s *sender) writeOff() {
	for now, i := time.Now(), 0; i < len(s.slots) && s.writtenOff < maxOverdue; i++ {
		if t := &s.slots[i]; !t.since.IsZero() && now.Sub(t.since) >= overdue {
			*t = slot{}
			s.counted--
			s.writtenOff++
		}
	}
}

// unstall starts one more round trip if queued commands have waited too long for those under way.
// It is the stall timer's.
func (s *sender) unstall() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		s.stallTimer = nil
		return
	}
	if time.Since(s.dequeued) >= stall {
		if s.counted == maxTrips {
			s.writeOff()
		}
		if s.counted < maxTrips {
			s.launch()
		}
	}
	s.stallTimer.Reset(stall)
}

// isIdle reports whether nothing is queued or under way.
func (s *sender) isIdle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue) == 0 && s.counted+s.writtenOff == 0
}

// close waits for the goroutines until ctx ends, and reports whether all have ended.
func (s *sender) close(ctx context.Context) bool {
	s.goroutines.Wait(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stallTimer != nil {
		s.stallTimer.Stop()
	}
	if s.leader != nil {
		s.leader.end()
	}
	return s.goroutines.Len() == 0
}
