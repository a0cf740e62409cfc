package guarantees_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

// What only a real server does: it is full, read-only, restricted, restarted, failed over.

// refusedFor requires an error of the server's, with that code, that time can cure.
func refusedFor(t *testing.T, err error, code string) {
	t.Helper()
	var server redis.Error
	require.ErrorAs(t, err, &server)
	assert.True(t, redis.HasErrorPrefix(err, code), "%v", err)
	assert.True(t, fault.Transient(err), "%v", err)
	assert.True(t, fault.Unavailable(err), "%v", err)
}

// keysOf is the keyspace, each key with its TTL in whole seconds.
func keysOf(t *testing.T, c *redis.Client) map[string]int {
	keys := map[string]int{}
	for _, key := range c.Keys(t.Context(), "*").Val() {
		keys[key] = int(c.TTL(t.Context(), key).Val().Seconds())
	}
	return keys
}

// What INFO says of the scripts that an uncontended acquire and release sent, and how many commands they ran.
func TestAnUncontendedCycleIsTwoCommandsInTwoRoundTrips(t *testing.T) {
	t.Parallel()
	c := redistest.Server(t).Client()
	log := &redistest.Trips{}
	c.AddHook(log)
	l := leasehold.New(c)
	defer l.Close()
	cycle := func() {
		lease, err := l.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		require.NoError(t, lease.Release(t.Context()))
	}
	for range 2 { // teaches the server the scripts, the short ones in the second cycle, when the lock has a counter
		cycle()
	}
	require.NoError(t, c.ConfigResetStat(t.Context()).Err())
	log.Sizes = nil
	const n = 10
	for range n {
		cycle()
	}
	assert.Equal(t, slices.Repeat([]int{1}, 2*n), log.Sizes)
	stats := c.Info(t.Context(), "commandstats").Val()
	assert.Contains(t, stats, fmt.Sprintf("cmdstat_evalsha:calls=%d,", 2*n))
	assert.NotContains(t, stats, "cmdstat_eval:")
}

func TestFullServerRefusesNewLocksAndNothingElse(t *testing.T) {
	t.Parallel()
	c := redistest.Server(t).Client(locktest.Once)
	ctx, d := t.Context(), locktest.StoreOn(t, c)
	mine := backend.Request{Key: "k", Token: "AAAAAAAAAAAAAAAA.mine", PX: 60_000}
	next := backend.Request{Key: "k", Token: "AAAAAAAAAAAAAAAA.next", PX: 60_000}
	other := backend.Request{Key: "k", Token: "AAAAAAAAAAAAAAAA.other", PX: 60_000}
	for _, r := range []backend.Request{mine, next} {
		_, _, err := d.Tenure(r).Acquire(ctx, backend.Join, backend.CallBound)
		require.NoError(t, err)
	}
	require.NoError(t, c.ConfigSet(ctx, "maxmemory", "1").Err())
	before := keysOf(t, c)

	for _, mode := range []backend.Mode{backend.Try, backend.Join} {
		free := backend.Request{Key: "free", Token: "AAAAAAAAAAAAAAAA.free", PX: 60_000}
		_, _, err := d.Tenure(free).Acquire(ctx, mode, backend.CallBound)
		refusedFor(t, err, "OOM")
	}
	_, _, err := d.Tenure(other).Acquire(ctx, backend.Join, backend.CallBound)
	refusedFor(t, err, "OOM")
	ans, _, err := d.Tenure(other).Acquire(ctx, backend.Try, backend.CallBound)
	require.NoError(t, err)
	assert.Equal(t, backend.Held, ans.State)
	assert.Equal(t, before, keysOf(t, c))

	waiters, err := d.Tenure(mine).Renew(ctx, backend.Renewal{PX: mine.PX, CountWaiters: true}, backend.CallBound)
	require.NoError(t, err)
	assert.Equal(t, 1, waiters)
	adopter := backend.Request{Key: "k", Token: "AAAAAAAAAAAAAAAA.adopter", Former: mine.Token, PX: 60_000}
	_, _, err = d.Tenure(adopter).Acquire(ctx, backend.Adopt, backend.CallBound)
	refusedFor(t, err, "OOM")
	assert.Equal(t, mine.Token, c.Get(ctx, "k").Val(), "the lease is as it was")
	require.NoError(t, c.ConfigSet(ctx, "maxmemory", "0").Err())
	_, _, err = d.Tenure(adopter).Acquire(ctx, backend.Adopt, backend.CallBound)
	require.NoError(t, err)
	require.NoError(t, c.ConfigSet(ctx, "maxmemory", "1").Err())
	_, _, err = d.Tenure(adopter).Release(ctx, backend.Return, backend.CallBound)
	require.NoError(t, err)
	assert.Equal(t, mine.Token, c.Get(ctx, "k").Val(), "what was adopted in vain is given back")
	what, _, err := d.Tenure(other).Release(ctx, backend.Cancel, backend.CallBound)
	require.NoError(t, err)
	assert.Equal(t, backend.HeldByOther, what)
	what, _, err = d.Tenure(mine).Release(ctx, backend.Plain, backend.CallBound)
	require.NoError(t, err)
	assert.Equal(t, backend.ReleasedLock, what)
	assert.Equal(t, next.Token, c.Get(ctx, "k").Val(), "not handed to the waiter")
	what, _, err = d.Tenure(next).Release(ctx, backend.Cancel, backend.CallBound)
	require.NoError(t, err)
	assert.Equal(t, backend.ReleasedLock, what)
	ans, _, err = d.Tenure(next).Acquire(ctx, backend.Join, backend.CallBound)
	require.NoError(t, err)
	assert.Equal(t, backend.Gone, ans.State, "the tombstone is missing")
	for key, ttl := range keysOf(t, c) {
		assert.Positive(t, ttl, key)
	}
	assert.NotContains(t, keysOf(t, c), "k")
}

// A server that takes no writes refuses them all, for as long as it does; nothing is half done.
func TestServerThatTakesNoWrites(t *testing.T) {
	t.Parallel()
	for code, refuse := range map[string]func(c *redis.Client, s *redistest.RedisServer) (back func()){
		"NOREPLICAS": func(c *redis.Client, _ *redistest.RedisServer) func() {
			require.NoError(t, c.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
			return func() { require.NoError(t, c.ConfigSet(t.Context(), "min-replicas-to-write", "0").Err()) }
		},
		"MISCONF": func(c *redis.Client, _ *redistest.RedisServer) func() {
			dir := c.ConfigGet(t.Context(), "dir").Val()["dir"]
			require.NoError(t, os.Rename(dir, dir+".away"))
			require.NoError(t, os.RemoveAll(dir+".away")) // it cannot save
			require.NoError(t, c.ConfigSet(t.Context(), "save", "3600 1").Err())
			require.NoError(t, c.BgSave(t.Context()).Err())
			require.Eventually(t, func() bool { return redis.HasErrorPrefix(c.Set(t.Context(), "x", 1, time.Second).Err(), "MISCONF") }, 10*time.Second, time.Millisecond)
			return func() { require.NoError(t, c.ConfigSet(t.Context(), "save", "").Err()) }
		},
		"READONLY": func(c *redis.Client, _ *redistest.RedisServer) func() {
			require.NoError(t, c.ReplicaOf(t.Context(), "127.0.0.1", "1").Err())
			return func() { require.NoError(t, c.ReplicaOf(t.Context(), "NO", "ONE").Err()) }
		},
	} {
		s := redistest.Server(t)
		c := s.Client(locktest.Once)
		ctx := t.Context()
		l := leasehold.New(c)
		lease, err := l.TryAcquire(ctx, "k", time.Minute)
		require.NoError(t, err)
		back := refuse(c, s)
		before := c.Get(ctx, "k").Val()

		_, err = l.TryAcquire(ctx, "free", time.Minute)
		refusedFor(t, err, code)
		brief, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		_, err = l.Acquire(brief, "free", time.Minute) // waited out, as far as ctx allows
		cancel()
		assert.Equal(t, []string{"unavailable", "deadline"}, locktest.KindsOf(err))
		assert.True(t, redis.HasErrorPrefix(err, code), "%v", err)
		refusedFor(t, lease.Renew(ctx), code)
		assert.True(t, lease.Valid())
		refusedFor(t, l.ForceRelease(ctx, "k"), code)
		refusedFor(t, lease.Release(ctx), code)
		assert.Equal(t, before, c.Get(ctx, "k").Val())
		state, err := l.Inspect(ctx, "k")
		require.NoError(t, err)
		assert.True(t, state.Held)

		back()
		require.NoError(t, lease.Release(ctx))
		lease, err = l.TryAcquire(ctx, "free", time.Minute)
		require.NoError(t, err)
		require.NoError(t, lease.Release(ctx))
		require.NoError(t, l.Close())
		s.Kill()
	}
}

func TestRightsOfTheUser(t *testing.T) {
	t.Parallel()
	s := redistest.Server(t)
	admin := s.Client()
	as := func(t *testing.T, rules ...any) *redis.Client {
		name := strings.ReplaceAll(t.Name(), "/", ".")
		args := append([]any{"ACL", "SETUSER", name, "reset", "on", "nopass"}, rules...)
		require.NoError(t, admin.Do(t.Context(), args...).Err())
		return s.Client(func(o *redis.Options) { o.Username, o.Password = name, "any" })
	}
	type use struct {
		key, prefix string
		rules       []any
	}

	for name, u := range map[string]use{
		"a prefix":       {"k1", "p:", []any{"~p:*", "&p:*", "+@all"}},
		"a tag":          {"k2", "{t}:", []any{"~{t}:*", "&{t}:*", "+@all"}},
		"one key":        {"k3", "", []any{"~k3", "~leasehold:*{k3}*", "&leasehold:*", "+@all"}},
		"no SUBSCRIBE":   {"k4", "", []any{"~*", "&*", "+@all", "-subscribe"}},
		"no PUBLISH":     {"k5", "", []any{"~*", "&*", "+@all", "-publish"}},
		"no channel":     {"k6", "", []any{"~*", "resetchannels", "+@all"}},
		"no key command": {"k7", "", []any{"~*", "&*", "+@all", "-keys", "-scan", "-flushall"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			c := as(t, u.rules...)
			one, two := leasehold.New(c, leasehold.WithKeyPrefix(u.prefix)), leasehold.New(c, leasehold.WithKeyPrefix(u.prefix))
			lease, err := one.TryAcquire(ctx, u.key, time.Minute)
			require.NoError(t, err)
			var second *leasehold.Lease
			waited := make(chan error, 1)
			go func() {
				var err error
				second, err = two.Acquire(ctx, u.key, time.Minute)
				waited <- err
			}()
			require.Eventually(t, func() bool {
				state, err := one.Inspect(ctx, u.key)
				return err == nil && state.Waiters == 1
			}, 10*time.Second, time.Millisecond)
			require.NoError(t, lease.Renew(ctx))
			require.NoError(t, lease.Release(ctx))
			require.NoError(t, <-waited)
			require.NoError(t, second.Release(ctx))
			require.NoError(t, one.Close())
			require.NoError(t, two.Close())
		})
	}

	for name, u := range map[string]use{
		"no script":    {"k", "", []any{"~*", "&*", "+@all", "-@scripting"}},
		"other prefix": {"k", "p:", []any{"~q:*", "&*", "+@all"}},
		"nothing":      {"k", "", []any{"~*", "&*", "-@all", "+hello", "+client"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := leasehold.New(as(t, u.rules...), leasehold.WithKeyPrefix(u.prefix))
			for _, e := range locktest.EntryPoints(t) {
				err := e.Call(l, u.key, time.Minute)
				var server redis.Error
				require.ErrorAs(t, err, &server, e.Name)
				assert.True(t, redis.HasErrorPrefix(err, "NOPERM"), "%s: %v", e.Name, err)
				assert.False(t, fault.Transient(err), e.Name)
				assert.Empty(t, locktest.KindsOf(err))
			}
			require.NoError(t, l.Close())
		})
	}
}

// Whatever becomes of the counter, a later lease has a higher fencing token.
func TestFencingTokensRiseWhateverHappensToTheServer(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	var last int64
	rises := func(after string, c *redis.Client) {
		t.Helper()
		d := locktest.StoreOn(t, c)
		for i := range 3 {
			r := backend.Request{Key: "k", Token: fmt.Sprint(after, i), PX: 60_000}
			ans, _, err := d.Tenure(r).Acquire(ctx, backend.Try, backend.CallBound)
			require.NoError(t, err, after)
			require.Equal(t, backend.Granted, ans.State, after)
			require.Greater(t, ans.Fence, last, after)
			again, _, err := d.Tenure(r).Acquire(ctx, backend.Try, backend.CallBound)
			require.NoError(t, err)
			require.Equal(t, ans.Fence, again.Fence, after)
			last = ans.Fence
			_, _, err = d.Tenure(r).Release(ctx, backend.Plain, backend.CallBound)
			require.NoError(t, err, after)
		}
		assert.Positive(t, c.PTTL(ctx, "leasehold:counter:{k}").Val(), after)
	}

	s := redistest.Server(t)
	c := s.Client()
	rises("the start", c)
	require.NoError(t, c.FlushAll(ctx).Err())
	rises("FLUSHALL", c)
	require.NoError(t, c.Del(ctx, "leasehold:counter:{k}").Err())
	rises("its deletion", c)
	require.NoError(t, c.PExpire(ctx, "leasehold:counter:{k}", time.Millisecond).Err())
	require.Eventually(t, func() bool { return c.Exists(ctx, "leasehold:counter:{k}").Val() == 0 }, 10*time.Second, time.Millisecond)
	rises("its expiry", c)
	require.NoError(t, c.ConfigSet(ctx, "maxmemory-policy", "allkeys-random").Err())
	require.NoError(t, c.ConfigSet(ctx, "maxmemory", "1").Err())
	require.ErrorContains(t, c.Set(ctx, "x", "", 0).Err(), "OOM")
	require.Zero(t, c.Exists(ctx, "leasehold:counter:{k}").Val())
	require.NoError(t, c.ConfigSet(ctx, "maxmemory", "0").Err())
	rises("its eviction", c)
	require.NoError(t, c.Do(ctx, "SWAPDB", 0, 1).Err())
	rises("SWAPDB", c)
	require.NoError(t, c.Do(ctx, "SWAPDB", 0, 1).Err())
	rises("SWAPDB back to an older counter", c)
	require.NoError(t, c.ScriptFlush(ctx).Err())
	rises("SCRIPT FLUSH", c)
	s.Restart()
	rises("a restart without persistence", c)

	replica := redistest.Replica(t, s).Client()
	rises("replication", c)
	locktest.Cut(t, c, replica)
	rises("writes that the replica misses", c)
	s.Kill()
	c = replica
	locktest.Promote(t, c)
	require.Less(t, c.Get(ctx, "leasehold:counter:{k}").Val(), fmt.Sprint(last), "the replica has missed nothing")
	rises("a failover", c)

	// A counter ahead of the clock goes on, and lives until the clock has passed it and a week longer.
	ahead := time.Now().Add(24 * time.Hour).UnixMicro()
	require.NoError(t, c.Set(ctx, "leasehold:counter:{k}", ahead, time.Hour).Err())
	rises("a clock set back", c)
	assert.Equal(t, ahead+3, last)
	assert.InDelta(t, (8 * 24 * time.Hour).Seconds(), c.TTL(ctx, "leasehold:counter:{k}").Val().Seconds(), 60)
}
