package leasehold

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-leasehold/leasehold/internal/inflight"
	"github.com/go-leasehold/leasehold/internal/rediskey"
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
)

// sender sends the calls of a Locker to one client, several in a round trip where several are ready.
//
// A call's caller never sits in go-redis itself. By default go-redis leaves a command that is on the wire
// only after its own timeouts, whatever becomes of the context; here the caller's context and bound end the
// caller's wait, and the round trip goes on by itself. That is why each has a goroutine; it ends with the
// last call that was ready, so an idle sender has none. Rejected: a goroutine that collects batches (a lone
// caller pays for its wake-up and its patience), and go-redis's own AutoPipeline (the same).
type sender struct {
	client redis.UniversalClient
	used   time.Time // of a node's: when it was last asked for, guarded by deployment.mu
	home   *sender   // of a node's: that of the cluster, for calls that went to the wrong node
	fly    func()    // s.flight, bound once: a go statement with it allocates nothing
	waits  sync.Pool // of *wait; not global, since a test's bubble may own its channels

	mu      sync.Mutex
	queue   []*call // ready to be sent
	flights int     // goroutines in flight
	taken   time.Time
	rescue  *time.Timer // runs while calls are queued
	landed  inflight.Group
}

// call is one run of a script. It is made for one use and owns everything that is written for it.
type call struct {
	script  *script
	values  values
	key     string
	px      name // digits
	token   countedToken
	channel name // in a cluster
	names   [len(rediskey.Kinds)]name
	args    [3 + 1 + len(rediskey.Kinds) + 5]any
	n       int // of args
	o       *options
	buf     [256]byte

	with  atomic.Pointer[sender]
	round *round                     // the handle of a quorum's renewal; such a call is never sent
	wait  *wait                      // who waits for it; or
	then  func(reply any, err error) // what to do about it, in the flight's goroutine
	reply any
	err   error
}

// values is a context of which only the values count, such as a span that is a parent. It is what context.WithoutCancel makes,
// but for context.Cause, in the place that the call has for it: one allocation less for each.
type values struct{ context.Context }

func (values) Deadline() (time.Time, bool) { return time.Time{}, false }
func (values) Done() <-chan struct{}       { return nil }
func (values) Err() error                  { return nil }

// wait is where a caller waits for its call.
type wait struct {
	done  chan struct{} // length one: a flight never blocks on a caller that has left
	timer *time.Timer
}

// name is a derived key or channel as an argument that costs no allocation.
type name []byte

func (n *name) MarshalBinary() ([]byte, error) { return *n, nil }
func (n *name) String() string                 { return string(*n) }

// countedToken is the token as an argument. go-redis asks it for its bytes at every write, so it knows how
// often the command was written, which go-redis does not say.
type countedToken struct {
	bytes  []byte
	writes atomic.Int32
}

func (t *countedToken) MarshalBinary() ([]byte, error) {
	t.writes.Add(1)
	return t.bytes, nil
}

// String keeps the token, which is a proof of ownership, out of traces.
func (t *countedToken) String() string { return "(token)" }

func (c *call) written() sent { return sent(c.token.writes.Load()) }

func newSender(client redis.UniversalClient) *sender {
	s := &sender{client: client}
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
		return nil, c.written(), err // more than 0 if it went astray before
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

// withdraw takes back a call that has not been sent, and reports whether it could.
func (c *call) withdraw() bool {
	s := c.with.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.queue, c)
	if i < 0 {
		return false // on its way, or done; if it went astray it was sent already
	}
	s.queue = slices.Delete(s.queue, i, i+1)
	return true
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

		if n == 1 {
			s.sendOne(batch[0])
		} else {
			s.sendAll(batch)
		}
		for i, c := range batch {
			batch[i] = nil
			s.answered(c)
		}
	}
}

// answered passes on what has become of a call.
func (s *sender) answered(c *call) {
	if s.home != nil && c.astray(s.home.client) {
		s.home.post(c)
	} else {
		c.finish()
	}
}

// land ends a flight. It has calls left if its goroutine ended in the client, as a hook's runtime.Goexit makes it.
func (s *sender) land(left []*call) {
	for _, c := range left {
		if c == nil {
			continue
		}
		if c.reply == nil && c.err == nil {
			c.err = errExit
		}
		s.answered(c)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flights--
	if len(s.queue) > 0 {
		s.depart()
	}
}

var errExit = errors.New("the redis client ended the goroutine that called it")

// growStack gives a new goroutine at once, while there is next to nothing to copy, the stack that a call of go-redis takes.
// Growing it there, step by step and deep in calls, took longer than all the rest of a round trip's work.
//
//go:noinline
func growStack(i int) byte {
	var room [6 << 10]byte // an index that is not known keeps the compiler from leaving it out
	return room[i]
}

// astray reports whether a call to a node of a cluster is one for the cluster's client, which finds the node that has the
// slot now. It makes the call ready for that.
func (c *call) astray(home redis.UniversalClient) bool {
	var server redis.Error
	elsewhere := redis.HasErrorPrefix(c.err, "MOVED") || redis.HasErrorPrefix(c.err, "ASK")
	if c.err == nil || errors.As(c.err, &server) && !elsewhere {
		return false
	}
	if elsewhere && c.written() == 1 {
		c.token.writes.Store(0) // that write has certainly done nothing
	}
	if cluster, ok := home.(*redis.ClusterClient); ok && !elsewhere {
		// go-redis goes on asking a node that it cannot reach until its picture of the cluster is a minute old.
		cluster.ReloadState(context.Background())
	}
	c.reply, c.err = nil, nil
	return true
}

// postReplicated sends the call with a WAIT behind it, on one connection, which is what the WAIT is about. It has a round trip
// to itself: those who shared it would wait for the replicas too.
func (s *sender) postReplicated(c *call, to func() (redis.Cmdable, error)) {
	c.with.Store(s)
	s.landed.Go(func() {
		defer c.finish()
		defer recovered([]*call{c})
		client, err := to()
		if err != nil {
			c.err = err
			return
		}
		var cmd *redis.Cmd
		var acks *redis.IntCmd
		for range 2 {
			pipe := client.Pipeline()
			cmd = c.command(context.Background())
			_ = pipe.Process(context.Background(), cmd)
			acks = redis.NewIntCmd(context.Background(), "wait", c.o.replicas, c.o.replicasIn.Milliseconds())
			_ = pipe.Process(context.Background(), acks)
			_, _ = pipe.Exec(context.Background())
			if !c.unknownScript(cmd) {
				break
			}
		}
		c.reply, c.err = cmd.Val(), cmd.Err()
		if _, refused := c.reply.([]any); refused || c.err != nil {
			return // the lock was not had: nothing to be acknowledged
		}
		if c.err = acks.Err(); c.err == nil && int(acks.Val()) < c.o.replicas {
			c.err = &replicasError{int(acks.Val()), c.o.replicas, c.o.replicasIn}
		}
	})
}

// finish tells whoever waits for the call.
func (c *call) finish() {
	if errors.Is(c.err, redis.Nil) {
		c.err = fmt.Errorf("%w: nil", errReply)
	}
	c.err = redacted(c.err)
	if c.then != nil {
		c.then(c.reply, c.err)
		return
	}
	c.wait.done <- struct{}{}
}

// sendOne is a round trip for one call.
func (s *sender) sendOne(c *call) {
	defer recovered([]*call{c})
	ctx := &c.values
	cmd := c.command(ctx)
	_ = s.client.Process(ctx, cmd)
	if c.unknownScript(cmd) {
		cmd = c.command(ctx)
		_ = s.client.Process(ctx, cmd)
	}
	c.reply, c.err = cmd.Val(), cmd.Err()
}

// sendAll is a round trip for several calls, and a second one for those whose script the server had forgotten.
func (s *sender) sendAll(batch []*call) {
	defer recovered(batch)
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

func (c *call) command(ctx context.Context) *redis.Cmd { return redis.NewCmd(ctx, c.args[:c.n]...) }

// unknownScript turns the call into an EVAL if the server does not know the script: after a restart, a
// failover, SCRIPT FLUSH, or at the first call ever. Not SCRIPT LOAD, which would be a further round trip and
// would have to reach the right node.
func (c *call) unknownScript(cmd *redis.Cmd) bool {
	if cmd.Err() == nil || !redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") || c.args[0] == "eval" {
		return false
	}
	if c.written() == 1 {
		c.token.writes.Store(0) // that write has certainly done nothing
	}
	c.args[0], c.args[1] = "eval", c.script.src
	return true
}

// recovered makes a panic in the client, from a hook of the user's, the error of the calls.
func recovered(calls []*call) {
	if p := recover(); p != nil {
		for _, c := range calls {
			if c.reply == nil && c.err == nil {
				c.err = fmt.Errorf("the redis client panicked: %v", p)
			}
		}
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
