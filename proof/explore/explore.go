// Package explore visits every state that a model can reach, breadth first. It needs nothing but the standard library.
//
// A model is a first state and a function that makes all states which can come next. The search stops at the first step
// that violates a property, and tells the way to it: no shorter way leads to a violation.
package explore

import (
	"fmt"
	"hash/maphash"
	"reflect"
	"slices"
	"unsafe"
)

// Model is what is explored. S is a state, which consists of bytes and bools only, so that equal states have equal memory.
// L names a step.
type Model[S comparable, L fmt.Stringer] struct {
	Start S

	// Steps calls emit with every state that can come next, with the name of the step, and with the property that the step
	// violates, or "". The state is emit's until emit returns.
	Steps func(s *S, emit func(next *S, step L, violates string))

	// Canonical makes one state of those that differ in nothing that matters, such as the order of clients that are alike.
	// May be nil.
	Canonical func(*S)

	// Eventful reports whether something has happened that the run is about, such as a lease that began. May be nil.
	Eventful func(*S) bool

	// Bounds is a struct of what the run is about: its fields that are not zero are logged.
	Bounds any

	// Show prints a state, for a trace. May be nil.
	Show func(*S) string
}

// Result is what a search found.
type Result struct {
	Violated string   // the property; "" if all hold
	Trace    []string // the steps to the violation
	States   int
	Depth    int // of the state that is furthest from the start
	Eventful int // so many states were eventful: none in a run in which nothing happens
}

// Run visits every state that can be reached, or stops at the first violation. It panics if S has padding or pointers.
func (m *Model[S, L]) Run() (r Result) {
	mustBeBytes(reflect.TypeFor[S]())
	seed := maphash.MakeSeed()
	first := m.Start
	if m.Canonical != nil {
		m.Canonical(&first)
	}
	var seen set
	seen.add(fingerprint(seed, &first), 0)
	r.States = 1
	level := []S{first}
	var bad S
	var before uint64 // the state from which a step led to bad
	for ; len(level) > 0; r.Depth++ {
		var next []S
		for i := range level {
			var from uint64 // computed when it is needed
			m.Steps(&level[i], func(s *S, _ L, violates string) {
				if r.Violated != "" {
					return
				}
				if m.Canonical != nil {
					m.Canonical(s)
				}
				if from == 0 {
					from = fingerprint(seed, &level[i])
				}
				if violates != "" {
					r.Violated, bad, before = violates, *s, from
					return
				}
				if !seen.add(fingerprint(seed, s), from) {
					return
				}
				r.States++
				if m.Eventful != nil && m.Eventful(s) {
					r.Eventful++
				}
				next = append(next, *s)
			})
			if r.Violated != "" {
				r.Trace = m.trace(seed, &seen, before, &bad, r.Violated)
				return r
			}
		}
		level = next
	}
	return r
}

// trace finds the way to a violation: back by fingerprints, then forward again, step by step. On the way forward states are
// left as they are, so that a client keeps its name from line to line. Where that does not lead on, since a canonical form
// is not quite unique, the way goes on from the canonical form.
func (m *Model[S, L]) trace(seed maphash.Seed, seen *set, last uint64, bad *S, violated string) (lines []string) {
	way := []uint64{fingerprint(seed, bad)}
	for at := last; at != 0; at = seen.parent(at) {
		way = append(way, at)
	}
	slices.Reverse(way)
	s := m.Start
	for i, at := range way[1:] {
		want := ""
		if i+2 == len(way) {
			want = violated
		}
		to, name, ok := m.follow(seed, s, at, want)
		if !ok {
			m.Canonical(&s)
			to, name, _ = m.follow(seed, s, at, want)
			name += " (by other names)"
		}
		line := fmt.Sprintf("%3d  %-28s", i+1, name)
		if m.Show != nil {
			line += "  " + m.Show(&to)
		}
		lines = append(lines, line)
		s = to
	}
	return lines
}

// follow finds the step from s to the state of that fingerprint.
func (m *Model[S, L]) follow(seed maphash.Seed, s S, at uint64, violated string) (to S, name string, ok bool) {
	m.Steps(&s, func(next *S, step L, violates string) {
		plain := *next
		if m.Canonical != nil {
			m.Canonical(next)
		}
		if !ok && violates == violated && fingerprint(seed, next) == at {
			to, name, ok = plain, step.String(), true
		}
	})
	return to, name, ok
}

// fingerprint stands for a state in the set of those that were seen: 64 bits under a seed that is new in every run. With
// ten million states the chance that two of them share one is one in 300,000.
func fingerprint[S any](seed maphash.Seed, s *S) uint64 {
	h := maphash.Bytes(seed, unsafe.Slice((*byte)(unsafe.Pointer(s)), unsafe.Sizeof(*s)))
	return max(h, 1) // 0 is none
}

// set is a hash table from a state's fingerprint to that of the state from which it was reached first.
type set struct {
	slots []slot
	n     int
}

type slot struct{ state, parent uint64 }

// add reports whether the state is new.
func (t *set) add(state, parent uint64) bool {
	if 4*(t.n+1) > 3*len(t.slots) {
		old := t.slots
		t.slots = make([]slot, max(1024, 2*len(old)))
		for _, x := range old {
			if x.state != 0 {
				*t.find(x.state) = x
			}
		}
	}
	x := t.find(state)
	if x.state == state {
		return false
	}
	*x = slot{state, parent}
	t.n++
	return true
}

func (t *set) parent(state uint64) uint64 { return t.find(state).parent }

// find is the slot of a state, or the free one where it belongs.
func (t *set) find(state uint64) *slot {
	for i := state; ; i++ {
		if x := &t.slots[i&uint64(len(t.slots)-1)]; x.state == 0 || x.state == state {
			return x
		}
	}
}

// mustBeBytes panics unless a value of the type is nothing but bytes and bools: then it has neither padding nor pointers.
func mustBeBytes(t reflect.Type) {
	switch t.Kind() {
	case reflect.Uint8, reflect.Int8, reflect.Bool:
	case reflect.Array:
		mustBeBytes(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			mustBeBytes(t.Field(i).Type)
		}
	default:
		panic("explore: a state may not have a " + t.String())
	}
}
