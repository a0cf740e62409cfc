package leasehold

import (
	"context"
	"hash/maphash"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/roundtrip"
	"github.com/go-leasehold/leasehold/internal/script"
	"github.com/redis/go-redis/v9"
)

var (
	acquireNodeScript = script.Load(files, "quorum_acquire.lua", nil)
	renewNodeScript   = script.Load(files, "quorum_renew.lua", nil)
	refillNodeScript  = script.Load(files, "quorum_refill.lua", nil)
	releaseNodeScript = script.Load(files, "quorum_release.lua", nil)
	inspectNodeScript = script.Load(files, "quorum_inspect.lua", nil)
)

const (
	// maxPending bounds the calls that wait for a node or are under way. Without it a node that swallows everything would
	// make every acquire leave something behind.
	maxPending = 4096
	// maxDebts bounds the releases that a node still has to get. Those that find no room are left to the TTL.
	maxDebts = 4096
	// The bounds of a proposal's lead over the nodes' clocks.
	minSlack, maxSlack = time.Millisecond, 100 * time.Millisecond
	// staleReading is how slow an answer may be and still tell the time.
	staleReading = 500 * time.Millisecond
)

// node is one of a quorum's nodes, and what this process knows of it.
type node struct {
	*roundtrip.Client
	q *quorum
	i int

	mu       sync.Mutex // guards what follows; taken with a tenure's, and before a sender's
	pending  int
	leaving  map[string]*leaving // by key
	heard    bool
	ahead    int64         // the node's µs at the last answer less ours when that was asked for, so never too little
	trip     time.Duration // smoothed time from asking to the answer
	runs     map[int]run   // by the part of the node that was asked: one, or a cluster's slots
	debts    []debt
	failures int         // in a row, of paying them
	repay    *time.Timer // runs while there are debts
	over     bool        // no debts are made any more
}

// leaving is a key that tokens of this process are about to leave. A call that wants the key waits for that: on another
// connection it could overtake the release, or an acquire that is late, and meet our own last lease.
type leaving struct {
	tokens  int
	waiting []errand
}

// errand is a call to a node and what to do about its answer.
type errand struct {
	*roundtrip.Command
	begun *time.Time
}

// answerFunc is told how often a call was written, when it was sent off, and the answer. It is called from another
// goroutine, and must not block.
type answerFunc func(n int, begun time.Time, reply any, err error)

// run is one life of a server.
type run struct {
	id    string
	until time.Time // no vote before; zero: it was the first that this process met
}

// debt is a release that a node has not confirmed.
type debt struct {
	t     *tenure
	until time.Time // the key is gone by then
}

func newNode(q *quorum, i int, client redis.UniversalClient) *node {
	return &node{
		Client: roundtrip.NewClient(client), q: q, i: i,
		runs: map[int]run{}, leaving: map[string]*leaving{},
	}
}

// newNodeCall prepares the run of a node's script: behind the token and the milliseconds stand args.
func newNodeCall(ctx context.Context, sc *script.Script, keys *rediskey.Keys, token string, px int64, args ...any) *roundtrip.Command {
	c := roundtrip.New(ctx, sc, token, px, keys[0], keys[rediskey.FenceAt])
	c.AddToken()
	c.AddMillis()
	c.Add(args...)
	return c
}

// send has the call sent. Then is called unless the call is withdrawn before.
func (n *node) send(key string, c *roundtrip.Command, then answerFunc) {
	e := n.prepare(c, then)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.post(e)
}

// sendPolitely is send for a call that takes the key: behind those who leave it.
func (n *node) sendPolitely(key string, c *roundtrip.Command, then answerFunc) {
	e := n.prepare(c, then)
	n.mu.Lock()
	defer n.mu.Unlock()
	if l := n.leaving[key]; l != nil {
		n.pending++
		l.waiting = append(l.waiting, e)
		return
	}
	n.post(e)
}

// post sends an errand off. n.mu is held.
func (n *node) post(e errand) {
	n.pending++
	*e.begun = time.Now()
	n.Send(e.Command)
}

func (n *node) prepare(c *roundtrip.Command, then answerFunc) errand {
	begun := new(time.Time)
	c.Then(func(reply any, err error) {
		n.mu.Lock()
		n.pending--
		n.mu.Unlock()
		then(c.Writes(), *begun, reply, err)
	})
	return errand{c, begun}
}

// leave notes that a token is about to leave the key, until left.
func (n *node) leave(key string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.leaving[key]
	if l == nil {
		l = &leaving{}
		n.leaving[key] = l
	}
	l.tokens++
}

func (n *node) left(key string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.leaving[key]
	if l.tokens--; l.tokens > 0 {
		return
	}
	delete(n.leaving, key)
	for _, e := range l.waiting {
		n.pending--
		n.post(e)
	}
}

// withdraw takes a call back if it has not been sent.
func (n *node) withdraw(key string, c *roundtrip.Command) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.unwait(key, c) && !c.Withdraw() {
		return false
	}
	n.pending--
	return true
}

// unwait takes back a call that waits for others to leave. n.mu is held.
func (n *node) unwait(key string, c *roundtrip.Command) bool {
	l := n.leaving[key]
	if l == nil {
		return false
	}
	i := slices.IndexFunc(l.waiting, func(e errand) bool { return e.Command == c })
	if i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	return i >= 0
}

// crowded reports whether the node should be given nothing new.
func (n *node) crowded() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.pending >= maxPending
}

// note takes in what an answer to a call that was sent at that moment says about the node: its time in µs, and the id of
// its run. It reports an error if the vote must not count.
//
// Another run than before may have lost what the former was told, whatever its uptime says: its clock may have stepped, or it
// may be a replica that was promoted. So it gets a quarantine by our own clock.
func (n *node) note(key string, begun time.Time, now int64, id string) error {
	took := time.Since(begun)
	part := 0
	if n.Topology().Kind != roundtrip.OneServer {
		part = rediskey.Slot(key) // several servers, each with runs of its own
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if took < staleReading || !n.heard {
		n.ahead = now - begun.Sub(n.q.epoch).Microseconds()
	}
	if n.trip += (took - n.trip) / 8; !n.heard {
		n.trip = took
	}
	n.heard = true
	if id == "" {
		return nil
	}
	last, known := n.runs[part]
	switch {
	case !known:
		n.runs[part] = run{id: id}
	case last.id != id:
		last = run{id, time.Now().Add(n.q.quarantine)}
		n.runs[part] = last
	}
	if left := time.Until(last.until); left > 0 {
		return &youngError{left}
	}
	return nil
}

// heardOf reads an answer to acquire, renew or refill and takes in what it tells of the node. Young says why a yes must not
// count.
func (n *node) heardOf(key string, begun time.Time, reply any, err error) (v vote, young, _ error) {
	if v, err = decodeVote(reply, err); err != nil || v.now == 0 {
		return v, nil, err
	}
	n.q.remember(key, v.counter)
	if young = n.note(key, begun, v.now, v.run); !v.granted() {
		young = nil // it says more by itself
	}
	return v, young, nil
}

// propose is a fencing token that all nodes can give as it stands, so that none has to be raised: above every counter and
// every clock at the moment when the command arrives, as far as is known. 0 is no proposal.
func (q *quorum) propose(key string) int64 {
	now := time.Since(q.epoch)
	ahead, heard := int64(math.MinInt64), false
	for _, n := range q.nodes {
		n.mu.Lock()
		if n.heard {
			ahead, heard = max(ahead, n.ahead), true
		}
		n.mu.Unlock()
	}
	if !heard {
		return 0
	}
	return max(ahead+(now+q.slack()).Microseconds(), q.place(key).Load()+1)
}

// slack is about two round trips.
func (q *quorum) slack() time.Duration {
	d := minSlack
	for _, n := range q.nodes {
		n.mu.Lock()
		d = max(d, 2*n.trip)
		n.mu.Unlock()
	}
	return min(d, maxSlack)
}

// remember takes in a counter that was heard of.
func (q *quorum) remember(key string, counter int64) {
	for at := q.place(key); ; {
		old := at.Load()
		if counter <= old || at.CompareAndSwap(old, counter) {
			return
		}
	}
}

func (q *quorum) place(key string) *atomic.Int64 {
	return &q.seen[maphash.String(q.seed, key)%uint64(len(q.seen))]
}

// owe keeps a release that the node did not confirm, to be sent again while the key may be there. It reports false if the
// release is left to the TTL.
func (n *node) owe(t *tenure, until time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.over || len(n.debts) >= maxDebts || !time.Now().Before(until) {
		return false
	}
	n.debts = append(n.debts, debt{t, until})
	n.arm()
	return true
}

// arm plans the next try. n.mu is held.
func (n *node) arm() {
	if n.repay == nil {
		n.repay = time.AfterFunc(fault.Backoff(n.failures), n.pay)
	}
}

// pay sends the first release that is still of use, to find out whether the node answers again.
func (n *node) pay() {
	n.mu.Lock()
	n.repay = nil
	now := time.Now()
	var late []debt
	for len(n.debts) > 0 && !now.Before(n.debts[0].until) {
		late = append(late, n.debts[0])
		n.debts = n.debts[1:]
	}
	var first []debt
	if len(n.debts) > 0 {
		first = n.debts[:1:1]
		n.debts = n.debts[1:]
	}
	n.mu.Unlock()
	for _, d := range late {
		d.t.unpaid(n.i)
	}
	for _, d := range first {
		d.t.sendRelease(n.i, d.until)
	}
}

// answered is told how a release went, and sends all the others once the node answers again.
func (n *node) answered(ok bool) {
	n.mu.Lock()
	if !ok {
		n.failures++
		if len(n.debts) > 0 {
			n.arm()
		}
		n.mu.Unlock()
		return
	}
	n.failures = 0
	debts := n.debts
	n.debts = nil
	n.mu.Unlock()
	for _, d := range debts {
		d.t.sendRelease(n.i, d.until)
	}
}

// forgive drops all debts.
func (n *node) forgive() {
	n.mu.Lock()
	n.over = true
	debts := n.debts
	n.debts = nil
	if n.repay != nil {
		n.repay.Stop()
	}
	n.mu.Unlock()
	for _, d := range debts {
		d.t.unpaid(n.i)
	}
}
