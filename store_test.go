package leasehold

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/go-leasehold/leasehold/internal/script"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// scriptCase is one run of one script. What it finds is arranged in the same EVAL, in front of it, so that both stand
// at one instant of the server: whatever depends on the time is exact, on a real server too.
type scriptCase struct {
	name    string
	arrange string // Lua; see arranged
	token   string // "me" where empty; "-" for none
	px      any    // 10 s where nil
	reply   string // as scriptRun.text writes it, or what an error must contain
	after   string // every key afterwards, as scriptRun.dump writes it; "=": what was arranged; "*": whatever
	plain   bool   // a renewal that asks for nothing more
	real    bool   // not on miniredis, which counts in less
	mini    bool   // not on a real server, whose clock goes on
}

// frozen makes TIME stand still for the rest of a script, as it does by itself from Redis 7.2 on.
const frozen = `
local redis, t = {call = redis.call, pcall = redis.pcall, error_reply = redis.error_reply, real = redis}, redis.call('TIME')
function redis.call(name, ...)
  if name == 'TIME' then return t end
  return redis.real.call(name, ...)
end
`

// sixZero makes SET … GET the error that it is on Redis 6.0.
const sixZero = `
function redis.pcall(name, ...)
  for _, arg in ipairs({...}) do
    if name == 'SET' and arg == 'GET' then return {err = 'ERR syntax error'} end
  end
  return redis.real.pcall(name, ...)
end
`

// arranged stands in front of every case's arrange.
const arranged = `
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

// scriptServer is a Redis that scripts run on.
type scriptServer struct {
	client  *redis.Client
	mini    bool
	sixZero bool
}

// pass lets time pass in a bubble.
func (s scriptServer) pass(d time.Duration) { time.Sleep(d) }

// onScriptServers runs a test on miniredis and on a real server, there with both versions of the protocol.
func onScriptServers(t *testing.T, test func(t *testing.T, s scriptServer)) {
	t.Run("miniredis", func(t *testing.T) {
		redistest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, dial func(...func(*redis.Options)) *redis.Client) {
			test(t, scriptServer{client: dial(), mini: true})
		})
	})
	t.Run("redis-server", func(t *testing.T) {
		s := redistest.Server(t)
		for _, protocol := range []int{2, 3} {
			t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
				test(t, scriptServer{client: s.Client(func(o *redis.Options) { o.Protocol = protocol })})
			})
		}
	})
}

// storeOn is the store of a Locker on the client.
func storeOn(t testing.TB, client redis.UniversalClient) *store {
	l := New(client)
	t.Cleanup(func() { _ = l.Close() })
	return l.backend.(*store)
}

// runScriptCases runs the cases of a script, and those of one that issues fencing tokens as on Redis 6.0 as well.
func runScriptCases(t *testing.T, s scriptServer, sc *script.Script, mode string, cases ...scriptCase) {
	if strings.Contains(sc.Src, "'KEEPTTL', 'GET'") && !s.sixZero {
		old := s
		old.sixZero = true
		runScriptCases(t, old, sc, mode, cases...)
	}
	d := storeOn(t, s.client)
	for _, tt := range cases {
		if tt.real && s.mini || tt.mini && !s.mini {
			continue
		}
		name := mode + " " + tt.name
		r := scriptRun{t: t, client: s.client, keys: scriptKeys("k"), server: frozen}
		if s.sixZero {
			name += ", on Redis 6.0"
			r.server += sixZero
		}
		reply, after := r.run(d, sc, mode, tt)
		if strings.HasPrefix(reply, "error: ") {
			assert.Contains(t, reply, tt.reply, name)
			assert.Equal(t, lineOf(r.arranged(tt), "K"), lineOf(after, "K"), name)
		} else {
			assert.Equal(t, tt.reply, reply, name)
		}
		switch tt.after {
		case "=":
			assert.Equal(t, r.arranged(tt), after, name)
		case "*":
		default:
			assert.Equal(t, tt.after, after, name)
		}
		for _, line := range strings.Split(after, "\n") {
			if strings.HasSuffix(line, ", for ever") {
				assert.Contains(t, r.arranged(tt), line, name)
			}
		}
	}
}

// scriptKeys are the keys of a lock by the letters that the scripts give them.
func scriptKeys(key string) map[string]string {
	keys := map[string]string{"K": key}
	for i, kind := range rediskey.Kinds {
		keys["QFGD"[i:i+1]] = string(rediskey.Derive(nil, "", kind, key))
	}
	return keys
}

// scriptRun is a case under way.
type scriptRun struct {
	t      *testing.T
	client *redis.Client
	keys   map[string]string // by letter
	server string            // Lua that makes the server another one
	us     int64             // the server's time when the script ran
}

// prelude is what stands in front of the script.
func (r *scriptRun) prelude(tt scriptCase) string {
	var letters strings.Builder
	for letter, key := range r.keys {
		fmt.Fprintf(&letters, "local %s = %q\n", letter, key)
	}
	return r.server + "do " + letters.String() + arranged + tt.arrange + "\nset('us', digits(us)) end\n"
}

// arranged is what the script finds.
func (r *scriptRun) arranged(tt scriptCase) string {
	ctx := r.t.Context()
	require.NoError(r.t, r.client.FlushAll(ctx).Err())
	require.NoError(r.t, r.client.Eval(ctx, r.prelude(tt)+"return 1", nil).Err(), tt.name)
	return r.dump()
}

// run runs the script behind its arrangement.
func (r *scriptRun) run(d *store, sc *script.Script, mode string, tt scriptCase) (reply, after string) {
	token := map[string]string{"": "me", "-": ""}[tt.token]
	args := scriptArgs(sc, mode, token, tt)
	args[1] = r.prelude(tt) + sc.Src
	ctx := r.t.Context()
	require.NoError(r.t, r.client.FlushAll(ctx).Err())
	got, err := r.client.Do(ctx, args...).Result()
	after = r.dump()
	if err != nil {
		return "error: " + err.Error(), after
	}
	return r.text(got), after
}

// scriptArgs is the EVAL of a script: what the protocol says, whatever the client sends.
func scriptArgs(sc *script.Script, mode, token string, tt scriptCase) []any {
	keys := rediskey.Lock("", "k")
	px := tt.px
	if px == nil {
		px = 10_000
	}
	n, args := len(keys), []any{token, px}
	switch sc {
	case acquireScript:
		args = append(args, mode)
	case adoptScript:
		if args = append(args, "former"); mode == "cancel" {
			args = append(args, mode)
		}
	case renewScript:
		if tt.plain {
			n = 1
		}
	case releaseScript:
		if args = []any{token, mode}; mode == "release" || mode == "force" {
			n = 4
		}
	case inspectScript:
		n, args = 4, nil
	}
	return append(append([]any{"eval", sc.Src, n}, keys[:n]...), args...)
}

// text writes a reply. Times are written as distances from the moment at which the script ran.
func (r *scriptRun) text(reply any) string {
	switch reply := reply.(type) {
	case []any:
		words := make([]string, len(reply))
		for i, v := range reply {
			words[i] = r.text(v)
		}
		return strings.Join(words, " ")
	case int64:
		return r.number(reply)
	case string:
		if n, err := strconv.ParseInt(reply, 10, 64); err == nil {
			return r.number(n)
		}
		if f, err := strconv.ParseFloat(reply, 64); err == nil && strings.Contains(reply, "e+") { // a score of miniredis
			return r.number(int64(f))
		}
		return strconv.Quote(reply)
	}
	return fmt.Sprintf("%T %v", reply, reply)
}

func (r *scriptRun) number(n int64) string {
	ms := r.us / 1000
	switch {
	case n == r.us:
		return "now"
	case r.us-1e9 < n && n < r.us+1e9:
		return fmt.Sprintf("now%+d", n-r.us)
	case ms-100_000 < n && n < ms+100_000:
		return fmt.Sprintf("ms%+d", n-ms)
	case 500 < n && n < 1e6:
		n = (n + 250) / 500 * 500 // a PTTL: the clock of a real server goes on
	}
	return strconv.FormatInt(n, 10)
}

// dumped answers the moment at which a case ran, and all keys: name, type, value, and the ms that each had left then.
const dumped = `
local us, keys = redis.call('GET', 'us'), {}
redis.call('DEL', 'us')
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

// dump writes the whole keyspace, a line for each key: its letter, its value, and the time that it had left when the
// script ran.
func (r *scriptRun) dump() string {
	got, err := r.client.Eval(r.t.Context(), dumped, nil).Slice()
	require.NoError(r.t, err)
	r.us, err = strconv.ParseInt(got[0].(string), 10, 64)
	require.NoError(r.t, err)
	var lines []string
	for _, key := range got[1].([]any) {
		lines = append(lines, r.line(key.([]any)))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (r *scriptRun) line(got []any) string {
	name := got[0].(string)
	for letter, key := range r.keys {
		if key == name {
			name = letter
		}
	}
	value := got[1].(string)
	words := got[2].([]any)
	switch value {
	case "string", "zset":
		value = strings.ReplaceAll(r.text(words), `"`, "")
	case "hash":
		var pairs []string
		for pair := range slices.Chunk(words, 2) {
			pairs = append(pairs, strings.ReplaceAll(r.text(pair), `"`, ""))
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

// lineOf is the line of a dump that is about a key.
func lineOf(dump, letter string) string {
	for _, line := range strings.Split(dump, "\n") {
		if strings.HasPrefix(line, letter+" ") {
			return line
		}
	}
	return ""
}

// lines joins the lines of a dump.
func lines(s ...string) string { return strings.Join(s, "\n") }

func TestScriptsCheckTheirArgumentsBeforeTheyWrite(t *testing.T) {
	onScriptServers(t, func(t *testing.T, s scriptServer) {
		for _, bad := range []scriptCase{
			{name: "0 ms", px: 0},
			{name: "-1 ms", px: -1},
			{name: "a fraction of a ms", px: "1.5"},
			{name: "a word for ms", px: "soon"},
			{name: "no ms", px: ""},
			{name: "no number of ms", px: "nan"},
			{name: "no token", token: "-"},
		} {
			bad.reply, bad.after = "ERR", "="
			for _, state := range []string{"", "holds('me', 30000)", "waits('me', 1000) waits('b', 1000)"} {
				bad.arrange = state
				for _, mode := range []string{"try", "join", "poll"} {
					runScriptCases(t, s, acquireScript, mode, bad)
				}
				for _, mode := range []string{"adopt", "cancel"} {
					runScriptCases(t, s, adoptScript, mode, bad)
				}
				runScriptCases(t, s, renewScript, "", bad)
			}
		}
	})
}

func testRequest(key string) backend.Request {
	return backend.Request{Key: key, Token: "AAAAAAAAAAAAAAAA." + key, PX: 60_000}
}
