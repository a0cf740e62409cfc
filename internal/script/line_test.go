package script_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/stretchr/testify/require"
)

// Any sequence of scripts keeps what the line promises: one holder, rising fencing tokens, no grant past a live waiter,
// nothing of an undone token, nothing without a TTL, no line and no tombstone behind a counter without the flag.
func TestRandomSequencesOfScriptsKeepTheirPromises(t *testing.T) {
	locktest.OnScriptServers(t, func(t *testing.T, s locktest.ScriptServer) {
		seeds := 3
		if !s.Mini {
			seeds = 6
		}
		for seed := range seeds {
			w := lineWalk{t: t, s: s, d: locktest.StoreOn(t, s.Client), rand: rand.New(rand.NewPCG(7, uint64(seed))), seed: seed}
			w.walk(100)
		}
	})
}

// lineWalk is one random sequence on one key, and what is known of it.
type lineWalk struct {
	t    *testing.T
	s    locktest.ScriptServer
	d    backend.Backend
	rand *rand.Rand
	seed int

	step   int
	fences map[string]int64 // of each token that ever had the lock
	last   int64
	undone map[string]bool
	former map[string]string // of each token that has adopted
}

func (w *lineWalk) walk(steps int) {
	require.NoError(w.t, w.s.Client.FlushAll(w.t.Context()).Err())
	w.fences, w.undone, w.former = map[string]int64{}, map[string]bool{}, map[string]string{}
	for w.step = range steps {
		w.one()
		w.judge()
		if w.s.Mini && w.rand.IntN(4) == 0 {
			w.s.Pass(time.Duration(w.rand.IntN(900)) * time.Millisecond)
		}
	}
}

func (w *lineWalk) name() string { return fmt.Sprintf("seed %d step %d", w.seed, w.step) }

// one sends one script for one of five tokens; once undone, a token is followed by a new one in most cases.
func (w *lineWalk) one() {
	ctx := w.t.Context()
	token := fmt.Sprintf("t%d", w.rand.IntN(5)+5*(w.step/30))
	px := []int64{1000, 1200, 4000}[w.rand.IntN(3)]
	if !w.s.Mini {
		px *= 100 // no TTL ends between two commands of one step
	}
	before := w.look()
	if before.owner != "" && w.rand.IntN(4) == 0 && !before.rests() {
		token = before.owner // it may be an adopter's
	}
	r := backend.Request{Key: "k", Token: token, PX: px}
	switch op := w.rand.IntN(15); op {
	case 14:
		w.finish(before, token)
	case 12:
		w.adopt(before, r)
	case 13:
		w.undoAdoption(before, r)
	case 0, 1, 2, 3, 4, 5:
		mode := []backend.Mode{backend.Try, backend.Try, backend.Join, backend.Join, backend.Poll, backend.Poll}[op]
		a, _, err := w.d.Tenure(r).Acquire(ctx, mode, backend.CallBound)
		require.NoError(w.t, err, w.name())
		if a.State != backend.Granted {
			return
		}
		require.Equal(w.t, token, w.look().owner, w.name())
		require.False(w.t, w.undone[token] && before.owner != token, "%s: an undone token has the lock", w.name())
		if had, again := w.fences[token]; again && before.owner == token {
			require.Equal(w.t, had, a.Fence, w.name())
		}
		if before.owner == "" && len(before.live) > 0 {
			require.Equal(w.t, token, before.live[0], "%s: past a live waiter", w.name())
		}
		w.fences[token] = a.Fence
	case 6, 7:
		n, err := w.d.Tenure(r).Renew(ctx, backend.Renewal{PX: r.PX}, backend.CallBound)
		require.NoError(w.t, err, w.name())
		require.Equal(w.t, before.owner == token, n >= 0, w.name())
		require.Equal(w.t, before.owner, w.look().owner, w.name())
	case 8, 9:
		_, _, err := w.d.Tenure(r).Release(ctx, backend.Plain, backend.CallBound)
		require.NoError(w.t, err, w.name())
		w.released(before, token)
	case 10:
		_, _, err := w.d.Tenure(r).Release(ctx, backend.Cancel, backend.CallBound)
		require.NoError(w.t, err, w.name())
		w.released(before, token)
		w.undone[token] = true
	case 11:
		require.NoError(w.t, w.s.Client.ScriptFlush(ctx).Err())
	}
}

// finish releases the lock for one who was to hold it for a time at least.
func (w *lineWalk) finish(before lineState, token string) {
	d := time.Duration(w.rand.IntN(3)) * time.Minute
	if w.s.Mini {
		d /= 60
	}
	until := time.UnixMicro(before.fence).Add(d)
	args := locktest.ScriptArgs(locktest.FinishScript, "told", token, locktest.ScriptCase{Px: d.Milliseconds()})
	args[len(args)-3], args[len(args)-1] = until.UnixMicro(), []int{0, 60_000}[w.rand.IntN(2)]
	require.NoError(w.t, w.s.Client.Do(w.t.Context(), args...).Err(), w.name())
	left := until.Sub(w.s.Client.Time(w.t.Context()).Val())
	if before.owner != token || left < 0 {
		w.released(before, token)
		return
	}
	after := w.look()
	require.True(w.t, after.owner == token+"!" || left < time.Second && after.owner == "", "%s: %+v", w.name(), after)
	require.Equal(w.t, before.live, after.live, "%s: nobody is served", w.name())
	ends := w.s.Client.PTTL(w.t.Context(), "k").Val()
	require.InDelta(w.t, min(left, d), ends, float64(time.Second), w.name())
}

// adopt has a new token, or one that has come already, take the place of the request's.
func (w *lineWalk) adopt(before lineState, r backend.Request) {
	r.Former, r.Token = r.Token, fmt.Sprintf("a%d", w.step-w.rand.IntN(2))
	if former, again := w.former[r.Token]; again {
		r.Former = former
	}
	a, _, err := w.d.Tenure(r).Acquire(w.t.Context(), backend.Adopt, backend.CallBound)
	require.NoError(w.t, err, w.name())
	can := before.owner == r.Token || before.owner == r.Former && !w.undone[r.Token]
	require.Equal(w.t, can, a.State == backend.Granted, "%s: %v", w.name(), a)
	if !can {
		require.Equal(w.t, before, w.look(), "%s: it changed something", w.name())
		return
	}
	require.Equal(w.t, r.Token, w.look().owner, w.name())
	if had, again := w.fences[r.Token]; again {
		require.Equal(w.t, had, a.Fence, w.name())
		return
	}
	require.Greater(w.t, a.Fence, w.last, w.name())
	w.fences[r.Token], w.last, w.former[r.Token], w.undone[r.Former] = a.Fence, a.Fence, r.Former, true
}

// undoAdoption gives the lock back to the former token if the holder has adopted it.
func (w *lineWalk) undoAdoption(before lineState, r backend.Request) {
	former, adopted := w.former[r.Token]
	if !adopted {
		return
	}
	r.Former = former
	_, _, err := w.d.Tenure(r).Release(w.t.Context(), backend.Return, backend.CallBound)
	require.NoError(w.t, err, w.name())
	w.undone[r.Token] = true
	after := w.look()
	if before.owner != r.Token {
		require.Equal(w.t, before.owner, after.owner, "%s: another's lock", w.name())
		return
	}
	require.Equal(w.t, former, after.owner, w.name())
	w.fences[former] = after.fence // the last that was given
	delete(w.undone, former)
}

// released requires that nothing of the token is left, and that the lock went to nobody or to the first live waiter.
func (w *lineWalk) released(before lineState, token string) {
	after := w.look()
	require.NotEqual(w.t, token, after.owner, w.name())
	require.NotContains(w.t, after.line, token, w.name())
	if before.owner != token {
		require.Equal(w.t, before.owner, after.owner, "%s: another's lock", w.name())
		return
	}
	heir := ""
	if len(before.live) > 0 {
		heir = before.live[0]
	}
	require.Equal(w.t, heir, after.owner, w.name())
}

// judge checks what must hold after every step.
func (w *lineWalk) judge() {
	now := w.look()
	require.Empty(w.t, now.forever, "%s: keys without a TTL", w.name())
	if now.plain {
		require.Empty(w.t, now.line, "%s: a line behind a counter without the flag", w.name())
		require.False(w.t, now.buried, "%s: tombstones behind a counter without the flag", w.name())
	}
	if now.owner == "" || now.rests() {
		return
	}
	if fence := w.fences[now.owner]; fence != now.fence { // a new lease, not heard of before
		require.Greater(w.t, now.fence, w.last, w.name())
		w.fences[now.owner], w.last = now.fence, now.fence
	}
	w.last = max(w.last, now.fence)
}

// lineState is what stands in Redis. The fencing token is that of the holder, if there is one.
type lineState struct {
	owner      string
	fence      int64
	line, live []string
	forever    []string // keys
	plain      bool     // the counter is there and has no flag
	buried     bool     // there are tombstones
}

// rests reports whether the lock is taken and nobody's.
func (s lineState) rests() bool { return strings.HasSuffix(s.owner, "!") }

func (w *lineWalk) look() lineState {
	const src = `
local t, live = redis.call('TIME'), {}
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local line = redis.call('ZRANGE', KEYS[2], 0, -1)
for _, token in ipairs(line) do
  local good = redis.call('HGET', KEYS[4], token) or redis.call('ZSCORE', KEYS[2], token) / 1000 + 2500
  if now < math.floor(good) then live[#live + 1] = token end
end
local forever = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  if redis.call('PTTL', key) == -1 then forever[#forever + 1] = key end
end
return {redis.call('GET', KEYS[1]) or '', redis.call('GET', KEYS[3]) or '0', line, live, forever, redis.call('EXISTS', KEYS[5])}`
	keys := locktest.ScriptKeys("k")
	got, err := w.s.Client.Eval(w.t.Context(), src, []string{keys["K"], keys["Q"], keys["F"], keys["G"], keys["D"]}).Slice()
	require.NoError(w.t, err)
	words := func(v any) (s []string) {
		for _, v := range v.([]any) {
			s = append(s, v.(string))
		}
		return s
	}
	digits := strings.TrimRight(got[1].(string), "+")
	flagged := digits != got[1]
	fence, err := strconv.ParseInt(digits, 10, 64)
	require.NoError(w.t, err)
	state := lineState{
		got[0].(string), fence, words(got[2]), words(got[3]), words(got[4]), fence > 0 && !flagged, got[5] == int64(1),
	}
	state.live = slices.DeleteFunc(state.live, func(token string) bool { return token == state.owner })
	return state
}
