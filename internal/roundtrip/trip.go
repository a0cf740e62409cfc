package roundtrip

import (
	"context"
	"runtime"
	"slices"
	"time"

	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/redis/go-redis/v9"
)

// trip is the state of a goroutine that makes one round trip after another.
//
// A trip begins without a slot, counted by its sender. It takes a slot with its first batch, and
// keeps the slot from batch to batch. When a round trip is overdue the sender gives the slot away
// and counts the trip as written off: others have taken its place, so it sends nothing more when it
// comes back.
type trip struct {
	slot       int
	id         int64  // from 1; 0: it has no slot yet
	answered   string // the key of a command that a server answered in the last round trip; "": of none
	suspicious bool   // there has been no answer for long
	scouts     string // the key on the way to which scouts have to go before; "": none
}

// trips sends what is queued, in one round trip after another, until nothing is. It is the body of
// the sender's goroutines.
func (s *sender) trips() {
	defer s.goroutines.Leave()
	growStack(0)
	var t trip
	var one [1]*Command
	batch := one[:0]
	// A batch that is not empty at the end was left by a goroutine that ended in the client, as a
	// hook's runtime.Goexit makes it.
	defer func() { s.end(&t, batch) }()
	for {
		if s.crowded.Load() {
			// The callers that were just answered are about to send their next commands, which should
			// share this round trip, be it one that the first of them has started.
			runtime.Gosched()
		}
		if batch = s.dequeue(&t, batch[:0]); t.scouts != "" {
			s.scout(t.scouts)
			continue
		}
		if len(batch) == 0 {
			return // nothing is queued, or others have taken its place
		}
		s.crowded.Store(len(batch) > 1)
		s.exchange(batch, t.suspicious)
		for i, c := range batch {
			batch[i] = nil // c has been seen to, whatever finish does
			if c.finish(); fault.IsSaid(c.err) {
				t.answered = c.key
			}
		}
		if t.answered != "" {
			s.topology.learn(t.answered) // last: it is the client's code too
		}
	}
}

// dequeue moves to the batch what is queued for the next round trip. It moves nothing if the trip
// was written off, or if scouts have to go first. What is queued waits for the scouts in the queue,
// where nothing overtakes it.
func (s *sender) dequeue(t *trip, batch []*Command) []*Command {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(t)
	n := min(len(s.queue), maxBatch)
	if t.scouts = ""; n == 0 || t.id > 0 && s.slots[t.slot].trip != t.id {
		return batch
	}
	now := time.Now()
	if t.suspicious = !s.silent.IsZero() && now.Sub(s.silent) >= silence; t.suspicious && now.Sub(s.scouted) >= scouting {
		s.scouted, t.scouts = now, s.queue[0].key
		return batch
	}
	batch = append(batch, s.queue[:n]...)
	s.queue = slices.Delete(s.queue, 0, n)
	s.dequeued = now
	s.occupy(t, now)
	return batch
}

// occupy has the trip's slot tell that a round trip begins. s.mu is held.
func (s *sender) occupy(t *trip, now time.Time) {
	if s.silent.IsZero() {
		s.silent = now
	}
	if t.id == 0 {
		// There is a free one: a trip is started only while fewer than maxTrips count.
		t.slot = slices.IndexFunc(s.slots[:], func(t slot) bool { return t.since.IsZero() })
		s.started++
		t.id = s.started
	}
	s.slots[t.slot] = slot{now, t.id}
}

// settle takes in that the last round trip was answered, if it was. s.mu is held.
func (s *sender) settle(t *trip) {
	if t.answered == "" {
		return
	}
	t.answered, s.silent = "", time.Time{}
	if at := s.slots[t.slot]; s.leader != nil && at.trip == t.id {
		s.leader.note(at.since)
	}
}

// end takes a trip out of the books, and answers the commands that it has left.
func (s *sender) end(t *trip, left []*Command) {
	for _, c := range left {
		if c != nil {
			c.abandoned()
			c.finish()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(t)
	switch {
	case t.id == 0: // it found nothing to send
		s.counted--
	case s.slots[t.slot].trip == t.id:
		s.slots[t.slot] = slot{}
		s.counted--
	default:
		s.writtenOff--
	}
	if len(s.queue) > 0 {
		s.dispatch()
	}
}

// growStack gives a new goroutine at once, while there is next to nothing to copy, the stack that a
// call of go-redis takes. Growing it there, step by step and deep in calls, took longer than all
// the rest of a round trip's work.
//
//go:noinline
func growStack(i int) byte {
	var room [6 << 10]byte // an index that is not known keeps the compiler from leaving it out
	return room[i]
}

// exchange is one round trip. On a cluster it has the slots asked for when it takes long, and when
// no server could be reached.
//
// What is sent while there has been no answer for long goes as a pipeline, though it may be a
// single command: go-redis has a pool of its own for pipelines, which may have room for a new
// connection where the other is full of dead ones.
func (s *sender) exchange(batch []*Command, suspicious bool) {
	if s.topology.reload != nil {
		late := time.AfterFunc(silence, s.topology.Refresh)
		defer late.Stop()
	}
	if len(batch) == 1 && !suspicious {
		_ = batch[0].sendOne(s.client, &batch[0].values)
	} else {
		s.sendAll(batch)
	}
	if s.topology.reload != nil && slices.ContainsFunc(batch, (*Command).isUnheard) {
		s.topology.Refresh()
	}
}

// sendOne is a round trip for one command, and a second one if it has to be sent again. It returns
// the command that was answered.
func (c *Command) sendOne(client redis.UniversalClient, ctx context.Context) (cmd *redis.Cmd) {
	defer recovered(c)
	c.alone()
	for again := true; again; again = c.again(cmd) {
		cmd = c.command(ctx)
		_ = client.Process(ctx, cmd)
	}
	c.reply, c.err = cmd.Val(), cmd.Err()
	return cmd
}

// sendAll is a round trip for several commands, and further ones for those that have to be sent
// again.
func (s *sender) sendAll(batch []*Command) {
	defer recovered(batch...)
	for posts := s.posts(batch); len(posts) > 0; {
		pipe, ctx := s.client.Pipeline(), share(posts)
		for i := range posts {
			posts[i].cmd = posts[i].command(ctx)
			_ = pipe.Process(ctx, posts[i].cmd)
		}
		_, err := pipe.Exec(ctx)
		var again []post
		for _, p := range posts {
			again = s.heard(p, err, again)
		}
		posts = again
	}
}
