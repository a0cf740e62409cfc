package locktest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-leasehold/leasehold/internal/inside"
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/go-leasehold/leasehold/internal/script"
	"github.com/go-leasehold/leasehold/internal/short"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// ScriptCase is one run of one script. What it finds is arranged in the same EVAL, in front of it, so that both stand
// at one instant of the server: whatever depends on the time is exact, on a real server too.
type ScriptCase struct {
	Name    string
	Arrange string // Lua; see arranged
	Token   string // "me" where empty; "-" for none
	Px      any    // 10 s where nil
	Reply   string // as scriptRun.text writes it, or what an error must contain
	After   string // every key afterwards, as scriptRun.dump writes it; "=": what was arranged; "*": whatever
	Plain   bool   // a renewal that asks for nothing more
	Mode    string // of a renewal
	Real    bool   // not on miniredis, which counts in less
	Mini    bool   // not on a real server, whose clock goes on
}

// Frozen makes TIME stand still for the rest of a script, as it does by itself from Redis 7.2 on.
const Frozen = `
local redis, t = {call = redis.call, pcall = redis.pcall, error_reply = redis.error_reply, real = redis}, redis.call('TIME')
function redis.call(name, ...)
  if name == 'TIME' then return t end
  return redis.real.call(name, ...)
end
`

// SixZero makes SET … GET and PEXPIRE … GT the errors that they are on Redis 6.0.
const SixZero = `
function redis.pcall(name, ...)
  for _, arg in ipairs({...}) do
    if name == 'SET' and arg == 'GET' then return {err = 'ERR syntax error'} end
    if name == 'PEXPIRE' and arg == 'GT' then return {err = "ERR wrong number of arguments for 'pexpire' command"} end
  end
  return redis.real.pcall(name, ...)
end
`

// Arranged stands in front of every case's arrange.
const Arranged = `
local us = t[1] * 1000000 + t[2]
local ms = math.floor(us / 1000)
local set = function(...) redis.call('SET', ...) end
local digits = function(n) return string.format('%.0f', n) end
local function holds(token, px) redis.call('SET', K, token, 'PX', px) end
local tickets = 0
local function waits(token, left) -- without left there is no mark
  tickets = tickets + 1
  redis.call('ZADD', Q, tickets, token)
  redis.call('PEXPIRE', Q, 5000)
  if left then
    redis.call('HSET', G, token, digits(ms + left))
    redis.call('PEXPIRE', G, 5000)
  end
end
local function undone(token, left)
  redis.call('ZADD', D, digits(ms + left), token)
  redis.call('PEXPIRE', D, 60000)
end
local function counter(n) redis.call('SET', F, n, 'EX', 604800) end
local function list(key) redis.call('LPUSH', key, 'x') redis.call('PEXPIRE', key, 60000) end
`

// ScriptServer is a Redis that scripts run on.
type ScriptServer struct {
	Client  *redis.Client
	Mini    bool
	SixZero bool
}

// Pass lets time pass in a bubble.
func (s ScriptServer) Pass(d time.Duration) { time.Sleep(d) }

// OnScriptServers runs a test on miniredis, on a real server with both versions of the protocol, and on a node of a cluster, which
// refuses a script whose keys are in several slots. It runs beside other tests, since such a node takes two seconds to start.
func OnScriptServers(t *testing.T, test func(t *testing.T, s ScriptServer)) {
	t.Parallel()
	t.Run("miniredis", func(t *testing.T) {
		redistest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, dial func(...func(*redis.Options)) *redis.Client) {
			test(t, ScriptServer{Client: dial(), Mini: true})
		})
	})
	t.Run("redis-server", func(t *testing.T) {
		s := redistest.Server(t)
		for _, protocol := range []int{2, 3} {
			t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
				test(t, ScriptServer{Client: s.Client(func(o *redis.Options) { o.Protocol = protocol })})
			})
		}
	})
	t.Run("node of a cluster", func(t *testing.T) {
		test(t, ScriptServer{Client: redistest.ClusterOfOne(t).Client()})
	})
}

// RunScriptCases runs the cases of a script, and those of one that issues fencing tokens as on Redis 6.0 as well.
func RunScriptCases(t *testing.T, s ScriptServer, sc *script.Script, mode string, cases ...ScriptCase) {
	if strings.Contains(sc.Src, "'KEEPTTL', 'GET'") && !s.SixZero {
		old := s
		old.SixZero = true
		RunScriptCases(t, old, sc, mode, cases...)
	}
	for _, tt := range cases {
		if tt.Real && s.Mini || tt.Mini && !s.Mini {
			continue
		}
		name := mode + " " + tt.Name
		r := ScriptRun{T: t, Client: s.Client, Keys: ScriptKeys("k"), Server: Frozen}
		if s.SixZero {
			name += ", on Redis 6.0"
			r.Server += SixZero
		}
		reply, after := r.Run(sc, mode, tt)
		if strings.HasPrefix(reply, "error: ") {
			assert.Contains(t, reply, tt.Reply, name)
			assert.Equal(t, LineOf(r.Arranged(tt), "K"), LineOf(after, "K"), name)
		} else {
			assert.Equal(t, tt.Reply, reply, name)
		}
		switch tt.After {
		case "=":
			assert.Equal(t, r.Arranged(tt), after, name)
		case "*":
		default:
			assert.Equal(t, tt.After, after, name)
		}
		for _, line := range strings.Split(after, "\n") {
			if strings.HasSuffix(line, ", for ever") {
				assert.Contains(t, r.Arranged(tt), line, name)
			}
		}
	}
}

// ScriptRun is a case under way.
type ScriptRun struct {
	T      *testing.T
	Client *redis.Client
	Keys   map[string]string // by letter
	Server string            // Lua that makes the server another one
	Us     int64             // the server's time when the script ran
}

// Prelude is what stands in front of the script.
func (r *ScriptRun) Prelude(tt ScriptCase) string {
	var letters strings.Builder
	for letter, key := range r.Keys {
		fmt.Fprintf(&letters, "local %s = %q\n", letter, key)
	}
	return r.Server + "do " + letters.String() + Arranged + tt.Arrange + "\nset('{k}us', digits(us)) end\n"
}

// Arranged is what the script finds.
func (r *ScriptRun) Arranged(tt ScriptCase) string {
	ctx := r.T.Context()
	require.NoError(r.T, r.Client.FlushAll(ctx).Err())
	require.NoError(r.T, r.Client.Eval(ctx, r.Prelude(tt)+"return 1", nil).Err(), tt.Name)
	return r.Dump()
}

// Run runs the script behind its arrangement.
func (r *ScriptRun) Run(sc *script.Script, mode string, tt ScriptCase) (reply, after string) {
	token := map[string]string{"": "me", "-": ""}[tt.Token]
	args := ScriptArgs(sc, mode, token, tt)
	args[1] = r.Prelude(tt) + sc.Src
	ctx := r.T.Context()
	require.NoError(r.T, r.Client.FlushAll(ctx).Err())
	got, err := r.Client.Do(ctx, args...).Result()
	after = r.Dump()
	if err != nil {
		return "error: " + err.Error(), after
	}
	return r.Text(got), after
}

// ScriptArgs is the EVAL of a script: what the protocol says, whatever the client sends.
func ScriptArgs(sc *script.Script, mode, token string, tt ScriptCase) []any {
	keys := rediskey.Lock("", "k")
	px := tt.Px
	if px == nil {
		px = 10_000
	}
	n, args := len(keys), []any{token, px}
	switch sc {
	case AcquireScript:
		args = append(args, mode)
	case AdoptScript:
		if args = append(args, "former"); mode == "cancel" {
			args = append(args, mode)
		}
	case RenewScript:
		if tt.Plain {
			n = 1
		}
		if tt.Mode != "" {
			args = append(args, tt.Mode)
		}
	case ReleaseScript:
		if args = []any{token, mode}; mode == "release" || mode == "force" {
			n = 4
		}
	case FinishScript:
		args = []any{token, mode, 0, px, 0} // a case writes the time: ARGV[3] = digits(us + 1000)
	case InspectScript:
		n, args = 4, nil
	}
	return append(append([]any{"eval", sc.Src, n}, keys[:n]...), args...)
}

// Text writes a reply. Times are written as distances from the moment at which the script ran.
func (r *ScriptRun) Text(reply any) string {
	switch reply := reply.(type) {
	case []any:
		words := make([]string, len(reply))
		for i, v := range reply {
			words[i] = r.Text(v)
		}
		return strings.Join(words, " ")
	case int64:
		return r.Number(reply)
	case string:
		digits := strings.TrimRight(reply, "+") // of a fencing counter
		if n, err := strconv.ParseInt(digits, 10, 64); err == nil {
			return r.Number(n) + reply[len(digits):]
		}
		if f, err := strconv.ParseFloat(reply, 64); err == nil && strings.Contains(reply, "e+") { // a score of miniredis
			return r.Number(int64(f))
		}
		return strconv.Quote(reply)
	}
	return fmt.Sprintf("%T %v", reply, reply)
}

func (r *ScriptRun) Number(n int64) string {
	ms := r.Us / 1000
	switch {
	case n == r.Us:
		return "now"
	case r.Us-1e9 < n && n < r.Us+1e9:
		return fmt.Sprintf("now%+d", n-r.Us)
	case ms-100_000 < n && n < ms+100_000:
		return fmt.Sprintf("ms%+d", n-ms)
	case 500 < n && n < 1e6:
		n = (n + 250) / 500 * 500 // a PTTL: the clock of a real server goes on
	}
	return strconv.FormatInt(n, 10)
}

// Dumped answers the moment at which a case ran, and all keys: name, type, value, and the ms that each had left then.
const Dumped = `
local us, keys = redis.call('GET', KEYS[1]), {}
redis.call('DEL', KEYS[1])
for i, key in ipairs(redis.call('KEYS', '*')) do
  local kind, value = redis.call('TYPE', key).ok, {}
  if kind == 'string' then value = {redis.call('GET', key)}
  elseif kind == 'zset' then value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'hash' then value = redis.call('HGETALL', key) end
  local t, left = redis.call('TIME'), redis.call('PTTL', key)
  if left >= 0 then left = left + t[1] * 1000 + t[2] / 1000 - us / 1000 end
  keys[i] = {key, kind, value, left}
end
return {us, keys}`

// Dump writes the whole keyspace, a line for each key: its letter, its value, and the time that it had left when the
// script ran.
func (r *ScriptRun) Dump() string {
	got, err := r.Client.Eval(r.T.Context(), Dumped, []string{"{k}us"}).Slice()
	require.NoError(r.T, err)
	r.Us, err = strconv.ParseInt(got[0].(string), 10, 64)
	require.NoError(r.T, err)
	var lines []string
	for _, key := range got[1].([]any) {
		lines = append(lines, r.Line(key.([]any)))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (r *ScriptRun) Line(got []any) string {
	name := got[0].(string)
	for letter, key := range r.Keys {
		if key == name {
			name = letter
		}
	}
	value := got[1].(string)
	words := got[2].([]any)
	switch value {
	case "string", "zset":
		value = strings.ReplaceAll(r.Text(words), `"`, "")
	case "hash":
		var pairs []string
		for pair := range slices.Chunk(words, 2) {
			pairs = append(pairs, strings.ReplaceAll(r.Text(pair), `"`, ""))
		}
		slices.Sort(pairs) // they come in no order
		value = strings.Join(pairs, " ")
	}
	left := got[3].(int64)
	if left < 0 {
		return name + " = " + value + ", for ever"
	}
	left = (left + 250) / 500 * 500
	if left%3_600_000 == 0 {
		return fmt.Sprintf("%s = %s, %dh", name, value, left/3_600_000)
	}
	return fmt.Sprintf("%s = %s, %gs", name, value, float64(left)/1000)
}

// LineOf is the line of a dump that is about a key.
func LineOf(dump, letter string) string {
	for _, line := range strings.Split(dump, "\n") {
		if strings.HasPrefix(line, letter+" ") {
			return line
		}
	}
	return ""
}

// Lines joins the lines of a dump.
func Lines(s ...string) string { return strings.Join(s, "\n") }

// The scripts of a single Redis.
var (
	AcquireScript = inside.Scripts.Acquire
	AdoptScript   = inside.Scripts.Adopt
	RenewScript   = inside.Scripts.Renew
	ReleaseScript = inside.Scripts.Release
	FinishScript  = inside.Scripts.Finish
	InspectScript = inside.Scripts.Inspect
)

// ShortScripts are the short forms of each script.
var ShortScripts = map[*script.Script][]*script.Script{
	AcquireScript: {short.Acquire.One, short.Acquire.Many},
	RenewScript:   {short.Renew.Many},
	ReleaseScript: {short.Release.One, short.Release.Many},
}

// Scripts are all scripts of a single Redis.
func Scripts() []*script.Script {
	all := []*script.Script{AcquireScript, AdoptScript, RenewScript, ReleaseScript, FinishScript, InspectScript}
	for _, forms := range ShortScripts {
		all = append(all, forms...)
	}
	return all
}
