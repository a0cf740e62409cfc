package script_test

import (
	"math"
	"testing"
	"testing/fstest"
	"time"

	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/script"
	"github.com/stretchr/testify/assert"
)

func TestAScriptHasItsIncludesAndItsConstants(t *testing.T) {
	files := fstest.MapFS{
		"a.lua": {Data: []byte("local n = $N\n  -- include b.lua\nreturn n\n")},
		"b.lua": {Data: []byte("n = n + $MORE -- include is a word\n-- include c.lua\n")},
		"c.lua": {Data: []byte("n = n + 3\n")},
	}
	sc := script.Load(files, "a.lua", map[string]any{"N": 1, "MORE": "2"})
	assert.Equal(t, "local n = 1\nn = n + 2 -- include is a word\nn = n + 3\nreturn n\n", sc.Src)
	assert.Len(t, sc.Hash, 40)
	assert.Panics(t, func() { script.Load(files, "a.lua", map[string]any{"N": 1}) })
	assert.Panics(t, func() { script.Load(files, "d.lua", nil) })
}

func TestRepliesAreReadStrictly(t *testing.T) {
	n, err := script.Int(int64(-3))
	assert.NoError(t, err)
	assert.Equal(t, -3, n)

	for _, reply := range []any{int64(1 << 60), "1152921504606846976"} {
		token, err := script.FencingToken(reply)
		assert.NoError(t, err)
		assert.EqualValues(t, 1<<60, token)
	}

	for ms, want := range map[int64]time.Duration{5: 5 * time.Millisecond, 0: 0, -2: 0, -1: 0, math.MaxInt64: 10 * 365 * 24 * time.Hour} {
		left, forever, err := script.PTTL(ms)
		assert.NoError(t, err)
		assert.Equal(t, want, left)
		assert.Equal(t, ms == -1, forever)
	}

	for _, reply := range []any{nil, "", "x", "1.5", 1.5, false, int64(0), int64(-1), []any{int64(1)}} {
		_, err := script.FencingToken(reply)
		assert.ErrorIs(t, err, fault.ErrReply)
		if _, isInt := reply.(int64); isInt {
			continue
		}
		_, err = script.Int(reply)
		assert.ErrorIs(t, err, fault.ErrReply)
		_, _, err = script.PTTL(reply)
		assert.ErrorIs(t, err, fault.ErrReply)
	}
}
