package fault_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

// What time does not cure: mistakes of configuration, and data that somebody else has written over ours. Each ends a wait at once,
// and its error says what to do.

// runAll runs all scripts of a lock, in the states of it that make them touch each of its keys.
func runAll(t *testing.T, d backend.Backend, prepare func(state string), each func(what string, err error)) {
	ctx := t.Context()
	for _, state := range []string{"free", "held", "waited for"} {
		r := locktest.TestRequest("k")
		for mode, name := range []string{"try", "join", "poll"} {
			prepare(state)
			_, _, err := d.Tenure(r).Acquire(ctx, backend.Mode(mode), backend.CallBound)
			each(state+", "+name, err)
		}
		for how, name := range []string{"release", "told", "cancel"} {
			prepare(state)
			_, _, err := d.Tenure(r).Release(ctx, backend.How(how), backend.CallBound)
			each(state+", "+name, err)
		}
		adoption := locktest.TestRequest("k")
		adoption.Former, adoption.Token = r.Token, locktest.TestRequest("adopter").Token
		prepare(state)
		_, _, err := d.Tenure(adoption).Acquire(ctx, backend.Adopt, backend.CallBound)
		each(state+", adopt", err)
		prepare(state)
		_, _, err = d.Tenure(adoption).Release(ctx, backend.Return, backend.CallBound)
		each(state+", undo an adoption", err)
		prepare(state)
		_, err = d.Force(ctx, r.Key, backend.CallBound)
		each(state+", force", err)
		prepare(state)
		_, err = d.Tenure(r).Renew(ctx, backend.Renewal{PX: r.PX}, backend.CallBound)
		each(state+", renew", err)
		prepare(state)
		_, err = d.Inspect(ctx, r.Key, backend.CallBound)
		each(state+", inspect", err)
	}
}

func TestAnErrorNamesTheKeyThatIsAtFault(t *testing.T) {
	_, mini := redistest.Mini(t)
	for server, c := range map[string]*redis.Client{"miniredis": mini, "redis": redistest.Server(t).Client()} {
		ctx, d := t.Context(), locktest.StoreOn(t, c)
		keys := []string{"k"}
		for _, kind := range rediskey.Kinds {
			keys = append(keys, string(rediskey.Derive(nil, "", kind, "k")))
		}
		for i, bad := range keys {
			told := 0
			runAll(t, d, func(state string) {
				require.NoError(t, c.FlushAll(ctx).Err())
				if state == "held" {
					require.NoError(t, c.Set(ctx, "k", locktest.TestRequest("k").Token, time.Hour).Err())
				}
				if state == "waited for" {
					now := time.Now()
					require.NoError(t, c.ZAdd(ctx, keys[1], redis.Z{Score: float64(now.UnixMicro()), Member: locktest.TestRequest("other").Token}).Err())
				}
				require.NoError(t, c.Del(ctx, bad).Err())
				if i == 1 || i == 4 {
					require.NoError(t, c.Set(ctx, bad, "v", time.Hour).Err())
				} else {
					require.NoError(t, c.ZAdd(ctx, bad, redis.Z{Member: "v"}).Err())
				}
			}, func(what string, err error) {
				if err == nil {
					return // it does without the key
				}
				told++
				require.EqualError(t, err, "WRONGTYPE Operation against a key holding the wrong kind of value: "+fault.Quote(bad), "%s: %s", server, what)
			})
			assert.Positive(t, told, "%s: %s", server, bad)
		}
	}
}

// The runbook's repair is what the test does.
func TestABrokenCounterIsNamedAndCanBeRepaired(t *testing.T) {
	_, mini := redistest.Mini(t)
	for server, c := range map[string]*redis.Client{"miniredis": mini, "redis": redistest.Server(t).Client()} {
		ctx := t.Context()
		l := leasehold.New(c)
		defer l.Close()
		lease, err := l.TryAcquire(ctx, "k", time.Minute)
		require.NoError(t, err)
		require.NoError(t, lease.Release(ctx))
		const counter = "leasehold:counter:{k}"
		held, err := l.TryAcquire(ctx, "held", time.Minute)
		require.NoError(t, err)
		for says, value := range map[string]string{
			`ERR leasehold: the fencing counter "leasehold:counter:{k}" holds no number`: "seven",
			`ERR increment or decrement would overflow: "leasehold:counter:{k}"`:         "9223372036854775807",
		} {
			require.NoError(t, c.Set(ctx, counter, value, time.Hour).Err())
			require.NoError(t, c.Set(ctx, "leasehold:counter:{held}", value, time.Hour).Err())
			require.NoError(t, held.Renew(ctx))
			for range 2 { // it stays as it was
				_, err = l.Acquire(ctx, "k", time.Minute)
				if server == "miniredis" && strings.Contains(says, "overflow") {
					require.Error(t, err) // with an error of its own
					continue
				}
				require.EqualError(t, err, `leasehold: acquire "k": `+says, server)
			}
		}
		require.NoError(t, c.Set(ctx, counter, lease.FencingToken(), 168*time.Hour).Err())
		next, err := l.Acquire(ctx, "k", time.Minute)
		require.NoError(t, err)
		assert.Greater(t, next.FencingToken(), lease.FencingToken())
		require.NoError(t, next.Release(ctx))
		require.NoError(t, held.Release(ctx))
	}
}

func TestAClientThatCannotWorkIsToldByEveryCallAtOnce(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		for says, c := range locktest.BrokenClients(w) {
			l := leasehold.New(c)
			for _, e := range locktest.EntryPoints(t) {
				begun := time.Now()
				err := e.Call(l, "k", time.Minute)
				require.ErrorContains(t, err, strings.TrimSpace(says), e.Name)
				assert.Zero(t, time.Since(begun), "%s with %T", e.Name, c)
				assert.False(t, fault.Transient(err))
			}
			require.NoError(t, l.Close())
			_, err := leasehold.NewQuorum([]redis.UniversalClient{w.Raw, w.Dial(), c})
			if strings.HasPrefix(says, "invalid") {
				require.ErrorIs(t, err, leasehold.ErrInvalid)
				require.ErrorContains(t, err, "the client of node 2 is nil")
			}
		}
	})
}

func TestALongKeyIsRefusedAndNeverPrintedWhole(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party(leasehold.WithKeyPrefix("app:"))
		longest := strings.Repeat("k", 16<<10-len("app:"))
		for _, e := range locktest.EntryPoints(t) {
			if err := e.Call(p.Locker, longest, time.Minute); err != nil {
				require.NotErrorIs(t, err, leasehold.ErrInvalid, e.Name)
			}
		}
		sent := len(p.Fault.Sent())
		for _, e := range locktest.EntryPoints(t) {
			err := e.Call(p.Locker, longest+"k", time.Minute)
			require.ErrorIs(t, err, leasehold.ErrInvalid, e.Name)
			assert.ErrorContains(t, err, "the key is 16385 bytes long: want 16384 at most, the prefix included")
			assert.Less(t, len(err.Error()), 400)
		}
		assert.Len(t, p.Fault.Sent(), sent)

		lease, err := p.TryAcquire(t.Context(), longest, time.Minute)
		require.NoError(t, err)
		short := `"app:` + strings.Repeat("k", 196) + `"…`
		assert.Contains(t, lease.String(), short)
		_, err = p.TryAcquire(t.Context(), longest, time.Minute)
		require.EqualError(t, err, "leasehold: acquire "+short+": held by another")
		w.M.Del("app:" + longest)
		require.Error(t, lease.Renew(t.Context()))
		assert.Less(t, len(lease.Err().Error()), 400)
		_, err = new(leasehold.Guard), lease.Release(t.Context())
		assert.Less(t, len(err.Error()), 400)
	})
	_, err := locktest.FencedSet.Run(t.Context(), redis.NewClient(&redis.Options{}), strings.Repeat("r", 16<<10+1), 1, nil)
	require.ErrorIs(t, err, leasehold.ErrInvalid)
	assert.Less(t, len(err.Error()), 400)
}

// mistake is one of configuration, on a server of its own.
type mistake struct {
	name   string
	client func(t *testing.T) redis.UniversalClient
	says   []string // one of them, by version

}

// endsAtOnce requires that a wait does, with one of the texts.
func (m mistake) endsAtOnce(t *testing.T) {
	l := leasehold.New(m.client(t))
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := l.Acquire(ctx, "k", time.Minute)
	require.Error(t, err, m.name)
	require.NotErrorIs(t, err, context.DeadlineExceeded, "%s is waited out", m.name)
	_, again := l.TryAcquire(ctx, "k", time.Minute)
	for _, err := range []error{err, again} {
		text, found := strings.TrimPrefix(err.Error(), `leasehold: acquire "k": `), false
		for _, says := range m.says {
			found = found || strings.Contains(text, says)
		}
		assert.True(t, found, "%s: %s", m.name, text)
		assert.False(t, fault.Transient(err), text)
	}
}

func TestMistakesOnARealServerEndAWaitAtOnceWithAdvice(t *testing.T) {
	t.Parallel()
	s := redistest.Server(t)
	admin := s.Client()
	as := func(rules ...any) func(*testing.T) redis.UniversalClient {
		return func(t *testing.T) redis.UniversalClient {
			require.NoError(t, admin.Do(t.Context(), append([]any{"ACL", "SETUSER", "app", "reset", "on", "nopass", "~*"}, rules...)...).Err())
			return s.Client(func(o *redis.Options) { o.Username, o.Password = "app", "any" })
		}
	}
	locked := redistest.Server(t, "--requirepass", "secret")
	cluster := redistest.Cluster(t)
	for _, m := range []mistake{
		{
			name:   "no password",
			client: func(*testing.T) redis.UniversalClient { return locked.Client() },
			says:   []string{"NOAUTH Authentication required. (the client gives no password: ", "ERR Protocol error: unauthenticated multibulk length (the client gives no password: "},
		},
		{
			name: "a wrong password",
			client: func(*testing.T) redis.UniversalClient {
				return locked.Client(func(o *redis.Options) { o.Password = "guess" })
			},
			says: []string{"WRONGPASS invalid username-password pair or user is disabled. (see Username and Password in the client's options)", "WRONGPASS invalid username-password pair (see"},
		},
		{
			name:   "no EVALSHA",
			client: as("+@all", "-evalsha"),
			says: []string{
				"NOPERM this user has no permissions to run the 'evalsha' command or its subcommand (docs/runbook.md lists",
				"NOPERM this user has no permissions to run the 'evalsha' command (docs/runbook.md lists",
				"NOPERM User app has no permissions to run the 'evalsha' command (docs/runbook.md lists",
			},
		},
		{
			name:   "a command less, in the script",
			client: as("+@all", "-exists"),
			says: []string{
				"ERR The user executing the script can't run this command or subcommand (the command is EXISTS; docs/runbook.md lists",
				"ERR ACL failure in script: User app has no permissions to run the 'exists' command (docs/runbook.md lists",
			},
		},
		{
			name:   "no key",
			client: as("+@all", "resetkeys", "~other"),
			says: []string{
				"NOPERM this user has no permissions to access one of the keys used as arguments (see ACL LOG; docs/runbook.md lists",
				"NOPERM No permissions to access a key (see ACL LOG; docs/runbook.md lists",
			},
		},
		{
			name: "no such database",
			client: func(*testing.T) redis.UniversalClient {
				return s.Client(func(o *redis.Options) { o.DB = 99 })
			},
			says: []string{"ERR DB index is out of range"},
		},
		{
			name: "a plain client on a cluster",
			client: func(*testing.T) redis.UniversalClient {
				return cluster.Nodes[(cluster.Shard(rediskey.Slot("k"))+1)%3].Client()
			},
			says: []string{"(this server is a node of a cluster: use redis.NewClusterClient)"},
		},
		{
			name: "a Ring on a cluster",
			client: func(t *testing.T) redis.UniversalClient {
				ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": cluster.Nodes[(cluster.Shard(rediskey.Slot("k"))+1)%3].Addr()}})
				t.Cleanup(func() { _ = ring.Close() })
				return ring
			},
			says: []string{"(this server is a node of a cluster: use redis.NewClusterClient)"},
		},
		{
			name: "a cluster client on a plain server",
			client: func(t *testing.T) redis.UniversalClient {
				c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{s.Addr()}})
				t.Cleanup(func() { _ = c.Close() })
				return c
			},
			says: []string{"ERR This instance has cluster support disabled (this server is no cluster: use redis.NewClient)"},
		},
		{
			name: "a database of a cluster",
			client: func(*testing.T) redis.UniversalClient {
				return cluster.Nodes[0].Client(func(o *redis.Options) { o.DB = 1 })
			},
			says: []string{"ERR SELECT is not allowed in cluster mode (a cluster has database 0 alone)", "ERR DB index is out of range"},
		},
		{
			name: "a closed client",
			client: func(*testing.T) redis.UniversalClient {
				c := redis.NewClient(&redis.Options{Addr: s.Addr()})
				_ = c.Close()
				return c
			},
			says: []string{"redis: client is closed (it was closed before the Locker was)"},
		},
		{
			name: "an address without a port",
			client: func(t *testing.T) redis.UniversalClient {
				c := redis.NewClient(&redis.Options{Addr: "localhost", MaxRetries: -1, DialerRetries: 1})
				t.Cleanup(func() { _ = c.Close() })
				return c
			},
			says: []string{"missing port in address"},
		},
	} {
		m.endsAtOnce(t)
	}
	for i, command := range []string{"EVALSHA", "EXISTS"} {
		s := redistest.Server(t, "--rename-command", command, "")
		mistake{
			name:   "no " + command,
			client: func(*testing.T) redis.UniversalClient { return s.Client() },
			says: []string{
				[]string{"(leasehold needs EVALSHA and EVAL; a Sentinel has neither, and some providers disable them)", fmt.Sprintf("called from Lua script (leasehold needs Redis 6.0 or newer, in which %s was not renamed)", command)}[i],
				fmt.Sprintf("called from script (leasehold needs Redis 6.0 or newer, in which %s was not renamed)", command),
			},
		}.endsAtOnce(t)
	}
}

// Nothing but ForceRelease ends such a wait, so the error says so.
func TestAHeldLockThatNeverExpiresIsNamedAsSuch(t *testing.T) {
	const forever = "held by another, and its key has no TTL: it will never expire; see ForceRelease"
	check := func(t *testing.T, l *leasehold.Locker) {
		_, err := l.TryAcquire(t.Context(), "k", time.Minute)
		require.EqualError(t, err, `leasehold: acquire "k": `+forever)
		require.ErrorIs(t, err, leasehold.ErrHeld)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		inside := locktest.Beside(func() (*leasehold.Lease, error) { return l.Acquire(ctx, "k", time.Minute) })
		synctest.Wait()
		behind := locktest.Beside(func() (*leasehold.Lease, error) { return l.Acquire(ctx, "k", time.Minute) })
		for _, waiting := range []<-chan locktest.Result{inside, behind} {
			r := <-waiting
			require.EqualError(t, r.Err, `leasehold: acquire "k": `+forever+": context deadline exceeded")
			require.ErrorIs(t, r.Err, leasehold.ErrHeld)
		}
	}
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		require.NoError(t, w.M.Set("k", "somebody's"))
		p := w.Party()
		check(t, p.Locker)
		w.M.SetTTL("k", time.Minute)
		_, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.EqualError(t, err, `leasehold: acquire "k": held by another`)
		w.M.Del("k")
	})
	locktest.QuorumBubble(t, 3, func(t *testing.T, nodes []*locktest.FakeNode, join locktest.JoinFunc) {
		for _, n := range nodes[:2] {
			require.NoError(t, n.Set("k", "somebody's"))
		}
		q := join()
		check(t, q.Locker)
		nodes[0].SetTTL("k", time.Minute) // a majority will be free
		_, err := q.TryAcquire(t.Context(), "k", time.Minute)
		require.EqualError(t, err, `leasehold: acquire "k": held by another`)
	})
}
