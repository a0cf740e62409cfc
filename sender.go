package leasehold

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/go-leasehold/leasehold/internal/inflight"
	"github.com/redis/go-redis/v9"
)

const (
	// freeFlights is how many round trips are under way before calls begin to share the next ones. With two,
	// one batch gathers while the other is on its way; a lone caller never meets the limit.
	freeFlights = 2
	// maxFlights bounds the round trips, when some are stuck.
	maxFlights = 16
	// maxBatch bounds the calls of one round trip.
	maxBatch = 256
	// stuck is how long a call waits for a round trip before another one is started beside those that are
	// under way: one dead connection, or one slow node of a cluster, must not hold up the rest.
	stuck = 20 * time.Millisecond
	// silence is how long a round trip may take until a cluster is asked whether the server still has its slots.
	silence = 250 * time.Millisecond
)

// sender sends the calls of a Locker to one client, several in a round trip where several are ready.
//
// A call's caller never sits in go-redis itself. By default go-redis leaves a command that is on the wire
// only after its own timeouts, whatever becomes of the context; here the caller's context and bound end the
// caller's wait, and the round trip goes on by itself. That is why each has a goroutine; it ends with the
// last call that was ready, so an idle sender has none. Rejected: a goroutine that collects batches (a lone
// caller pays for its wake-up and its patience), and go-redis's own AutoPipeline (the same).
type sender struct {
	client   redis.UniversalClient
	topology *topology
	used     time.Time // of a node's: when it was last asked for, guarded by deployment.mu
	fly      func()    // s.flight, bound once: a go statement with it allocates nothing
	waits    sync.Pool // of *wait; not global, since a test's bubble may own its channels

	mu      sync.Mutex
	queue   []*call // ready to be sent
	flights int     // goroutines in flight
	taken   time.Time
	rescue  *time.Timer // runs while calls are queued
	landed  inflight.Group
}

func newSender(client redis.UniversalClient, t *topology) *sender {
	s := &sender{client: client, topology: t}
	s.fly = s.flight
	s.waits.New = func() any {
		t := time.NewTimer(time.Hour)
		t.Stop()
		return &wait{make(chan struct{}, 1), t}
	}
	return s
}

// do sends the call and waits for its answer, no longer than ctx and bound allow.
func (s *sender) do(ctx context.Context, c *call, bound time.Duration) (any, sent, error) {
	return s.await(ctx, c, bound, s.post)
}

// await is do with a way of sending.
func (s *sender) await(ctx context.Context, c *call, bound time.Duration, post func(*call)) (any, sent, error) {
	if ctx.Err() != nil {
		return nil, 0, ended(ctx, nil)
	}
	w := s.waits.Get().(*wait)
	w.timer.Reset(bound)
	c.wait, c.values.Context = w, ctx
	post(c)
	var err error
	select {
	case <-w.done:
		w.timer.Stop()
		s.waits.Put(w)
		return c.reply, c.written(), c.err
	case <-ctx.Done():
		err = ended(ctx, nil)
		w.timer.Stop()
	case <-w.timer.C:
		err = &noAnswerError{bound}
	}
	if c.withdraw() {
		s.waits.Put(w)
		return nil, 0, err
	}
	return nil, max(1, c.written()), err // it may be on its way; its flight still knows w
}

// post hands the call to a round trip.
func (s *sender) post(c *call) {
	s.mu.Lock()
	c.with.Store(s)
	s.queue = append(s.queue, c)
	s.depart()
	s.mu.Unlock()
}

// put adds the call to a round trip that flush begins, or somebody before.
func (s *sender) put(c *call) {
	s.mu.Lock()
	c.with.Store(s)
	s.queue = append(s.queue, c)
	s.mu.Unlock()
}

// flush has sent what was put.
func (s *sender) flush() {
	s.mu.Lock()
	if len(s.queue) > 0 {
		s.depart()
	}
	s.mu.Unlock()
}

// depart sees to it that what is queued is sent soon. s.mu is held.
func (s *sender) depart() {
	switch {
	case s.flights < freeFlights:
		s.launch()
	case s.rescue == nil:
		s.taken = time.Now()
		s.rescue = time.AfterFunc(stuck, s.unstick)
	}
}

// launch starts a round trip. s.mu is held.
func (s *sender) launch() {
	s.flights++
	s.landed.Enter()
	go s.fly()
}

// isIdle reports whether nothing is queued or under way.
func (s *sender) isIdle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue) == 0 && s.flights == 0
}

// unstick starts one more round trip if queued calls have waited too long for those under way.
func (s *sender) unstick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		s.rescue = nil
		return
	}
	if time.Since(s.taken) >= stuck && s.flights < maxFlights {
		s.launch()
	}
	s.rescue.Reset(stuck)
}

// flight sends what is queued, again and again, until nothing is.
func (s *sender) flight() {
	defer s.landed.Leave()
	growStack(0)
	var one [1]*call
	batch := one[:0]
	defer func() { s.land(batch) }()
	for {
		s.mu.Lock()
		n := min(len(s.queue), maxBatch)
		if n == 0 {
			batch = nil
			s.mu.Unlock()
			return
		}
		batch = append(batch[:0], s.queue[:n]...)
		s.queue = slices.Delete(s.queue, 0, n)
		if s.rescue != nil {
			s.taken = time.Now()
		}
		s.mu.Unlock()

		s.send(batch)
		var answered *call
		for i, c := range batch {
			batch[i] = nil
			if c.finish(); c.err == nil {
				answered = c
			}
		}
		if answered != nil {
			s.topology.learn(answered.key) // last: it is the client's code too
		}
	}
}

// land ends a flight. It has calls left if its goroutine ended in the client, as a hook's runtime.Goexit makes it.
func (s *sender) land(left []*call) {
	for _, c := range left {
		if c != nil {
			c.abandoned()
			c.finish()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flights--
	if len(s.queue) > 0 {
		s.depart()
	}
}

// growStack gives a new goroutine at once, while there is next to nothing to copy, the stack that a call of go-redis takes.
// Growing it there, step by step and deep in calls, took longer than all the rest of a round trip's work.
//
//go:noinline
func growStack(i int) byte {
	var room [6 << 10]byte // an index that is not known keeps the compiler from leaving it out
	return room[i]
}

// send is a round trip. On a cluster it has the slots asked for when it takes long, and when no server could be reached.
func (s *sender) send(batch []*call) {
	if s.topology.reload != nil {
		late := time.AfterFunc(silence, s.topology.refresh)
		defer late.Stop()
	}
	if len(batch) == 1 {
		_ = s.sendOne(batch[0])
	} else {
		s.sendAll(batch)
	}
	if s.topology.reload != nil && slices.ContainsFunc(batch, func(c *call) bool { return c.err != nil && newsOf(c.err) == answerless }) {
		s.topology.refresh()
	}
}

// sendOne is a round trip for one call, and a second one if the server had forgotten its script. It returns the command that was
// answered.
func (s *sender) sendOne(c *call) (cmd *redis.Cmd) {
	defer recovered(c)
	ctx := &c.values
	for again := true; again; again = c.unknownScript(cmd) {
		cmd = c.command(ctx)
		_ = s.client.Process(ctx, cmd)
	}
	c.reply, c.err = cmd.Val(), cmd.Err()
	return cmd
}

// sendAll is a round trip for several calls, and a second one for those whose script the server had forgotten.
func (s *sender) sendAll(batch []*call) {
	defer recovered(batch...)
	for len(batch) > 0 {
		pipe := s.client.Pipeline()
		cmds := make([]*redis.Cmd, len(batch))
		for i, c := range batch {
			cmds[i] = c.command(context.Background())
			_ = pipe.Process(context.Background(), cmds[i])
		}
		_, err := pipe.Exec(context.Background())
		var again []*call
		for i, c := range batch {
			if c.unknownScript(cmds[i]) {
				again = append(again, c)
				continue
			}
			c.reply, c.err = cmds[i].Val(), cmds[i].Err()
			if c.reply == nil && c.err == nil {
				c.err = err // a hook of the client answered for it
			}
		}
		batch = again
	}
}

// close waits for the round trips under way.
func (s *sender) close(ctx context.Context) bool {
	s.landed.Wait(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rescue != nil {
		s.rescue.Stop()
	}
	return s.flights == 0
}
