package quorum

import (
	"slices"
	"sync"
	"time"

	"github.com/go-leasehold/leasehold/internal/quorum/nodescript"
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/roundtrip"
	"github.com/redis/go-redis/v9"
)

// maxCalls bounds the calls of one node that wait or are under way. Without a bound, a node that swallows everything would make
// every acquire leave something behind in this process.
const maxCalls = 4096

// node is one of a quorum's nodes, and what this process knows of it. Its methods take n.mu themselves, unless their comment says
// that it is held.
type node struct {
	*roundtrip.Client
	q *Quorum
	i int // its index

	// mu guards what follows. It is taken after a tenure's mutex, and before those of package roundtrip.
	mu sync.Mutex
	// calls is how many calls wait behind a release or are under way.
	calls int
	// queues has the keys that tokens of this process are about to give back.
	queues map[string]keyQueue
	// runs has the run in which the server was met last, by the part of the node that was asked: a node that is one server has one
	// part, and a cluster one for each slot.
	runs     map[int]serverRun
	releases pendingReleases
}

// keyQueue has the acquires of a key that wait until tokens of this process have given the key back. On another connection an
// acquire could overtake the release, or arrive before a late acquire of the former token. The node would then refuse it for the
// sake of this process's own last lease.
//
// Rejected: to wait in Release until every node has confirmed. A Release would take as long as the slowest node, and a node that is
// away would hold up all of them.
type keyQueue struct {
	// tokens is how many tokens are about to give the key back.
	tokens int
	// waiting are the acquires, in the order in which they came.
	waiting []pendingCall
}

// pendingCall is a command for a node, and the place where the moment is noted at which the command is handed to the sender. It is
// not noted earlier: the time that a command waits behind a release is not time that the node took.
type pendingCall struct {
	*roundtrip.Command
	sentAt *time.Time
}

// replyFunc takes in what became of a command: how often it was written to a connection, when it was handed to the sender, and the
// reply or the error. It is called from another goroutine, with no mutex held, and must not block.
type replyFunc func(writes int, sentAt time.Time, raw any, err error)

// newNode makes a node of what a client reaches. It sends nothing.
func newNode(q *Quorum, i int, client redis.UniversalClient) *node {
	return &node{
		Client: roundtrip.NewClient(client), q: q, i: i,
		queues: map[string]keyQueue{}, runs: map[int]serverRun{},
	}
}

// send has a command sent. It calls then once, unless the command is withdrawn before.
func (n *node) send(c *roundtrip.Command, then replyFunc) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.post(n.prepare(c, then))
}

// sendBehindReleases is send for an acquire of the key: the command waits until the tokens of this process that are about to give
// the key back have done so, or have failed once.
func (n *node) sendBehindReleases(key string, c *roundtrip.Command, then replyFunc) {
	n.mu.Lock()
	defer n.mu.Unlock()
	call := n.prepare(c, then)
	if queue, held := n.queues[key]; held {
		queue.waiting = append(queue.waiting, call)
		n.queues[key] = queue
		return
	}
	n.post(call)
}

// prepare makes a call of a command, and counts the call until its reply has come or it is withdrawn. The reply function is called
// behind that, so it finds room for a call of its own. n.mu is held.
func (n *node) prepare(c *roundtrip.Command, then replyFunc) pendingCall {
	n.calls++
	sentAt := new(time.Time)
	c.Then(func(raw any, err error) {
		n.mu.Lock()
		n.calls--
		n.mu.Unlock()
		then(c.Writes(), *sentAt, raw, err)
	})
	return pendingCall{c, sentAt}
}

// post hands a call to the sender, which sends it in a goroutine of its own. n.mu is held.
func (n *node) post(call pendingCall) {
	*call.sentAt = time.Now()
	n.Send(call.Command)
}

// holdBack makes acquires of the key wait. letGo is called as often: once for each token.
func (n *node) holdBack(key string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	queue := n.queues[key]
	queue.tokens++
	n.queues[key] = queue
}

// letGo sends the acquires of the key that wait, in the order in which they came, if no other token is about to give the key back.
func (n *node) letGo(key string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	queue := n.queues[key]
	if queue.tokens--; queue.tokens > 0 {
		n.queues[key] = queue
		return
	}
	delete(n.queues, key)
	for _, call := range queue.waiting {
		n.post(call)
	}
}

// withdraw takes a command back if it has not been sent, and reports whether it could. Its reply function is then never called.
func (n *node) withdraw(key string, c *roundtrip.Command) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	queue := n.queues[key]
	at := slices.IndexFunc(queue.waiting, func(call pendingCall) bool { return call.Command == c })
	switch {
	case at >= 0: // it waits behind a release
		queue.waiting = slices.Delete(queue.waiting, at, at+1)
		n.queues[key] = queue
	case !c.Withdraw():
		return false
	}
	n.calls--
	return true
}

// isCrowded reports whether the node should be given no further acquire. Renewals and releases of what the node already has are
// sent all the same.
func (n *node) isCrowded() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.calls >= maxCalls
}

// read reads a reply to an acquire, a renewal or a refill, and notes what the reply tells of the node: its clock, its counter and
// its run. quarantine is why a grant must not count; it is nil for a reply that is no grant, since that says more by itself.
func (n *node) read(key string, sentAt time.Time, raw any, err error) (r nodescript.Reply, quarantine, _ error) {
	if r, err = nodescript.Read(raw, err); err != nil || r.Now == 0 {
		return r, nil, err
	}
	n.q.proposer.Remember(key, r.Counter)
	n.q.proposer.Note(n.i, sentAt, r.Now)
	if quarantine = n.noteRun(key, r.Run); !r.IsGranted() {
		quarantine = nil
	}
	return r, quarantine, nil
}

// serverRun is one life of a server, from one start to the next.
type serverRun struct {
	id string
	// until is the end of the run's quarantine by the clock of this process. It is zero for the first run that this process has
	// met: the script alone judges that one, by the server's uptime.
	until time.Time
}

// noteRun takes in the id of the run in which a node has replied about a key. It returns an error if the vote must not count.
//
// Another run than before may have lost what the former was told, whatever its uptime says: its clock may have stepped, or it
// may be a replica that was promoted. So it gets a quarantine by the clock of this process.
func (n *node) noteRun(key, id string) error {
	if id == "" {
		return nil
	}
	part := 0
	if n.Topology().Kind != roundtrip.OneServer {
		part = rediskey.Slot(key) // several servers, each with runs of its own
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	last, known := n.runs[part]
	switch {
	case !known:
		n.runs[part] = serverRun{id: id}
	case last.id != id:
		last = serverRun{id, time.Now().Add(n.q.config.Quarantine)}
		n.runs[part] = last
	}
	if left := time.Until(last.until); left > 0 {
		return &quarantineError{left}
	}
	return nil
}
