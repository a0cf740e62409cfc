package election

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/go-leasehold/leasehold"
)

// Leader is who leads, as Redis said at one instant. The zero Leader is nobody.
type Leader struct {
	Owner string // the leasehold.WithOwner label of its candidate, "" if that has none
	Term  int64  // the fencing token of its lease, greater in every later term
}

// The pauses between two looks of an observer. Each is shortened by up to a fifth by chance, so that the observers who
// started together do not look together.
const (
	quick = 250 * time.Millisecond // nobody looks more often than this
	idle  = time.Second            // while nobody leads
	slow  = 5 * time.Second        // nobody looks less often than this
)

// Observe tells who leads: at first, and then whenever that has changed. It stands for nothing itself. The sequence ends with
// ctx, and can be ranged over again.
//
//	for leader, err := range election.Observe(ctx, locker, "billing") {
//		…
//	}
//
// Observe asks Redis in the goroutine of the loop, and sleeps between two looks. A change is told within a third of the time
// that the leader's key had left at the look before, but that is never more than 5 s, nor less than 250 ms; and within a
// second while nobody leads. A term that begins and ends between two looks is not told. So an observer sends about four
// commands in a TTL, and at most five in a second.
//
// When Redis cannot be asked, the error is told, once. Observe then tries again after growing pauses, of 5 s at most. When it
// knows who leads, it tells that, even if nothing has changed. An error that matches leasehold.ErrInvalid or
// leasehold.ErrClosed is the last.
//
// What is told may be over already. It is good for showing it, and for sending a request to the leader, which must itself
// know whether it leads. It is not good for deciding that one may write.
func Observe(ctx context.Context, locker *leasehold.Locker, key string) iter.Seq2[Leader, error] {
	return func(yield func(Leader, error) bool) {
		var last Leader
		known, failures := false, 0
		for ctx.Err() == nil {
			state, err := locker.Inspect(ctx, key)
			if err != nil {
				if ctx.Err() != nil || failures == 0 && !yield(Leader{}, err) || final(err) {
					return
				}
				known = false
				pause(ctx, min(quick<<min(failures, 5), slow), 5)
				failures++
				continue
			}
			failures = 0
			if leader := leaderOf(state); !known || leader != last {
				if !yield(leader, nil) {
					return
				}
				last, known = leader, true
			}
			pause(ctx, untilNext(state), 5)
		}
	}
}

// final tells an error that no later look can be without.
func final(err error) bool {
	return errors.Is(err, leasehold.ErrInvalid) || errors.Is(err, leasehold.ErrClosed)
}

func leaderOf(state leasehold.LockState) Leader {
	if !state.Held {
		return Leader{}
	}
	return Leader{Owner: state.Owner, Term: state.FencingToken}
}

// untilNext is the time to the next look. A leader that renews has at least two thirds of its TTL left. One that does not
// has less and less, so the looks are closer together where the election of another comes closer.
func untilNext(state leasehold.LockState) time.Duration {
	switch {
	case !state.Held:
		return idle
	case state.TTL < 0: // for ever, which no lease of ours is
		return slow
	}
	return min(max(state.TTL/3, quick), slow)
}
