package leasehold

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/keep"
	"github.com/go-leasehold/leasehold/internal/line"
	"github.com/go-leasehold/leasehold/internal/script"
	"github.com/go-leasehold/leasehold/internal/token"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What the external tests of this folder need of the inside.

func NewOn(b backend.Backend) *Locker { return newLocker(b, nil, options{}) }

func NewStore(client redis.UniversalClient) backend.Backend { return newStore(client, "") }

func TestAcquireRepliesAreRead(t *testing.T) {
	for _, tt := range []struct {
		reply any
		want  backend.Answer
	}{
		{int64(1), backend.Answer{State: backend.Granted, Fence: 1}},
		{int64(math.MaxInt64), backend.Answer{State: backend.Granted, Fence: math.MaxInt64}},
		{"9007199254740991", backend.Answer{State: backend.Granted, Fence: 9007199254740991, Found: true}},
		{"9007199254740993", backend.Answer{State: backend.Granted, Fence: 9007199254740993}}, // past what Lua counts to there are only digits
		{[]any{"GONE"}, backend.Answer{State: backend.Gone}},
		{[]any{"HELD", int64(1500)}, backend.Answer{State: backend.Held, Left: 1500 * time.Millisecond}},
		{[]any{"HELD", int64(-1)}, backend.Answer{State: backend.Held, Forever: true}},
		{[]any{"HELD", int64(-2)}, backend.Answer{State: backend.Held, Uncleared: true}},
		{[]any{"HELD", int64(0)}, backend.Answer{State: backend.Held}},
		{[]any{"GONE"}, backend.Answer{State: backend.Gone}},
		{[]any{"GONE", int64(-3)}, backend.Answer{State: backend.Gone, Why: backend.TokenSpent}},
		{[]any{"HELD", int64(math.MaxInt64)}, backend.Answer{State: backend.Held, Left: maxTTL}},
		{[]any{"WAITING", "7", int64(1500), int64(3), int64(9), int64(0)}, backend.Answer{State: backend.Waiting, Fence: 7, Left: 1500 * time.Millisecond, Rank: 3, Now: 9, Several: true}},
		{[]any{"WAITING", int64(7), int64(-1), int64(0), "9", int64(1)}, backend.Answer{State: backend.Waiting, Fence: 7, Forever: true, Now: 9, Foreign: true}},
		{[]any{"WAITING", int64(7), int64(5), int64(0), "9", int64(2)}, backend.Answer{State: backend.Waiting, Fence: 7, Left: 5 * time.Millisecond, Now: 9, Several: true}},
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
		assert.ErrorIs(t, err, fault.ErrReply, "%v", reply)
		assert.False(t, fault.Transient(err))
		assert.False(t, got.State == backend.Granted && got.Fence > 0, "%v is a lease", reply)
	}
}

func TestStateIsRead(t *testing.T) {
	const token = "AAAAAAAAAAAAAAAA.BBBBBBBBBBBBB.CCCCCCCCCCCCCCCCCCCCCCCCCC"
	for _, tt := range []struct {
		reply []any
		want  backend.View
	}{
		{[]any{"", int64(-2), "", int64(0)}, backend.View{}},
		{[]any{"", int64(-2), "77", int64(2)}, backend.View{Fence: 77, Waiters: 2}},
		{[]any{token, int64(1500), "77", int64(0)}, backend.View{Held: true, Left: 1500 * time.Millisecond, Fence: 77}},
		{[]any{token + ".me", int64(1500), "77", int64(0)}, backend.View{Held: true, Owner: "me", Left: 1500 * time.Millisecond, Fence: 77}},
		{[]any{token + ".a.b c", int64(1), "", int64(0)}, backend.View{Held: true, Owner: "a.b c", Left: time.Millisecond}},
		{[]any{"someone", int64(-1), "", int64(0)}, backend.View{Held: true, Left: -1}},
		{[]any{"", int64(-1), "", int64(0)}, backend.View{Held: true, Left: -1}},
		{[]any{"x", int64(math.MaxInt64), "", int64(0)}, backend.View{Held: true, Left: maxTTL}},
	} {
		got, err := decodeView(tt.reply)
		require.NoError(t, err, "%v", tt.reply)
		assert.Equal(t, tt.want, got)
	}
	for _, reply := range []any{
		nil, "", int64(1), []any{}, []any{"", int64(-2), ""}, []any{"", "-2", "", int64(0)}, []any{"", int64(-2), "x", int64(0)},
		[]any{"", int64(-2), nil, int64(0)}, []any{"", int64(-2), []any{}, int64(0)}, []any{"", int64(-2), "", "0"},
	} {
		_, err := decodeView(reply)
		assert.ErrorIs(t, err, fault.ErrReply, "%v", reply)
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
			require.Contains(t, []backend.State{backend.Granted, backend.Held, backend.Waiting, backend.Gone}, a.State)
			require.True(t, a.State != backend.Granted && a.State != backend.Waiting || a.Fence > 0, "%v", reply)
			require.True(t, a.Left >= 0 && a.Left <= maxTTL, "%v", reply)
		} else {
			require.ErrorIs(t, err, fault.ErrReply)
		}
		if _, err := decodeView(reply); err != nil {
			require.ErrorIs(t, err, fault.ErrReply)
		}
		if _, err := script.Int(reply); err != nil {
			require.ErrorIs(t, err, fault.ErrReply)
		}
		_ = token.Owner(text)
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

// An answer brings the whole TTL. A message brings less, and the lease must be renewed before that is over.
func TestALeaseIsTrustedForAsLongAsItsGrantSays(t *testing.T) {
	l := New(nil)
	anchor := l.clock.Now()
	for name, tt := range map[string]struct {
		life, ttl, maxHold time.Duration
		trust              time.Duration // from the anchor
		due                time.Duration // at the latest, of the first renewal
	}{
		"an answer":                     {0, time.Minute, 0, time.Minute - 600*time.Millisecond, 20 * time.Second},
		"an answer, with a bound":       {0, time.Minute, time.Second, time.Second, 20 * time.Second},
		"a message":                     {2500 * time.Millisecond, time.Minute, 0, 2475 * time.Millisecond, 1642 * time.Millisecond},
		"a message, for a short TTL":    {time.Second, time.Second, 0, 990 * time.Millisecond, 334 * time.Millisecond},
		"a message, with a lower bound": {2500 * time.Millisecond, time.Minute, time.Second, time.Second, 167 * time.Millisecond},
	} {
		for range 100 { // the first renewal has jitter
			a := attempt{o: &options{maxHold: tt.maxHold}, asks: line.Waiter{TTL: tt.ttl}}
			x := newLease(l, &a, line.Grant{Anchor: anchor, Life: tt.life, Fence: 7, Resent: true})
			assert.Equal(t, anchor.Plus(tt.trust), x.deadline, name)
			assert.Equal(t, anchor, x.begun, name)
			assert.LessOrEqual(t, x.schedule.Due(), anchor.Add(tt.due), name)
			assert.Positive(t, x.schedule.Due().Sub(anchor.Time), name)
			assert.True(t, x.resent, name)
		}
	}
}

func TestARenewalMovesTheDeadlineByTheTTLLessTheMargin(t *testing.T) {
	begun := clock.Moment{Time: time.Unix(1000, 0), Wall: time.Unix(1000, 0).UnixNano()}
	x := (&lease{span: keep.NewSpan(1200*time.Millisecond, 1200*time.Millisecond), o: &options{}}).seal()
	x.prolong(begun)
	assert.Equal(t, 1188*time.Millisecond, x.deadline.Sub(begun.Time))
	assert.Equal(t, int64(1188*time.Millisecond), x.deadline.Wall-begun.Wall)
}
