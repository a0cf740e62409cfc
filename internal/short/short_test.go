package short_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/go-leasehold/leasehold/internal/roundtrip"
	"github.com/go-leasehold/leasehold/internal/script"
	"github.com/go-leasehold/leasehold/internal/short"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What may stand at a lock's keys, as Lua that arranges it.
var (
	locks    = []string{"", "holds('me', 3000)", "holds('other', 30000)", "holds('me', 30000)", "holds('me1', 30000)", "set(K, 'me')", "set(K, '', 'PX', 30000)", "list(K)"}
	counters = []string{
		"counter(digits(us - 1))", "counter(digits(us - 1000))", "counter(5)", "counter(digits(us))", "counter(digits(us + 100000000))",
		"counter('9007199254740993')", "counter('1.5')",
	}
	// These say nothing about a line and tombstones.
	unclear = []string{"", "counter(digits(us - 1) .. '+')", "counter('5+')", "counter('x')", "counter('')", "list(F)"}
	others  = []string{"waits('b', 1000)", "waits('dead')", "waits('me', 1000)", "undone('me', 60000)", "undone('other', 60000)", "list(Q)", "list(D)"}
)

// aState is one that can come about: whatever makes a place or a tombstone flags the counter.
func aState(r *rand.Rand) string {
	pick := func(from []string) string { return from[r.IntN(len(from))] }
	switch r.IntN(4) {
	case 0: // an ordinary one
		return pick(locks[:3]) + " " + pick(counters[:2])
	case 1:
		return pick(locks) + " " + pick(counters)
	}
	state := pick(locks) + " " + pick(unclear)
	for range r.IntN(3) {
		if other := pick(others); !strings.Contains(state, other) && !strings.Contains(state+other, "list(Q)") && !strings.Contains(state+other, "list(D)") {
			state += " " + other
		}
	}
	return state
}

// forms are the short forms, and the mode of the full script that each stands for.
var forms = []struct {
	name  string
	short *roundtrip.Short
	full  *script.Script
	mode  string
}{
	{"acquire", short.Acquire, locktest.AcquireScript, "try"},
	{"acquire", short.Acquire, locktest.AcquireScript, "join"},
	{"release", short.Release, locktest.ReleaseScript, "release"},
	{"renew", short.Renew, locktest.RenewScript, ""},
}

// A short script does what the full one does, or nothing. One for many locks does to each what it does to one.
func TestAShortScriptDoesWhatTheFullOneDoesOrNothing(t *testing.T) {
	locktest.OnScriptServers(t, func(t *testing.T, s locktest.ScriptServer) {
		pastMidnight(s)
		done := 0
		for seed := range uint64(15) {
			done += compare(t, s, seed)
		}
		assert.Greater(t, done, 40, "most ordinary locks")
	})
}

func FuzzShortScripts(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) {
		redistest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, dial func(...func(*redis.Options)) *redis.Client) {
			s := locktest.ScriptServer{Client: dial(), Mini: true}
			pastMidnight(s)
			compare(t, s, seed)
		})
	})
}

// compare runs the forms on states that the seed draws, and returns how many runs did something.
func compare(t *testing.T, s locktest.ScriptServer, seed uint64) (done int) {
	r := rand.New(rand.NewPCG(seed, 0))
	for _, form := range forms {
		states := make([]string, 1+r.IntN(6))
		for i := range states {
			states[i] = aState(r)
		}
		for _, sixZero := range []bool{false, true} {
			done += one(t, s, sixZero, form.name, form.mode, form.short, form.full, states)
		}
	}
	return done
}

// one compares one form of a short script with the full script on each of the states.
func one(t *testing.T, s locktest.ScriptServer, sixZero bool, name, mode string, sh *roundtrip.Short, full *script.Script, states []string) (done int) {
	server := locktest.Frozen
	if sixZero {
		server += locktest.SixZero
	}
	many := run(t, s, server, sh, sh.Many, states)
	require.Len(t, many.replies, len(states))
	for i, state := range states {
		about := fmt.Sprintf("%s %s, on Redis 6.0: %v: %s", name, mode, sixZero, state)
		alone := &locktest.ScriptRun{T: t, Client: s.Client, Keys: locktest.ScriptKeys("k"), Server: server}
		reply, after := alone.Run(full, mode, locktest.ScriptCase{Arrange: state, Plain: true})
		arranged := alone.Arranged(locktest.ScriptCase{Arrange: state})
		judge := func(is outcome, i int, how string) {
			if is.replies[i] == fmt.Sprint(sh.Nothing) {
				assert.Equal(t, arranged, is.after[i], "%s did something: %s", how, about)
				return
			}
			done++
			assert.Equal(t, reply, is.replies[i], "%s: %s", how, about)
			assert.Equal(t, after, is.after[i], "%s: %s", how, about)
		}
		judge(many, i, "many")
		if sh.One != nil {
			judge(run(t, s, server, sh, sh.One, states[i:i+1]), 0, "one")
		}
	}
	return done
}

// pastMidnight leaves the instant at which a bubble begins: every number below it is of another hour.
func pastMidnight(s locktest.ScriptServer) {
	if s.Mini {
		s.Pass(time.Minute)
	}
}

// outcome is what a script replied about each lock, and what stands at its keys afterwards.
type outcome struct{ replies, after []string }

// run runs a short script on locks that it finds in those states.
func run(t *testing.T, s locktest.ScriptServer, server string, sh *roundtrip.Short, sc *script.Script, states []string) (is outcome) {
	r := &locktest.ScriptRun{T: t, Client: s.Client, Keys: map[string]string{}, Server: server}
	names := make([]map[string]string, len(states))
	arrange := ""
	for i, state := range states {
		names[i] = locktest.ScriptKeys(fmt.Sprint("{k}", i))
		arrange += "do "
		for _, letter := range slices.Sorted(maps.Keys(names[i])) {
			r.Keys[fmt.Sprint(letter, i)] = names[i][letter]
			arrange += fmt.Sprintf("local %s = %q ", letter, names[i][letter])
		}
		arrange += locktest.Arranged + state + " end\n"
	}
	tt := locktest.ScriptCase{Arrange: arrange}
	args := []any{"eval", r.Prelude(tt) + sc.Src, len(states) * len(sh.Keys)}
	for _, at := range sh.Keys {
		for i := range names {
			args = append(args, names[i][map[int]string{0: "K", 2: "F"}[at]])
		}
	}
	for range states {
		args = append(args, "me")
	}
	for range states {
		if sh.Millis {
			args = append(args, 10_000)
		}
	}
	require.NoError(t, s.Client.FlushAll(t.Context()).Err())
	got, err := s.Client.Do(t.Context(), args...).Result()
	require.NoError(t, err)
	dump := r.Dump()
	if _, isList := got.([]any); !isList {
		got = []any{got}
	}
	for i, reply := range got.([]any) {
		is.replies = append(is.replies, r.Text(reply))
		var lines []string
		for line := range strings.Lines(dump) {
			if at := fmt.Sprint(line[:1], i, " "); strings.HasPrefix(line, at) {
				lines = append(lines, strings.TrimSpace(strings.Replace(line, at, line[:1]+" ", 1)))
			}
		}
		is.after = append(is.after, strings.Join(lines, "\n"))
	}
	return is
}

// Whatever one lock of many cannot have, the others are not concerned.
func TestAShortScriptRaisesNoErrorForOneLockOfMany(t *testing.T) {
	locktest.OnScriptServers(t, func(t *testing.T, s locktest.ScriptServer) {
		pastMidnight(s)
		for _, sh := range []*roundtrip.Short{short.Acquire, short.Renew} {
			for _, px := range []any{0, -1, "1.5", "soon", "", "nan"} {
				require.NoError(t, s.Client.FlushAll(t.Context()).Err())
				keys := []string{"{k}a", "{k}b"}
				if sh == short.Acquire {
					keys = append(keys, "{k}af", "{k}bf")
					for _, f := range keys[2:] {
						require.NoError(t, s.Client.Set(t.Context(), f, s.Client.Time(t.Context()).Val().UnixMicro()-1, 0).Err())
					}
				} else {
					require.NoError(t, s.Client.MSet(t.Context(), "{k}a", "me", "{k}b", "me").Err())
				}
				got, err := s.Client.Eval(t.Context(), sh.Many.Src, keys, "me", "me", px, 10_000).Slice()
				require.NoError(t, err, "%v", px)
				assert.Equal(t, sh.Nothing, got[0], "%v", px)
				assert.NotEqual(t, sh.Nothing, got[1], "%v", px)
				assert.NotEqual(t, got[0] == int64(1), s.Client.Exists(t.Context(), "{k}a").Val() == 0)
			}
		}
		require.NoError(t, s.Client.FlushAll(t.Context()).Err())
		require.NoError(t, s.Client.MSet(t.Context(), "{k}af", 5, "{k}bf", 5).Err())
		got, err := s.Client.Eval(t.Context(), short.Acquire.Many.Src, []string{"{k}a", "{k}b", "{k}af", "{k}bf"}, "", "me", 10_000, 10_000).Slice()
		require.NoError(t, err)
		assert.Equal(t, []any{int64(0), int64(0)}, got, "no token, and a counter that is too old")
	})
}

func TestMemoryKnowsWhichKeysAreOrdinary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m short.Memory
		is := func(ordinary, unusual bool) {
			t.Helper()
			assert.Equal(t, ordinary, m.IsOrdinary("k"))
			assert.Equal(t, unusual, m.IsUnusual("k"))
		}
		is(false, false)
		m.Taken("k")
		is(false, false)
		m.Ordinary("k")
		is(true, false)
		m.Taken("k")
		is(false, false)
		m.Unusual("k")
		is(false, true)
		m.Taken("k")
		is(false, true)
		time.Sleep(2 * time.Second)
		is(false, false)
		m.Taken("k")
		m.Ordinary("k")
		is(true, false)
		assert.False(t, m.IsOrdinary("another"))
	})
}
