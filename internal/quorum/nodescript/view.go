package nodescript

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/script"
	"github.com/go-leasehold/leasehold/internal/token"
)

// View is what one node says of a lock.
type View struct {
	Token   string // "": nobody has the key
	Left    time.Duration
	Forever bool
	Counter int64 // the fencing counter; 0: there is none
}

// ReadView reads the reply to an inspect.
func ReadView(raw any) (v View, err error) {
	list, ok := raw.([]any)
	if !ok || len(list) != 3 {
		return v, fmt.Errorf("%w: %v to inspect", fault.ErrReply, raw)
	}
	v.Token, _ = list[0].(string)
	if v.Left, v.Forever, err = script.PTTL(list[1]); err != nil {
		return v, err
	}
	if list[2] != "" {
		v.Counter, err = script.FencingToken(list[2])
	}
	return v, err
}

// Majority sums up what some of that many nodes say. It reports false if the nodes that said nothing could turn the picture
// round.
//
// The fencing token of the holder is the counter that a majority shows, since a majority has accepted it. Without a holder it is
// the highest counter: the last lease had no higher number.
func Majority(views []View, nodes int) (all backend.View, known bool) {
	need, missing := nodes/2+1, nodes-len(views)
	for _, v := range views {
		all.Fence = max(all.Fence, v.Counter)
	}
	known = true
	for _, v := range views {
		var lefts []time.Duration
		same := 0
		for _, w := range views {
			if w.Token != v.Token {
				continue
			}
			if w.Forever {
				w.Left = math.MaxInt64
			}
			lefts = append(lefts, w.Left)
			if w.Counter == v.Counter {
				same++
			}
		}
		switch {
		case v.Token == "":
		case len(lefts) >= need:
			slices.Sort(lefts)
			// The lock is held for as long as a majority of the keys is left.
			all.Held, all.Owner, all.Left = true, token.Owner(v.Token), lefts[len(lefts)-need]
			if all.Left == math.MaxInt64 {
				all.Left = -1
			}
			if same >= need {
				all.Fence = v.Counter
				return all, true
			}
		case len(lefts)+missing >= need:
			known = false
		}
	}
	return all, known || all.Held
}
