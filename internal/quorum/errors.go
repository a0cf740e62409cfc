package quorum

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/quorum/nodescript"
)

// shortfall is fault.ErrNoQuorum with the cause of each node that did not agree.
type shortfall struct {
	agreed, nodes int
	// causes are as Config.NodeError makes them, in the order of the nodes.
	causes []error
}

// shortOf reports that too few nodes agreed. errs has, by node, why that node did not agree, and nil if it did.
func (q *Quorum) shortOf(agreed int, errs []error) error {
	e := &shortfall{agreed: agreed, nodes: len(errs)}
	for i, err := range errs {
		if err != nil {
			e.causes = append(e.causes, q.config.NodeError(i, err))
		}
	}
	return e
}

// Error names every cause, since the nodes of a quorum seldom fail for the same one.
func (e *shortfall) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v: %d of %d nodes agreed, want %d", fault.ErrNoQuorum, e.agreed, e.nodes, majorityOf(e.nodes))
	for _, err := range e.causes {
		fmt.Fprintf(&b, "; %v", err)
	}
	return b.String()
}

// Unwrap returns fault.ErrNoQuorum and the causes.
func (e *shortfall) Unwrap() []error { return append([]error{fault.ErrNoQuorum}, e.causes...) }

// Transient reports whether a majority may agree later. Package fault asks this of the whole, and does not judge the causes one by
// one: two nodes of five that are misconfigured for ever leave three.
func (e *shortfall) Transient() bool {
	return e.nodes-e.count(isHopeless) >= majorityOf(e.nodes)
}

// isHopeless reports whether a later call would meet the cause again.
func isHopeless(err error) bool {
	q, inQuarantine := errors.AsType[*quarantineError](err)
	return !fault.Transient(err) || inQuarantine && q.isForever()
}

// Unavailable reports whether so many nodes gave no reply of use that a majority was not to be had. That another token has the
// key is a reply of use.
func (e *shortfall) Unavailable() bool {
	return e.nodes-e.count(isMissing) < majorityOf(e.nodes)
}

// isMissing reports whether the cause says nothing of the lock.
func isMissing(err error) bool {
	q, inQuarantine := errors.AsType[*quarantineError](err)
	return fault.Unavailable(err) || errors.Is(err, errCrowded) || inQuarantine && !q.isForever()
}

// count counts causes.
func (e *shortfall) count(is func(error) bool) (n int) {
	for _, err := range e.causes {
		if is(err) {
			n++
		}
	}
	return n
}

// cutShort is the error of a call that ended before it was decided: ctx ended, or else bound was over. reason makes the error of
// all nodes from the cause of those that have not replied. That a caller has cancelled says nothing of these, and that a deadline
// has come says that there was no answer until then.
func cutShort(ctx context.Context, bound time.Duration, reason func(silence error) error) error {
	if ctx.Err() != nil {
		return fault.Ended(ctx, reason(cmp.Or(fault.NoWord(ctx), errUnheard)))
	}
	return reason(&fault.NoAnswer{Bound: bound})
}

// The causes that are no trouble of the node's. The first two are not fault.ErrHeld: that one node says so proves nothing, and the
// whole is then short of a quorum.
var (
	// Of an acquire:
	errHeld     = errors.New("another token has the key")
	errHeldEver = errors.New("another token has the key, for ever")
	// Of an acquire that is to adopt a lease:
	errFree = errors.New("nobody has the key")
	// Of a raise or a renewal:
	errGone = errors.New("the key is gone or another token's")
	// Of a node that has named a higher number than the fencing token, or was told one. It never accepts the fencing token.
	errOvertaken = errors.New("its counter is ahead of the others'")
	// Of a node that was not asked, since maxCalls are under way.
	errCrowded = errors.New("too many calls wait for the node")
	// Of a node that has renewed although a release is under way: it has the key now, and not for long.
	errReleasing = errors.New("it is to forget the key")
	// Of a node of which nothing is known.
	errUnheard = errors.New("it had not answered when it was decided")
)

// against is the cause of a node whose reply to an acquire is no grant: another token has the key, or nobody has the one that was to be
// adopted, or the node is in quarantine.
func against(r nodescript.Reply) error {
	switch {
	case r.Free:
		return errFree
	case r.Kind == nodescript.Refused && r.Forever:
		return errHeldEver
	case r.Kind == nodescript.Refused:
		return errHeld
	}
	return &quarantineError{r.Left}
}

// quarantineError is the vote of a node that has restarted and may have forgotten leases. It passes, unless the node does not tell its
// uptime: then nobody knows when it may vote.
type quarantineError struct {
	// left is what is left of the quarantine; below 0: for ever.
	left time.Duration
}

func (e *quarantineError) isForever() bool { return e.left < 0 }

func (e *quarantineError) Error() string {
	if e.isForever() {
		return "in quarantine for ever: INFO does not tell its uptime, see WithRestartQuarantine"
	}
	return fmt.Sprintf("restarted, and in quarantine for another %v", e.left)
}

// sameServerError is that two nodes are one server, whose vote would count twice. It is found out by the run ids that their
// replies carry, and is then the error of every call.
type sameServerError struct{ a, b int }

func (e *sameServerError) Error() string {
	return fmt.Sprintf("%v: nodes %d and %d are one server", fault.ErrInvalid, e.a, e.b)
}

// Unwrap returns fault.ErrInvalid, although something was sent: it is the caller's list of nodes that cannot be used.
func (e *sameServerError) Unwrap() error { return fault.ErrInvalid }
