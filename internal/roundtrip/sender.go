package roundtrip

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/go-leasehold/leasehold/internal/fault"
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
	// overdue is how long a round trip counts as one that is under way. What is stuck for ever, as on a connection that a
	// balancer has forgotten, must not count against new ones for ever.
	overdue = time.Second
	// maxOverdue bounds the round trips that count no more, since each has a goroutine, and most a connection.
	maxOverdue = 64
	// FirstBound is how long a call is waited for by a client that could never connect. By then go-redis, with its defaults, has said
	// why.
	FirstBound = 3 * time.Second
	// silence is how long there may be no answer until the connections are suspected, and the slots of a cluster.
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
	topology *Topology
	way      *way
	used     time.Time // of a node's: when it was last asked for, guarded by Client.mu
	fly      func()    // s.flight, bound once: a go statement with it allocates nothing
	waits    sync.Pool // of *wait; not global, since a test's bubble may own its channels

	mu      sync.Mutex // guards what follows
	queue   []*Command // ready to be sent
	flights int        // goroutines that count as being in flight
	under   [maxFlights]departure
	boarded int64     // so many flights have been under way
	lost    int       // goroutines that count no more
	silent  time.Time // since when there has been no answer; zero: nobody has asked since the last
	scouted time.Time // when scouts were sent last
	taken   time.Time
	rescue  *time.Timer    // runs while calls are queued
	landed  inflight.Group // all goroutines
}

// departure is a round trip that is under way.
type departure struct {
	at time.Time // zero: there is none
	id int64     // of the flight
}

func newSender(client redis.UniversalClient, t *Topology) *sender {
	s := &sender{client: client, topology: t, way: &way{client: client}}
	s.fly = s.flight
	s.waits.New = func() any {
		t := time.NewTimer(time.Hour)
		t.Stop()
		return &wait{make(chan struct{}, 1), t}
	}
	return s
}

// await sends the call and waits for its answer, no longer than ctx and bound allow.
func (s *sender) await(ctx context.Context, c *Command, bound time.Duration, post func(*Command)) (any, int, error) {
	if ctx.Err() != nil {
		return nil, 0, fault.Ended(ctx, nil)
	}
	w := s.waits.Get().(*wait)
	w.timer.Reset(bound)
	c.wait, c.values.Context = w, ctx
	post(c)
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
		return nil, 0, err
	}
	return nil, max(1, c.Writes()), err // it may be on its way; its flight still knows w
}

// post hands the call to a round trip.
func (s *sender) post(c *Command) {
	s.mu.Lock()
	c.with.Store(s)
	s.queue = append(s.queue, c)
	s.depart()
	s.mu.Unlock()
}

// put adds the call to a round trip that flush begins, or somebody before.
func (s *sender) put(c *Command) {
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
	if s.flights >= freeFlights {
		s.writeOff()
	}
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
	return len(s.queue) == 0 && s.flights+s.lost == 0
}

// writeOff counts no more what is overdue. s.mu is held.
func (s *sender) writeOff() {
	for now, i := time.Now(), 0; i < len(s.under) && s.lost < maxOverdue; i++ {
		if d := &s.under[i]; !d.at.IsZero() && now.Sub(d.at) >= overdue {
			*d = departure{}
			s.flights--
			s.lost++
		}
	}
}

// unstick starts one more round trip if queued calls have waited too long for those under way.
func (s *sender) unstick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		s.rescue = nil
		return
	}
	if time.Since(s.taken) >= stuck {
		if s.flights == maxFlights {
			s.writeOff()
		}
		if s.flights < maxFlights {
			s.launch()
		}
	}
	s.rescue.Reset(stuck)
}

// flight sends what is queued, again and again, until nothing is.
func (s *sender) flight() {
	defer s.landed.Leave()
	growStack(0)
	var f flight
	var one [1]*Command
	batch := one[:0]
	defer func() { s.land(&f, batch) }()
	for {
		if batch = s.board(&f, batch[:0]); f.scouts != "" {
			s.scout(f.scouts)
			continue
		}
		if len(batch) == 0 {
			return
		}
		s.send(batch, f.suspicious)
		f.answered = ""
		for i, c := range batch {
			batch[i] = nil
			if c.finish(); fault.IsSaid(c.err) {
				f.answered = c.key
			}
		}
		if f.answered != "" {
			s.topology.learn(f.answered) // last: it is the client's code too
		}
	}
}

// flight is the state of a flight.
type flight struct {
	slot       int
	id         int64  // from 1; 0: it has not been under way yet
	answered   string // the key of a call that was; "": of none
	suspicious bool   // there has been no answer for long
	scouts     string // the key on the way to which scouts have to go before; "": none
}

// board adds to the batch what is queued for the next round trip of a flight: nothing if the flight counts no more, since others
// have taken its place, or if scouts have to go first. What is queued waits for these in the queue, where nothing overtakes it.
func (s *sender) board(f *flight, batch []*Command) []*Command {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.answered != "" {
		s.silent = time.Time{}
	}
	n := min(len(s.queue), maxBatch)
	if f.scouts = ""; n == 0 || f.id > 0 && s.under[f.slot].id != f.id {
		return batch
	}
	now := time.Now()
	if s.silent.IsZero() {
		s.silent = now
	}
	if f.suspicious = now.Sub(s.silent) >= silence; f.suspicious && now.Sub(s.scouted) >= scouting {
		s.scouted, f.scouts = now, s.queue[0].key
		return batch
	}
	batch = append(batch, s.queue[:n]...)
	s.queue = slices.Delete(s.queue, 0, n)
	s.taken = now
	if f.id == 0 {
		f.slot = slices.IndexFunc(s.under[:], func(d departure) bool { return d.at.IsZero() })
		s.boarded++
		f.id = s.boarded
	}
	s.under[f.slot] = departure{now, f.id}
	return batch
}

// land ends a flight. It has calls left if its goroutine ended in the client, as a hook's runtime.Goexit makes it.
func (s *sender) land(f *flight, left []*Command) {
	for _, c := range left {
		if c != nil {
			c.abandoned()
			c.finish()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case f.id == 0:
		s.flights--
	case s.under[f.slot].id == f.id:
		s.under[f.slot] = departure{}
		s.flights--
	default:
		s.lost--
	}
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
//
// What is sent while there has been no answer for long goes as a pipeline, though it may be a single call: go-redis has a pool of its
// own for these, which may have room for a new connection where the other is full of dead ones.
func (s *sender) send(batch []*Command, suspicious bool) {
	if s.topology.reload != nil {
		late := time.AfterFunc(silence, s.topology.Refresh)
		defer late.Stop()
	}
	if len(batch) == 1 && !suspicious {
		_ = s.sendOne(batch[0])
	} else {
		s.sendAll(batch)
	}
	if s.topology.reload != nil && slices.ContainsFunc(batch, (*Command).isUnheard) {
		s.topology.Refresh()
	}
}

// sendOne is a round trip for one call, and a second one if the server had forgotten its script. It returns the command that was
// answered.
func (s *sender) sendOne(c *Command) (cmd *redis.Cmd) {
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
func (s *sender) sendAll(batch []*Command) {
	defer recovered(batch...)
	for len(batch) > 0 {
		pipe := s.client.Pipeline()
		cmds := make([]*redis.Cmd, len(batch))
		for i, c := range batch {
			cmds[i] = c.command(context.Background())
			_ = pipe.Process(context.Background(), cmds[i])
		}
		_, err := pipe.Exec(context.Background())
		var again []*Command
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
	return s.landed.Len() == 0
}
