package leasehold

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/token"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReleaseScript(t *testing.T) {
	const mine, other = "holds('me', 3000) ", "holds('other', 30000) "

	// What release and undo do; undo then leaves its tombstone.
	both := []scriptCase{
		{name: "held", arrange: mine, reply: "1", after: ""},
		{name: "held for ever", arrange: "set(K, 'me')", reply: "1", after: ""},
		{name: "held, with a counter", arrange: mine + "counter(77)", reply: "1", after: "F = 77" + week},
		{name: "free", reply: "-1", after: ""},
		{name: "another's", arrange: other, reply: "-2", after: "="},
		{name: "another's for ever", arrange: "set(K, 'other')", reply: "-2", after: "="},
		{name: "an empty value's", arrange: "set(K, '', 'PX', 30000)", reply: "-2", after: "="},
		{name: "a longer token's", arrange: "holds('me1', 30000)", reply: "-2", after: "="},
		{name: "a shorter token's", arrange: "holds('m', 30000)", reply: "-2", after: "="},
		{name: "held, a live head", arrange: mine + "waits('b', 1000) waits('c', 2000)", reply: "1",
			after: lines("F = now"+week, "G = c ms+2000, 5s", "K = b, 1s", "Q = c 2, 5s")},
		{name: "held, the dead before a live one", arrange: mine + "waits('x') waits('y', 0) waits('z', 2501) waits('b', 1000)",
			reply: "1", after: lines("F = now"+week, "K = b, 1s")},
		{name: "held, a line of the dead", arrange: mine + "waits('x') waits('y', 0) waits('z', 2501)", reply: "1", after: ""},
		{name: "held, more of the dead than one run clears away", arrange: mine + crowd(256) + " waits('b', 1000)", reply: "1",
			after: lines("G = b ms+1000, 5s", "Q = b 257, 5s")},
		{name: "held, as many of the dead as one run clears away", arrange: mine + crowd(255) + " waits('b', 1000)", reply: "1",
			after: lines("F = now"+week, "K = b, 1s")},
		{name: "held, a crowd of the dead and nobody else", arrange: mine + crowd(256), reply: "1", after: ""},
		{name: "held, a head that has not looked again", arrange: mine + "redis.call('ZADD', Q, digits(us - 1000000), 'b')", reply: "1",
			after: lines("F = now"+week, "K = b, 1.5s")},
		{name: "held, counter ahead", arrange: mine + "counter(digits(us + 100000000)) waits('b', 1000)", reply: "1",
			after: lines("F = now+100000001, 604900s", "K = b, 1s")},
		{name: "free, others wait", arrange: "waits('b', 1000)", reply: "-1", after: "="},
		{name: "place", arrange: other + "waits('b', 1000) waits('me', 1000)", reply: "2",
			after: lines("G = b ms+1000, 5s", "K = other, 30s", "Q = b 1, 5s")},
		{name: "only place", arrange: other + "waits('me', 1000)", reply: "2", after: "K = other, 30s"},
		{name: "place without a mark", arrange: "waits('me')", reply: "2", after: ""},
		{name: "held, and a place", arrange: mine + "waits('me', 1000)", reply: "1", after: ""},
		{name: "held, list at F", arrange: mine + "list(F)", reply: "1", after: "F = list, 60s"},
		{name: "list at K", arrange: "list(K)", reply: "-4", after: "="},
		{name: "list at K, with a line", arrange: "list(K) waits('b', 1000)", reply: "-4", after: "="},
		{name: "list at K, and a place", arrange: "list(K) waits('me', 1000)", reply: "2", after: "K = list, 60s"},
		{name: "held, list at Q", arrange: mine + "list(Q)", reply: "WRONGTYPE", after: "="},
		{name: "another's, list at Q", arrange: other + "list(Q)", reply: "WRONGTYPE", after: "="},
		{name: "held, list at G", arrange: mine + "waits('b') list(G)", reply: "WRONGTYPE", after: "*"},
	}

	const tomb, tombs = "D = me ms+60000, 60s", "D = other ms+1 me ms+60000, 60s"
	var undo []scriptCase
	for _, tt := range both {
		tt.arrange += " undone('me', 9000) undone('old', 0) undone('other', 1)" // the own one is refreshed
		if tt.reply[0] == '-' {
			tt.reply = "-3"
		}
		switch {
		case tt.reply == "WRONGTYPE":
		case tt.after == "=":
			tt.after = "*"
		default:
			tt.after = lines(tombs, tt.after)
			if tt.after[len(tt.after)-1] == '\n' {
				tt.after = tombs
			}
		}
		undo = append(undo, tt)
	}
	undo = append(undo,
		scriptCase{name: "free, first", reply: "-1", after: tomb},
		scriptCase{name: "another's, first", arrange: other, reply: "-2", after: lines(tomb, "K = other, 30s")},
		scriptCase{name: "list at D", arrange: "list(D)", reply: "WRONGTYPE", after: "="},
		scriptCase{name: "more old tombstones than one run clears away", arrange: "for i = 1, 258 do undone(i, i - 400) end", reply: "-1",
			after: "D = 257 ms-143 258 ms-142 me ms+60000, 60s"},
	)

	force := []scriptCase{
		{name: "held", arrange: other, reply: `"other"`, after: ""},
		{name: "held for ever", arrange: "set(K, 'someone')", reply: `"someone"`, after: ""},
		{name: "held by an empty value", arrange: "set(K, '', 'PX', 30000)", reply: `""`, after: ""},
		{name: "free", reply: "-1", after: ""},
		{name: "held, a live head", arrange: other + "waits('b', 1000)", reply: `"other"`, after: lines("F = now"+week, "K = b, 1s")},
		{name: "free, a live head", arrange: "waits('b', 1000)", reply: "-1", after: lines("F = now"+week, "K = b, 1s")},
		{name: "list at K", arrange: "list(K)", reply: "-4", after: ""},
		{name: "hash at K, a live head", arrange: "redis.call('HSET', K, 'a', 'b') waits('b', 1000)", reply: "-4",
			after: lines("F = now"+week, "K = b, 1s")},
	}

	// A release of a lease whose token others know says whether it was adopted; one that is not told does not look.
	told := []scriptCase{
		{name: "held", arrange: mine, reply: "1", after: ""},
		{name: "adopted", arrange: other + "undone('me', 60000)", reply: "-3", after: "="},
		{name: "adopted, and released since", arrange: "undone('me', 60000)", reply: "-3", after: "="},
		{name: "adopted, and the key is a list now", arrange: "list(K) undone('me', 60000)", reply: "-3", after: "="},
		{name: "another's, and another's was adopted", arrange: other + "undone('b', 60000)", reply: "-2", after: "="},
		{name: "another's, list for tombstones", arrange: other + "list(D)", reply: "-2", after: "="},
		{name: "list at K", arrange: "list(K)", reply: "-4", after: "="},
	}
	both = append(both, scriptCase{name: "adopted", arrange: other + "undone('me', 60000)", reply: "-2", after: "="})

	// The waiters meet the error by themselves.
	for _, tt := range badCounters {
		tt.reply, tt.after = "1", "*"
		tt.name += " while held, with a line"
		tt.arrange += mine + "waits('b', 1000)"
		both = append(both, tt)
		tt.reply = `"me"`
		force = append(force, tt)
	}

	onScriptServers(t, func(t *testing.T, s scriptServer) {
		runScriptCases(t, s, releaseScript, "release", both...)
		runScriptCases(t, s, releaseScript, "cancel", undo...)
		runScriptCases(t, s, releaseScript, "told", told...)
		for i := range force {
			force[i].token = "-"
		}
		runScriptCases(t, s, releaseScript, "force", force...)
	})
}

func TestRenewScript(t *testing.T) {
	cases := []scriptCase{
		{name: "held", arrange: "holds('me', 3000)", reply: "0", after: "K = me, 10s"},
		{name: "held for longer", arrange: "holds('me', 30000)", reply: "0", after: "K = me, 10s"},
		{name: "held for ever", arrange: "set(K, 'me')", reply: "0", after: "K = me, 10s"},
		{name: "held, two wait", arrange: "holds('me', 3000) waits('b', 1000) waits('c')", reply: "2",
			after: lines("G = b ms+1000, 5s", "K = me, 10s", "Q = b 1 c 2, 5s")},
		{name: "free", reply: "-1", after: ""},
		{name: "free, with a line", arrange: "waits('me', 1000)", reply: "-1", after: "="},
		{name: "another's", arrange: "holds('other', 3000)", reply: "-2", after: "="},
		{name: "another's for ever", arrange: "set(K, 'other')", reply: "-2", after: "="},
		{name: "a longer token's", arrange: "holds('me1', 3000)", reply: "-2", after: "="},
		{name: "a shorter token's", arrange: "holds('m', 3000)", reply: "-2", after: "="},
		{name: "list at K", arrange: "list(K)", reply: "-4", after: "="},
		{name: "hash at K", arrange: "redis.call('HSET', K, 'me', 'me') redis.call('PEXPIRE', K, 3000)", reply: "-4", after: "="},
		{name: "another's, list at Q", arrange: "holds('other', 3000) list(Q)", reply: "-2", after: "="},
		{name: "adopted", arrange: "holds('other', 3000) undone('me', 60000)", reply: "-3", after: "="},
		{name: "adopted, and released since", arrange: "undone('me', 60000)", reply: "-3", after: "="},
		{name: "adopted, and not asked", plain: true, arrange: "holds('other', 3000) undone('me', 60000)", reply: "-2", after: "="},
		{name: "another's, list for tombstones", arrange: "holds('other', 3000) list(D)", reply: "-2", after: "="},
		{name: "held, list at Q", arrange: "holds('me', 3000) list(Q)", reply: "0", after: lines("K = me, 10s", "Q = list, 60s")},
	}
	onScriptServers(t, func(t *testing.T, s scriptServer) {
		runScriptCases(t, s, renewScript, "", cases...)
		ctx, d := t.Context(), storeOn(t, s.client)
		require.NoError(t, s.client.FlushAll(ctx).Err())
		for _, token := range []string{"me", "b"} {
			_, _, err := d.Tenure(backend.Request{Key: "k", Token: token, PX: 10_000}).Acquire(ctx, backend.Join, backend.CallBound)
			require.NoError(t, err)
		}
		for _, curious := range []bool{true, false} {
			n, err := d.Tenure(backend.Request{Key: "k", Token: "me", PX: 10_000}).Renew(ctx, curious, backend.CallBound)
			require.NoError(t, err)
			assert.Equal(t, curious, n == 1)
		}
	})
}

func TestInspectScript(t *testing.T) {
	cases := []scriptCase{
		{name: "free", reply: `"" -2 "" 0`, after: ""},
		{name: "held", arrange: "holds('other', 30000) counter(77)", reply: `"other" 30000 77 0`},
		{name: "held for ever", arrange: "set(K, 'someone')", reply: `"someone" -1 "" 0`},
		{name: "held by an empty value", arrange: "set(K, '', 'PX', 30000)", reply: `"" 30000 "" 0`},
		{name: "held, counter beyond 2^53", arrange: "holds('other', 30000) counter('9007199254740993')", reply: `"other" 30000 9007199254740993 0`},
		{name: "free, last held", arrange: "counter(77)", reply: `"" -2 77 0`},
		{name: "held, with a line", reply: `"other" 30000 "" 2`,
			arrange: "holds('other', 30000) waits('x') waits('y', 0) waits('z', 2501) waits('b', 1) waits('c', 2500)"},
		{name: "a mark that is none", arrange: "waits('b', 1000) waits('x') redis.call('HSET', G, 'x', 'y')", reply: `"" -2 "" 1`},
		{name: "list at K", arrange: "list(K)", reply: "WRONGTYPE"},
		{name: "held, with those who have not looked again", reply: `"other" 30000 "" 1`,
			arrange: "holds('other', 30000) for i, ago in ipairs{2500000, 2400000, -1000} do redis.call('ZADD', Q, digits(us - ago), 't' .. i) end"},
		{name: "held, a line of the dead", arrange: "holds('other', 30000) " + crowd(1000), reply: `"other" 30000 "" 0`},
		{name: "held, a thousand wait", reply: `"other" 30000 "" 1000`,
			arrange: "holds('other', 30000) for i = 1, 1000 do redis.call('ZADD', Q, digits(us - i), 't' .. i) end"},
		{name: "held, a longer line, of which the rest is not judged", arrange: "holds('other', 30000) " + crowd(1200), reply: `"other" 30000 "" 200`},
		{name: "list at Q", arrange: "list(Q)", reply: "WRONGTYPE"},
		{name: "list at F", arrange: "list(F)", reply: "WRONGTYPE"},
		{name: "list at G", arrange: "list(G) waits('b')", reply: "WRONGTYPE"},
	}
	for i := range cases {
		cases[i].after = "="
	}
	onScriptServers(t, func(t *testing.T, s scriptServer) {
		runScriptCases(t, s, inspectScript, "", cases...)
	})
}

// A release tells the Locker of the waiter which of its waiters has the lock, and with which fencing token. It tells nothing
// with which a listener could make the waiter's token.
func TestHandOverIsPublished(t *testing.T) {
	const me, waiter = "ABCDEFGHIJKLMNOP.1", "QRSTUVWXYZ234567.ABCDEFGHIJKLM.NOPQRSTUVWXYZ234567ABCDEFG.a label"
	onScriptServers(t, func(t *testing.T, s scriptServer) {
		ctx := t.Context()
		require.NoError(t, s.client.FlushAll(ctx).Err())
		d := storeOn(t, s.client)
		channel := rediskey.WakeChannel + waiter[:idLength]
		sub := s.client.Subscribe(ctx, channel)
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
