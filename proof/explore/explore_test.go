package explore

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// jugs holds how much water is in a jug of three gallons and in one of five.
type jugs struct{ three, five uint8 }

type pour string

func (p pour) String() string { return string(p) }

// water is the riddle of the two jugs: a step that leaves so much in the larger one violates "not that".
func water(forbidden uint8) Model[jugs, pour] {
	return Model[jugs, pour]{
		Steps: func(s *jugs, emit func(*jugs, pour, string)) {
			do := func(what pour, three, five uint8) {
				violates := ""
				if five == forbidden {
					violates = "not that"
				}
				emit(&jugs{three, five}, what, violates)
			}
			do("fill three", 3, s.five)
			do("fill five", s.three, 5)
			do("empty three", 0, s.five)
			do("empty five", s.three, 0)
			there := min(s.three, 5-s.five)
			do("three into five", s.three-there, s.five+there)
			back := min(s.five, 3-s.three)
			do("five into three", s.three+back, s.five-back)
		},
		Eventful: func(s *jugs) bool { return s.five == 4 },
		Show:     func(s *jugs) string { return fmt.Sprint(*s) },
	}
}

func TestTheTraceIsAShortestWay(t *testing.T) {
	m := water(4)
	r := m.Run()
	if r.Violated != "not that" || len(r.Trace) != 6 || !strings.Contains(r.Trace[5], "{3 4}") {
		t.Errorf("%+v", r)
	}
}

func TestEveryStateIsVisitedOnce(t *testing.T) {
	m := water(9)
	if r := m.Run(); r.Violated != "" || r.States != 16 || r.Eventful != 2 {
		t.Errorf("%+v", r)
	}
}

func TestStatesWithOneCanonicalFormAreOneState(t *testing.T) {
	m := water(9)
	m.Canonical = func(s *jugs) { s.three, s.five = min(s.three, s.five), max(s.three, s.five) }
	if r := m.Run(); r.Violated != "" || r.States >= 16 {
		t.Errorf("%+v", r)
	}
}

func TestAStateWithPaddingIsRefused(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	type padded struct {
		a uint8
		b uint32
	}
	_ = padded{a: 1, b: 1}
	(&Model[padded, pour]{}).Run()
}

func TestBoundsAreTheFieldsThatAreNotZero(t *testing.T) {
	if got := bounds(&jugs{five: 4}); got != "five 4" {
		t.Error(got)
	}
}

func TestRankKeepsTheOrderAndNothingElse(t *testing.T) {
	numbers := []uint8{0, 40, 7, 63, 7}
	var all []*uint8
	for i := range numbers {
		all = append(all, &numbers[i])
	}
	Rank(all)
	if want := []uint8{0, 2, 1, 3, 1}; !slices.Equal(numbers, want) {
		t.Errorf("got %v, want %v", numbers, want)
	}
	RankAmong(1<<1|1<<2|1<<3|1<<9, all) // 9 has no place here, and moves nobody
	if want := []uint8{0, 2, 1, 3, 1}; !slices.Equal(numbers, want) {
		t.Errorf("got %v, want %v", numbers, want)
	}
}
