package election

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/go-leasehold/leasehold"
)

// Leader says who leads, as Redis reported it at one instant. The zero Leader means nobody.
type Leader struct {
	Owner string // the leasehold.WithOwner label of its candidate, "" if that has none
	Term  int64  // the fencing token of its lease, greater in every later term
}

// The pauses between two polls of an observer. Each is shortened by a jitter of up to a fifth, so that observers that started
// together do not poll together.
const (
	quick = 250 * time.Millisecond // nobody polls more often than this
	idle  = time.Second            // while nobody leads
	slow  = 5 * time.Second        // nobody polls less often than this
)

// Observe reports who leads: once at the start, and then whenever that has changed. The observer is no candidate. The
// sequence ends with ctx, and can be ranged over again.
//
//	for leader, err := range election.Observe(ctx, locker, "billing") {
//		…
//	}
//
// Observe asks Redis in the goroutine of the loop, and sleeps between two polls. It reports a change within a third of the
// time that the leader's key had left at the poll before, but within 5 s at most, and not sooner than 250 ms; while nobody
// leads, within a second. It does not report a term that begins and ends between two polls. So an observer sends about four
// commands in a TTL, and at most five in a second.
//
// If Redis cannot be asked, Observe reports the error once, and then retries after growing pauses of at most 5 s. As soon as
// it knows who leads, it reports that, even if nothing has changed. An error that matches leasehold.ErrInvalid or
// leasehold.ErrClosed is the last one.
//
// A report may be out of date already. Use it to show the leader, or to send a request to the leader, which must itself know
// whether it leads. Do not use it to decide whether a process may write.
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

// final reports whether every later poll would return the same error.
func final(err error) bool {
	return errors.Is(err, leasehold.ErrInvalid) || errors.Is(err, leasehold.ErrClosed)
}

func leaderOf(state leasehold.LockState) Leader {
	if !state.Held || state.Resting {
		return Leader{}
	}
	return Leader{Owner: state.Owner, Term: state.FencingToken}
}

// untilNext is the time to the next poll. A leader that renews has at least two thirds of its TTL left. A leader that does not
// renew has less and less, so the polls are closer together when the next election comes closer.
func untilNext(state leasehold.LockState) time.Duration {
	switch {
	case !state.Held:
		return idle
	case state.TTL < 0: // for ever, which no lease of ours is
		return slow
	}
	return min(max(state.TTL/3, quick), slow)
}
