package script_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/token"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReleaseScript(t *testing.T) {
	const mine, other = "holds('me', 3000) ", "holds('other', 30000) "

	// What release and undo do; undo then leaves its tombstone.
	both := []locktest.ScriptCase{
		{Name: "held", Arrange: mine, Reply: "1", After: ""},
		{Name: "held for ever", Arrange: "set(K, 'me')", Reply: "1", After: ""},
		{Name: "held, with a counter", Arrange: mine + "counter(77)", Reply: "1", After: "F = 77" + week},
		{Name: "free", Reply: "-1", After: ""},
		{Name: "another's", Arrange: other, Reply: "-2", After: "="},
		{Name: "another's for ever", Arrange: "set(K, 'other')", Reply: "-2", After: "="},
		{Name: "an empty value's", Arrange: "set(K, '', 'PX', 30000)", Reply: "-2", After: "="},
		{Name: "a longer token's", Arrange: "holds('me1', 30000)", Reply: "-2", After: "="},
		{Name: "a shorter token's", Arrange: "holds('m', 30000)", Reply: "-2", After: "="},
		{Name: "held, a live head", Arrange: mine + "waits('b', 1000) waits('c', 2000)", Reply: "1",
			After: locktest.Lines("F = now+"+week, "G = c ms+2000, 5s", "K = b, 1s", "Q = c 2, 5s")},
		{Name: "held, the dead before a live one", Arrange: mine + "waits('x') waits('y', 0) waits('z', 2501) waits('b', 1000)",
			Reply: "1", After: locktest.Lines("F = now+"+week, "K = b, 1s")},
		{Name: "held, a line of the dead", Arrange: mine + "waits('x') waits('y', 0) waits('z', 2501)", Reply: "1", After: ""},
		{Name: "held, more of the dead than one run clears away", Arrange: mine + crowd(256) + " waits('b', 1000)", Reply: "1",
			After: locktest.Lines("G = b ms+1000, 5s", "Q = b 257, 5s")},
		{Name: "held, as many of the dead as one run clears away", Arrange: mine + crowd(255) + " waits('b', 1000)", Reply: "1",
			After: locktest.Lines("F = now+"+week, "K = b, 1s")},
		{Name: "held, a crowd of the dead and nobody else", Arrange: mine + crowd(256), Reply: "1", After: ""},
		{Name: "held, a head that has not looked again", Arrange: mine + "redis.call('ZADD', Q, digits(us - 1000000), 'b')", Reply: "1",
			After: locktest.Lines("F = now+"+week, "K = b, 1.5s")},
		{Name: "held, counter ahead", Arrange: mine + "counter(digits(us + 100000000)) waits('b', 1000)", Reply: "1",
			After: locktest.Lines("F = now+100000001+, 604900s", "K = b, 1s")},
		{Name: "free, others wait", Arrange: "waits('b', 1000)", Reply: "-1", After: "="},
		{Name: "place", Arrange: other + "waits('b', 1000) waits('me', 1000)", Reply: "2",
			After: locktest.Lines("G = b ms+1000, 5s", "K = other, 30s", "Q = b 1, 5s")},
		{Name: "only place", Arrange: other + "waits('me', 1000)", Reply: "2", After: "K = other, 30s"},
		{Name: "place without a mark", Arrange: "waits('me')", Reply: "2", After: ""},
		{Name: "held, and a place", Arrange: mine + "waits('me', 1000)", Reply: "1", After: ""},
		{Name: "held, list at F", Arrange: mine + "list(F)", Reply: "1", After: "F = list, 60s"},
		{Name: "list at K", Arrange: "list(K)", Reply: "-4", After: "="},
		{Name: "list at K, with a line", Arrange: "list(K) waits('b', 1000)", Reply: "-4", After: "="},
		{Name: "list at K, and a place", Arrange: "list(K) waits('me', 1000)", Reply: "2", After: "K = list, 60s"},
		{Name: "held, list at Q", Arrange: mine + "list(Q)", Reply: "WRONGTYPE", After: "="},
		{Name: "another's, list at Q", Arrange: other + "list(Q)", Reply: "WRONGTYPE", After: "="},
		{Name: "held, list at G", Arrange: mine + "waits('b') list(G)", Reply: "WRONGTYPE", After: "*"},
	}

	const tomb, tombs = "D = me ms+60000, 60s", "D = other ms+1 me ms+60000, 60s"
	var undo []locktest.ScriptCase
	for _, tt := range both {
		tt.Arrange += " undone('me', 9000) undone('old', 0) undone('other', 1)" // the own one is refreshed
		if tt.Reply[0] == '-' {
			tt.Reply = "-3"
		}
		switch {
		case tt.Reply == "WRONGTYPE":
		case tt.After == "=":
			tt.After = "*"
		case strings.HasPrefix(tt.After, "F = 77"):
			tt.After = locktest.Lines(tombs, "F = 77+"+week)
		default:
			tt.After = locktest.Lines(tombs, tt.After)
			if tt.After[len(tt.After)-1] == '\n' {
				tt.After = tombs
			}
		}
		undo = append(undo, tt)
	}
	undo = append(undo,
		locktest.ScriptCase{Name: "free, first", Reply: "-1", After: tomb},
		locktest.ScriptCase{Name: "another's, first", Arrange: other, Reply: "-2", After: locktest.Lines(tomb, "K = other, 30s")},
		locktest.ScriptCase{Name: "list at D", Arrange: "list(D)", Reply: "WRONGTYPE", After: "="},
		locktest.ScriptCase{Name: "more old tombstones than one run clears away", Arrange: "for i = 1, 258 do undone(i, i - 400) end", Reply: "-1",
			After: "D = 257 ms-143 258 ms-142 me ms+60000, 60s"},
	)

	force := []locktest.ScriptCase{
		{Name: "held", Arrange: other, Reply: `"other"`, After: ""},
		{Name: "held for ever", Arrange: "set(K, 'someone')", Reply: `"someone"`, After: ""},
		{Name: "held by an empty value", Arrange: "set(K, '', 'PX', 30000)", Reply: `""`, After: ""},
		{Name: "resting", Arrange: "holds('me!', 30000)", Reply: `"me!"`, After: ""},
		{Name: "free", Reply: "-1", After: ""},
		{Name: "held, a live head", Arrange: other + "waits('b', 1000)", Reply: `"other"`, After: locktest.Lines("F = now+"+week, "K = b, 1s")},
		{Name: "free, a live head", Arrange: "waits('b', 1000)", Reply: "-1", After: locktest.Lines("F = now+"+week, "K = b, 1s")},
		{Name: "list at K", Arrange: "list(K)", Reply: "-4", After: ""},
		{Name: "hash at K, a live head", Arrange: "redis.call('HSET', K, 'a', 'b') waits('b', 1000)", Reply: "-4",
			After: locktest.Lines("F = now+"+week, "K = b, 1s")},
	}

	// A release of a lease whose token others know says whether it was adopted; one that is not told does not look.
	told := []locktest.ScriptCase{
		{Name: "held", Arrange: mine, Reply: "1", After: ""},
		{Name: "adopted", Arrange: other + "undone('me', 60000)", Reply: "-3", After: "="},
		{Name: "adopted, and released since", Arrange: "undone('me', 60000)", Reply: "-3", After: "="},
		{Name: "adopted, and the key is a list now", Arrange: "list(K) undone('me', 60000)", Reply: "-3", After: "="},
		{Name: "another's, and another's was adopted", Arrange: other + "undone('b', 60000)", Reply: "-2", After: "="},
		{Name: "another's, list for tombstones", Arrange: other + "list(D)", Reply: "-2", After: "="},
		{Name: "list at K", Arrange: "list(K)", Reply: "-4", After: "="},
	}
	atOnce := slices.Clone(both) // of a lease whose lock need not rest
	both = append(both, locktest.ScriptCase{Name: "adopted", Arrange: other + "undone('me', 60000)", Reply: "-2", After: "="})

	// The waiters meet the error by themselves.
	for _, tt := range badCounters {
		tt.Reply, tt.After = "1", "*"
		tt.Name += " while held, with a line"
		tt.Arrange += mine + "waits('b', 1000)"
		both = append(both, tt)
		tt.Reply = `"me"`
		force = append(force, tt)
	}

	locktest.OnScriptServers(t, func(t *testing.T, s locktest.ScriptServer) {
		locktest.RunScriptCases(t, s, locktest.ReleaseScript, "release", both...)
		locktest.RunScriptCases(t, s, locktest.ReleaseScript, "cancel", undo...)
		locktest.RunScriptCases(t, s, locktest.ReleaseScript, "told", told...)
		locktest.RunScriptCases(t, s, locktest.FinishScript, "release", atOnce...)
		locktest.RunScriptCases(t, s, locktest.FinishScript, "cancel", undo...)
		locktest.RunScriptCases(t, s, locktest.FinishScript, "told", told...)
		for i := range force {
			force[i].Token = "-"
		}
		locktest.RunScriptCases(t, s, locktest.ReleaseScript, "force", force...)
	})
}

func TestRenewScript(t *testing.T) {
	cases := []locktest.ScriptCase{
		{Name: "held", Arrange: "holds('me', 3000)", Reply: "0", After: "K = me, 10s"},
		{Name: "held for longer", Arrange: "holds('me', 30000)", Reply: "0", After: "K = me, 30s"},
		{Name: "held for longer, to be shortened", Mode: "shorten", Arrange: "holds('me', 30000)", Reply: "0", After: "K = me, 10s"},
		{Name: "held for less, to be shortened", Mode: "shorten", Arrange: "holds('me', 3000)", Reply: "0", After: "K = me, 10s"},
		{Name: "another's, to be shortened", Mode: "shorten", Arrange: "holds('other', 30000)", Reply: "-2", After: "="},
		{Name: "free, to be shortened", Mode: "shorten", Reply: "-1", After: ""},
		{Name: "held for ever", Arrange: "set(K, 'me')", Reply: "0", After: "K = me, 10s"},
		{Name: "held, two wait", Arrange: "holds('me', 3000) waits('b', 1000) waits('c')", Reply: "2",
			After: locktest.Lines("G = b ms+1000, 5s", "K = me, 10s", "Q = b 1 c 2, 5s")},
		{Name: "free", Reply: "-1", After: ""},
		{Name: "free, with a line", Arrange: "waits('me', 1000)", Reply: "-1", After: "="},
		{Name: "another's", Arrange: "holds('other', 3000)", Reply: "-2", After: "="},
		{Name: "another's for ever", Arrange: "set(K, 'other')", Reply: "-2", After: "="},
		{Name: "a longer token's", Arrange: "holds('me1', 3000)", Reply: "-2", After: "="},
		{Name: "a shorter token's", Arrange: "holds('m', 3000)", Reply: "-2", After: "="},
		{Name: "list at K", Arrange: "list(K)", Reply: "-4", After: "="},
		{Name: "hash at K", Arrange: "redis.call('HSET', K, 'me', 'me') redis.call('PEXPIRE', K, 3000)", Reply: "-4", After: "="},
		{Name: "another's, list at Q", Arrange: "holds('other', 3000) list(Q)", Reply: "-2", After: "="},
		{Name: "adopted", Arrange: "holds('other', 3000) undone('me', 60000)", Reply: "-3", After: "="},
		{Name: "adopted, and released since", Arrange: "undone('me', 60000)", Reply: "-3", After: "="},
		{Name: "adopted, and not asked", Plain: true, Arrange: "holds('other', 3000) undone('me', 60000)", Reply: "-2", After: "="},
		{Name: "another's, list for tombstones", Arrange: "holds('other', 3000) list(D)", Reply: "-2", After: "="},
		{Name: "held, list at Q", Arrange: "holds('me', 3000) list(Q)", Reply: "0", After: locktest.Lines("K = me, 10s", "Q = list, 60s")},
	}
	locktest.OnScriptServers(t, func(t *testing.T, s locktest.ScriptServer) {
		locktest.RunScriptCases(t, s, locktest.RenewScript, "", cases...)
		ctx, d := t.Context(), locktest.StoreOn(t, s.Client)
		require.NoError(t, s.Client.FlushAll(ctx).Err())
		for _, token := range []string{"me", "b"} {
			_, _, err := d.Tenure(backend.Request{Key: "k", Token: token, PX: 10_000}).Acquire(ctx, backend.Join, backend.CallBound)
			require.NoError(t, err)
		}
		for _, curious := range []bool{true, false} {
			n, err := d.Tenure(backend.Request{Key: "k", Token: "me", PX: 10_000}).Renew(ctx, backend.Renewal{PX: 10_000, CountWaiters: curious}, backend.CallBound)
			require.NoError(t, err)
			assert.Equal(t, curious, n == 1)
		}
	})
}

func TestInspectScript(t *testing.T) {
	cases := []locktest.ScriptCase{
		{Name: "free", Reply: `"" -2 "" 0`, After: ""},
		{Name: "held", Arrange: "holds('other', 30000) counter(77)", Reply: `"other" 30000 77 0`},
		{Name: "held for ever", Arrange: "set(K, 'someone')", Reply: `"someone" -1 "" 0`},
		{Name: "held by an empty value", Arrange: "set(K, '', 'PX', 30000)", Reply: `"" 30000 "" 0`},
		{Name: "held, counter beyond 2^53", Arrange: "holds('other', 30000) counter('9007199254740993')", Reply: `"other" 30000 9007199254740993 0`},
		{Name: "free, last held", Arrange: "counter(77)", Reply: `"" -2 77 0`},
		{Name: "free, a counter of a shorter life", Arrange: "counter('77++')", Reply: `"" -2 77 0`},
		{Name: "free, flagged", Arrange: "counter('77+')", Reply: `"" -2 77 0`},
		{Name: "held, with a line", Reply: `"other" 30000 "" 2`,
			Arrange: "holds('other', 30000) waits('x') waits('y', 0) waits('z', 2501) waits('b', 1) waits('c', 2500)"},
		{Name: "a mark that is none", Arrange: "waits('b', 1000) waits('x') redis.call('HSET', G, 'x', 'y')", Reply: `"" -2 "" 1`},
		{Name: "list at K", Arrange: "list(K)", Reply: "WRONGTYPE"},
		{Name: "held, with those who have not looked again", Reply: `"other" 30000 "" 1`,
			Arrange: "holds('other', 30000) for i, ago in ipairs{2500000, 2400000, -1000} do redis.call('ZADD', Q, digits(us - ago), 't' .. i) end"},
		{Name: "held, a line of the dead", Arrange: "holds('other', 30000) " + crowd(1000), Reply: `"other" 30000 "" 0`},
		{Name: "held, a thousand wait", Reply: `"other" 30000 "" 1000`,
			Arrange: "holds('other', 30000) for i = 1, 1000 do redis.call('ZADD', Q, digits(us - i), 't' .. i) end"},
		{Name: "held, a longer line, of which the rest is not judged", Arrange: "holds('other', 30000) " + crowd(1200), Reply: `"other" 30000 "" 200`},
		{Name: "list at Q", Arrange: "list(Q)", Reply: "WRONGTYPE"},
		{Name: "list at F", Arrange: "list(F)", Reply: "WRONGTYPE"},
		{Name: "list at G", Arrange: "list(G) waits('b')", Reply: "WRONGTYPE"},
	}
	for i := range cases {
		cases[i].After = "="
	}
	locktest.OnScriptServers(t, func(t *testing.T, s locktest.ScriptServer) {
		locktest.RunScriptCases(t, s, locktest.InspectScript, "", cases...)
	})
}

// A release tells the Locker of the waiter which of its waiters has the lock, and with which fencing token. It tells nothing
// with which a listener could make the waiter's token.
func TestHandOverIsPublished(t *testing.T) {
	const me, waiter = "ABCDEFGHIJKLMNOP.1", "QRSTUVWXYZ234567.ABCDEFGHIJKLM.NOPQRSTUVWXYZ234567ABCDEFG.a label"
	locktest.OnScriptServers(t, func(t *testing.T, s locktest.ScriptServer) {
		ctx := t.Context()
		require.NoError(t, s.Client.FlushAll(ctx).Err())
		d := locktest.StoreOn(t, s.Client)
		channel := rediskey.WakeChannel + waiter[:locktest.IdLength]
		sub := s.Client.Subscribe(ctx, channel)
		defer sub.Close()
		_, err := sub.Receive(ctx)
		require.NoError(t, err)

		first := backend.Request{Key: "k", Token: me, PX: 10_000}
		second := backend.Request{Key: "k", Token: waiter, PX: 10_000}
		third := backend.Request{Key: "k", Token: "AAAAAAAAAAAAAAAA.3", PX: 10_000}
		for _, r := range []backend.Request{first, second, third} {
			_, _, err = d.Tenure(r).Acquire(ctx, backend.Join, backend.CallBound)
			require.NoError(t, err)
		}
		_, _, err = d.Tenure(first).Release(ctx, backend.Plain, backend.CallBound)
		require.NoError(t, err)
		msg, err := sub.ReceiveMessage(ctx)
		require.NoError(t, err)
		id, fence, _ := strings.Cut(msg.Payload, " ")
		assert.Equal(t, token.WakeID(waiter), id)
		assert.Regexp(t, `^ABCDEFGHIJKLM \d+$`, msg.Payload)

		ans, _, err := d.Tenure(second).Acquire(ctx, backend.Poll, backend.CallBound)
		require.NoError(t, err)
		assert.Equal(t, backend.Answer{State: backend.Granted, Fence: ans.Fence, Found: true}, ans)
		assert.Equal(t, fence, fmt.Sprint(ans.Fence))
	})
}
