package leasehold

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

// The kinds of answers of quorum_acquire.lua and quorum_renew.lua.
const (
	voteYes   = 1
	voteNo    = 0  // acquire: held; renew: absent
	voteNever = -1 // acquire: in quarantine; renew: another's
)

// vote is a node's answer to acquire or renew.
type vote struct {
	kind    int64
	counter int64         // if it tells
	left    time.Duration // in quarantine, below 0: for ever
	forever bool          // another token has the key, without a TTL
	free    bool          // of a refusal: nobody holds the key
	now     int64         // µs; 0: it does not tell
	run     string
}

func (v vote) granted() bool { return v.kind == voteYes }

// why is the cause of an acquire's vote that was no yes.
func (v vote) why() error {
	switch {
	case v.free:
		return errNodeFree
	case v.kind == voteNo && v.forever:
		return errNodeStuck
	case v.kind == voteNo:
		return errNodeHeld
	}
	return &youngError{v.left}
}

// decodeVote reads {1, f, now, run}, {0, ms, now, run, f} and {-1, ms, now, run} of acquire; of renew and refill {1, f, now}
// and the bare {0} and {-1} too.
func decodeVote(reply any, err error) (vote, error) {
	if err != nil {
		return vote{kind: voteNever}, err
	}
	bad := fmt.Errorf("%w: %v to a quorum's script", fault.ErrReply, reply)
	list, ok := reply.([]any)
	if !ok || len(list) == 0 {
		return vote{kind: voteNever}, bad
	}
	var n [5]int64
	var v vote
	for i, x := range list[:min(len(list), len(n))] {
		if i == 3 {
			v.run, ok = x.(string)
		} else {
			n[i], ok = x.(int64)
		}
		if !ok {
			return vote{kind: voteNever}, bad
		}
	}
	v.kind, v.now = n[0], n[2]
	switch {
	case v.kind == voteYes && len(list) >= 3 && n[1] >= 1:
		v.counter = n[1]
	case v.kind == voteNo && (len(list) == 1 || len(list) == 5):
		v.counter, v.forever = n[4], n[1] == -1
		v.free = len(list) == 1 || n[1] == -2
	case v.kind == voteNever && (len(list) == 1 || len(list) == 4):
		v.left = time.Duration(n[1]) * time.Millisecond
	default:
		return vote{kind: voteNever}, bad
	}
	return v, nil
}

// nodeState is what quorum_inspect.lua tells.
type nodeState struct {
	token   string
	left    time.Duration
	forever bool
	counter int64 // 0: none
}

func decodeNodeState(reply any) (v nodeState, err error) {
	list, ok := reply.([]any)
	if !ok || len(list) != 3 {
		return v, fmt.Errorf("%w: %v to inspect", fault.ErrReply, reply)
	}
	v.token, _ = list[0].(string)
	if v.left, v.forever, err = script.PTTL(list[1]); err != nil {
		return v, err
	}
	if list[2] != "" {
		v.counter, err = script.FencingToken(list[2])
	}
	return v, err
}

// majorityView makes one View of several. It reports false if the nodes that did not answer could turn it round.
//
// A majority has accepted the fencing token of the lock's holder. Without a holder the highest counter is told: the last lease
// had no higher one.
func (q *quorum) majorityView(views []nodeState) (s backend.View, known bool) {
	need, missing := q.majority(), len(q.nodes)-len(views)
	for _, v := range views {
		s.Fence = max(s.Fence, v.counter)
	}
	known = true
	for _, v := range views {
		var lefts []time.Duration
		same := 0
		for _, w := range views {
			if w.token != v.token {
				continue
			}
			if w.forever {
				w.left = math.MaxInt64
			}
			lefts = append(lefts, w.left)
			if w.counter == v.counter {
				same++
			}
		}
		switch {
		case v.token == "":
		case len(lefts) >= need:
			slices.Sort(lefts)
			s.Held, s.Owner, s.Left = true, token.Owner(v.token), lefts[len(lefts)-need] // a majority of keys has to be left
			if s.Left == math.MaxInt64 {
				s.Left = -1
			}
			if same >= need {
				s.Fence = v.counter
				return s, true
			}
		case len(lefts)+missing >= need:
			known = false
		}
	}
	return s, known || s.Held
}
