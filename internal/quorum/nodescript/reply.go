package nodescript

import (
	"fmt"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/fault"
)

// The kinds of replies to an acquire, a refill or a renewal: the first number of each.
const (
	Granted = 1
	Refused = 0  // acquire, refill: held; renewal: nobody has the key
	Barred  = -1 // acquire, refill: in quarantine; renewal: another token has the key
)

// Reply is what a node replied to an acquire, a refill or a renewal.
type Reply struct {
	Kind    int64
	Counter int64         // the fencing counter; 0: the reply does not tell it
	Left    time.Duration // of the quarantine; below 0: for ever
	Forever bool          // another token has the key, without a TTL
	Free    bool          // of a refusal: nobody has the key
	Now     int64         // the node's time in µs; 0: the reply does not tell it
	Run     string        // the id of the server's run; "": it was not asked for
}

// IsGranted reports whether the token has the key on the node.
func (r Reply) IsGranted() bool { return r.Kind == Granted }

// Read reads {1, f, now, run}, {0, ms, now, run, f} and {-1, ms, now, run} of an acquire; and of a renewal or a refill {1, f, now}
// and the bare {0} and {-1} too. It passes an error of the command on. With an error the reply is no grant.
func Read(raw any, err error) (Reply, error) {
	none := Reply{Kind: Barred}
	if err != nil {
		return none, err
	}
	list, ok := raw.([]any)
	if !ok || len(list) == 0 {
		return none, badReply(raw)
	}
	var n [5]int64
	var r Reply
	for i, x := range list[:min(len(list), len(n))] {
		if i == 3 {
			r.Run, ok = x.(string)
		} else {
			n[i], ok = x.(int64)
		}
		if !ok {
			return none, badReply(raw)
		}
	}
	r.Kind, r.Now = n[0], n[2]
	switch {
	case r.Kind == Granted && len(list) >= 3 && n[1] >= 1:
		r.Counter = n[1]
	case r.Kind == Refused && (len(list) == 1 || len(list) == 5):
		r.Counter, r.Forever = n[4], n[1] == -1
		r.Free = len(list) == 1 || n[1] == -2
	case r.Kind == Barred && (len(list) == 1 || len(list) == 4):
		r.Left = time.Duration(n[1]) * time.Millisecond
	default:
		return none, badReply(raw)
	}
	return r, nil
}

func badReply(raw any) error { return fmt.Errorf("%w: %v to a quorum's script", fault.ErrReply, raw) }

// Refusals counts what nodes say of a token that does not hold the key there. A key of another type counts as another token's.
type Refusals struct {
	Gone   int // nobody has the key
	Others int // another token has
}

// Count is how many there are.
func (r Refusals) Count() int { return r.Gone + r.Others }

// Why is what most of them say, as one of the backend's reasons.
func (r Refusals) Why() int {
	if r.Others > r.Gone {
		return backend.HeldByOther
	}
	return backend.NotHeld
}
