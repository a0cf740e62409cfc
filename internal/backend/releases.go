package backend

import "github.com/go-leasehold/leasehold/internal/fault"

// Releases is what is known of the releases of one tenure, which may be sent several times, also at once. The zero value has
// sent none. It is guarded by the mutex of the lease that owns it.
//
//	open     some are sent and not answered: another one may be sent
//	settled  it is known what became of the key: none is sent any more
//	clean    settled, and an answer said that the key was ours and is gone
//	lost     settled, and the key was not ours; Found is what the release found in its place
//
// A release may be settled and neither clean nor lost. Then an answer "not yours" came to a command that may have been written
// twice: the first has done it.
type Releases struct {
	open    int // sent and not answered
	written int // how often one may have been written to a connection

	Settled bool
	Clean   bool
	Lost    bool
	Found   int // of a lost one: a reason below 0, or ReleasedPlace where the token only stood in the line
}

// Begin counts a release that is about to be sent. It is counted before: of two at once, the later must not take the earlier's
// work for a loss.
func (r *Releases) Begin() {
	r.open++
	r.written++
}

// IsOpen reports whether the answer to a release is still to come.
func (r *Releases) IsOpen() bool { return r.open > 0 }

// Answered takes in the answer to one release, and reports whether sending another one is of use.
func (r *Releases) Answered(found, writes int, err error) (again bool) {
	if fault.DidNothing(err, writes) {
		writes = 0
	}
	r.open--
	r.written += writes - 1
	switch {
	case r.Settled:
	case err != nil:
		return writes > 0 || fault.Transient(err)
	case found == ReleasedLock:
		r.Settled, r.Clean = true, true
	case r.written == 1:
		r.Settled, r.Lost, r.Found = true, true, found
	case r.open == 0: // else the one that did it has yet to be heard
		r.Settled = true
	}
	return false
}
