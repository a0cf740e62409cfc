package backend_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/fault"
)

func TestWhatTheAnswersToReleasesSay(t *testing.T) {
	silence, refusal := &fault.NoAnswer{}, fault.Said("ERR no")
	type answer struct {
		found, writes int
		err           error
		again         bool
	}
	for name, tt := range map[string]struct {
		answers                []answer
		settled, clean, isLost bool
	}{
		"ours":                            {[]answer{{backend.ReleasedLock, 1, nil, false}}, true, true, false},
		"ours, written twice":             {[]answer{{backend.ReleasedLock, 2, nil, false}}, true, true, false},
		"nobody's":                        {[]answer{{backend.NotHeld, 1, nil, false}}, true, false, true},
		"another's":                       {[]answer{{backend.HeldByOther, 1, nil, false}}, true, false, true},
		"a place in the line and no lock": {[]answer{{backend.ReleasedPlace, 1, nil, false}}, true, false, true},
		"nobody's, written twice":         {[]answer{{backend.NotHeld, 2, nil, false}}, true, false, false},
		"no answer":                       {[]answer{{0, 1, silence, true}}, false, false, false},
		"no answer, then nobody's":        {[]answer{{0, 1, silence, true}, {backend.NotHeld, 1, nil, false}}, true, false, false},
		"never written, then nobody's":    {[]answer{{0, 0, silence, true}, {backend.NotHeld, 1, nil, false}}, true, false, true},
		"refused":                         {[]answer{{0, 1, refusal, false}}, false, false, false},
		"refused, then nobody's":          {[]answer{{0, 1, refusal, false}, {backend.NotHeld, 1, nil, false}}, true, false, true},
		"a mistake that may have been sent twice": {[]answer{{0, 2, refusal, true}}, false, false, false},
	} {
		var r backend.Releases
		for _, a := range tt.answers {
			r.Begin()
			assert.True(t, r.IsOpen(), name)
			assert.Equal(t, a.again, r.Answered(a.found, a.writes, a.err), name)
			assert.False(t, r.IsOpen(), name)
		}
		assert.Equal(t, []bool{tt.settled, tt.clean, tt.isLost}, []bool{r.Settled, r.Clean, r.Lost}, name)
	}
}

// Of two at once the second may be told "not yours" since the first has done it. It must not take that for a loss.
func TestOfTwoReleasesAtOnceTheOneThatDidItIsHeard(t *testing.T) {
	var r backend.Releases
	r.Begin()
	r.Begin()
	assert.False(t, r.Answered(backend.NotHeld, 1, nil))
	assert.Equal(t, []bool{false, false, false}, []bool{r.Settled, r.Clean, r.Lost}, "the other one is to be heard")
	assert.False(t, r.Answered(backend.ReleasedLock, 1, nil))
	assert.Equal(t, []bool{true, true, false}, []bool{r.Settled, r.Clean, r.Lost})
	r.Begin()
	assert.False(t, r.Answered(backend.NotHeld, 1, errors.New("late")), "nothing changes what is settled")
	assert.True(t, r.Clean)
}
