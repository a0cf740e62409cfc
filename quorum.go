package leasehold

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/roundtrip"
	"github.com/go-leasehold/leasehold/internal/script"
	"github.com/redis/go-redis/v9"
)

// DefaultRestartQuarantine is the quarantine of a quorum that was not told another one.
const DefaultRestartQuarantine = time.Minute

// nodePatience is the longest that a node is waited for, but for an acquire, which waits no longer than a quarter of its time.
const nodePatience = time.Second

// WithRestartQuarantine sets for how long a node of a quorum gives its vote to nobody after it has started, so that
// every lease that it may have forgotten is over before it votes again. It is for [NewQuorum] alone, and one setting for all
// processes that use the nodes: a process with a shorter one breaks the exclusion of the others. A lease whose TTL and
// lock delay together exceed it is refused with [ErrInvalid], because the longest TTL in use cannot be found out and so
// has to be bounded.
//
// The default is [DefaultRestartQuarantine] and not none: Redis loses its last writes in a crash unless it was set up with
// "appendfsync always", and without a quarantine one such crash is enough for two holders. What it costs is that a node that
// has just been started counts as missing for a while. Zero switches it off; only for nodes that never lose a write.
// FLUSHALL, eviction and a failover inside a node are losses that no quarantine sees.
func WithRestartQuarantine(d time.Duration) Option {
	return Option{func(o *options) {
		if o.belongs(inNewQuorum, "WithRestartQuarantine(%v): it is for NewQuorum", d) {
			o.quarantine = d
		}
	}}
}

// NewQuorum returns a Locker over an odd number of nodes, three at least, that know nothing of one another: a lock is
// held by whom a majority of them says it is, and goes on while a majority can be reached. Each client reaches one node,
// which may itself be a server, a failover group or a cluster, but not a [redis.Ring], which loses the leases of the keys that it
// moves. The clients stay the caller's.
//
// It is used like a Locker of [New], with these differences. Waiters do not stand in a line: they try again after pauses of
// chance, and a newcomer may be faster. A failure of too many nodes matches [ErrNoQuorum] and carries a [NodeError] for each. Inspect
// tells what a majority says, and no waiters. Nodes must be restarted less than a majority at a time, or everybody waits out
// [WithRestartQuarantine].
//
// One holder at most is trusted as long as the nodes' clocks run at the holder's rate within its margin and do not step
// forward, and a node that lost data was in quarantine after it. Fencing tokens rise whatever the clocks do, while a node
// that took part in both leases keeps its data.
//
// NewQuorum sends nothing. That two clients reach one server is found out by the first acquires, if there is a quarantine,
// and is then the error of every call.
func NewQuorum(nodes []redis.UniversalClient, opts ...Option) (*Locker, error) {
	defaults := (&options{quarantine: DefaultRestartQuarantine}).with(inNewQuorum, opts)
	q := &quorum{prefix: defaults.prefix, quarantine: defaults.quarantine, epoch: time.Now(), seed: maphash.MakeSeed()}
	for i, client := range nodes {
		q.nodes = append(q.nodes, newNode(q, i, client))
	}
	if err := q.check(); err != nil {
		return nil, &Error{Op: "new quorum", Err: err}
	}
	return newLocker(q, *defaults), nil
}

// quorum is a store of several independent nodes. What a token has on them is a tenure, which does most of the work.
type quorum struct {
	nodes      []*node
	prefix     string // of every key
	quarantine time.Duration
	epoch      time.Time // what the nodes' clocks are noted against
	seed       maphash.Seed
	// seen has the highest counter heard of, for the keys whose hashes fall into one place. A proposal is a hint, so
	// that keys share a place is harmless, and a fixed number of places cannot leak.
	seen   [256]atomic.Int64
	twins  atomic.Pointer[twinsError] // once found
	closed atomic.Bool                // nothing more is sent
}

// majority is how many nodes decide.
func (q *quorum) majority() int { return len(q.nodes)/2 + 1 }

func (q *quorum) check() error {
	if n := len(q.nodes); n < 3 || n%2 == 0 {
		return fault.Invalid("%d nodes: want an odd number, 3 at least", n)
	}
	clients := map[redis.UniversalClient]int{}
	for i, n := range q.nodes {
		if roundtrip.IsNil(n.Redis()) {
			return fault.Invalid("the client of node %d is nil", i)
		}
		if n.Topology().Kind == roundtrip.Ring {
			return fault.Invalid("the client of node %d is a redis.Ring, which moves keys between its servers: want a client of one server, or of a cluster", i)
		}
		if !reflect.TypeOf(n.Redis()).Comparable() {
			continue // somebody's own kind of client
		}
		if j, twice := clients[n.Redis()]; twice {
			return fault.Invalid("nodes %d and %d are one client", j, i)
		}
		clients[n.Redis()] = i
	}
	if d := q.quarantine; d != 0 && d < minTTL || d > maxTTL {
		return fault.Invalid("WithRestartQuarantine(%v): want %v to ten years, or 0 for none", d, minTTL)
	}
	return nil
}

// Check judges what a lease asks of a quorum.
func (q *quorum) Check(r backend.Request, ttl time.Duration) error {
	switch {
	case r.Replicas > 0:
		return fault.Invalid("WithReplicas(%d): a quorum counts nodes, not replicas", r.Replicas)
	case q.quarantine > 0 && ttl+r.LockDelay > q.quarantine:
		return fault.Invalid("ttl %v with WithLockDelay(%v): want at most WithRestartQuarantine's %v together", ttl, r.LockDelay, q.quarantine)
	}
	return nil
}

// unknown reports whether no majority was ever connected; see firstBound.
func (q *quorum) unknown() bool {
	known := 0
	for _, n := range q.nodes {
		if !n.IsUnknown() {
			known++
		}
	}
	return known < q.majority()
}

// quarantineMillis is the quarantine as the scripts want it, rounded up.
func (q *quorum) quarantineMillis() int64 {
	return int64((q.quarantine + time.Millisecond - 1) / time.Millisecond)
}

// ready reports why nothing can be asked at all.
func (q *quorum) ready(ctx context.Context) error {
	if ctx.Err() != nil {
		return fault.Ended(ctx, nil)
	}
	if twins := q.twins.Load(); twins != nil {
		return twins
	}
	return nil
}

// Acquire tries once. What an attempt that failed has left, its tenure takes back by itself, from each node after that node's
// own call has returned, so it answers 0 for how often something was sent; but for an adoption, of which the caller waits until
// the former token has the key again.
func (t *tenure) Acquire(ctx context.Context, _ backend.Mode, bound time.Duration) (backend.Answer, int, error) {
	q := t.q
	if err := q.ready(ctx); err != nil {
		return backend.Answer{}, 0, err
	}
	// A quarter: two rounds have to fit in, and a lease that took most of its time to get is of no use.
	patience := max(bound/4, minTTL/2)
	t.ask(ctx)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case <-t.decided:
			return t.result()
		case <-ctx.Done():
			t.giveUp(fault.Ended(ctx, t.reason(fault.NoWord(ctx))))
		case <-timer.C:
			if patience < roundtrip.FirstBound && q.unknown() {
				timer.Reset(roundtrip.FirstBound - patience)
				patience = roundtrip.FirstBound
				continue
			}
			t.giveUp(t.reason(&fault.NoAnswer{Bound: patience}))
		}
	}
}

// Renew renews on all nodes and waits until a majority has agreed, or cannot.
func (t *tenure) Renew(ctx context.Context, _ bool, bound time.Duration) (int, error) {
	if err := t.q.ready(ctx); err != nil {
		return 0, err
	}
	type outcome struct {
		n   int
		err error
	}
	said := make(chan outcome, 1)
	round := t.renew(ctx, func(_ backend.Pending, n int, err error) { said <- outcome{n, err} })
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case o := <-said:
		return o.n, o.err
	case <-ctx.Done():
		round.Withdraw()
		return 0, fault.Ended(ctx, round.reason(fault.NoWord(ctx)))
	case <-timer.C:
		round.Withdraw()
		return 0, round.reason(&fault.NoAnswer{Bound: bound})
	}
}

// RenewLater sends a round of renewals at once.
func (t *tenure) RenewLater(_ bool, then func(backend.Pending, int, error)) backend.Pending {
	return t.renew(context.Background(), then)
}

// Lane is the quorum as a whole.
func (t *tenure) Lane() any { return t.q }

// Flush has nothing to do: a round is sent when it begins.
func (q *quorum) Flush() {}

// Release gives back what the token has on every node. It answers when a majority is free of it and what that says about the
// lease is clear; the other nodes are seen to in the background.
func (t *tenure) Release(ctx context.Context, how backend.How, bound time.Duration) (int, int, error) {
	if ctx.Err() != nil {
		return 0, 0, fault.Ended(ctx, nil)
	}
	t.end(how == backend.Return)
	bound = min(bound, nodePatience)
	timer := time.NewTimer(bound)
	defer timer.Stop()
	for late := false; ; {
		what, settled, changed := t.release(late)
		if settled {
			return what, 1, nil
		}
		if changed == nil {
			return 0, 1, t.unfreed(&fault.NoAnswer{Bound: bound})
		}
		select {
		case <-changed:
		case <-timer.C:
			late = true
		case <-ctx.Done():
			return 0, 1, fault.Ended(ctx, t.unfreed(fault.NoWord(ctx)))
		}
	}
}

// Force deletes the lock wherever it is. It waits for every node if it can: with a majority alone, a lease whose acquire comes
// late to one of these nodes and whose key is still on another would go on. A token that had the key on so many nodes that too
// few are left has lost the lock.
func (q *quorum) Force(ctx context.Context, key string, bound time.Duration) (string, error) {
	if err := q.ready(ctx); err != nil {
		return "", err
	}
	replies, errs := q.survey(ctx, releaseNodeScript, key, bound, len(q.nodes), "force")
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

// survey asks every node and waits until enough have answered, or all have in some way, or bound has passed. It returns the answers
// by node, and the errors of the others.
func (q *quorum) survey(ctx context.Context, sc *script.Script, key string, bound time.Duration, enough int, args ...any) (map[int]any, []error) {
	type outcome struct {
		i     int
		reply any
		err   error
	}
	bound = min(bound, nodePatience)
	said := make(chan outcome, len(q.nodes))
	open := map[int]*roundtrip.Command{}
	keys := rediskey.Lock(q.prefix, key)
	for i, n := range q.nodes {
		open[i] = newNodeCall(ctx, sc, &keys, "", 0, args...)
		n.send(key, open[i], func(_ int, _ time.Time, reply any, err error) { said <- outcome{i, reply, err} })
	}
	timer := time.NewTimer(bound)
	defer timer.Stop()
	replies, errs := map[int]any{}, make([]error, len(q.nodes))
	var unheard error
	for len(open) > 0 && len(replies) < enough && unheard == nil {
		select {
		case o := <-said:
			delete(open, o.i)
			if errs[o.i] = o.err; o.err == nil {
				replies[o.i] = o.reply
			}
		case <-ctx.Done():
			unheard = fault.Ended(ctx, fault.NoWord(ctx))
		case <-timer.C:
			unheard = &fault.NoAnswer{Bound: bound}
		}
	}
	for i, c := range open {
		q.nodes[i].withdraw(key, c)
		errs[i] = c.Unheard(unheard)
	}
	return replies, errs
}

// Inspect answers what a majority says. It waits for all nodes if it can, for a picture that is whole.
func (q *quorum) Inspect(ctx context.Context, key string, bound time.Duration) (backend.View, error) {
	if err := q.ready(ctx); err != nil {
		return backend.View{}, err
	}
	replies, errs := q.survey(ctx, inspectNodeScript, key, bound, len(q.nodes))
	if len(replies) < q.majority() {
		return backend.View{}, q.shortOf(len(replies), errs)
	}
	views := make([]nodeState, 0, len(replies))
	for i, reply := range replies {
		v, err := decodeNodeState(reply)
		if err != nil {
			errs[i] = err
			continue
		}
		views = append(views, v)
	}
	s, known := q.majorityView(views)
	if !known {
		return backend.View{}, q.shortOf(len(views), errs)
	}
	return s, nil
}

// Close waits for what is under way and sends nothing after it.
func (q *quorum) Close(ctx context.Context) bool {
	for _, n := range q.nodes {
		n.forgive()
	}
	landed := true
	for _, n := range q.nodes {
		landed = n.Close(ctx) && landed
	}
	q.closed.Store(true)
	return landed
}

// NodeError is why one node of a quorum did not agree.
type NodeError struct {
	Node int // its index in NewQuorum's nodes
	Err  error
}

func (e *NodeError) Error() string { return fmt.Sprintf("node %d: %v", e.Node, e.Err) }

// Unwrap returns the cause.
func (e *NodeError) Unwrap() error { return e.Err }

// noQuorumError is ErrNoQuorum with the cause of each node that did not agree.
type noQuorumError struct {
	agreed, nodes int
	causes        []*NodeError
}

// shortOf reports that too few nodes agreed; errs has the cause of each that did not, by node, and nil for those that did.
func (q *quorum) shortOf(agreed int, errs []error) error {
	e := &noQuorumError{agreed: agreed, nodes: len(errs)}
	for i, err := range errs {
		if err != nil {
			e.causes = append(e.causes, &NodeError{i, err})
		}
	}
	return e
}

func (e *noQuorumError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v: %d of %d nodes agreed, want %d", ErrNoQuorum, e.agreed, e.nodes, e.nodes/2+1)
	for _, c := range e.causes {
		fmt.Fprintf(&b, "; %v", c)
	}
	return b.String()
}

// Unwrap returns ErrNoQuorum and the causes.
func (e *noQuorumError) Unwrap() []error {
	errs := []error{ErrNoQuorum}
	for _, c := range e.causes {
		errs = append(errs, c)
	}
	return errs
}

// transient reports whether a majority may agree later.
func (e *noQuorumError) Transient() bool {
	hopeless := 0
	for _, c := range e.causes {
		var young *youngError
		if !fault.Transient(c.Err) || errors.As(c.Err, &young) && young.left < 0 {
			hopeless++
		}
	}
	return e.nodes-hopeless >= e.nodes/2+1
}

// unavailable reports whether so few nodes gave an answer of use that no majority was to be had.
func (e *noQuorumError) Unavailable() bool {
	missing := 0
	for _, c := range e.causes {
		young, isYoung := errors.AsType[*youngError](c.Err)
		if fault.Unavailable(c.Err) || errors.Is(c.Err, errCrowded) || isYoung && young.left >= 0 {
			missing++
		}
	}
	return e.nodes-missing < e.nodes/2+1
}

// The causes that are no trouble of the node's. The first is not ErrHeld: one node that says so proves nothing.
var (
	errNodeHeld  = errors.New("another token has the key")
	errNodeStuck = errors.New("another token has the key, for ever")
	errNodeFree  = errors.New("nobody has the key")
	errNodeGone  = errors.New("the key is gone or another token's")
	errOvertaken = errors.New("its counter is ahead of the others'")
	errCrowded   = errors.New("too many calls wait for the node")
	errGiven     = errors.New("it is to forget the key")
	errUnheard   = errors.New("it had not answered when it was decided")
)

// youngError is the vote of a node in quarantine.
type youngError struct {
	left time.Duration // below 0: for ever
}

func (e *youngError) Error() string {
	if e.left < 0 {
		return "in quarantine for ever: INFO does not tell its uptime, see WithRestartQuarantine"
	}
	return fmt.Sprintf("restarted, and in quarantine for another %v", e.left)
}

// twinsError is two nodes that are one server: its vote would count twice.
type twinsError struct{ a, b int }

func (e *twinsError) Error() string {
	return fmt.Sprintf("%v: nodes %d and %d are one server", ErrInvalid, e.a, e.b)
}

// Unwrap returns ErrInvalid, though something was sent: it is the caller's list of nodes that cannot be used.
func (e *twinsError) Unwrap() error { return ErrInvalid }
