package nodescript_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/quorum/nodescript"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/go-leasehold/leasehold/internal/script"
)

// The scripts of a quorum's nodes, on miniredis and on Redis.
func TestScripts(t *testing.T) {
	t.Run("miniredis", func(t *testing.T) {
		_, c := redistest.Mini(t)
		testNodeScripts(t, c)
	})
	t.Run("redis", func(t *testing.T) { testNodeScripts(t, redistest.Server(t).Client()) })
}

func testNodeScripts(t *testing.T, c *redis.Client) {
	ctx := t.Context()
	const k, f = "k", "f"
	run := func(sc *script.Script, args ...any) []int64 {
		t.Helper()
		reply, err := redis.NewScript(sc.Src).Run(ctx, c, []string{k, f}, args...).Result()
		require.NoError(t, err)
		list, ok := reply.([]any)
		if !ok {
			return []int64{reply.(int64)}
		}
		var n []int64
		for _, x := range list {
			if i, ok := x.(int64); ok {
				n = append(n, i)
			}
		}
		return n
	}
	now := func() int64 { return c.Time(ctx).Val().UnixMicro() }
	counter := func() int64 { n, _ := c.Get(ctx, f).Int64(); return n }
	clean := func() { require.NoError(t, c.Del(ctx, k, f).Err()) }

	t.Run("acquire is floored by the time, and idempotent by token", func(t *testing.T) {
		clean()
		before := now()
		got := run(nodescript.Acquire, "T", 5000, 0, 0)
		require.Equal(t, int64(1), got[0])
		require.GreaterOrEqual(t, got[1], before)
		require.Equal(t, got[1], counter())
		require.NoError(t, c.PExpire(ctx, k, 3*time.Second).Err())
		again := run(nodescript.Acquire, "T", 5000, 0, 0)
		require.Equal(t, got[1], again[1])
		require.LessOrEqual(t, c.PTTL(ctx, k).Val(), 3*time.Second, "its expiry does not move")
		held := run(nodescript.Acquire, "U", 5000, 0, 0)
		require.Equal(t, int64(0), held[0])
		require.InDelta(t, 3000, held[1], 200)
		require.Equal(t, got[1], held[3], "it tells the counter")
		require.Equal(t, "T", c.Get(ctx, k).Val())
	})
	t.Run("acquire takes a proposal that is near", func(t *testing.T) {
		clean()
		p := now() + 500_000
		require.Equal(t, p, run(nodescript.Acquire, "T", 5000, p, 0)[1])
		require.NoError(t, c.Del(ctx, k).Err())
		require.Equal(t, p+1, run(nodescript.Acquire, "T", 5000, p, 0)[1], "the counter is ahead of it")
		clean()
		require.Less(t, run(nodescript.Acquire, "T", 5000, now()+2_000_000, 0)[1], now()+1_000_000, "one that is far is no hint")
	})
	t.Run("renew and raise only under the token", func(t *testing.T) {
		clean()
		require.Equal(t, []int64{0}, run(nodescript.Renew, "T", 5000, 1<<50))
		require.Zero(t, c.Exists(ctx, k, f).Val(), "it creates nothing")
		first := run(nodescript.Acquire, "T", 1000, 0, 0)[1]
		require.Equal(t, []int64{-1}, run(nodescript.Renew, "U", 5000, first+9)[:1])
		require.Equal(t, first, counter(), "nothing is written under another's token")
		require.Equal(t, first+9, run(nodescript.Renew, "T", 5000, first+9)[1])
		require.Equal(t, first+9, counter())
		require.Greater(t, c.PTTL(ctx, k).Val(), 4*time.Second)
		require.Equal(t, first+9, run(nodescript.Renew, "T", 1000, first)[1], "never lowered")
		require.Greater(t, c.PTTL(ctx, k).Val(), 4*time.Second, "nor shortened")
		require.Equal(t, []int64{-1}, run(nodescript.Renew, "U", 1000, first, "shorten")[:1])
		require.Greater(t, c.PTTL(ctx, k).Val(), 4*time.Second)
		require.Equal(t, first+9, run(nodescript.Renew, "T", 1000, first, "shorten")[1])
		require.LessOrEqual(t, c.PTTL(ctx, k).Val(), time.Second)
		require.Equal(t, first+12, run(nodescript.Renew, "T", 5000, first+12, "raise")[1])
		require.LessOrEqual(t, c.PTTL(ctx, k).Val(), time.Second, "a raise leaves the time")
		require.Equal(t, []int64{-1}, run(nodescript.Renew, "U", 5000, first+99, "raise"))
		require.NoError(t, c.Del(ctx, k).Err())
		require.NoError(t, c.HSet(ctx, k, "T", "T").Err())
		require.Equal(t, []int64{-1}, run(nodescript.Renew, "T", 5000, first+12), "a hash is somebody else's")
	})
	t.Run("renewals that share a run do what each would do alone, or nothing", func(t *testing.T) {
		const px, soon, late = 5000, 2 * time.Second, 9 * time.Second
		set := func(key string, value any, ttl time.Duration) func() {
			return func() { require.NoError(t, c.Set(ctx, key, value, ttl).Err()) }
		}
		for i, tt := range []struct {
			k, f func()
			done bool
		}{
			{set("k1", "T1", soon), set("f1", 7, 0), true},
			{set("k2", "T2", late), set("f2", 1<<52, 0), true}, // it has more time, and the counter is ahead
			{set("k3", "T3", 0), set("f3", 7, 0), true},
			{set("k4", "U", soon), set("f4", 7, 0), false},
			{func() {}, set("f5", 7, 0), false},
			{set("k6", "T6", soon), func() {}, false},
			{set("k7", "T7", soon), set("f7", "0x7", 0), false},
			{set("k8", "T8", soon), set("f8", "9007199254740992", 0), false},
			{func() { require.NoError(t, c.LPush(ctx, "k9", "T9").Err()) }, set("f9", 7, 0), false},
			{set("k10", "T10", soon), func() { require.NoError(t, c.LPush(ctx, "f10", 7).Err()) }, false},
		} {
			mine := []string{fmt.Sprint("k", i+1), fmt.Sprint("f", i+1)}
			token := fmt.Sprint("T", i+1)
			state := func() string {
				left := c.PTTL(ctx, mine[0]).Val().Round(time.Second)
				return fmt.Sprint(c.Get(ctx, mine[0]).Val(), left, c.Get(ctx, mine[1]).Val())
			}
			clean := func() {
				require.NoError(t, c.Del(ctx, append(mine, k, f)...).Err())
				set(k, "T", soon)()
				set(f, 7, 0)()
				tt.k()
				tt.f()
			}
			clean()
			before := state()
			keys := []string{mine[0], k, mine[1], f}
			reply, err := redis.NewScript(nodescript.Renewals.Many.Src).Run(ctx, c, keys, token, "T", px, px).Slice()
			require.NoError(t, err, mine)
			require.IsType(t, []any{}, reply[1], "the other lock is renewed whatever this one is")
			require.Greater(t, c.PTTL(ctx, k).Val(), 4*time.Second)
			if !tt.done {
				require.Equal(t, any(nodescript.Renewals.Nothing), reply[0], mine)
				require.Equal(t, before, state())
				continue
			}
			after := state()
			clean()
			alone, err := redis.NewScript(nodescript.Renew.Src).Run(ctx, c, mine, token, px, 7, "").Slice()
			require.NoError(t, err)
			require.Equal(t, after, state(), mine)
			require.Equal(t, alone[:2], reply[0].([]any)[:2], mine)
			require.InDelta(t, alone[2], reply[0].([]any)[2], 1e6)
		}
		for _, bad := range []any{0, -1, "1.5", "soon", "", "nan"} {
			set(k, "T", soon)()
			set(f, 7, 0)()
			reply, err := redis.NewScript(nodescript.Renewals.Many.Src).Run(ctx, c, []string{k, f}, "T", bad).Slice()
			require.NoError(t, err, "an error would say that nothing was done for any lock")
			require.Equal(t, []any{nodescript.Renewals.Nothing}, reply, bad)
			require.Positive(t, c.PTTL(ctx, k).Val())
		}
	})
	t.Run("adopt takes what the former token has, and nothing else", func(t *testing.T) {
		clean()
		adopt := func(token string, px, proposal int64) []int64 {
			return run(nodescript.Acquire, token, px, proposal, 0, "T")
		}
		free := adopt("U", 5000, 0)
		require.Equal(t, []int64{0, -2}, free[:2])
		require.Zero(t, c.Exists(ctx, k, f).Val(), "it creates nothing")
		first := run(nodescript.Acquire, "T", 1000, 0, 0)[1]
		got := adopt("U", 5000, 0)
		require.Equal(t, int64(1), got[0])
		require.Greater(t, got[1], first)
		require.Equal(t, got[1], counter())
		require.Equal(t, "U", c.Get(ctx, k).Val())
		require.Greater(t, c.PTTL(ctx, k).Val(), 4*time.Second)
		require.Equal(t, got[:2], adopt("U", 60_000, now()+500_000)[:2], "sent again it answers the same")
		require.LessOrEqual(t, c.PTTL(ctx, k).Val(), 5*time.Second, "its expiry does not move")
		other := adopt("V", 5000, 0)
		require.Equal(t, int64(0), other[0])
		require.Positive(t, other[1])
		require.Equal(t, got[1], counter())
		clean()
		run(nodescript.Acquire, "T", 60_000, 0, 0)
		adopt("U", 5000, 0)
		require.Greater(t, c.PTTL(ctx, k).Val(), 50*time.Second, "not shortened: it may go back")
		require.Equal(t, now()/1_000_000, counter()/1_000_000)
		clean()
		run(nodescript.Acquire, "T", 5000, 0, 0)
		p := now() + 500_000
		require.Equal(t, p, adopt("U", 5000, p)[1], "a proposal")
		reply, err := redis.NewScript(nodescript.Acquire.Src).Run(ctx, c, []string{k, f}, "V", 5000, 0, 3_600_000, "U").Slice()
		require.NoError(t, err)
		require.Equal(t, int64(-1), reply[0], "not in quarantine")
		require.Equal(t, "U", c.Get(ctx, k).Val())
	})
	t.Run("an adoption that failed gives the lock back, with its time", func(t *testing.T) {
		clean()
		require.Equal(t, []int64{0}, run(nodescript.Release, "U", "back", "T"))
		run(nodescript.Acquire, "T", 5000, 0, 0)
		require.Equal(t, []int64{-1}, run(nodescript.Release, "U", "back", "T"), "it had not come")
		require.Equal(t, "T", c.Get(ctx, k).Val())
		run(nodescript.Acquire, "U", 3000, 0, 0, "T")
		require.Equal(t, []int64{1}, run(nodescript.Release, "U", "back", "T"))
		require.Equal(t, "T", c.Get(ctx, k).Val())
		require.InDelta(t, 5000, c.PTTL(ctx, k).Val().Milliseconds(), 500)
	})
	t.Run("refill takes what is free", func(t *testing.T) {
		clean()
		require.NoError(t, c.Set(ctx, k, "U", 0).Err())
		require.Equal(t, []int64{0}, run(nodescript.Refill, "T", 5000, 77, 0))
		require.Equal(t, "U", c.Get(ctx, k).Val())
		require.NoError(t, c.Del(ctx, k).Err())
		require.Equal(t, int64(1), run(nodescript.Refill, "T", 5000, 77, 0)[0])
		require.Equal(t, "T", c.Get(ctx, k).Val())
		require.Equal(t, int64(77), counter())
		require.Positive(t, c.PTTL(ctx, k).Val())
	})
	t.Run("release is by token", func(t *testing.T) {
		clean()
		run(nodescript.Acquire, "job-10", 5000, 0, 0)
		for _, token := range []string{"job-1", "job-100", "", "JOB-10"} {
			require.Equal(t, []int64{-1}, run(nodescript.Release, token))
		}
		require.Equal(t, []int64{1}, run(nodescript.Release, "job-10"))
		require.Equal(t, []int64{0}, run(nodescript.Release, "job-10"))
		run(nodescript.Acquire, "T", 5000, 0, 0)
		had, err := redis.NewScript(nodescript.Release.Src).Run(ctx, c, []string{k}, "", "force").Result()
		require.NoError(t, err)
		require.Equal(t, "T", had)
		require.Equal(t, []int64{0}, run(nodescript.Release, "", "force"))
		require.NoError(t, c.LPush(ctx, k, "T").Err())
		require.Equal(t, []int64{-1}, run(nodescript.Release, "T"), "a list is nobody's lock")
		require.Equal(t, []int64{1}, run(nodescript.Release, "", "force"))
		require.Zero(t, c.Exists(ctx, k).Val())
		require.Positive(t, counter(), "the counter stays")
	})
	t.Run("the counter lives a week longer than the clock needs to pass it", func(t *testing.T) {
		clean()
		week := 7 * 24 * time.Hour
		run(nodescript.Acquire, "T", 5000, 0, 0)
		require.InDelta(t, week.Seconds(), c.PTTL(ctx, f).Val().Seconds(), 2)
		for _, ahead := range []time.Duration{900 * time.Millisecond, 1100 * time.Millisecond} {
			begun := now()
			run(nodescript.Renew, "T", 5000, begun+ahead.Microseconds())
			require.GreaterOrEqual(t, c.PTTL(ctx, f).Val()+time.Duration(now()-begun)*time.Microsecond, week+ahead-2*time.Millisecond)
		}
		ahead := 30 * 24 * time.Hour
		run(nodescript.Renew, "T", 5000, now()+ahead.Microseconds())
		require.InDelta(t, (week + ahead).Seconds(), c.PTTL(ctx, f).Val().Seconds(), 2)
		run(nodescript.Release, "T")
		run(nodescript.Acquire, "T", 5000, 0, 0)
		require.InDelta(t, (week + ahead).Seconds(), c.PTTL(ctx, f).Val().Seconds(), 2)
	})
	t.Run("a counter that is no number is an error before the first write", func(t *testing.T) {
		for _, bad := range []string{"many", "1.5", "-7", "0x10", "1e3", " 7", "9007199254740992", "99999999999999999999"} {
			clean()
			require.NoError(t, c.Set(ctx, f, bad, 0).Err())
			for name, sc := range map[string]*script.Script{"acquire": nodescript.Acquire, "refill": nodescript.Refill} {
				err := redis.NewScript(sc.Src).Run(ctx, c, []string{k, f}, "T", 5000, 0, 0).Err()
				require.ErrorContains(t, err, "is no number below 2^53", "%s %q", name, bad)
			}
			require.Zero(t, c.Exists(ctx, k).Val())
			require.NoError(t, c.Set(ctx, k, "T", time.Second).Err())
			require.Error(t, redis.NewScript(nodescript.Renew.Src).Run(ctx, c, []string{k, f}, "T", 5000, 9).Err())
			require.LessOrEqual(t, c.PTTL(ctx, k).Val(), time.Second)
			require.Equal(t, bad, c.Get(ctx, f).Val())
			require.Equal(t, []int64{1}, run(nodescript.Release, "T"), "it does not keep a release back")
		}
		clean()
		require.NoError(t, c.Set(ctx, f, "9007199254740990", 0).Err())
		require.Equal(t, int64(9007199254740991), run(nodescript.Acquire, "T", 5000, 0, 0)[1])
	})
	t.Run("arguments are checked before the first write", func(t *testing.T) {
		clean()
		for _, sc := range []*script.Script{nodescript.Acquire, nodescript.Renew, nodescript.Refill} {
			for _, args := range [][]any{
				{"", 5000, 0, 0}, {"T", 0, 0, 0}, {"T", -1, 0, 0}, {"T", "1.5", 0, 0}, {"T", "x", 0, 0}, {"T", 5000, "x", 0},
			} {
				require.ErrorContains(t, redis.NewScript(sc.Src).Run(ctx, c, []string{k, f}, args...).Err(), "leasehold: ", "%v", args)
			}
		}
		require.Zero(t, c.Exists(ctx, k, f).Val())
	})
	t.Run("inspect changes nothing", func(t *testing.T) {
		clean()
		show := func() string {
			reply, err := redis.NewScript(nodescript.Inspect.Src).Run(ctx, c, []string{k, f}, "", 0).Result()
			require.NoError(t, err)
			return fmt.Sprint(reply)
		}
		require.Equal(t, "[ -2 ]", show())
		require.NoError(t, c.Set(ctx, k, "T", 0).Err())
		require.NoError(t, c.Set(ctx, f, "12", 0).Err())
		require.Equal(t, "[T -1 12]", show())
	})
	t.Run("a quarantine needs an uptime", func(t *testing.T) {
		clean()
		reply, err := redis.NewScript(nodescript.Acquire.Src).Run(ctx, c, []string{k, f}, "T", 5000, 0, 3_600_000).Slice()
		require.NoError(t, err)
		require.Equal(t, int64(-1), reply[0], "one hour: both have just been started")
		require.Zero(t, c.Exists(ctx, k, f).Val())
		info := c.Info(ctx, "server").Val()
		require.Equal(t, info != "", reply[1].(int64) > 0)
		reply, err = redis.NewScript(nodescript.Refill.Src).Run(ctx, c, []string{k, f}, "T", 5000, 9, 3_600_000).Slice()
		require.NoError(t, err)
		require.Equal(t, int64(-1), reply[0])
		require.Zero(t, c.Exists(ctx, k, f).Val())
	})
}

func TestRepliesOfAnotherShapeAreErrors(t *testing.T) {
	for _, reply := range []any{
		nil, int64(1), "OK", []any{}, []any{"1"}, []any{int64(2)}, []any{int64(1)}, []any{int64(1), int64(0), int64(5)},
		[]any{int64(1), "7", int64(5)}, []any{int64(1), int64(7), int64(5), int64(9)}, []any{int64(0), int64(1)},
		[]any{int64(-1), int64(1), int64(2)},
	} {
		v, err := nodescript.Read(reply, nil)
		require.ErrorIs(t, err, fault.ErrReply, "%v", reply)
		require.False(t, v.IsGranted())
	}
	for _, reply := range []any{nil, int64(1), []any{"T", int64(1)}, []any{"T", "1", "2"}, []any{"T", int64(1), "many"}} {
		_, err := nodescript.ReadView(reply)
		require.ErrorIs(t, err, fault.ErrReply, "%v", reply)
	}
	v, err := nodescript.Read([]any{int64(1), int64(7), int64(5)}, nil)
	require.NoError(t, err)
	require.Equal(t, nodescript.Reply{Kind: nodescript.Granted, Counter: 7, Now: 5}, v)
}

func TestAReplyOfUseIsReadWithoutAnAllocation(t *testing.T) {
	for _, reply := range []any{
		[]any{int64(1), int64(7), int64(5), "run"}, []any{int64(0), int64(9), int64(5), "run", int64(7)}, []any{int64(-1)}, []any{int64(1), int64(7), int64(5)},
	} {
		require.Zero(t, testing.AllocsPerRun(10, func() { _, _ = nodescript.Read(reply, nil) }), "%v", reply)
	}
}

func TestViewIsTheMajoritys(t *testing.T) {
	at := func(token string, ms int, counter string) nodescript.View {
		c, _ := strconv.ParseInt(counter, 10, 64)
		return nodescript.View{Token: token, Left: time.Duration(ms) * time.Millisecond, Forever: ms < 0, Counter: c}
	}
	free := at("", 0, "7")
	for _, c := range []struct {
		name  string
		views []nodescript.View
		known bool
		want  backend.View
	}{
		{"free", []nodescript.View{free, free, free, free, free}, true, backend.View{Fence: 7}},
		{"held by all", []nodescript.View{at("T", 100, "9"), at("T", 300, "9"), at("T", 200, "9"), at("T", 500, "9"), at("T", 400, "9")}, true,
			backend.View{Held: true, Left: 300 * time.Millisecond, Fence: 9}},
		{"held by three", []nodescript.View{at("T", 100, "9"), at("T", 300, "9"), free, free, at("T", 200, "9")}, true,
			backend.View{Held: true, Left: 100 * time.Millisecond, Fence: 9}},
		{"held by three that accepted, and two that did not", []nodescript.View{at("T", 5, "12"), at("T", 5, "9"), at("T", 5, "9"), at("T", 5, "9"), at("T", 5, "8")}, true,
			backend.View{Held: true, Left: 5 * time.Millisecond, Fence: 9}},
		{"for ever", []nodescript.View{at("T", -1, "9"), at("T", -1, "9"), at("T", -1, "9"), free, free}, true,
			backend.View{Held: true, Left: -1, Fence: 9}},
		{"divided", []nodescript.View{at("T", 100, "9"), at("T", 300, "9"), at("U", 5, "8"), at("U", 5, "8"), free}, true, backend.View{Fence: 9}},
		{"two missing, two of three", []nodescript.View{at("T", 100, "9"), at("T", 300, "9"), free}, false, backend.View{Fence: 9}},
		{"two missing, none of three", []nodescript.View{free, free, free}, true, backend.View{Fence: 7}},
	} {
		got, known := nodescript.Majority(c.views, 5)
		require.Equal(t, c.known, known, c.name)
		require.Equal(t, c.want, got, c.name)
	}
}
