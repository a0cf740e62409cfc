package script_test

import (
	"fmt"
	"testing"

	"github.com/go-leasehold/leasehold/internal/locktest"
)

// A release that comes too early leaves the key to nobody until its time. In these cases the lock was won by the server's clock
// at a moment that leaves five seconds, and ten would be the most.
func TestFinishScript(t *testing.T) {
	const mine, early = "holds('me', 3000) ", "ARGV[3] = digits(us + 5000000) "
	const tomb = "D = me ms+60000, 60s"
	cases := []locktest.ScriptCase{
		{Name: "held", Arrange: mine + early, Reply: "1", After: "K = me!, 5s"},
		{Name: "held for longer", Arrange: "holds('me', 30000) " + early, Reply: "1", After: "K = me!, 5s"},
		{Name: "held for ever", Arrange: "set(K, 'me') " + early, Reply: "1", After: "K = me!, 5s"},
		{Name: "held, with a counter", Arrange: mine + "counter(77) " + early, Reply: "1", After: locktest.Lines("F = 77, 168h", "K = me!, 5s")},
		{Name: "held, the counter was ahead", Arrange: mine + "ARGV[3] = digits(us + 60000000)", Reply: "1", After: "K = me!, 10s"},
		{Name: "held, and time for less", Arrange: mine + "ARGV[4] = '2000' " + early, Reply: "1", After: "K = me!, 2s"},
		{Name: "held, and no time", Arrange: mine + "ARGV[4] = '0' " + early, Reply: "1", After: ""},
		{Name: "held, and the time is over", Arrange: mine + "ARGV[3] = digits(us)", Reply: "1", After: ""},
		{Name: "held, a fraction of a millisecond is left", Arrange: mine + "ARGV[3] = digits(us + 1)", Reply: "1", After: "*"},
		{Name: "held, and a shorter life of the counter", Arrange: mine + "counter(77) ARGV[5] = '60000'", Reply: "1", After: "F = 77++, 60s"},
		{Name: "held, and a shorter life of the flagged counter", Arrange: mine + "counter('77+') ARGV[5] = '60000'", Reply: "1", After: "F = 77++, 60s"},
		{Name: "held, and again a shorter life", Arrange: mine + "counter('77++') ARGV[5] = '60000'", Reply: "1", After: "F = 77++, 60s"},
		{Name: "held, a rest and a shorter life behind it", Arrange: mine + "counter(77) ARGV[5] = '60000' " + early, Reply: "1",
			After: locktest.Lines("F = 77++, 65s", "K = me!, 5s")},
		{Name: "held, and no shorter life of a counter that is ahead", Arrange: mine + "counter(digits(us + 100000000)) ARGV[5] = '60000'", Reply: "1",
			After: "F = now+100000000, 168h"},
		{Name: "held, and no shorter life before a line", Arrange: mine + "counter('77+') waits('b', 1000) ARGV[5] = '60000'", Reply: "1",
			After: locktest.Lines("F = now+, 168h", "K = b, 1s")},
		{Name: "held, and no counter", Arrange: mine + "ARGV[5] = '60000'", Reply: "1", After: ""},
		{Name: "held, and something else for a counter", Arrange: mine + "counter('x') ARGV[5] = '60000'", Reply: "1", After: "F = x, 168h"},
		{Name: "another's, and no shorter life", Arrange: "holds('other', 3000) counter(77) ARGV[5] = '60000'", Reply: "-2", After: "="},
		{Name: "held, a line", Arrange: mine + "waits('b', 1000) waits('c', 2000) " + early, Reply: "1",
			After: locktest.Lines("G = b ms+1000 c ms+2000, 5s", "K = me!, 5s", "Q = b 1 c 2, 5s")},
		{Name: "held, a line, and the time is over", Arrange: mine + "waits('b', 1000) ARGV[3] = digits(us)", Reply: "1",
			After: locktest.Lines("F = now+"+week, "K = b, 1s")},
		{Name: "held, list at Q", Arrange: mine + "list(Q) " + early, Reply: "1", After: locktest.Lines("K = me!, 5s", "Q = list, 60s")},
		{Name: "held, list at F", Arrange: mine + "list(F) " + early, Reply: "1", After: locktest.Lines("F = list, 60s", "K = me!, 5s")},
		{Name: "resting", Arrange: "holds('me!', 3000) " + early, Reply: "1", After: "="},
		{Name: "resting, and the time is over", Arrange: "holds('me!', 3000) ARGV[3] = digits(us)", Reply: "1", After: "="},
		{Name: "resting, with a line", Arrange: "holds('me!', 3000) waits('b', 1000) " + early, Reply: "1", After: "="},
		{Name: "another's rest", Arrange: "holds('other!', 3000) " + early, Reply: "-2", After: "="},
		{Name: "another's", Arrange: "holds('other', 3000) " + early, Reply: "-2", After: "="},
		{Name: "free", Arrange: early, Reply: "-1", After: ""},
		{Name: "free, with a line", Arrange: early + "waits('b', 1000)", Reply: "-1", After: "="},
		{Name: "place", Arrange: "holds('other', 30000) waits('me', 1000) " + early, Reply: "2", After: "K = other, 30s"},
		{Name: "list at K", Arrange: "list(K) " + early, Reply: "-4", After: "="},
	}
	told := []locktest.ScriptCase{
		{Name: "adopted", Arrange: early + "holds('other', 30000) undone('me', 60000)", Reply: "-3", After: "="},
		{Name: "held", Arrange: mine + early, Reply: "1", After: "K = me!, 5s"},
	}
	undo := []locktest.ScriptCase{
		{Name: "held", Arrange: mine + early, Reply: "1", After: locktest.Lines(tomb, "K = me!, 5s")},
		{Name: "held, with a counter", Arrange: mine + "counter(77) " + early, Reply: "1", After: locktest.Lines(tomb, "F = 77+, 168h", "K = me!, 5s")},
		{Name: "resting", Arrange: "holds('me!', 3000) " + early, Reply: "1", After: locktest.Lines(tomb, "K = me!, 3s")},
		{Name: "free", Arrange: early, Reply: "-1", After: tomb},
	}
	var bad []locktest.ScriptCase
	for _, wrong := range []string{"ARGV[3] = 'soon'", "ARGV[3] = ''", "ARGV[4] = '1.5'", "ARGV[4] = 'soon'", "ARGV[4] = 'nan'", "ARGV[1] = ''", "ARGV[5] = 'soon'", "ARGV[5] = '1.5'"} {
		bad = append(bad, locktest.ScriptCase{Name: wrong, Arrange: mine + early + wrong, Reply: "ERR leasehold", After: "="})
	}

	// Nobody but the script itself knows a resting lock: for all others it is held, by nobody whose token they have.
	const rests = "holds('me!', 3000) counter('77+') "
	var acquire []locktest.ScriptCase
	for _, token := range []string{"me", "other", "me!2"} {
		acquire = append(acquire, locktest.ScriptCase{Name: "resting, " + token, Arrange: fmt.Sprintf("%s ARGV[1] = %q", rests, token), Reply: `"HELD" 3000`, After: "="})
	}
	// Whoever issues the next token gives the counter its whole life again.
	brief := []locktest.ScriptCase{
		{Name: "free, a counter of a shorter life", Arrange: "redis.call('SET', F, digits(us - 1) .. '++', 'PX', 60000)", Reply: "now",
			After: locktest.Lines("F = now, 168h", "K = me, 10s")},
		{Name: "free, a counter of a shorter life and tombstones", Arrange: "redis.call('SET', F, digits(us - 1) .. '++', 'PX', 60000) undone('b', 9000)", Reply: "now",
			After: locktest.Lines("D = b ms+9000, 60s", "F = now+, 168h", "K = me, 10s")},
		{Name: "free, a counter of a shorter life that is ahead by now", Arrange: "redis.call('SET', F, digits(us) .. '++', 'PX', 60000)", Reply: "now+1",
			After: locktest.Lines("F = now+1, 168h", "K = me, 10s")},
	}
	join := []locktest.ScriptCase{{Name: "resting, a counter of a shorter life", Arrange: "holds('other', 3000) counter('77++')", Reply: `"WAITING" 77 3000 0 now 1`,
		After: locktest.Lines("F = 77++, 168h", "K = other, 3s", "Q = me now, 5s")}}
	none := []locktest.ScriptCase{{Name: "resting", Arrange: rests, Reply: "-2", After: "="}}

	locktest.OnScriptServers(t, func(t *testing.T, s locktest.ScriptServer) {
		locktest.RunScriptCases(t, s, locktest.FinishScript, "release", cases...)
		locktest.RunScriptCases(t, s, locktest.FinishScript, "release", bad...)
		locktest.RunScriptCases(t, s, locktest.FinishScript, "told", told...)
		locktest.RunScriptCases(t, s, locktest.FinishScript, "cancel", undo...)
		locktest.RunScriptCases(t, s, locktest.AcquireScript, "try", acquire...)
		locktest.RunScriptCases(t, s, locktest.AcquireScript, "try", brief...)
		locktest.RunScriptCases(t, s, locktest.AcquireScript, "join", join...)
		locktest.RunScriptCases(t, s, locktest.RenewScript, "", none...)
		locktest.RunScriptCases(t, s, locktest.ReleaseScript, "release", none...)
		locktest.RunScriptCases(t, s, locktest.AdoptScript, "adopt", locktest.ScriptCase{Name: "resting", Arrange: "holds('former!', 3000)", Reply: `"GONE" -2`, After: "="})
	})
}
