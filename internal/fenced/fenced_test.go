package fenced_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

// onEachRedis runs the test on miniredis and on a real server, the latter with both versions of the protocol.
func onEachRedis(t *testing.T, test func(t *testing.T, client *redis.Client)) {
	t.Run("miniredis", func(t *testing.T) {
		_, client := redistest.Mini(t)
		test(t, client)
	})
	t.Run("redis-server", func(t *testing.T) {
		client := redistest.Server(t).Client()
		for _, protocol := range []int{2, 3} {
			t.Run(fmt.Sprint("RESP", protocol), func(t *testing.T) {
				require.NoError(t, client.FlushAll(t.Context()).Err())
				options := *client.Options()
				options.Protocol = protocol
				client := redis.NewClient(&options)
				defer client.Close()
				test(t, client)
			})
		}
	})
}

const mark = "leasehold:fenced:{r}" // the mark of the resource "r"

var setScript = leasehold.NewFencedScript(`redis.call('SET', KEYS[1], ARGV[1])`)

func TestFencedScriptPassesTheBodysResultThrough(t *testing.T) {
	tests := []struct {
		name, body string
		want       any
	}{
		{"an empty body", ``, nil},
		{"nothing", `redis.call('PING')`, nil},
		{"nil", `return nil`, nil},
		{"false", `return false`, nil},
		{"a missing key", `return redis.call('GET', 'none{r}')`, nil},
		{"true", `return true`, int64(1)},
		{"a number", `return 7`, int64(7)},
		{"the first of two values", `return 7, 8`, int64(7)},
		{"text", `return 'x'`, "x"},
		{"empty text", `return ''`, ""},
		{"a status", `return redis.status_reply('FINE')`, "FINE"},
		{"an empty table", `return {}`, []any{}},
		{"a table with a hole", `return {1, false, {'x', 2}}`, []any{int64(1), nil, []any{"x", int64(2)}}},
		{"what looks like a refusal", `return {0, '99'}`, []any{int64(0), "99"}},
		{"a semicolon", `return 7;`, int64(7)},
		{"a comment at the end", `return 7 -- seven`, int64(7)},
		{"a long comment at the end", `return 7 --[[ seven ]]`, int64(7)},
		{"locals with our names", `local mark, token, life, seen, body = 1, 2, 3, 4, 5; return life`, int64(3)},
		{"an early return", "if #KEYS == 0 then\n return 1\nend\nreturn 2", int64(1)},
		{"functions of its own", `local function f() return 7 end return f()`, int64(7)},
		{"a caught error", `return redis.pcall('HGET', 'no args').err and 1`, int64(1)},
	}
	onEachRedis(t, func(t *testing.T, client *redis.Client) {
		for i, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				token := int64(i + 1)
				got, err := leasehold.NewFencedScript(test.body).Run(t.Context(), client, "r", token, nil)
				require.NoError(t, err)
				assert.Equal(t, test.want, got)
				assert.Equal(t, strconv.FormatInt(token, 10), client.Get(t.Context(), mark).Val())
			})
		}
	})
}

func TestFencedScriptGivesTheBodyTheCallersKeysAndArguments(t *testing.T) {
	echo := leasehold.NewFencedScript(`return {#KEYS, #ARGV, KEYS, ARGV}`)
	onEachRedis(t, func(t *testing.T, client *redis.Client) {
		got, err := echo.Run(t.Context(), client, "a{r}", 7, nil)
		require.NoError(t, err)
		assert.Equal(t, []any{int64(0), int64(0), []any{}, []any{}}, got)

		keys := []string{"r", "{r}:\x00\xff", "x{r}"}
		args := make([]any, 2, 9) // room to append, which Run must not use
		args[0], args[1] = "\r\n", 5
		got, err = echo.Run(t.Context(), client, "a{r}", 7, keys, args...)
		require.NoError(t, err)
		assert.Equal(t, []any{int64(3), int64(2), []any{"r", "{r}:\x00\xff", "x{r}"}, []any{"\r\n", "5"}}, got)
		assert.Equal(t, []any{nil, nil}, args[:4][2:])
	})
}

func TestFencedScriptRefusesALowerToken(t *testing.T) {
	onEachRedis(t, func(t *testing.T, client *redis.Client) {
		run := func(token int64, value string) error {
			_, err := setScript.Run(t.Context(), client, "r", token, []string{"x{r}"}, value)
			return err
		}
		require.NoError(t, run(33, "first"))
		require.NoError(t, run(34, "second"))
		require.NoError(t, run(34, "second again"))
		err := run(33, "late")
		requireStale(t, err, 33, 34)
		assert.EqualError(t, err, `leasehold: run fenced script "r": stale fencing token 33: the resource has seen 34`)
		assert.Equal(t, "second again", client.Get(t.Context(), "x{r}").Val())

		_, err = leasehold.NewFencedScript("").Run(t.Context(), client, "r", 9, nil)
		requireStale(t, err, 9, 34) // the mark is the resource's, not the script's
		_, err = setScript.Run(t.Context(), client, "other{r}", 9, []string{"y{r}"}, 1)
		require.NoError(t, err, "a resource was refused for the mark of another")
	})
}

// Also when the later lease is this process's own: a write that is still on its way carries the old number.
func TestFencedScriptRefusesAnEarlierLease(t *testing.T) {
	onEachRedis(t, func(t *testing.T, client *redis.Client) {
		locker := leasehold.New(client)
		defer locker.Close()
		var tokens [2]int64
		for i := range tokens {
			lease, err := locker.TryAcquire(t.Context(), "r", time.Minute)
			require.NoError(t, err)
			tokens[i] = lease.FencingToken()
			require.NoError(t, lease.Release(t.Context()))
		}
		_, err := setScript.Run(t.Context(), client, "r", tokens[1], []string{"x{r}"}, "later")
		require.NoError(t, err)
		_, err = setScript.Run(t.Context(), client, "r", tokens[0], []string{"x{r}"}, "earlier")
		requireStale(t, err, tokens[0], tokens[1])
		assert.Equal(t, "later", client.Get(t.Context(), "x{r}").Val())
	})
}

func TestFencedScriptThatFailsLeavesTheMark(t *testing.T) {
	tests := []struct{ name, body, want string }{
		{"error", `error('boom')`, "boom"},
		{"a wrong command", `redis.call('HGET', 'x{r}', 'f')`, "WRONGTYPE"},
		{"an error reply", `return redis.error_reply('MINE and more')`, "MINE and more"},
		{"an error passed on", `return redis.pcall('HGET', 'x{r}', 'f')`, "WRONGTYPE"},
		{"unknown global", `return nowhere`, "nonexistent global"},
		{"syntax", `return (`, "'end'"},
		{"an end too many", `return 1 end do`, "'do'"},
		{"an end too few", `if true then return 1`, "')'"},
		{"an unfinished comment", `return 1 --[[ no end`, ""},
		{"an unfinished text", `return [[ no end`, ""},
		{"a shebang", "#!lua flags=no-writes\nreturn 1", "'#'"},
	}
	onEachRedis(t, func(t *testing.T, client *redis.Client) {
		_, err := setScript.Run(t.Context(), client, "r", 33, []string{"x{r}"}, "before")
		require.NoError(t, err)
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				_, err := leasehold.NewFencedScript(test.body).Run(t.Context(), client, "r", 34, nil)
				require.ErrorContains(t, err, test.want)
				var ours *leasehold.Error
				require.ErrorAs(t, err, &ours)
				var theirs redis.Error
				require.ErrorAs(t, err, &theirs)
				require.NotErrorIs(t, err, leasehold.ErrStale)
				assert.Equal(t, "33", client.Get(t.Context(), mark).Val())
				assert.Equal(t, "before", client.Get(t.Context(), "x{r}").Val())
			})
		}
	})
}

func TestAnErrorInABodyNamesTheBodysOwnLine(t *testing.T) {
	client := redistest.Server(t).Client()
	_, err := leasehold.NewFencedScript("local x = 1\nerror('boom')").Run(t.Context(), client, "r", 1, nil)
	assert.ErrorContains(t, err, "user_script:2: boom")
}

// Every pair of neighbours of the powers of 2 and 10, where lengths, signs and doubles change, and random pairs.
func TestFencedScriptComparesTokensAsInt64Does(t *testing.T) {
	t.Parallel()
	edges := []int64{1, math.MaxInt64}
	for _, base := range []int64{2, 10} {
		for power := base; power <= math.MaxInt64/base; power *= base {
			edges = append(edges, power-1, power, power+1)
		}
	}
	claim := leasehold.NewFencedScript("")
	onEachRedis(t, func(t *testing.T, client *redis.Client) {
		check := func(seen, token int64) {
			require.NoError(t, client.Set(t.Context(), mark, seen, 0).Err())
			_, err := claim.Run(t.Context(), client, "r", token, nil)
			if token < seen {
				requireStale(t, err, token, seen)
				return
			}
			require.NoError(t, err, "%d refused after %d", token, seen)
			require.Equal(t, strconv.FormatInt(token, 10), client.Get(t.Context(), mark).Val())
		}
		for _, edge := range edges {
			other := edges[rand.IntN(len(edges))]
			check(edge, other)
			check(other, edge)
			check(edge, max(1, edge-1))
			check(max(1, edge-1), edge)
		}
		for range 300 {
			a := 1 + rand.Int64()>>rand.IntN(62)
			check(a, max(1, a+rand.Int64N(5)-2))
			check(a, 1+rand.Int64()>>rand.IntN(62))
		}
	})
}

func TestFencedScriptPassesNoMarkThatItCannotRead(t *testing.T) {
	garbage := []string{
		"", "0", "-1", "+5", "007", "1.5", "1e3", " 5", "5 ", "5\n", "0x10", "abc", "inf", "nan",
		"9223372036854775808", "10000000000000000000", "\x00",
	}
	onEachRedis(t, func(t *testing.T, client *redis.Client) {
		for _, value := range garbage {
			for _, token := range []int64{1, 1000, math.MaxInt64} {
				require.NoError(t, client.Set(t.Context(), mark, value, 0).Err())
				_, err := setScript.Run(t.Context(), client, "r", token, []string{"x{r}"}, 1)
				require.ErrorContains(t, err, fmt.Sprintf("the fencing mark %q holds %q", mark, value))
				require.NotErrorIs(t, err, leasehold.ErrStale)
				require.Equal(t, value, client.Get(t.Context(), mark).Val())
			}
		}
		require.NoError(t, client.Del(t.Context(), mark).Err())
		require.NoError(t, client.RPush(t.Context(), mark, 1).Err())
		_, err := setScript.Run(t.Context(), client, "r", 1, []string{"x{r}"}, 1)
		require.ErrorContains(t, err, "WRONGTYPE")
		require.ErrorContains(t, err, mark)
		assert.Zero(t, client.Exists(t.Context(), "x{r}").Val(), "the body ran")
	})
}

func TestFencedScriptSendsNothingThatCannotBeRight(t *testing.T) {
	client := redis.NewClient(&redis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) {
		t.Error("something was sent")
		return nil, net.ErrClosed
	}})
	defer client.Close()
	tests := []struct {
		name     string
		client   redis.Scripter
		resource string
		token    int64
		keys     []string
		want     string
	}{
		{"token 0", client, "r", 0, nil, "fencing token 0"},
		{"token -1", client, "r", -1, nil, "fencing token -1"},
		{"no resource", client, "", 1, nil, "name is 0 bytes long"},
		{"a key elsewhere", client, "r", 1, []string{"r", "x"}, `key "x" is in cluster slot 16287, the resource in 7893`},
		{"a tag that is none", client, "r", 1, []string{"{}{r}"}, "slot"},
		{"a pipeline", client.Pipeline(), "r", 1, nil, "pipeline"},
		{"a transaction", client.TxPipeline(), "r", 1, nil, "pipeline"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := setScript.Run(t.Context(), test.client, test.resource, test.token, test.keys, 1)
			require.ErrorIs(t, err, leasehold.ErrInvalid)
			require.ErrorContains(t, err, test.want)
		})
	}
}

func TestTheMarkAndTheDataShareASlotOfACluster(t *testing.T) {
	t.Parallel()
	server := redistest.Server(t, "--cluster-enabled", "yes").Client()
	require.NoError(t, server.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	require.Eventually(t, func() bool {
		return server.Set(t.Context(), "ready", 1, 0).Err() == nil
	}, 10*time.Second, 10*time.Millisecond)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Options().Addr}})
	defer client.Close()
	for _, resource := range []string{"r", "a{r}b", "{}", "{", "}", "a}b{", "{}{r}", "{{r}}", "a}{b}", "\x00{", " ", "é"} {
		_, err := setScript.Run(t.Context(), client, resource, 7, []string{resource}, 1)
		require.NoError(t, err, "%q", resource)
		_, err = setScript.Run(t.Context(), client, resource, 6, []string{resource}, 1)
		requireStale(t, err, 6, 7)
	}
}

func TestFencedScriptSurvivesScriptFlush(t *testing.T) {
	onEachRedis(t, func(t *testing.T, client *redis.Client) {
		for token := range int64(3) {
			_, err := setScript.Run(t.Context(), client, "r", token+1, []string{"x{r}"}, token)
			require.NoError(t, err)
			require.NoError(t, client.ScriptFlush(t.Context()).Err())
		}
		assert.Equal(t, "2", client.Get(t.Context(), "x{r}").Val())
	})
}

func TestTheMarkOutlivesItsLastUseBy30Days(t *testing.T) {
	const life = 30 * 24 * time.Hour
	onEachRedis(t, func(t *testing.T, client *redis.Client) {
		run := func(token int64) error {
			_, err := leasehold.NewFencedScript("").Run(t.Context(), client, "r", token, nil)
			return err
		}
		left := func() time.Duration { return client.PTTL(t.Context(), mark).Val() }
		require.NoError(t, run(7))
		assert.InDelta(t, life, left(), float64(time.Minute))

		require.NoError(t, client.PExpire(t.Context(), mark, time.Minute).Err())
		requireStale(t, run(6), 6, 7)
		assert.LessOrEqual(t, left(), time.Minute, "a refused holder kept the mark alive")
		require.NoError(t, run(7))
		assert.InDelta(t, life, left(), float64(time.Minute))
	})
}

func TestFencedScriptsOfManyClientsRunInTheOrderOfTheirTokens(t *testing.T) {
	push := leasehold.NewFencedScript(`return redis.call('RPUSH', KEYS[1], ARGV[1])`)
	onEachRedis(t, func(t *testing.T, client *redis.Client) {
		var workers sync.WaitGroup
		for range 8 {
			workers.Go(func() {
				for range 50 {
					token := 1 + rand.Int64N(1000)
					_, err := push.Run(t.Context(), client, "r", token, []string{"log{r}"}, token)
					if err != nil {
						assert.ErrorIs(t, err, leasehold.ErrStale)
					}
				}
			})
		}
		workers.Wait()
		log := client.LRange(t.Context(), "log{r}", 0, -1).Val()
		require.NotEmpty(t, log)
		last := 0
		for _, entry := range log {
			token, err := strconv.Atoi(entry)
			require.NoError(t, err)
			require.GreaterOrEqual(t, token, last)
			last = token
		}
		assert.Equal(t, strconv.Itoa(last), client.Get(t.Context(), mark).Val())
	})
}

func TestAFullServerTakesADeletionAndItsMark(t *testing.T) {
	client := redistest.Server(t).Client()
	_, err := setScript.Run(t.Context(), client, "r", 1, []string{"x{r}"}, 1)
	require.NoError(t, err)
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "1").Err())

	_, err = setScript.Run(t.Context(), client, "r", 2, []string{"x{r}"}, 2)
	require.ErrorContains(t, err, "OOM")
	_, err = leasehold.NewFencedScript(`return redis.call('GET', KEYS[1])`).Run(t.Context(), client, "r", 2, []string{"x{r}"})
	require.ErrorContains(t, err, "OOM")
	assert.Equal(t, "1", client.Get(t.Context(), mark).Val())

	deleted, err := leasehold.NewFencedScript(`return redis.call('DEL', KEYS[1])`).Run(t.Context(), client, "r", 3, []string{"x{r}"})
	require.NoError(t, err)
	assert.Equal(t, int64(1), deleted)
	assert.Equal(t, "3", client.Get(t.Context(), mark).Val())
}

// An account in Redis. The lease says who may deposit; the fencing token sees to it that a holder who was
// paused past its lease does not write any more.
func ExampleFencedScript() {
	server := miniredis.NewMiniRedis()
	if err := server.Start(); err != nil {
		panic(err)
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()

	deposit := leasehold.NewFencedScript(`return redis.call('INCRBY', KEYS[1], ARGV[1])`)
	run := func(fencingToken int64, amount int) (any, error) {
		return deposit.Run(context.Background(), client, "account:7", fencingToken, []string{"account:7"}, amount)
	}

	fmt.Println(run(33, 100)) // commonly lease.FencingToken()
	fmt.Println(run(34, 20))
	_, err := run(33, 1000)
	fmt.Println(errors.Is(err, leasehold.ErrStale), err)
	// Output:
	// 100 <nil>
	// 120 <nil>
	// true leasehold: run fenced script "account:7": stale fencing token 33: the resource has seen 34
}
