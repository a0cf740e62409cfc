package leasehold

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAcquireRepliesAreRead(t *testing.T) {
	for _, tt := range []struct {
		reply any
		want  answer
	}{
		{int64(1), answer{state: granted, fence: 1}},
		{int64(math.MaxInt64), answer{state: granted, fence: math.MaxInt64}},
		{"9007199254740991", answer{state: granted, fence: 9007199254740991, found: true}},
		{"9007199254740993", answer{state: granted, fence: 9007199254740993}}, // past what Lua counts to there are only digits
		{[]any{"GONE"}, answer{state: gone}},
		{[]any{"HELD", int64(1500)}, answer{state: held, left: 1500 * time.Millisecond}},
		{[]any{"HELD", int64(-1)}, answer{state: held, forever: true}},
		{[]any{"HELD", int64(-2)}, answer{state: held, uncleared: true}},
		{[]any{"HELD", int64(0)}, answer{state: held}},
		{[]any{"GONE"}, answer{state: gone}},
		{[]any{"GONE", int64(-3)}, answer{state: gone, why: tokenSpent}},
		{[]any{"HELD", int64(math.MaxInt64)}, answer{state: held, left: maxTTL}},
		{[]any{"WAITING", "7", int64(1500), int64(3), int64(9), int64(0)}, answer{state: waiting, fence: 7, left: 1500 * time.Millisecond, rank: 3, now: 9}},
		{[]any{"WAITING", int64(7), int64(-1), int64(0), "9", int64(1)}, answer{state: waiting, fence: 7, forever: true, now: 9, foreign: true}},
	} {
		got, err := decodeAcquire(tt.reply)
		require.NoError(t, err, "%v", tt.reply)
		assert.Equal(t, tt.want, got, "%v", tt.reply)
	}
	for _, reply := range []any{
		nil, "", "OK", "0", "-1", "1.5", "0x7", "9223372036854775808", int64(0), int64(-1), 7, 7.0, true, []byte("7"), errors.New("7"),
		[]any{}, []any{nil}, []any{int64(7)}, []any{"GRANTED"}, []any{"GRANTED", int64(7)}, []any{"gone"}, []any{"GONE", int64(1)}, []any{"GONE", "-1"}, []any{"GONE", int64(-1), int64(-1)},
		[]any{"HELD"}, []any{"HELD", "1500"}, []any{"HELD", nil}, []any{"HELD", int64(1), int64(1)},
		[]any{"WAITING"}, []any{"WAITING", "7", int64(1), int64(1)}, []any{"WAITING", "7", int64(1), int64(1), int64(9), int64(0), int64(0)},
		[]any{"WAITING", "x", int64(1), int64(1), int64(9), int64(0)}, []any{"WAITING", nil, int64(1), int64(1), int64(9), int64(0)},
		[]any{"WAITING", "0", int64(1), int64(1), int64(9), int64(0)}, []any{"WAITING", "7", "1", int64(1), int64(9), int64(0)},
		[]any{"WAITING", "7", int64(1), "1", int64(9), int64(0)}, []any{"WAITING", "7", int64(1), int64(1), int64(0), int64(0)},
		[]any{"WAITING", "7", int64(1), int64(1), nil, int64(0)}, []any{"WAITING", "7", int64(1), int64(1), int64(9), "0"},
		map[any]any{"HELD": int64(1)},
	} {
		got, err := decodeAcquire(reply)
		assert.ErrorIs(t, err, errReply, "%v", reply)
		assert.False(t, transient(err))
		assert.False(t, got.state == granted && got.fence > 0, "%v is a lease", reply)
	}
}

func TestStateIsRead(t *testing.T) {
	const token = "AAAAAAAAAAAAAAAA.BBBBBBBBBBBBB.CCCCCCCCCCCCCCCCCCCCCCCCCC"
	for _, tt := range []struct {
		reply []any
		want  LockState
	}{
		{[]any{"", int64(-2), "", int64(0)}, LockState{}},
		{[]any{"", int64(-2), "77", int64(2)}, LockState{FencingToken: 77, Waiters: 2}},
		{[]any{token, int64(1500), "77", int64(0)}, LockState{Held: true, TTL: 1500 * time.Millisecond, FencingToken: 77}},
		{[]any{token + ".me", int64(1500), "77", int64(0)}, LockState{Held: true, Owner: "me", TTL: 1500 * time.Millisecond, FencingToken: 77}},
		{[]any{token + ".a.b c", int64(1), "", int64(0)}, LockState{Held: true, Owner: "a.b c", TTL: time.Millisecond}},
		{[]any{"someone", int64(-1), "", int64(0)}, LockState{Held: true, TTL: -1}},
		{[]any{"", int64(-1), "", int64(0)}, LockState{Held: true, TTL: -1}},
		{[]any{"x", int64(math.MaxInt64), "", int64(0)}, LockState{Held: true, TTL: maxTTL}},
	} {
		got, err := decodeState("k", tt.reply)
		require.NoError(t, err, "%v", tt.reply)
		tt.want.Key = "k"
		assert.Equal(t, tt.want, got)
	}
	for _, reply := range []any{
		nil, "", int64(1), []any{}, []any{"", int64(-2), ""}, []any{"", "-2", "", int64(0)}, []any{"", int64(-2), "x", int64(0)},
		[]any{"", int64(-2), nil, int64(0)}, []any{"", int64(-2), []any{}, int64(0)}, []any{"", int64(-2), "", "0"},
	} {
		_, err := decodeState("k", reply)
		assert.ErrorIs(t, err, errReply, "%v", reply)
	}
}

// FuzzReplies builds a reply of the fuzzer's choice. No decoder panics, and what is not a reply of ours is an error.
func FuzzReplies(f *testing.F) {
	for _, seed := range []string{"i7", "s77", "[sHELD i15", "[sWAITING s7 i15 i3 i9 i1", "[sGONE", "[s i-2 s i0", "n", "[[ n f1.5 bx"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		reply := replyFrom(text)
		a, err := decodeAcquire(reply)
		if err == nil {
			require.Contains(t, []string{granted, held, waiting, gone}, a.state)
			require.True(t, a.state != granted && a.state != waiting || a.fence > 0, "%v", reply)
			require.True(t, a.left >= 0 && a.left <= maxTTL, "%v", reply)
		} else {
			require.ErrorIs(t, err, errReply)
		}
		if _, err := decodeState("k", reply); err != nil {
			require.ErrorIs(t, err, errReply)
		}
		if _, err := decodeInt(reply); err != nil {
			require.ErrorIs(t, err, errReply)
		}
		if id, g := parseGrant(text); g != 0 {
			require.True(t, strings.HasPrefix(text, id+" "))
		}
		_ = ownerOf(text)
	})
}

// replyFrom reads words: i7 is an integer, sX a string, n nil, f1.5 a float, bx bytes; a first "[" makes them a list.
func replyFrom(text string) any {
	text, isList := strings.CutPrefix(text, "[")
	list := []any{}
	for _, word := range strings.Split(text, " ") {
		var v any
		if word != "" {
			switch arg := word[1:]; word[0] {
			case 'i':
				v, _ = strconv.ParseInt(arg, 10, 64)
			case 's':
				v = arg
			case 'f':
				v, _ = strconv.ParseFloat(arg, 64)
			case 'b':
				v = []byte(arg)
			case '[':
				v = []any{arg}
			}
		}
		list = append(list, v)
	}
	if isList {
		return list
	}
	return list[0]
}
