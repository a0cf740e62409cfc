package explore

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
)

// Large skips a run that is too large for every day, unless LEASEHOLD_PROOF=all is set.
func Large(t testing.TB) {
	t.Helper()
	if os.Getenv("LEASEHOLD_PROOF") != "all" {
		t.Skip("a large run: set LEASEHOLD_PROOF=all")
	}
}

// Holds requires that no step of the model violates a property, and that it has eventful states.
func Holds[S comparable, L fmt.Stringer](t testing.TB, m Model[S, L]) {
	t.Helper()
	r := m.Run()
	if r.Violated != "" {
		t.Errorf("%s fails:\n%s", r.Violated, strings.Join(r.Trace, "\n"))
	}
	if m.Eventful != nil && r.Eventful == 0 {
		t.Error("nothing ever happened")
	}
	t.Logf("%d states, depth %d; %s", r.States, r.Depth, bounds(m.Bounds))
}

// Breaks requires that a step of the model violates the property.
func Breaks[S comparable, L fmt.Stringer](t testing.TB, m Model[S, L], property string) {
	t.Helper()
	r := m.Run()
	if r.Violated != property {
		t.Errorf("saw %q fail, want %q", r.Violated, property)
	}
	t.Logf("%d states, %d steps; %s\n%s", r.States, len(r.Trace), bounds(m.Bounds), strings.Join(r.Trace, "\n"))
}

// bounds prints the fields of a struct that are not zero.
func bounds(of any) string {
	if of == nil {
		return ""
	}
	v := reflect.Indirect(reflect.ValueOf(of))
	var b []string
	for i := range v.NumField() {
		if f := v.Field(i); !f.IsZero() {
			b = append(b, fmt.Sprintf("%s %v", v.Type().Field(i).Name, f))
		}
	}
	return strings.Join(b, ", ")
}
