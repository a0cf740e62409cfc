package sim_test

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/script"
	"github.com/stretchr/testify/require"
)

// The simulation must be able to fail. Each of these mutants breaks one rule of a script, as a slip would, and each has to
// be caught.
var scriptMutants = []struct {
	name     string
	old, new string // in every script that has old
	weather  func(*simWeather)
}{
	{
		"a release takes the lock from whoever has it",
		"if done == 1 or MODE == 'force' then", "if owner then", expiring,
	}, {
		"a renewal sets the key without looking",
		"local owner = redis.pcall('GET', KEYS[1])", "redis.call('SET', KEYS[1], ARGV[1], 'PX', px) local owner = ARGV[1]", expiring,
	}, {
		"a renewal creates a key that is gone",
		"local owner = redis.pcall('GET', KEYS[1])", "redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', px) local owner = redis.pcall('GET', KEYS[1])", expiring,
	}, {
		"the answer to a command that came twice has a new fencing token",
		"if f then return (string.gsub(f, '%+$', '')) end", "", nil,
	}, {
		"the fencing token does not follow the clock",
		"local function fence(now, flag)", "local function fence(_, flag) local now = 1", func(w *simWeather) { w.troubles = []string{"FLUSHALL"} },
	}, {
		"a try takes a free lock past the line",
		"if not owner and not mine then", "if MODE == 'try' and not owner and not mine then redis.call('SET', K, ME, 'PX', ARGV[2]) mine = true end if not owner and not mine then", expiring,
	}, {
		"a try is refused for the sake of the dead",
		"if not owner and not mine then", "if MODE == 'try' and found > 0 and not mine then return {'HELD', redis.call('PTTL', K)} end if not owner and not mine then", expiring,
	}, {
		"who finds a free lock does not serve the head of the line",
		"mine = not head and room > 0 or head == ME", "mine = not head and room > 0 or head == ME if not mine then redis.call('DEL', K) end", expiring,
	}, {
		"who has cleared some of the dead away takes the lock past those behind them",
		"mine = not head and room > 0 or", "mine = not head or", crowding,
	}, {
		"the last to come is the first",
		"'NX', string.format('%.0f', now), ME)", "'NX', redis.call('HSET', G, ME, string.format('%.0f', now / 1000 + 2500)) - now, ME)", nil,
	}, {
		"the line has no TTL",
		"redis.call('PEXPIRE', Q, 2 * 2500)", "", nil,
	}, {
		"a clean-up leaves no tombstone",
		"if MODE == 'cancel' then", "if false then", func(w *simWeather) {
			w.troubles, w.between, w.cancels = []string{"pause"}, 300*time.Millisecond, 0.8
		},
	}, {
		"a release hands the lock to nobody",
		"handed = head and", "handed = false and", nil,
	}, {
		"nobody is told of a hand-over",
		"redis.pcall(publish or 'PUBLISH'", "tostring('PUBLISH'", nil,
	}, {
		"a hand-over lasts a waiter's whole time to live, however old the heartbeat",
		"redis.call('SET', KEYS[1], head, 'PX', left)", "redis.call('SET', KEYS[1], head, 'PX', 2500)", dying,
	}, {
		"the heartbeats are not asked",
		"if left <= 0 or left > 2500 then left = nil end", "left = 2500", dying,
	}, {
		"a poll does not renew the heartbeat",
		"redis.call('HSET', G, ME,", "redis.call('HSETNX', G, ME,", nil,
	}, {
		"who gives up stays in the line",
		"elseif redis.call('ZREM', Q, ARGV[1]) == 1 then", "elseif false then", func(w *simWeather) { w.cancels, w.each = 0.8, 2 },
	}, {
		"a place in the line does not flag the counter",
		"  if tonumber(given) then redis.call('SET', F, given .. '+', 'KEEPTTL') end", "", nil,
	}, {
		"a tombstone does not flag the counter",
		"  if type(f) == 'string' and tonumber(f) then redis.call('SET', KEYS[3], f .. '+', 'KEEPTTL') end\n", "",
		func(w *simWeather) { w.cancels, w.each = 0.8, 2 },
	}, {
		"a hand-over takes the flag away",
		"n, err = fence(now, '+')\n    if n then", "n, err = fence(now, '')\n    if n then", nil,
	}, {
		"an acquire takes the flag away though there are tombstones or a line",
		"fence(now, found == 0 and '' or '+')", "fence(now, '')", func(w *simWeather) { w.cancels = 0.8 },
	}, {
		"a short acquire does not ask the counter",
		"  if n and n < now and n >= now - now % 3600000000 and now < 9007199254740992 then", "  if true then", nil,
	}, {
		"a short acquire does not put the counter back",
		"    redis.call('SET', KEYS[2], last, 'KEEPTTL')\n", "", nil,
	}, {
		"a short release does not ask the counter",
		"if is[1] == ARGV[1] and tonumber(is[2]) then", "if is[1] == ARGV[1] then", nil,
	}, {
		"a short release takes the lock from whoever has it",
		"if is[1] == ARGV[1] and tonumber(is[2]) then", "if is[1] and tonumber(is[2]) then", expiring,
	}, {
		"one run for many acquires does not ask the counters",
		"  if f and f < now and f >= hour and now < 9007199254740992 and ARGV[i] ~= '' then", "  if true then", func(w *simWeather) { sharing(w); w.keys, w.slow = 40, 300*time.Microsecond },
	}, {
		"one run for many acquires takes locks that are held",
		"redis.pcall('SET', KEYS[i], ARGV[i], 'NX', 'PX', ARGV[n + i])", "redis.pcall('SET', KEYS[i], ARGV[i], 'PX', ARGV[n + i])", func(w *simWeather) { sharing(w); w.keys, w.slow = 40, 300*time.Microsecond },
	}, {
		"one run for many releases does not ask the counters",
		"  if is[i] == ARGV[i] and tonumber(is[n + i]) then", "  if is[i] == ARGV[i] then", sharing,
	}, {
		"one run for many renewals does not ask whose the locks are",
		"  if is[i] == ARGV[i] then", "  if is[i] then",
		func(w *simWeather) {
			sharing(w)
			w.ttls = []time.Duration{20 * time.Millisecond}
			w.hold = 100 * time.Millisecond
			w.renews = 1
		},
	}, {
		"a lock rests from its release on",
		"local left = math.min(math.ceil((UNTIL - now) / 1000), MOST)", "local left = MOST", resting,
	}, {
		"a lock does not rest",
		"local rests = value == resting\nif value == ARGV[1] then", "local rests = value == resting\nif false then", resting,
	}, {
		"a release makes the lock of whoever has it rest",
		"local rests = value == resting\nif value == ARGV[1] then", "local rests = value == resting\nif value and not rests then",
		func(w *simWeather) { resting(w); w.ttls = []time.Duration{20 * time.Millisecond} },
	}, {
		"a resting lock has no TTL",
		"redis.call('SET', KEYS[1], resting, 'KEEPTTL')", "redis.call('SET', KEYS[1], resting)", resting,
	}, {
		"an adoption leaves the former token no tombstone",
		"  bury(FORMER, math.floor(now / 1000))\n", "", passing,
	}, {
		"an adoption that is undone leaves no tombstone",
		"  bury(ME, math.floor(now / 1000))\n", "", passing,
	}, {
		"an adoption comes after it was undone",
		"elseif owner ~= FORMER or redis.call('ZSCORE', D, ME) then", "elseif owner ~= FORMER then", passing,
	}, {
		"an adoption has the former fencing token",
		"local n, err = fence(now, '+')\nif not n then return err end\nif owner", "local n = tonumber((string.gsub(redis.call('GET', F), '%+$', ''))) if owner", passing,
	}, {
		"an adoption that is undone gives nothing back",
		"  redis.call('SET', K, FORMER, 'KEEPTTL')", "  redis.call('DEL', K)", passing,
	}, {
		"an adoption takes a lock that is free",
		"elseif owner ~= FORMER or", "elseif owner and owner ~= FORMER or", passing,
	},
}

// passing: leases go from host to host, and much comes twice, late or not at all.
func passing(w *simWeather) {
	w.passes, w.troubles = 0.7, append(w.troubles, "duplicate", "lose reply", "stall")
}

func TestTheSimulationCatchesABrokenScript(t *testing.T) {
	for _, m := range scriptMutants { // all of them, also where only some are run
		require.NotEmpty(t, scriptsWith(m.old), "no script has %q any more: break what stands there now: %s", m.old, m.name)
	}
	for i, m := range scriptMutants {
		if i == 3 && os.Getenv("LEASEHOLD_SIM_MUTANTS") != "1" {
			t.Skip("the others take half a minute: LEASEHOLD_SIM_MUTANTS=1")
		}
		t.Run(m.name, func(t *testing.T) {
			mutate(t, m.old, m.new)
			const most = 120
			for seed := uint64(1); seed <= most; seed++ {
				w := drawWeather(rand.New(rand.NewPCG(seed, 0)))
				if m.weather != nil {
					m.weather(&w)
				}
				if broken, _ := play(t, seed, w); len(broken) > 0 {
					t.Logf("caught by history %d: %s", seed, broken[0])
					return
				}
			}
			t.Errorf("not caught in %d histories", most)
		})
	}
}

// mutate replaces a part of the scripts until the test ends.
func mutate(t *testing.T, old, new string) {
	t.Helper()
	t.Cleanup(replace(t, old, new))
}

// replace replaces a part of the scripts until back is called.
func replace(t *testing.T, old, new string) (back func()) {
	t.Helper()
	var was []func()
	for _, sc := range scriptsWith(old) {
		whole := *sc
		was = append(was, func() { *sc = whole })
		sc.Set(strings.Replace(sc.Src, old, new, 1))
	}
	require.NotEmpty(t, was, "no script has %q any more", old)
	return func() {
		for _, f := range was {
			f()
		}
	}
}

// scriptsWith returns the scripts in which that text stands.
func scriptsWith(text string) (with []*script.Script) {
	for _, sc := range locktest.Scripts() {
		if strings.Contains(sc.Src, text) {
			with = append(with, sc)
		}
	}
	return with
}

// The same for the rules of the clients. Each mutant is a build of its own, so this is for LEASEHOLD_SIM_MUTANTS=1.
var clientMutants = []struct {
	name, file, old, new string
}{
	{"trust counts from the receipt of a message", placeFile, "return p.grant(p.anchor, life,", "return p.grant(p.l.clock.Now(), life,"},
	{"trust counts from the last poll, answered or not", placeFile, "	p.w.Attempts++\n", "	p.w.Attempts++\n	p.anchor = p.l.clock.Now()\n"},
	{"no poll after the subscription", subscriptionFile, "t.pollAll() // a message may", "// a message may"},
	{"no poll interval", placeFile, "	if pause < PollInterval/2 {", "	if pause = time.Hour; false {"},
	{"no poll at the expiry", placeFile, "!ans.Forever && expiry < pause+time.Millisecond {", "false && expiry < pause {"},
	{"who gives up does not say so", waitFile, "l.cancel(w, err, leave)", "leave()"},
	{"a lease counts from the answer", placeFile, "return p.grant(begun, 0,", "return p.grant(p.l.clock.Now(), 0,"},
	{"a renewal counts from the answer", "../../renewal.go", "		le.prolong(begun)\n	}\n	le.noteWaiters", "		le.prolong(le.l.clock.Now())\n	}\n	le.noteWaiters"},
	{"a renewal revives a lease that was over", "../../renewal.go", "	if over := le.checkAt(now); over != nil {\n		return over\n	}\n	if err == nil && waiters < 0", "	if err == nil && waiters < 0"},
	{"a lease won by message is not confirmed", "../../lease.go", "		le.schedule.Hasten(le.deadline.Add(-g.Life / 3))\n", ""},
	{"the gate lets the last one in first", gateFile, "at.queue.Remove(at.queue.Front())", "at.queue.Remove(at.queue.Back())"},
	{"the gate does not open after a wait that ended badly", waitFile, "l.cancel(w, err, leave)", "l.cancel(w, err, nil)"},
	{"a place that was given up is taken up again", waitFile, "		l.newTenure(w)\n		p := newPlace", "		if w.tenure == nil {\n			l.newTenure(w)\n		}\n		p := newPlace"},
	{"a copy of an acquire that was sent again is forgotten", placeFile, "Resent: p.resent, ", ""},
}

const (
	gateFile         = "../line/gate.go"
	placeFile        = "../line/place.go"
	subscriptionFile = "../line/subscription.go"
	waitFile         = "../line/wait.go"
)

func TestTheSimulationCatchesABrokenClient(t *testing.T) {
	for _, m := range clientMutants {
		src, err := os.ReadFile(m.file)
		require.NoError(t, err)
		require.Contains(t, string(src), m.old, "break what stands there now: %s", m.name)
	}
	if os.Getenv("LEASEHOLD_SIM_MUTANTS") != "1" {
		t.Skip("builds the package once for each mutant: LEASEHOLD_SIM_MUTANTS=1")
	}
	here, err := os.Getwd()
	require.NoError(t, err)
	for _, m := range clientMutants {
		t.Run(m.name, func(t *testing.T) {
			src, err := os.ReadFile(m.file)
			require.NoError(t, err)
			dir := t.TempDir()
			broken := filepath.Join(dir, filepath.Base(m.file))
			require.NoError(t, os.WriteFile(broken, []byte(strings.Replace(string(src), m.old, m.new, 1)), 0o600))
			overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(here, m.file): broken}})
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay"), overlay, 0o600))

			cmd := exec.Command("go", "test", "-vet=off", "-overlay", filepath.Join(dir, "overlay"), "-run", "^TestTheSimulation$", ".")
			cmd.Env = append(os.Environ(), "LEASEHOLD_SIM_RUNS=600")
			out, err := cmd.CombinedOutput()
			require.Error(t, err, "not caught")
			require.Contains(t, string(out), "VIOLATION", "%s", out)
			for line := range strings.Lines(string(out)) {
				if strings.Contains(line, "VIOLATION") {
					t.Log(strings.TrimSpace(line))
				}
			}
		})
	}
}
