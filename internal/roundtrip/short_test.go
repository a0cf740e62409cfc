package roundtrip

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/script"
)

// shortTake takes keys that nobody has, and leaves those alone whose name begins with x.
var shortTake = &Short{
	One: newScript(`
if string.sub(KEYS[1], 1, 1) == 'x' or not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end
return 5`),
	Many: newScript(`
local replies = {}
for i = 1, #KEYS do
  local x = string.sub(KEYS[i], 1, 1) == 'x'
  replies[i] = not x and redis.call('SET', KEYS[i], ARGV[i], 'NX', 'PX', ARGV[#KEYS + i]) and 5 or 0
end
return replies`),
	Keys: []int{0}, Millis: true,
}

// startShort takes the key in a goroutine of its own, in short if it can be. The reply is 5 then, and else 1.
func (b *senderBench) startShort(key string, f *Short) <-chan outcome {
	out := make(chan outcome, 1)
	go func() {
		c := runOf(takeScript, key)
		c.SetShort(f)
		reply, n, err := b.c.Do(context.Background(), c, enough)
		if err == nil && (reply == any(int64(5))) != c.WasShort() {
			err = errors.New("the command does not know which form did it")
		}
		out <- outcome{reply: reply, sent: n, err: err}
	}()
	return out
}

// shortCrowd has commands for the keys share a round trip, and returns what became of each. It is the third: two are held
// until the crowd has gathered.
func (b *senderBench) shortCrowd(f *Short, keys ...string) (all []outcome) {
	b.t.Helper()
	release := b.trips.Hold(2)
	first := b.sendMany(2)
	var crowd []<-chan outcome
	for _, key := range keys {
		crowd = append(crowd, b.startShort(key, f))
	}
	synctest.Wait()
	release()
	for _, out := range first {
		requireGranted(b.t, <-out)
	}
	for _, out := range crowd {
		all = append(all, <-out)
	}
	return all
}

// taught lets the server know the scripts of a short form.
func (b *senderBench) taught(f *Short) *Short {
	for _, sc := range []*script.Script{f.One, f.Many} {
		if sc != nil {
			require.NoError(b.t, b.c.Redis().ScriptLoad(b.t.Context(), sc.Src).Err())
		}
	}
	b.trips.Sizes, b.trips.Names = nil, nil
	return f
}

func keysOf(from, to int) (keys []string) {
	for i := from; i < to; i++ {
		keys = append(keys, fmt.Sprint("c", i))
	}
	return keys
}

func TestALoneCommandIsSentInShort(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		f := b.taught(shortTake)
		assert.Equal(t, outcome{reply: int64(5), sent: 1}, <-b.startShort("k", f))
		assert.Equal(t, outcome{reply: int64(1), sent: 1}, <-b.startShort("x", f), "the form that did nothing was not counted")
		assert.Equal(t, []int{1, 1, 1}, b.trips.Sizes)
		assert.Equal(t, outcome{reply: int64(1), sent: 1}, <-b.startShort("y", &Short{Many: f.Many, Keys: f.Keys, Millis: true}), "whole without One")
	})
}

func TestACrowdSharesOneRunOfAScript(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		f := b.taught(shortTake)
		keys := append(keysOf(0, 3), "x1", "x2")
		for i, out := range b.shortCrowd(f, keys...) {
			want := int64(5)
			if strings.HasPrefix(keys[i], "x") {
				want = 1
			}
			assert.Equal(t, outcome{reply: want, sent: 1}, out, keys[i])
			assert.Equal(t, tokenOf(keys[i]), b.c.Redis().Get(t.Context(), keys[i]).Val())
		}
		assert.Equal(t, []int{1, 1, 1, 2}, b.trips.Sizes[:4], "one run for all, and then those alone for which it did nothing")
	})
}

func TestOneRunIsForABoundedNumberOfCommandsAndForNoKeyTwice(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		f := b.taught(shortTake)
		for _, out := range b.shortCrowd(f, keysOf(0, 2*maxMany+1)...) {
			assert.Equal(t, outcome{reply: int64(5), sent: 1}, out)
		}
		assert.Equal(t, []int{1, 1, 3}, b.trips.Sizes)

		require.NoError(t, b.c.Redis().FlushDB(t.Context()).Err())
		b.trips.Sizes = nil
		replies := map[any]int{}
		for _, out := range b.shortCrowd(f, "a", "a", "a", "b") {
			require.NoError(t, out.err)
			replies[out.reply]++
		}
		assert.Equal(t, map[any]int{int64(5): 2, int64(1): 2}, replies, "a once in short, and twice again by the whole script")
	})
}

func TestAServerThatForgotTheScriptsIsTaughtThem(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		require.NoError(t, b.c.Redis().ScriptFlush(t.Context()).Err())
		b.trips.Sizes = nil
		for _, out := range b.shortCrowd(shortTake, keysOf(0, 4)...) {
			assert.Equal(t, outcome{reply: int64(5), sent: 1}, out)
		}
		assert.Equal(t, outcome{reply: int64(5), sent: 1}, <-b.startShort("k", shortTake))
		assert.Equal(t, outcome{reply: int64(5), sent: 1}, <-b.startShort("l", shortTake))
	})
}

func TestAServerThatRefusesARunForManyIsSentNoFurther(t *testing.T) {
	for _, says := range []string{"CROSSSLOT Keys in request don't hash to the same slot", "MOVED 1 127.0.0.1:1", "NOPERM no", "ERR this proxy knows no such thing"} {
		onSenderBench(t, func(t *testing.T, b *senderBench) {
			f := b.taught(shortTake)
			runs := 0
			b.trips.SetBefore(func(_ context.Context, cmds []redis.Cmder) error {
				for _, cmd := range cmds {
					if cmd.Args()[1] == f.Many.Hash {
						runs++
						return serverError(says)
					}
				}
				return nil
			})
			for _, out := range b.shortCrowd(f, keysOf(0, 4)...) {
				assert.Equal(t, outcome{reply: int64(1), sent: 1}, out, says)
			}
			require.NoError(t, b.c.Redis().FlushDB(t.Context()).Err())
			for _, out := range b.shortCrowd(f, keysOf(0, 4)...) {
				assert.Equal(t, outcome{reply: int64(5), sent: 1}, out, "each in short, by itself")
			}
			assert.Equal(t, 1, runs, says)
		})
	}
}

func TestAnErrorThatMayPassDoesNotEndRunsForMany(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		f := b.taught(shortTake)
		b.trips.SetBefore(func(_ context.Context, cmds []redis.Cmder) error {
			if cmds[0].Args()[1] == f.Many.Hash {
				return serverError("OOM command not allowed when used memory > 'maxmemory'.")
			}
			return nil
		})
		for _, out := range b.shortCrowd(f, keysOf(0, 4)...) {
			assert.Equal(t, outcome{reply: int64(1), sent: 1}, out)
		}
		b.trips.SetBefore(nil)
		b.trips.Sizes = nil
		for _, out := range b.shortCrowd(f, keysOf(4, 8)...) {
			assert.Equal(t, outcome{reply: int64(5), sent: 1}, out)
		}
		assert.Equal(t, []int{1, 1, 1}, b.trips.Sizes)
	})
}

func TestARunForManyThatFailsOnTheWayFailsForEach(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		f := b.taught(shortTake)
		network := errors.New("on the way")
		b.trips.SetBefore(func(_ context.Context, cmds []redis.Cmder) error {
			if cmds[0].Args()[1] == f.Many.Hash {
				return network
			}
			return nil
		})
		for _, out := range b.shortCrowd(f, keysOf(0, 4)...) {
			require.ErrorIs(t, out.err, network)
		}
	})
}

// A hook may answer in the place of the server, and need not know what a run for many replies.
func TestAReplyThatIsNoListHasEachSentWhole(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		f := b.taught(shortTake)
		answer := func(reply any) func(context.Context, []redis.Cmder) error {
			return func(_ context.Context, cmds []redis.Cmder) error {
				if cmds[0].Args()[1] == f.Many.Hash {
					cmds[0].(*redis.Cmd).SetVal(reply)
					return errAnswered
				}
				return nil
			}
		}
		for i, reply := range []any{int64(1), []any{int64(5)}} {
			b.trips.SetBefore(answer(reply))
			for _, out := range b.shortCrowd(f, keysOf(4*i, 4*i+4)...) {
				assert.Equal(t, outcome{reply: int64(1), sent: 1}, out)
			}
			b.pass(2 * stall)
		}
	})
}

func TestHooksOfTheClientSeeWellFormedRuns(t *testing.T) {
	onSenderBench(t, func(t *testing.T, b *senderBench) {
		f := b.taught(shortTake)
		var seen [][]any
		b.trips.SetBefore(func(_ context.Context, cmds []redis.Cmder) error {
			for _, cmd := range cmds {
				args := cmd.Args()
				n, isInt := args[2].(int)
				require.True(t, isInt)
				for i, key := range args[3 : 3+n] {
					require.IsType(t, "", key)
					args[3+i] = "tenant:" + key.(string) // as a hook that keeps tenants apart
				}
				seen = append(seen, args)
			}
			assert.NotContains(t, fmt.Sprint(cmds), tokenOf(""), "a trace would have the tokens")
			return nil
		})
		keys := append(keysOf(0, 3), "x1")
		for i, out := range b.shortCrowd(f, keys...) {
			require.NoError(t, out.err)
			assert.Equal(t, tokenOf(keys[i]), b.c.Redis().Get(t.Context(), "tenant:"+keys[i]).Val(), "once, in each form")
		}
		for i, args := range seen {
			for j, other := range seen {
				assert.True(t, i == j || &args[0] != &other[0], "arguments of its own")
			}
		}
	})
}

var errAnswered = fault.ErrReply

type serverError string

func (e serverError) Error() string { return string(e) }
func (serverError) RedisError()     {}
