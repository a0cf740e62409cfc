package leasehold

import (
	"fmt"
	"log/slog"

	"github.com/go-leasehold/leasehold/internal/fault"
)

// How leases are printed: without the token, which is a proof of ownership, and without a race with the keeper, which
// changes the lease meanwhile. The methods of this file see to that wherever fmt calls them. fmt does not call them for
// a field that is not exported, in a struct of the user's: it then prints by reflection, and follows a pointer if the
// verb does not suit one (as %s does not). It never follows two pointers, so two lie between a Lease and its state.

// String says which lease it is and how it stands:
//
//	lease "invoice:7" (fencing token 42, held until 2026-01-02T15:04:05.678Z)
func (le *Lease) String() string {
	if le == nil {
		return "<nil>"
	}
	return fmt.Sprintf("lease %s (fencing token %d, %s)", fault.Quote(le.Key()), le.FencingToken(), le.standing())
}

// GoString returns the same as String, for %#v: there is no Go expression for a lease.
func (le *Lease) GoString() string { return le.String() }

// Format prints String with any verb that suits a string. With the others fmt would print the fields.
func (le *Lease) Format(f fmt.State, verb rune) { format(f, verb, le.String()) }

// LogValue returns what String says as a group of attributes, named as in the lines of [WithLogger].
func (le *Lease) LogValue() slog.Value {
	if le == nil {
		return slog.AnyValue(nil)
	}
	e := le.event()
	return slog.GroupValue(slog.String("key", e.Key), slog.Int64("fencing_token", e.FencingToken),
		slog.String("owner", e.Owner), slog.String("state", le.standing()))
}

// Format prints what the Locker has in hand. Without it fmt would read fields that calls and the keeper change.
func (l *Locker) Format(f fmt.State, verb rune) {
	text := "<nil>"
	if l != nil {
		text = fmt.Sprintf("locker (%d leases held, %d acquires waiting)", l.keeper.Len(), l.Stats().Waiting)
	}
	format(f, verb, text)
}

// format prints a text as fmt prints strings, but for %#v without quotes.
func format(f fmt.State, verb rune, text string) {
	if verb == 'v' {
		verb = 's'
	}
	fmt.Fprintf(f, fmt.FormatString(f, verb), text)
}
