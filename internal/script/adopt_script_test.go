package script_test

import (
	"testing"

	"github.com/go-leasehold/leasehold/internal/locktest"
)

func TestAdoptScript(t *testing.T) {
	const former, mine, other = "holds('former', 3000) ", "holds('me', 3000) ", "holds('other', 30000) "
	const buried = "D = former ms+60000, 60s"
	taken := locktest.Lines(buried, "F = now+"+week, "K = me, 10s")
	adopt := []locktest.ScriptCase{
		{Name: "the former holder's", Arrange: former + "counter(77)", Reply: "now", After: taken},
		{Name: "counter gone", Arrange: former, Reply: "now", After: taken},
		{Name: "counter ahead", Arrange: former + "counter(digits(us + 100000000))", Reply: "now+100000001",
			After: locktest.Lines(buried, "F = now+100000001+, 604900s", "K = me, 10s")},
		{Name: "counter beyond 2^53", Arrange: former + "counter('9007199254740993')", Real: true, Reply: "9007199254740994", After: "*"},
		{Name: "with more time left", Arrange: "holds('former', 30000)", Reply: "now", After: locktest.Lines(buried, "F = now+"+week, "K = me, 30s")},
		{Name: "for ever", Arrange: "set(K, 'former')", Reply: "now", After: taken},
		{Name: "with a line", Arrange: former + "waits('b', 1000)", Reply: "now",
			After: locktest.Lines(buried, "F = now+"+week, "G = b ms+1000, 5s", "K = me, 10s", "Q = b 1, 5s")},
		{Name: "with tombstones", Arrange: former + "undone('old', 0) undone('other', 1)", Reply: "now",
			After: locktest.Lines("D = other ms+1 former ms+60000, 60s", "F = now+"+week, "K = me, 10s")},
		{Name: "list at Q", Arrange: former + "list(Q)", Reply: "now", After: locktest.Lines(taken, "Q = list, 60s")},
		{Name: "sent again", Arrange: mine + "counter(77) undone('former', 60000)", Reply: "77", After: "="},
		{Name: "sent again, flagged", Arrange: mine + "counter('77+') undone('former', 60000)", Reply: "77", After: "="},
		{Name: "sent again, counter gone", Arrange: mine + "undone('former', 60000)", Reply: "now",
			After: locktest.Lines("D = former ms+60000, 60s", "F = now+"+week, "K = me, 3s")},
		{Name: "sent again, counter beyond 2^53", Arrange: mine + "counter('9007199254740993')", Reply: "9007199254740993", After: "="},
		{Name: "free", Reply: `"GONE" -1`, After: ""},
		{Name: "free, with a line", Arrange: "waits('b', 1000)", Reply: `"GONE" -1`, After: "="},
		{Name: "another's", Arrange: other, Reply: `"GONE" -2`, After: "="},
		{Name: "another's for ever", Arrange: "set(K, 'other')", Reply: `"GONE" -2`, After: "="},
		{Name: "an empty value's", Arrange: "set(K, '')", Reply: `"GONE" -2`, After: "="},
		{Name: "a longer token's", Arrange: "holds('former1', 3000)", Reply: `"GONE" -2`, After: "="},
		{Name: "a shorter token's", Arrange: "holds('forme', 3000)", Reply: `"GONE" -2`, After: "="},
		{Name: "adopted by another", Arrange: other + "undone('former', 60000)", Reply: `"GONE" -3`, After: "="},
		{Name: "adopted by another and released", Arrange: "undone('former', 60000)", Reply: `"GONE" -3`, After: "="},
		{Name: "undone before it came", Arrange: former + "undone('me', 60000)", Reply: `"GONE" -2`, After: "="},
		{Name: "place in the line", Arrange: other + "waits('former', 1000)", Reply: `"GONE" -2`, After: "="},
		{Name: "list at K", Arrange: "list(K)", Reply: `"GONE" -4`, After: "="},
		{Name: "list for a tombstone", Arrange: former + "list(D)", Reply: "WRONGTYPE", After: "="},
	}
	// Without a fencing token it does not take place.
	adopt = append(adopt, arrangedWith(badCounters, former, "", "=")...)

	undo := []locktest.ScriptCase{
		{Name: "adopted", Arrange: mine + "counter(77) undone('former', 60000)", Reply: "1",
			After: locktest.Lines("D = me ms+60000, 60s", "F = 77+"+week, "K = former, 3s")},
		{Name: "adopted, with a line", Arrange: mine + "undone('former', 60000) waits('b', 1000)", Reply: "1",
			After: locktest.Lines("D = me ms+60000, 60s", "G = b ms+1000, 5s", "K = former, 3s", "Q = b 1, 5s")},
		{Name: "not adopted", Arrange: former, Reply: "0", After: locktest.Lines("D = me ms+60000, 60s", "K = former, 3s")},
		{Name: "not adopted, but by another", Arrange: other + "undone('former', 50000)", Reply: "0",
			After: locktest.Lines("D = former ms+50000 me ms+60000, 60s", "K = other, 30s")},
		{Name: "free", Reply: "0", After: "D = me ms+60000, 60s"},
		{Name: "another's", Arrange: other, Reply: "0", After: locktest.Lines("D = me ms+60000, 60s", "K = other, 30s")},
		{Name: "list at K", Arrange: "list(K)", Reply: "0", After: locktest.Lines("D = me ms+60000, 60s", "K = list, 60s")},
		{Name: "again", Arrange: former + "undone('me', 5000)", Reply: "0", After: locktest.Lines("D = me ms+60000, 60s", "K = former, 3s")},
		{Name: "list at D", Arrange: mine + "list(D)", Reply: "WRONGTYPE", After: "="},
	}
	locktest.OnScriptServers(t, func(t *testing.T, s locktest.ScriptServer) {
		locktest.RunScriptCases(t, s, locktest.AdoptScript, "adopt", adopt...)
		locktest.RunScriptCases(t, s, locktest.AdoptScript, "cancel", undo...)
	})
}
