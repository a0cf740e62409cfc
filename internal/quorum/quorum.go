// Package quorum keeps locks on an odd number of Redis nodes that know nothing of one another. A lock is held by the token
// that a majority of the nodes says it is.
//
// An acquire takes the two phases of Paxos (Lamport, "Paxos Made Simple", 2001), with the fencing token as the value:
//
//   - In the first, each node that is free grants the lock to the token, and names a number above its fencing counter.
//   - In the second, the highest of these numbers is the fencing token. Each node that has granted accepts it: it raises its
//     counter to that number, while the token holds the key there.
//
// The lease is won once a majority has accepted. So any two leases meet in a node that has seen the number of the first,
// whatever the clocks did. The client proposes a number, so that mostly all nodes name the same, and that is its acceptance
// too: one round trip is then enough.
//
// A renewal is a round on all nodes as well. It counts if a majority renews. A release counts if a majority is free of the
// token, and goes on in the background until every node is.
//
// # Words
//
//	grant       a node sets the key for a token, if no other token has it
//	raise       the command of the second phase, by which a node accepts the fencing token
//	refill      the command that sets the key for a confirmed lease on a node that does not have it
//	quarantine  the time in which a restarted node grants nothing: until every lease that it may have forgotten is over
//	run         one life of a node's server, which has an id
//
// # Files
//
//	quorum.go   the backend: what is asked of all nodes at once
//	tenure.go   one attempt of a token, until it is won or over
//	renewal.go  the rounds of renewals of a lease, and the nodes that a lease is given later
//	release.go  the release on each node, and those that a node has not confirmed
//	node.go     the calls of one node, and the runs of the server behind it
//	errors.go   the causes of a node that did not agree, and their sum
//
// Package nodescript has the scripts and reads their replies. Package proposal knows the nodes' clocks and counters.
//
// # Locks
//
// They are taken in this order:
//
//	a lease's mutex         the caller's, held while a renewal is begun; so then is never called with a mutex held
//	tenure.mu               guards the votes, the rounds of renewals, and the stages of the releases
//	node.mu                 guards the node's calls, the acquires that wait, and the pending releases
//	package roundtrip's     guard the queue of commands
//
// None is held while something is sent: a command is only queued, and the goroutine that sends it is another one. The timers
// and the replies come in goroutines of their own, and hold no mutex when they begin.
//
// # Timers
//
//	the timer of a call     Acquire, Renew, Release and survey each have one, and stop it when they return
//	tenure.grace            begun once at most, by tellRefusal; stopped by decide
//	pendingReleases.retry   begun by planRetry while releases are pending; stopped by dropReleases, at Close
//
// Nobody waits for the last two when they fire. They only queue commands, and no release is queued after Close.
package quorum

import (
	"context"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/quorum/nodescript"
	"github.com/go-leasehold/leasehold/internal/quorum/proposal"
	"github.com/go-leasehold/leasehold/internal/roundtrip"
	"github.com/go-leasehold/leasehold/internal/token"
	"github.com/redis/go-redis/v9"
)

const (
	// Patience is the longest that a release, or a call of Inspect or Force, waits for the nodes. An acquire waits a quarter of its
	// bound, and a renewal its bound.
	Patience = time.Second
	// minPatience is the least that an acquire waits: half of the shortest TTL that the library allows.
	minPatience = 5 * time.Millisecond
)

// Config is what all leases of a quorum have in common. All processes that use the nodes must have the same quarantine: one with a
// shorter quarantine breaks the exclusion of the others.
type Config struct {
	// Prefix stands before every key.
	Prefix string
	// Quarantine is for how long a node that has restarted gives its vote to nobody; 0: it votes at once.
	Quarantine time.Duration
	// NodeError makes the error of one node, by its index. It must match err. nil is for errors without a type of their own.
	NodeError func(node int, err error) error
}

// Quorum keeps locks on several independent nodes. It is a backend.Backend, and safe for concurrent use. What one token has on
// the nodes is a tenure, which does most of the work.
type Quorum struct {
	nodes    []*node
	config   Config
	proposer *proposal.Proposer
	// quarantine is that of config as an argument of the scripts: in ms, an int64.
	quarantine any
	// sameServer is set once two nodes were found to be one server. Every call then fails with it.
	sameServer atomic.Pointer[sameServerError]
	// closed is set at the end of Close. No release is sent any more.
	closed atomic.Bool
}

// New makes a Quorum over an odd number of nodes, three at least, of which each client reaches one. It sends nothing. The clients
// stay the caller's.
func New(clients []redis.UniversalClient, config Config) (*Quorum, error) {
	if config.NodeError == nil {
		config.NodeError = func(i int, err error) error { return fmt.Errorf("node %d: %w", i, err) }
	}
	q := &Quorum{config: config, proposer: proposal.New(len(clients)), quarantine: clock.Millis(config.Quarantine)}
	for i, client := range clients {
		q.nodes = append(q.nodes, newNode(q, i, client))
	}
	if err := q.check(); err != nil {
		return nil, err
	}
	return q, nil
}

// check judges the nodes, as far as their clients tell. That two different clients reach one server is found out later, by the
// run ids in the replies.
func (q *Quorum) check() error {
	if n := len(q.nodes); n < 3 || n%2 == 0 {
		return fault.Invalid("%d nodes: want an odd number, 3 at least", n)
	}
	clients := map[redis.UniversalClient]int{}
	for i, n := range q.nodes {
		if roundtrip.IsNil(n.Redis()) {
			return fault.Invalid("the client of node %d is nil", i)
		}
		if n.Topology().Kind == roundtrip.Ring {
			return fault.Invalid("the client of node %d is a redis.Ring, which moves keys between its servers: "+
				"want a client of one server, or of a cluster", i)
		}
		if !reflect.TypeOf(n.Redis()).Comparable() {
			continue // a kind of client that is not go-redis's
		}
		if j, twice := clients[n.Redis()]; twice {
			return fault.Invalid("nodes %d and %d are one client", j, i)
		}
		clients[n.Redis()] = i
	}
	return nil
}

// majority is how many nodes decide: of any two majorities one node at least is in both.
func (q *Quorum) majority() int { return majorityOf(len(q.nodes)) }

func majorityOf(nodes int) int { return nodes/2 + 1 }

// Check judges what a lease asks of a quorum. The longest TTL in use cannot be found out, so it is bounded by the quarantine:
// every lease that a restarted node may have forgotten is over when the node votes again.
func (q *Quorum) Check(r backend.Request, ttl time.Duration) error {
	switch quarantine := q.config.Quarantine; {
	case r.Replicas > 0:
		return fault.Invalid("WithReplicas(%d): a quorum counts nodes, not replicas", r.Replicas)
	case r.MinHold > 0 || r.CounterLife > 0:
		return fault.Invalid("WithMinHold(%v), WithCounterLife(%v): no option of a quorum, whose nodes have no clock in common", r.MinHold, r.CounterLife)
	case r.Kind != token.Exclusive:
		return fault.Invalid("WithShared and WithSlots: a quorum has exclusive leases alone")
	case quarantine > 0 && ttl+r.LockDelay > quarantine:
		return fault.Invalid("ttl %v with WithLockDelay(%v): want at most WithRestartQuarantine's %v together", ttl, r.LockDelay, quarantine)
	}
	return nil
}

// IsUnknown reports whether a majority was never connected. An acquire then waits for roundtrip.FirstBound, by when go-redis has
// said why.
func (q *Quorum) IsUnknown() bool {
	known := 0
	for _, n := range q.nodes {
		if !n.IsUnknown() {
			known++
		}
	}
	return known < q.majority()
}

// ready reports why nothing can be asked at all: the context has ended, or two nodes are one server.
func (q *Quorum) ready(ctx context.Context) error {
	if ctx.Err() != nil {
		return fault.Ended(ctx, nil)
	}
	if same := q.sameServer.Load(); same != nil {
		return same
	}
	return nil
}

// Tenure begins the life of a token. It sends nothing.
func (q *Quorum) Tenure(r backend.Request) backend.Tenure {
	return &tenure{
		q: q, r: r, keys: nodescript.KeysOf(q.config.Prefix, r.Key),
		decided: make(chan struct{}), votes: make([]vote, len(q.nodes)),
	}
}

// Inspect tells what a majority says of a lock. It waits for all nodes if it can, for a picture that is whole: a majority alone may be
// divided where the others would settle it.
func (q *Quorum) Inspect(ctx context.Context, key string, bound time.Duration) (backend.View, error) {
	if err := q.ready(ctx); err != nil {
		return backend.View{}, err
	}
	replies, errs := q.survey(ctx, key, bound, func(keys *nodescript.Keys) *roundtrip.Command {
		return nodescript.Command(ctx, nodescript.Inspect, keys, "", 0)
	})
	if len(replies) < q.majority() {
		return backend.View{}, q.shortOf(len(replies), errs)
	}
	views := make([]nodescript.View, 0, len(replies))
	for i, reply := range replies {
		if v, err := nodescript.ReadView(reply); err != nil {
			errs[i] = err
		} else {
			views = append(views, v)
		}
	}
	v, known := nodescript.Majority(views, len(q.nodes))
	if !known {
		return backend.View{}, q.shortOf(len(views), errs)
	}
	return v, nil
}

// Force deletes the lock on every node that has it. It waits for all nodes if it can: with a majority alone, a lease whose
// acquire comes late to one of these nodes, and whose key is still on another, would go on. It returns a token that had the key
// on so many nodes that too few are left: that token has lost the lock.
func (q *Quorum) Force(ctx context.Context, key string, bound time.Duration) (string, error) {
	if err := q.ready(ctx); err != nil {
		return "", err
	}
	replies, errs := q.survey(ctx, key, bound, func(keys *nodescript.Keys) *roundtrip.Command {
		return nodescript.ReleaseCommand(ctx, keys, "", "force")
	})
	if len(replies) < q.majority() {
		return "", q.shortOf(len(replies), errs)
	}
	had := map[string]int{}
	for _, reply := range replies {
		token, ok := reply.(string)
		if had[token]++; ok && had[token] > len(q.nodes)-q.majority() {
			return token, nil
		}
	}
	return "", nil
}

// survey sends a command to every node and waits until all have replied or failed, or until ctx or bound ends. It returns the replies
// by node, and the errors of the others. What has not been sent by then is withdrawn. What is under way is not, so Force may still
// take effect on a node whose error it returns.
func (q *Quorum) survey(ctx context.Context, key string, bound time.Duration,
	command func(keys *nodescript.Keys) *roundtrip.Command) (map[int]any, []error) {
	type outcome struct {
		i     int
		reply any
		err   error
	}
	bound = min(bound, Patience)
	outcomes := make(chan outcome, len(q.nodes))
	open := map[int]*roundtrip.Command{}
	keys := nodescript.KeysOf(q.config.Prefix, key)
	for i, n := range q.nodes {
		open[i] = command(&keys)
		n.send(open[i], func(_ int, _ time.Time, reply any, err error) { outcomes <- outcome{i, reply, err} })
	}
	timer := time.NewTimer(bound)
	defer timer.Stop()
	replies, errs := map[int]any{}, make([]error, len(q.nodes))
	var silence error // why the nodes that have not replied are not waited for any longer
	for len(open) > 0 && silence == nil {
		select {
		case o := <-outcomes:
			delete(open, o.i)
			if errs[o.i] = o.err; o.err == nil {
				replies[o.i] = o.reply
			}
		case <-ctx.Done():
			silence = fault.Ended(ctx, fault.NoWord(ctx))
		case <-timer.C:
			silence = &fault.NoAnswer{Bound: bound}
		}
	}
	for i, c := range open {
		q.nodes[i].withdraw(key, c)
		errs[i] = c.Unheard(silence)
	}
	return replies, errs
}

// Flush has nothing to do: a round of renewals is sent when it begins, and the sender of each node shares round trips among the
// leases whose renewals come together.
func (q *Quorum) Flush() {}

// Close drops the pending releases, whose keys go with their TTLs, and waits for what is under way. It sends no release after that.
// It reports whether everything had returned before ctx ended.
func (q *Quorum) Close(ctx context.Context) bool {
	for _, n := range q.nodes {
		n.dropReleases()
	}
	landed := true
	for _, n := range q.nodes {
		landed = n.Close(ctx) && landed
	}
	q.closed.Store(true)
	return landed
}
