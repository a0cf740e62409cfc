package leasehold

import (
	"fmt"
	"slices"
	"testing"
)

// The fencing counter's life in a dump.
const week = ", 168h"

// badCounters are what INCR cannot count on from. Nobody gets a lock for which there is no fencing token.
var badCounters = []scriptCase{
	{name: "list at F", arrange: "list(F)", reply: "WRONGTYPE"},
	{name: "word at F", arrange: "counter('x')", reply: "leasehold"},
	{name: "no number at F", arrange: "counter('nan')", reply: "leasehold"},
	{name: "infinity at F", arrange: "counter('inf')", reply: "leasehold"},
	{name: "far too much at F", arrange: "counter('1e30')", reply: "leasehold"},
	{name: "counter at its end", arrange: "counter('9223372036854775807')", reply: "overflow"},
	{name: "counter behind its end", arrange: "counter('9223372036854775808')", reply: "out of range"},
}

// crowd arranges a line of the dead.
func crowd(n int) string { return fmt.Sprintf("for i = 1, %d do waits('dead' .. i) end", n) }

// arrangedWith is the cases with more arranged.
func arrangedWith(cases []scriptCase, more, reply, after string) []scriptCase {
	cases = slices.Clone(cases)
	for i := range cases {
		cases[i].name += " and " + more
		cases[i].arrange += " " + more
		cases[i].after = after
		if reply != "" {
			cases[i].reply = reply
		}
	}
	return cases
}

func TestAcquireScript(t *testing.T) {
	const held, otherHolds = "holds('other', 30000) ", "K = other, 30s"
	taken := lines("F = now"+week, "K = me, 10s")
	const ours = "AAAAAAAAAAAAAAAA.BBBBBBBBBBBBB.CCCCCCCCCCCCCCCCCCCCCCCCCC" // see package token
	const stands, looked = "Q = me now, 5s", "G = me ms+2500, 5s"

	// What every mode answers.
	every := []scriptCase{
		{name: "own token again", arrange: "holds('me', 3000) counter(77)",
			reply: "77", after: lines("F = 77"+week, "K = me, 10s")},
		{name: "own token, for ever", arrange: "set(K, 'me') counter(77)",
			reply: "77", after: lines("F = 77"+week, "K = me, 10s")},
		{name: "own token, with a line", arrange: "holds('me', 3000) counter(77) waits('b', 1000)",
			reply: "77", after: lines("F = 77"+week, "G = b ms+1000, 5s", "K = me, 10s", "Q = b 1, 5s")},
		{name: "own token, counter gone", arrange: "holds('me', 3000)", reply: "now", after: taken},
		{name: "own token, counter at 2^53-1", arrange: "holds('me', 3000) counter('9007199254740991')",
			reply: "9007199254740991", after: lines("F = 9007199254740991"+week, "K = me, 10s")},
		{name: "own token, counter at 2^53+1", arrange: "holds('me', 3000) counter('9007199254740993')",
			reply: "9007199254740993", after: lines("F = 9007199254740993"+week, "K = me, 10s")},
		{name: "list at K", arrange: "list(K)", reply: "WRONGTYPE", after: "="},
		{name: "hash at K, with a line", arrange: "redis.call('HSET', K, 'a', 'b') waits('me', 1000)", reply: "WRONGTYPE", after: "="},
	}
	// What try and join answer to a lock that can be had.
	free := []scriptCase{
		{name: "free", reply: "now", after: taken},
		{name: "counter behind the clock", arrange: "counter(5)", reply: "now", after: taken},
		{name: "counter at 0", arrange: "counter(0)", reply: "now", after: taken},
		{name: "negative counter", arrange: "counter(-5)", reply: "now", after: taken},
		{name: "fraction at F", arrange: "counter('1.5')", reply: "now", after: taken},
		{name: "counter at the clock", mini: true, arrange: "counter(digits(us))",
			reply: "now+1", after: lines("F = now+1"+week, "K = me, 10s")},
		{name: "counter ahead of the clock", arrange: "counter(digits(us + 100000000))",
			reply: "now+100000001", after: lines("F = now+100000001, 604900s", "K = me, 10s")},
		{name: "counter for ever", mini: true, arrange: "set(F, digits(us))",
			reply: "now+1", after: lines("F = now+1"+week, "K = me, 10s")},
		// From 2^53 on, tokens are digits. The counter lives until the clock has passed it: more centuries than
		// miniredis can count.
		{name: "counter at 2^53-2", arrange: "counter('9007199254740990')", real: true, reply: "9007199254740991", after: "*"},
		{name: "counter at 2^53-1", arrange: "counter('9007199254740991')", real: true, reply: "9007199254740992", after: "*"},
		{name: "counter at 2^53", arrange: "counter('9007199254740992')", real: true, reply: "9007199254740993", after: "*"},
		{name: "line of the dead", arrange: "waits('gone') waits('old', 0) waits('older', -1) waits('future', 2501)",
			reply: "now", after: taken},
		{name: "almost as many of the dead as one run clears away", arrange: crowd(255), reply: "now", after: taken},
		{name: "own place behind them", arrange: crowd(255) + " waits('me')", reply: "now", after: taken},
		{name: "own place at the head", arrange: "waits('dead') waits('me') waits('b', 1000)",
			reply: "now", after: lines("F = now"+week, "G = b ms+1000, 5s", "K = me, 10s", "Q = b 3, 5s")},
		{name: "tombstone", arrange: "undone('me', 60000)", reply: `"GONE"`, after: "="},
		{name: "tombstone while held", arrange: "undone('me', 60000) " + held, reply: `"GONE"`, after: "="},
		{name: "tombstone and a line", arrange: "undone('me', 60000) waits('b', 1000)", reply: `"GONE"`, after: "="},
		{name: "another's tombstone", arrange: "undone('other', 30000)", reply: "now",
			after: lines("D = other ms+30000, 60s", taken)},
		{name: "another's tombstone and the dead", arrange: "undone('other', 30000) waits('x')", reply: "now",
			after: lines("D = other ms+30000, 60s", taken)},
		{name: "list for a tombstone", arrange: "list(D)", reply: "WRONGTYPE", after: "="},
		{name: "list at Q", arrange: "list(Q)", reply: "WRONGTYPE", after: "="},
		{name: "list at G", arrange: "list(G) waits('b')", reply: "WRONGTYPE", after: "*"},
	}

	free = append(free, arrangedWith(badCounters, "", "", "=")...)
	free = append(free, arrangedWith(badCounters, "waits('dead')", "", "*")...)
	free = append(free, arrangedWith(badCounters, "waits('b', 1000)", "", "*")...)

	try := slices.Concat(free, []scriptCase{
		{name: "held", arrange: held, reply: `"HELD" 30000`, after: otherHolds},
		{name: "held for ever", arrange: "set(K, 'someone')", reply: `"HELD" -1`, after: "="},
		{name: "held by an empty value", arrange: "set(K, '', 'PX', 30000)", reply: `"HELD" 30000`, after: "="},
		{name: "held by a longer token", arrange: "holds('me1', 30000)", reply: `"HELD" 30000`, after: "="},
		{name: "held by a shorter token", arrange: "holds('m', 30000)", reply: `"HELD" 30000`, after: "="},
		{name: "held, with a line", arrange: held + "waits('b', 1000)", reply: `"HELD" 30000`, after: "="},
		{name: "held, list at Q", arrange: held + "list(Q)", reply: "WRONGTYPE", after: "="},
		{name: "free, a live head", arrange: "waits('b', 1000) waits('c', 2000)",
			reply: `"HELD" 1000`, after: lines("F = now"+week, "G = c ms+2000, 5s", "K = b, 1s", "Q = c 2, 5s")},
		{name: "free, a head whose backend.WaiterTTL has just begun", arrange: "waits('b', 2500)",
			reply: `"HELD" 2500`, after: lines("F = now"+week, "K = b, 2.5s")},
		{name: "free, a head whose backend.WaiterTTL lasts 1 ms", arrange: "waits('b', 1)", mini: true,
			reply: `"HELD" 1`, after: "*"},
		{name: "free, a head that has not looked again", arrange: "redis.call('ZADD', Q, digits(us - 1000000), 'b')",
			reply: `"HELD" 1500`, after: lines("F = now"+week, "K = b, 1.5s")},
		{name: "free, a head that has not looked in time", arrange: "redis.call('ZADD', Q, digits(us - 2500000), 'b')",
			reply: "now", after: taken},
		{name: "free, a head whose ticket is ahead", arrange: "redis.call('ZADD', Q, digits(us + 1000), 'b')",
			reply: "now", after: taken},
		{name: "free, the dead before a live one", arrange: "waits('x') waits('y', 0) waits('z', 2501) waits('b', 1000)",
			reply: `"HELD" 1000`, after: lines("F = now"+week, "K = b, 1s")},
		{name: "free, more of the dead than one run clears away", arrange: crowd(256) + " waits('b', 1000)",
			reply: `"HELD" -2`, after: lines("G = b ms+1000, 5s", "Q = b 257, 5s")},
		{name: "free, as many of the dead as one run clears away", arrange: crowd(256), reply: `"HELD" -2`, after: ""},
		{name: "free, a live head, counter ahead", arrange: "waits('b', 1000) counter(digits(us + 100000000))",
			reply: `"HELD" 1000`, after: lines("F = now+100000001, 604900s", "K = b, 1s")},
		{name: "own token with more time left", arrange: "holds('me', 30000) counter(77)",
			reply: "77", after: lines("F = 77"+week, "K = me, 10s")},
	})

	join := slices.Concat(free, []scriptCase{
		{name: "held", arrange: held, reply: `"WAITING" now 30000 0 now 1`, after: lines(otherHolds, stands)},
		{name: "held, with a counter", arrange: held + "counter(55)",
			reply: `"WAITING" 55 30000 0 now 1`, after: lines("F = 55"+week, otherHolds, stands)},
		{name: "held, counter beyond 2^53", arrange: held + "counter('9007199254740993')",
			reply: `"WAITING" 9007199254740993 30000 0 now 1`, after: lines("F = 9007199254740993"+week, otherHolds, stands)},
		{name: "held by one of ours", arrange: "holds('" + ours + "', 30000)", reply: `"WAITING" now 30000 0 now 0`,
			after: lines("K = "+ours+", 30s", stands)},
		{name: "held by one of ours with a label", arrange: "holds('" + ours + ".a label. 1', 30000)", reply: `"WAITING" now 30000 0 now 0`,
			after: lines("K = "+ours+".a label. 1, 30s", stands)},
		{name: "held by a token that is cut short", arrange: "holds('" + ours[:56] + "', 30000)", reply: `"WAITING" now 30000 0 now 1`,
			after: lines("K = "+ours[:56]+", 30s", stands)},
		{name: "held by a token that is too long", arrange: "holds('" + ours + "A', 30000)", reply: `"WAITING" now 30000 0 now 1`,
			after: lines("K = "+ours+"A, 30s", stands)},
		{name: "held by an empty value", arrange: "set(K, '', 'PX', 30000)", reply: `"WAITING" now 30000 0 now 1`,
			after: lines("K = , 30s", stands)},
		{name: "held for ever", arrange: "set(K, 'someone')", reply: `"WAITING" now -1 0 now 1`,
			after: lines("K = someone, for ever", stands)},
		{name: "held, behind two", arrange: held + "waits('b', 1000) waits('c')", reply: `"WAITING" now 30000 2 now 1`,
			after: lines("G = b ms+1000, 5s", otherHolds, "Q = b 1 c 2 me now, 5s")},
		{name: "held, behind one whose ticket is ahead", arrange: held + "redis.call('ZADD', Q, digits(us + 77), 'b')",
			reply: `"WAITING" now 30000 1 now 1`, after: lines(looked, otherHolds, "Q = b now+77 me now+78, 5s")},
		{name: "held, sent again", arrange: held + "waits('me', 1000) waits('b', 1000)", reply: `"WAITING" now 30000 0 now 1`,
			after: lines("G = b ms+1000 me ms+2500, 5s", otherHolds, "Q = me 1 b 2, 5s")},
		{name: "held, sent again before a look", arrange: held + "redis.call('ZADD', Q, digits(us - 100), 'me')",
			reply: `"WAITING" now 30000 0 now 1`, after: lines(looked, otherHolds, "Q = me now-100, 5s")},
		{name: "held, sent again after its mark", arrange: held + "waits('me')",
			reply: `"WAITING" now 30000 0 now 1`, after: lines(looked, otherHolds, "Q = me 1, 5s")},
		{name: "free, a live head", arrange: "waits('b', 1000)", reply: `"WAITING" now 1000 0 now 0`,
			after: lines("F = now"+week, "K = b, 1s", stands)},
		{name: "free, more of the dead than one run clears away", arrange: crowd(256) + " waits('b', 1000)",
			reply: `"WAITING" now -2 1 now 0`, after: lines("G = b ms+1000, 5s", "Q = b 257 me now, 5s")},
		{name: "free, as many of the dead as one run clears away", arrange: crowd(256),
			reply: `"WAITING" now -2 0 now 0`, after: stands},
		{name: "free, own place behind more of the dead than one run clears away", arrange: crowd(256) + " waits('me')",
			reply: `"WAITING" now -2 0 now 0`, after: lines(looked, "Q = me 257, 5s")},
		{name: "held, list at G", arrange: held + "list(G)", reply: `"WAITING" now 30000 0 now 1`, after: lines("G = list, 60s", otherHolds, stands)},
		{name: "held, sent again, list at G", arrange: held + "waits('me') list(G)", reply: "WRONGTYPE", after: "="},
		{name: "held, list at Q", arrange: held + "list(Q)", reply: "WRONGTYPE", after: "="},
	})

	look := []scriptCase{
		{name: "free, no place", reply: `"GONE"`, after: ""},
		{name: "free, no place, others live", arrange: "waits('b', 1000)", reply: `"GONE"`, after: "="},
		{name: "held, no place", arrange: held + "waits('b', 1000)", reply: `"GONE"`, after: "="},
		{name: "held, only a mark", arrange: held + "waits('me', 1000) redis.call('ZREM', Q, 'me')", reply: `"GONE"`, after: "="},
		{name: "held", arrange: held + "waits('b', 1000) waits('me', 1000)", reply: `"WAITING" now 30000 1 now 1`,
			after: lines("G = b ms+1000 me ms+2500, 5s", otherHolds, "Q = b 1 me 2, 5s")},
		{name: "held, after its mark", arrange: held + "waits('me', -9)", reply: `"WAITING" now 30000 0 now 1`, after: lines(looked, otherHolds, "Q = me 1, 5s")},
		{name: "free, at the head", arrange: "waits('me', 1000) waits('b', 1000)",
			reply: "now", after: lines("F = now"+week, "G = b ms+1000, 5s", "K = me, 10s", "Q = b 2, 5s")},
		{name: "free, behind the dead", arrange: "waits('x', 0) waits('me', 1000)", reply: "now", after: taken},
		{name: "free, behind a live one", arrange: "waits('b', 1000) waits('me', 1000)", reply: `"WAITING" now 1000 0 now 0`,
			after: lines("F = now"+week, "G = me ms+2500, 5s", "K = b, 1s", "Q = me 2, 5s")},
		{name: "free, behind more of the dead than one run clears away", arrange: crowd(256) + " waits('b', 1000) waits('me')",
			reply: `"WAITING" now -2 1 now 0`, after: lines("G = b ms+1000 me ms+2500, 5s", "Q = b 257 me 258, 5s")},
		{name: "list at Q", arrange: held + "list(Q)", reply: "WRONGTYPE", after: "="},
		{name: "list at G", arrange: held + "list(G) waits('me')", reply: "WRONGTYPE", after: "="},
	}

	onScriptServers(t, func(t *testing.T, s scriptServer) {
		for mode, cases := range map[string][]scriptCase{"try": try, "join": join, "poll": look} {
			runScriptCases(t, s, acquireScript, mode, cases...)
			runScriptCases(t, s, acquireScript, mode, every...)
		}
	})
}
