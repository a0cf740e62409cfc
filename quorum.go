package leasehold

import (
	"fmt"
	"slices"
	"time"

	"github.com/go-leasehold/leasehold/internal/quorum"
	"github.com/redis/go-redis/v9"
)

// WithRestartQuarantine sets for how long a node of a quorum does not vote after its start, so that every lease that it
// may have forgotten has expired before it votes again. It is for [NewQuorum] alone, and one setting for all processes
// that use the nodes: a process with a shorter one breaks the exclusion of the others. A lease whose TTL and lock delay
// together exceed it is refused with [ErrInvalid], because the longest TTL in use cannot be found out and so must have
// a limit.
//
// The default is [DefaultRestartQuarantine] and not none. Redis loses its last writes in a crash unless it runs with
// "appendfsync always", and without a quarantine one such crash is enough for two holders. The cost is that a node that
// has just been started counts as missing for a while. Zero switches the quarantine off, for nodes that never lose a
// write. FLUSHALL, an eviction and a failover inside a node lose keys without a restart, so no quarantine sees them.
func WithRestartQuarantine(d time.Duration) Option {
	return Option{func(o *options) {
		if o.belongs(inNewQuorum, "WithRestartQuarantine(%v): it is for NewQuorum", d) {
			o.quarantine = d
		}
	}}
}

// NewQuorum returns a Locker over an odd number of nodes, at least three, that know nothing of one another. A lock is
// held by the holder that a majority of them names, and it is held while a majority can be reached. Each client reaches
// one node. A node may be a server, a failover group or a cluster. It must not be a [redis.Ring], which loses the
// leases of the keys that it moves. The clients stay the caller's.
//
// The Locker is used like one of [New], with these differences. Waiters do not stand in a line: they retry after pauses
// with jitter, and a newcomer may be faster. If too many nodes fail, the error matches [ErrNoQuorum] and carries a
// [NodeError] for each. Inspect tells what a majority says, and no waiters. Restart less than a majority of the nodes
// at a time; otherwise everybody waits until [WithRestartQuarantine] has passed.
//
// At most one holder is trusted on two conditions: the clocks of the nodes run at the holder's rate within its margin
// and do not step forward, and a node that lost data was in quarantine after that. Fencing tokens rise whatever the
// clocks do, while one node that took part in both leases keeps its data.
//
// NewQuorum sends nothing. If there is a quarantine, the first acquires find out whether two clients reach one server.
// Then every call returns that error.
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
	l := newLocker(q, nil, *defaults)
	l.clients = slices.Clone(nodes)
	return l, nil
}

// NodeError is why one node of a quorum did not agree.
type NodeError struct {
	Node int // its index in NewQuorum's nodes
	Err  error
}

func (e *NodeError) Error() string { return fmt.Sprintf("node %d: %v", e.Node, e.Err) }

// Unwrap returns the cause.
func (e *NodeError) Unwrap() error { return e.Err }
