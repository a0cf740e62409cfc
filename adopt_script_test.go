package leasehold

import (
	"testing"
)

func TestAdoptScript(t *testing.T) {
	const former, mine, other = "holds('former', 3000) ", "holds('me', 3000) ", "holds('other', 30000) "
	const buried = "D = former ms+60000, 60s"
	taken := lines(buried, "F = now"+week, "K = me, 10s")
	adopt := []scriptCase{
		{name: "the former holder's", arrange: former + "counter(77)", reply: "now", after: taken},
		{name: "counter gone", arrange: former, reply: "now", after: taken},
		{name: "counter ahead", arrange: former + "counter(digits(us + 100000000))", reply: "now+100000001",
			after: lines(buried, "F = now+100000001, 604900s", "K = me, 10s")},
		{name: "counter beyond 2^53", arrange: former + "counter('9007199254740993')", real: true, reply: "9007199254740994", after: "*"},
		{name: "with more time left", arrange: "holds('former', 30000)", reply: "now", after: lines(buried, "F = now"+week, "K = me, 30s")},
		{name: "for ever", arrange: "set(K, 'former')", reply: "now", after: taken},
		{name: "with a line", arrange: former + "waits('b', 1000)", reply: "now",
			after: lines(buried, "F = now"+week, "G = b ms+1000, 5s", "K = me, 10s", "Q = b 1, 5s")},
		{name: "with tombstones", arrange: former + "undone('old', 0) undone('other', 1)", reply: "now",
			after: lines("D = other ms+1 former ms+60000, 60s", "F = now"+week, "K = me, 10s")},
		{name: "list at Q", arrange: former + "list(Q)", reply: "now", after: lines(taken, "Q = list, 60s")},
		{name: "sent again", arrange: mine + "counter(77) undone('former', 60000)", reply: "77", after: "="},
		{name: "sent again, counter gone", arrange: mine + "undone('former', 60000)", reply: "now",
			after: lines("D = former ms+60000, 60s", "F = now"+week, "K = me, 3s")},
		{name: "sent again, counter beyond 2^53", arrange: mine + "counter('9007199254740993')", reply: "9007199254740993", after: "="},
		{name: "free", reply: `"GONE" -1`, after: ""},
		{name: "free, with a line", arrange: "waits('b', 1000)", reply: `"GONE" -1`, after: "="},
		{name: "another's", arrange: other, reply: `"GONE" -2`, after: "="},
		{name: "another's for ever", arrange: "set(K, 'other')", reply: `"GONE" -2`, after: "="},
		{name: "an empty value's", arrange: "set(K, '')", reply: `"GONE" -2`, after: "="},
		{name: "a longer token's", arrange: "holds('former1', 3000)", reply: `"GONE" -2`, after: "="},
		{name: "a shorter token's", arrange: "holds('forme', 3000)", reply: `"GONE" -2`, after: "="},
		{name: "adopted by another", arrange: other + "undone('former', 60000)", reply: `"GONE" -3`, after: "="},
		{name: "adopted by another and released", arrange: "undone('former', 60000)", reply: `"GONE" -3`, after: "="},
		{name: "undone before it came", arrange: former + "undone('me', 60000)", reply: `"GONE" -2`, after: "="},
		{name: "place in the line", arrange: other + "waits('former', 1000)", reply: `"GONE" -2`, after: "="},
		{name: "list at K", arrange: "list(K)", reply: `"GONE" -4`, after: "="},
		{name: "list for a tombstone", arrange: former + "list(D)", reply: "WRONGTYPE", after: "="},
	}
	// Without a fencing token it does not take place.
	adopt = append(adopt, arrangedWith(badCounters, former, "", "=")...)

	undo := []scriptCase{
		{name: "adopted", arrange: mine + "counter(77) undone('former', 60000)", reply: "1",
			after: lines("D = me ms+60000, 60s", "F = 77"+week, "K = former, 3s")},
		{name: "adopted, with a line", arrange: mine + "undone('former', 60000) waits('b', 1000)", reply: "1",
			after: lines("D = me ms+60000, 60s", "G = b ms+1000, 5s", "K = former, 3s", "Q = b 1, 5s")},
		{name: "not adopted", arrange: former, reply: "0", after: lines("D = me ms+60000, 60s", "K = former, 3s")},
		{name: "not adopted, but by another", arrange: other + "undone('former', 50000)", reply: "0",
			after: lines("D = former ms+50000 me ms+60000, 60s", "K = other, 30s")},
		{name: "free", reply: "0", after: "D = me ms+60000, 60s"},
		{name: "another's", arrange: other, reply: "0", after: lines("D = me ms+60000, 60s", "K = other, 30s")},
		{name: "list at K", arrange: "list(K)", reply: "0", after: lines("D = me ms+60000, 60s", "K = list, 60s")},
		{name: "again", arrange: former + "undone('me', 5000)", reply: "0", after: lines("D = me ms+60000, 60s", "K = former, 3s")},
		{name: "list at D", arrange: mine + "list(D)", reply: "WRONGTYPE", after: "="},
	}
	onScriptServers(t, func(t *testing.T, s scriptServer) {
		runScriptCases(t, s, adoptScript, "adopt", adopt...)
		runScriptCases(t, s, adoptScript, "cancel", undo...)
	})
}
