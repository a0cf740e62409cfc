package leasehold

import (
	"fmt"
	"time"

	"github.com/go-leasehold/leasehold/internal/quorum"
	"github.com/redis/go-redis/v9"
)

// WithRestartQuarantine sets for how long a node of a quorum gives its vote to nobody after it has started, so that
// every lease that it may have forgotten is over before it votes again. It is for [NewQuorum] alone, and one setting
// for all processes that use the nodes: a process with a shorter one breaks the exclusion of the others. A lease whose
// TTL and lock delay together exceed it is refused with [ErrInvalid], because the longest TTL in use cannot be found
// out and so has to be bounded.
//
// The default is one minute and not none: Redis loses its last writes in a crash unless it was set up with "appendfsync
// always", and without a quarantine one such crash is enough for two holders. What it costs is that a node that has
// just been started counts as missing for a while. Zero switches it off; only for nodes that never lose a write.
// FLUSHALL, eviction and a failover inside a node are losses that no quarantine sees.
func WithRestartQuarantine(d time.Duration) Option {
	return Option{func(o *options) {
		if o.belongs(inNewQuorum, "WithRestartQuarantine(%v): it is for NewQuorum", d) {
			o.quarantine = d
		}
	}}
}

// NewQuorum returns a Locker over an odd number of nodes, three at least, that know nothing of one another: a lock is
// held by whom a majority of them says it is, and goes on while a majority can be reached. Each client reaches one
// node, which may itself be a server, a failover group or a cluster, but not a [redis.Ring], which loses the leases of
// the keys that it moves. The clients stay the caller's.
//
// It is used like a Locker of [New], with these differences. Waiters do not stand in a line: they try again after
// pauses of chance, and a newcomer may be faster. A failure of too many nodes matches [ErrNoQuorum] and carries a
// [NodeError] for each. Inspect tells what a majority says, and no waiters. Nodes must be restarted less than a
// majority at a time, or everybody waits out [WithRestartQuarantine].
//
// One holder at most is trusted as long as the nodes' clocks run at the holder's rate within its margin and do not step
// forward, and a node that lost data was in quarantine after it. Fencing tokens rise whatever the clocks do, while a
// node that took part in both leases keeps its data.
//
// NewQuorum sends nothing. That two clients reach one server is found out by the first acquires, if there is a
// quarantine, and is then the error of every call.
func NewQuorum(nodes []redis.UniversalClient, opts ...Option) (*Locker, error) {
	defaults := (&options{quarantine: time.Minute}).with(inNewQuorum, opts)
	q, err := quorum.New(nodes, quorum.Config{
		Prefix:     defaults.prefix,
		Quarantine: defaults.quarantine,
		NodeError:  func(node int, err error) error { return &NodeError{node, err} },
	})
	if d := defaults.quarantine; err == nil && (d != 0 && d < minTTL || d > maxTTL) {
		err = invalid("WithRestartQuarantine(%v): want %v to ten years, or 0 for none", d, minTTL)
	}
	if err != nil {
		return nil, &Error{Op: "new quorum", Err: err}
	}
	return newLocker(q, nil, *defaults), nil
}

// NodeError is why one node of a quorum did not agree.
type NodeError struct {
	Node int // its index in NewQuorum's nodes
	Err  error
}

func (e *NodeError) Error() string { return fmt.Sprintf("node %d: %v", e.Node, e.Err) }

// Unwrap returns the cause.
func (e *NodeError) Unwrap() error { return e.Err }
