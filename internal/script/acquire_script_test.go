package script_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/go-leasehold/leasehold/internal/locktest"
)

// The fencing counter's life in a dump.
const week = ", 168h"

// badCounters are what INCR cannot count on from. Nobody gets a lock for which there is no fencing token.
var badCounters = []locktest.ScriptCase{
	{Name: "list at F", Arrange: "list(F)", Reply: "WRONGTYPE"},
	{Name: "word at F", Arrange: "counter('x')", Reply: "leasehold"},
	{Name: "no number at F", Arrange: "counter('nan')", Reply: "leasehold"},
	{Name: "infinity at F", Arrange: "counter('inf')", Reply: "leasehold"},
	{Name: "far too much at F", Arrange: "counter('1e30')", Reply: "leasehold"},
	{Name: "counter at its end", Arrange: "counter('9223372036854775807')", Reply: "overflow"},
	{Name: "flagged counter at its end", Arrange: "counter('9223372036854775807+')", Reply: "overflow"},
	{Name: "flag alone at F", Arrange: "counter('+')", Reply: "leasehold"},
	{Name: "word and flag at F", Arrange: "counter('x+')", Reply: "leasehold"},
	{Name: "counter behind its end", Arrange: "counter('9223372036854775808')", Reply: "out of range"},
}

// crowd arranges a line of the dead.
func crowd(n int) string { return fmt.Sprintf("for i = 1, %d do waits('dead' .. i) end", n) }

// arrangedWith is the cases with more arranged.
func arrangedWith(cases []locktest.ScriptCase, more, reply, after string) []locktest.ScriptCase {
	cases = slices.Clone(cases)
	for i := range cases {
		cases[i].Name += " and " + more
		cases[i].Arrange += " " + more
		cases[i].After = after
		if reply != "" {
			cases[i].Reply = reply
		}
	}
	return cases
}

func TestAcquireScript(t *testing.T) {
	const held, otherHolds = "holds('other', 30000) ", "K = other, 30s"
	taken := locktest.Lines("F = now"+week, "K = me, 10s")
	flagged := locktest.Lines("F = now+"+week, "K = me, 10s")
	const ours = "AAAAAAAAAAAAAAAA.BBBBBBBBBBBBB.CCCCCCCCCCCCCCCCCCCCCCCCCC" // see package token
	const stands, looked = "Q = me now, 5s", "G = me ms+2500, 5s"

	// What every mode answers.
	every := []locktest.ScriptCase{
		{Name: "own token again", Arrange: "holds('me', 3000) counter(77)",
			Reply: "77", After: locktest.Lines("F = 77"+week, "K = me, 10s")},
		{Name: "own token, for ever", Arrange: "set(K, 'me') counter(77)",
			Reply: "77", After: locktest.Lines("F = 77"+week, "K = me, 10s")},
		{Name: "own token, flagged", Arrange: "holds('me', 3000) counter('77+')",
			Reply: "77", After: locktest.Lines("F = 77+"+week, "K = me, 10s")},
		{Name: "own token, with a line", Arrange: "holds('me', 3000) counter(77) waits('b', 1000)",
			Reply: "77", After: locktest.Lines("F = 77"+week, "G = b ms+1000, 5s", "K = me, 10s", "Q = b 1, 5s")},
		{Name: "own token, counter at 2^53-1", Arrange: "holds('me', 3000) counter('9007199254740991')",
			Reply: "9007199254740991", After: locktest.Lines("F = 9007199254740991"+week, "K = me, 10s")},
		{Name: "own token, counter at 2^53+1", Arrange: "holds('me', 3000) counter('9007199254740993')",
			Reply: "9007199254740993", After: locktest.Lines("F = 9007199254740993"+week, "K = me, 10s")},
		{Name: "list at K", Arrange: "list(K)", Reply: "WRONGTYPE", After: "="},
		{Name: "hash at K, with a line", Arrange: "redis.call('HSET', K, 'a', 'b') waits('me', 1000)", Reply: "WRONGTYPE", After: "="},
	}
	// What try and join answer to a lock that can be had.
	free := []locktest.ScriptCase{
		{Name: "free", Reply: "now", After: taken},
		{Name: "own token, counter gone", Arrange: "holds('me', 3000)", Reply: "now", After: taken},
		{Name: "own token with a line, counter gone", Arrange: "holds('me', 3000) waits('b', 1000)",
			Reply: "now", After: locktest.Lines("F = now+"+week, "G = b ms+1000, 5s", "K = me, 10s", "Q = b 1, 5s")},
		{Name: "counter behind the clock", Arrange: "counter(5)", Reply: "now", After: taken},
		{Name: "counter at 0", Arrange: "counter(0)", Reply: "now", After: taken},
		{Name: "negative counter", Arrange: "counter(-5)", Reply: "now", After: taken},
		{Name: "flag without need", Arrange: "counter('5+')", Reply: "now", After: taken},
		{Name: "flag without need, counter ahead of the clock", Arrange: "counter(digits(us + 100000000) .. '+')",
			Reply: "now+100000001", After: locktest.Lines("F = now+100000001, 604900s", "K = me, 10s")},
		{Name: "another's tombstone, counter ahead of the clock", Arrange: "undone('other', 30000) counter(digits(us + 100000000) .. '+')",
			Reply: "now+100000001", After: locktest.Lines("D = other ms+30000, 60s", "F = now+100000001+, 604900s", "K = me, 10s")},
		{Name: "fraction at F", Arrange: "counter('1.5')", Reply: "now", After: taken},
		{Name: "counter at the clock", Mini: true, Arrange: "counter(digits(us))",
			Reply: "now+1", After: locktest.Lines("F = now+1"+week, "K = me, 10s")},
		{Name: "counter ahead of the clock", Arrange: "counter(digits(us + 100000000))",
			Reply: "now+100000001", After: locktest.Lines("F = now+100000001, 604900s", "K = me, 10s")},
		{Name: "counter for ever", Mini: true, Arrange: "set(F, digits(us))",
			Reply: "now+1", After: locktest.Lines("F = now+1"+week, "K = me, 10s")},
		// From 2^53 on, tokens are digits. The counter lives until the clock has passed it: more centuries than
		// miniredis can count.
		{Name: "counter at 2^53-2", Arrange: "counter('9007199254740990')", Real: true, Reply: "9007199254740991", After: "*"},
		{Name: "counter at 2^53-1", Arrange: "counter('9007199254740991')", Real: true, Reply: "9007199254740992", After: "*"},
		{Name: "counter at 2^53", Arrange: "counter('9007199254740992')", Real: true, Reply: "9007199254740993", After: "*"},
		{Name: "line of the dead", Arrange: "waits('gone') waits('old', 0) waits('older', -1) waits('future', 2501)",
			Reply: "now", After: flagged},
		{Name: "almost as many of the dead as one run clears away", Arrange: crowd(255), Reply: "now", After: flagged},
		{Name: "own place behind them", Arrange: crowd(255) + " waits('me')", Reply: "now", After: flagged},
		{Name: "own place at the head", Arrange: "waits('dead') waits('me') waits('b', 1000)",
			Reply: "now", After: locktest.Lines("F = now+"+week, "G = b ms+1000, 5s", "K = me, 10s", "Q = b 3, 5s")},
		{Name: "tombstone", Arrange: "undone('me', 60000)", Reply: `"GONE"`, After: "="},
		{Name: "tombstone while held", Arrange: "undone('me', 60000) " + held, Reply: `"GONE"`, After: "="},
		{Name: "tombstone and a line", Arrange: "undone('me', 60000) waits('b', 1000)", Reply: `"GONE"`, After: "="},
		{Name: "another's tombstone", Arrange: "undone('other', 30000)", Reply: "now",
			After: locktest.Lines("D = other ms+30000, 60s", flagged)},
		{Name: "another's tombstone and the dead", Arrange: "undone('other', 30000) waits('x')", Reply: "now",
			After: locktest.Lines("D = other ms+30000, 60s", flagged)},
		{Name: "list for a tombstone", Arrange: "list(D)", Reply: "WRONGTYPE", After: "="},
		{Name: "list at Q", Arrange: "list(Q)", Reply: "WRONGTYPE", After: "="},
		{Name: "list at G", Arrange: "list(G) waits('b')", Reply: "WRONGTYPE", After: "*"},
	}

	free = append(free, arrangedWith(badCounters, "", "", "=")...)
	free = append(free, arrangedWith(badCounters, "waits('dead')", "", "*")...)
	free = append(free, arrangedWith(badCounters, "waits('b', 1000)", "", "*")...)

	try := slices.Concat(free, []locktest.ScriptCase{
		{Name: "held", Arrange: held, Reply: `"HELD" 30000`, After: otherHolds},
		{Name: "held for ever", Arrange: "set(K, 'someone')", Reply: `"HELD" -1`, After: "="},
		{Name: "held by an empty value", Arrange: "set(K, '', 'PX', 30000)", Reply: `"HELD" 30000`, After: "="},
		{Name: "held by a longer token", Arrange: "holds('me1', 30000)", Reply: `"HELD" 30000`, After: "="},
		{Name: "held by a shorter token", Arrange: "holds('m', 30000)", Reply: `"HELD" 30000`, After: "="},
		{Name: "held, with a line", Arrange: held + "waits('b', 1000)", Reply: `"HELD" 30000`, After: "="},
		{Name: "held, list at Q", Arrange: held + "list(Q)", Reply: "WRONGTYPE", After: "="},
		{Name: "free, a live head", Arrange: "waits('b', 1000) waits('c', 2000)",
			Reply: `"HELD" 1000`, After: locktest.Lines("F = now+"+week, "G = c ms+2000, 5s", "K = b, 1s", "Q = c 2, 5s")},
		{Name: "free, a head whose backend.WaiterTTL has just begun", Arrange: "waits('b', 2500)",
			Reply: `"HELD" 2500`, After: locktest.Lines("F = now+"+week, "K = b, 2.5s")},
		{Name: "free, a head whose backend.WaiterTTL lasts 1 ms", Arrange: "waits('b', 1)", Mini: true,
			Reply: `"HELD" 1`, After: "*"},
		{Name: "free, a head that has not looked again", Arrange: "redis.call('ZADD', Q, digits(us - 1000000), 'b')",
			Reply: `"HELD" 1500`, After: locktest.Lines("F = now+"+week, "K = b, 1.5s")},
		{Name: "free, a head that has not looked in time", Arrange: "redis.call('ZADD', Q, digits(us - 2500000), 'b')",
			Reply: "now", After: flagged},
		{Name: "free, a head whose ticket is ahead", Arrange: "redis.call('ZADD', Q, digits(us + 1000), 'b')",
			Reply: "now", After: flagged},
		{Name: "free, the dead before a live one", Arrange: "waits('x') waits('y', 0) waits('z', 2501) waits('b', 1000)",
			Reply: `"HELD" 1000`, After: locktest.Lines("F = now+"+week, "K = b, 1s")},
		{Name: "free, more of the dead than one run clears away", Arrange: crowd(256) + " waits('b', 1000)",
			Reply: `"HELD" -2`, After: locktest.Lines("G = b ms+1000, 5s", "Q = b 257, 5s")},
		{Name: "free, as many of the dead as one run clears away", Arrange: crowd(256), Reply: `"HELD" -2`, After: ""},
		{Name: "free, a live head, counter ahead", Arrange: "waits('b', 1000) counter(digits(us + 100000000))",
			Reply: `"HELD" 1000`, After: locktest.Lines("F = now+100000001+, 604900s", "K = b, 1s")},
		{Name: "own token with more time left", Arrange: "holds('me', 30000) counter(77)",
			Reply: "77", After: locktest.Lines("F = 77"+week, "K = me, 30s")},
	})

	join := slices.Concat(free, []locktest.ScriptCase{
		{Name: "held", Arrange: held, Reply: `"WAITING" now 30000 0 now 1`, After: locktest.Lines(otherHolds, stands)},
		{Name: "held, with a counter", Arrange: held + "counter(55)",
			Reply: `"WAITING" 55 30000 0 now 1`, After: locktest.Lines("F = 55+"+week, otherHolds, stands)},
		{Name: "held, with a flagged counter", Arrange: held + "counter('55+')",
			Reply: `"WAITING" 55 30000 0 now 1`, After: locktest.Lines("F = 55+"+week, otherHolds, stands)},
		{Name: "held, counter beyond 2^53", Arrange: held + "counter('9007199254740993')",
			Reply: `"WAITING" 9007199254740993 30000 0 now 1`, After: locktest.Lines("F = 9007199254740993+"+week, otherHolds, stands)},
		{Name: "held by one of ours", Arrange: "holds('" + ours + "', 30000)", Reply: `"WAITING" now 30000 0 now 0`,
			After: locktest.Lines("K = "+ours+", 30s", stands)},
		{Name: "held by one of ours with a label", Arrange: "holds('" + ours + ".a label. 1', 30000)", Reply: `"WAITING" now 30000 0 now 0`,
			After: locktest.Lines("K = "+ours+".a label. 1, 30s", stands)},
		{Name: "held by one of ours for a shared lease", Arrange: "holds('" + ours[:16] + "~" + ours[17:] + "', 30000)",
			Reply: `"WAITING" now 30000 0 now 2`, After: locktest.Lines("K = "+ours[:16]+"~"+ours[17:]+", 30s", stands)},
		{Name: "held by several", Arrange: "holds('leasehold:slots', 30000)", Reply: `"WAITING" now 30000 0 now 2`,
			After: locktest.Lines("K = leasehold:slots, 30s", stands)},
		{Name: "held by a token that is cut short", Arrange: "holds('" + ours[:56] + "', 30000)", Reply: `"WAITING" now 30000 0 now 1`,
			After: locktest.Lines("K = "+ours[:56]+", 30s", stands)},
		{Name: "held by a token that is too long", Arrange: "holds('" + ours + "A', 30000)", Reply: `"WAITING" now 30000 0 now 1`,
			After: locktest.Lines("K = "+ours+"A, 30s", stands)},
		{Name: "held by an empty value", Arrange: "set(K, '', 'PX', 30000)", Reply: `"WAITING" now 30000 0 now 1`,
			After: locktest.Lines("K = , 30s", stands)},
		{Name: "held for ever", Arrange: "set(K, 'someone')", Reply: `"WAITING" now -1 0 now 1`,
			After: locktest.Lines("K = someone, for ever", stands)},
		{Name: "held, behind two", Arrange: held + "waits('b', 1000) waits('c')", Reply: `"WAITING" now 30000 2 now 1`,
			After: locktest.Lines("G = b ms+1000, 5s", otherHolds, "Q = b 1 c 2 me now, 5s")},
		{Name: "held, behind one whose ticket is ahead", Arrange: held + "redis.call('ZADD', Q, digits(us + 77), 'b')",
			Reply: `"WAITING" now 30000 1 now 1`, After: locktest.Lines(looked, otherHolds, "Q = b now+77 me now+78, 5s")},
		{Name: "held, sent again", Arrange: held + "waits('me', 1000) waits('b', 1000)", Reply: `"WAITING" now 30000 0 now 1`,
			After: locktest.Lines("G = b ms+1000 me ms+2500, 5s", otherHolds, "Q = me 1 b 2, 5s")},
		{Name: "held, sent again before a look", Arrange: held + "redis.call('ZADD', Q, digits(us - 100), 'me')",
			Reply: `"WAITING" now 30000 0 now 1`, After: locktest.Lines(looked, otherHolds, "Q = me now-100, 5s")},
		{Name: "held, sent again after its mark", Arrange: held + "waits('me')",
			Reply: `"WAITING" now 30000 0 now 1`, After: locktest.Lines(looked, otherHolds, "Q = me 1, 5s")},
		{Name: "free, a live head", Arrange: "waits('b', 1000)", Reply: `"WAITING" now 1000 0 now 0`,
			After: locktest.Lines("F = now+"+week, "K = b, 1s", stands)},
		{Name: "free, more of the dead than one run clears away", Arrange: crowd(256) + " waits('b', 1000)",
			Reply: `"WAITING" now -2 1 now 0`, After: locktest.Lines("G = b ms+1000, 5s", "Q = b 257 me now, 5s")},
		{Name: "free, as many of the dead as one run clears away", Arrange: crowd(256),
			Reply: `"WAITING" now -2 0 now 0`, After: stands},
		{Name: "free, own place behind more of the dead than one run clears away", Arrange: crowd(256) + " waits('me')",
			Reply: `"WAITING" now -2 0 now 0`, After: locktest.Lines(looked, "Q = me 257, 5s")},
		{Name: "held, list at G", Arrange: held + "list(G)", Reply: `"WAITING" now 30000 0 now 1`, After: locktest.Lines("G = list, 60s", otherHolds, stands)},
		{Name: "held, sent again, list at G", Arrange: held + "waits('me') list(G)", Reply: "WRONGTYPE", After: "="},
		{Name: "held, list at Q", Arrange: held + "list(Q)", Reply: "WRONGTYPE", After: "="},
	})

	look := []locktest.ScriptCase{
		{Name: "own token, counter gone", Arrange: "holds('me', 3000)", Reply: "now", After: flagged},
		{Name: "free, no place", Reply: `"GONE"`, After: ""},
		{Name: "free, no place, others live", Arrange: "waits('b', 1000)", Reply: `"GONE"`, After: "="},
		{Name: "held, no place", Arrange: held + "waits('b', 1000)", Reply: `"GONE"`, After: "="},
		{Name: "held, only a mark", Arrange: held + "waits('me', 1000) redis.call('ZREM', Q, 'me')", Reply: `"GONE"`, After: "="},
		{Name: "held", Arrange: held + "waits('b', 1000) waits('me', 1000)", Reply: `"WAITING" now 30000 1 now 1`,
			After: locktest.Lines("G = b ms+1000 me ms+2500, 5s", otherHolds, "Q = b 1 me 2, 5s")},
		{Name: "held, after its mark", Arrange: held + "waits('me', -9)", Reply: `"WAITING" now 30000 0 now 1`, After: locktest.Lines(looked, otherHolds, "Q = me 1, 5s")},
		{Name: "free, at the head", Arrange: "waits('me', 1000) waits('b', 1000)",
			Reply: "now", After: locktest.Lines("F = now+"+week, "G = b ms+1000, 5s", "K = me, 10s", "Q = b 2, 5s")},
		{Name: "free, behind the dead", Arrange: "waits('x', 0) waits('me', 1000)", Reply: "now", After: flagged},
		{Name: "free, behind a live one", Arrange: "waits('b', 1000) waits('me', 1000)", Reply: `"WAITING" now 1000 0 now 0`,
			After: locktest.Lines("F = now+"+week, "G = me ms+2500, 5s", "K = b, 1s", "Q = me 2, 5s")},
		{Name: "free, behind more of the dead than one run clears away", Arrange: crowd(256) + " waits('b', 1000) waits('me')",
			Reply: `"WAITING" now -2 1 now 0`, After: locktest.Lines("G = b ms+1000 me ms+2500, 5s", "Q = b 257 me 258, 5s")},
		{Name: "list at Q", Arrange: held + "list(Q)", Reply: "WRONGTYPE", After: "="},
		{Name: "list at G", Arrange: held + "list(G) waits('me')", Reply: "WRONGTYPE", After: "="},
	}

	locktest.OnScriptServers(t, func(t *testing.T, s locktest.ScriptServer) {
		for mode, cases := range map[string][]locktest.ScriptCase{"try": try, "join": join, "poll": look} {
			locktest.RunScriptCases(t, s, locktest.AcquireScript, mode, cases...)
			locktest.RunScriptCases(t, s, locktest.AcquireScript, mode, every...)
		}
	})
}
