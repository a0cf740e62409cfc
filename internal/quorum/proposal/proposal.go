// Package proposal proposes fencing tokens to the nodes of a quorum, from what this process has heard of the nodes' clocks and
// counters.
//
// A good proposal is a number that every node can give as it stands, so that all name the same and no node has to be raised: it is
// above every counter of the key, and above every clock at the moment when the command arrives there. A proposal is a hint. A bad
// one costs a round trip, and nothing else rests on it.
package proposal

import (
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// MaxSlack bounds the Slack above.
	MaxSlack = 100 * time.Millisecond
	// minSlack bounds it below.
	minSlack = time.Millisecond
	// stale is how slow a reply may be and still tell the node's time.
	stale = 500 * time.Millisecond
)

// Proposer is what a process has heard of the nodes of one quorum. It is safe for concurrent use.
type Proposer struct {
	epoch  time.Time // what the nodes' clocks are noted against
	clocks []clock   // by node
	seed   maphash.Seed
	// counters has the highest fencing counter that was heard of, for all keys whose hashes fall into one place. That keys share a
	// place is harmless, since a proposal is a hint, and a fixed number of places cannot leak.
	counters [256]atomic.Int64
}

// clock is what is known of one node's clock.
type clock struct {
	mu    sync.Mutex    // guards what follows; nothing else is locked meanwhile
	heard bool          // a reply has told the time
	ahead int64         // µs that the node's clock is ahead of ours, at most: ours is that of the moment before the command was sent
	trip  time.Duration // from sending a command to its reply, smoothed
}

// New makes a Proposer for that many nodes.
func New(nodes int) *Proposer {
	return &Proposer{epoch: time.Now(), clocks: make([]clock, nodes), seed: maphash.MakeSeed()}
}

// Note takes in that the node's clock has shown now, in µs, to a command that was sent at that moment and has just been answered.
func (p *Proposer) Note(node int, sentAt time.Time, now int64) {
	took := time.Since(sentAt)
	c := &p.clocks[node]
	c.mu.Lock()
	defer c.mu.Unlock()
	if took < stale || !c.heard {
		c.ahead = now - sentAt.Sub(p.epoch).Microseconds()
	}
	if c.trip += (took - c.trip) / 8; !c.heard {
		c.trip = took
	}
	c.heard = true
}

// Remember takes in a fencing counter of the key: one that a node has told, or that this process has chosen.
func (p *Proposer) Remember(key string, counter int64) {
	for at := p.counter(key); ; {
		old := at.Load()
		if counter <= old || at.CompareAndSwap(old, counter) {
			return
		}
	}
}

// Propose returns a fencing token for the key, or 0 if no clock was heard of.
func (p *Proposer) Propose(key string) int64 {
	now := time.Since(p.epoch)
	ahead, heard := int64(math.MinInt64), false
	for i := range p.clocks {
		c := &p.clocks[i]
		c.mu.Lock()
		if c.heard {
			ahead, heard = max(ahead, c.ahead), true
		}
		c.mu.Unlock()
	}
	if !heard {
		return 0
	}
	return max(ahead+(now+p.Slack()).Microseconds(), p.counter(key).Load()+1)
}

// Slack is about two round trips to the slowest node, at most MaxSlack: by then a command that is sent now has arrived everywhere.
func (p *Proposer) Slack() time.Duration {
	d := minSlack
	for i := range p.clocks {
		c := &p.clocks[i]
		c.mu.Lock()
		d = max(d, 2*c.trip)
		c.mu.Unlock()
	}
	return min(d, MaxSlack)
}

// counter is where the highest counter of a key is kept, together with those of other keys.
func (p *Proposer) counter(key string) *atomic.Int64 {
	return &p.counters[maphash.String(p.seed, key)%uint64(len(p.counters))]
}
