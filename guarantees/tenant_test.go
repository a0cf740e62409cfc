package guarantees_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

// tenant is a hook of a client that puts a prefix before the keys of scripts, as people write one to keep tenants apart: it
// knows what go-redis sends, so an int before the keys, which are strings.
type tenant struct {
	prefix string
	copies bool // it sends a command of its own; otherwise it changes the one that it was given
}

func (h tenant) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h tenant) rewrite(ctx context.Context, cmd redis.Cmder) redis.Cmder {
	args := cmd.Args()
	if !strings.HasPrefix(cmd.Name(), "eval") {
		return cmd
	}
	if h.copies {
		args = slices.Clone(args)
	}
	n, _ := args[2].(int)
	for i := 3; i < 3+n; i++ {
		if key, ok := args[i].(string); ok {
			args[i] = h.prefix + key
		}
	}
	if h.copies {
		return redis.NewCmd(ctx, args...)
	}
	return cmd
}

func answered(cmd, sent redis.Cmder) {
	if cmd, own := cmd.(*redis.Cmd); own {
		if sent, is := sent.(*redis.Cmd); is {
			cmd.SetVal(sent.Val())
			cmd.SetErr(sent.Err())
		}
	}
}

func (h tenant) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		sent := h.rewrite(ctx, cmd)
		err := next(ctx, sent)
		if sent != cmd {
			answered(cmd, sent)
		}
		return err
	}
}

func (h tenant) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		sent := make([]redis.Cmder, len(cmds))
		for i, cmd := range cmds {
			sent[i] = h.rewrite(ctx, cmd)
		}
		err := next(ctx, sent)
		for i, cmd := range cmds {
			if sent[i] != cmd {
				answered(cmd, sent[i])
			}
		}
		return err
	}
}

// tenancy is what keeps the locks of tenants.
type tenancy struct {
	servers []*redis.Client // without hooks
	locker  func(h tenant) *leasehold.Locker
}

// forget has every server forget the scripts, as a restart does.
func (y tenancy) forget(t *testing.T) {
	t.Helper()
	for _, s := range y.servers {
		require.NoError(t, s.ScriptFlush(t.Context()).Err())
	}
}

// keys are those of all servers.
func (y tenancy) keys(t *testing.T) (all []string) {
	t.Helper()
	for _, s := range y.servers {
		keys, err := s.Keys(t.Context(), "*").Result()
		require.NoError(t, err)
		all = append(all, keys...)
	}
	return all
}

// A hook that puts tenants apart sees every command as go-redis's own Script sends it, each with arguments of its own. So two
// tenants never share a lock, its line or its counter, and nothing gets the prefix twice, as it would if the command that
// follows a NOSCRIPT had the arguments of the one before.
func TestAHookThatRewritesKeysKeepsTenantsApart(t *testing.T) {
	hooked := func(t *testing.T, client redis.UniversalClient, h tenant, opts ...leasehold.Option) *leasehold.Locker {
		client.AddHook(h)
		l := leasehold.New(client, opts...)
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	for name, tenancyOf := range map[string]func(t *testing.T) tenancy{
		"miniredis": func(t *testing.T) tenancy {
			m, admin := redistest.Mini(t)
			return tenancy{[]*redis.Client{admin}, func(h tenant) *leasehold.Locker {
				c := redis.NewClient(&redis.Options{Addr: m.Addr()})
				t.Cleanup(func() { _ = c.Close() })
				return hooked(t, c, h)
			}}
		},
		"redis-server": func(t *testing.T) tenancy {
			s := redistest.Server(t)
			return tenancy{[]*redis.Client{s.Client()}, func(h tenant) *leasehold.Locker { return hooked(t, s.Client(), h) }}
		},
		"replicas": func(t *testing.T) tenancy {
			s := redistest.Server(t)
			redistest.Replica(t, s)
			return tenancy{[]*redis.Client{s.Client()}, func(h tenant) *leasehold.Locker {
				return hooked(t, s.Client(), h, leasehold.WithReplicas(1, 2*time.Second))
			}}
		},
		"ring": func(t *testing.T) tenancy {
			a, ca := redistest.Mini(t)
			b, cb := redistest.Mini(t)
			return tenancy{[]*redis.Client{ca, cb}, func(h tenant) *leasehold.Locker {
				ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": a.Addr(), "b": b.Addr()}})
				t.Cleanup(func() { _ = ring.Close() })
				return hooked(t, ring, h)
			}}
		},
		"cluster": func(t *testing.T) tenancy {
			c := redistest.Cluster(t)
			y := tenancy{locker: func(h tenant) *leasehold.Locker { return hooked(t, c.Client(), h) }}
			for _, s := range c.Nodes {
				y.servers = append(y.servers, s.Client())
			}
			return y
		},
		"quorum": func(t *testing.T) tenancy {
			var y tenancy
			var addrs []string
			for range 3 {
				m, c := redistest.Mini(t)
				y.servers, addrs = append(y.servers, c), append(addrs, m.Addr())
			}
			y.locker = func(h tenant) *leasehold.Locker {
				var clients []redis.UniversalClient
				for _, addr := range addrs {
					c := redis.NewClient(&redis.Options{Addr: addr})
					t.Cleanup(func() { _ = c.Close() })
					c.AddHook(h)
					clients = append(clients, c)
				}
				l, err := leasehold.NewQuorum(clients, leasehold.WithRestartQuarantine(0))
				require.NoError(t, err)
				t.Cleanup(func() { _ = l.Close() })
				return l
			}
			return y
		},
	} {
		for _, copies := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, a hook that copies: %v", name, copies), func(t *testing.T) {
				t.Parallel()
				keepTenantsApart(t, tenancyOf(t), copies)
			})
		}
	}
}

func keepTenantsApart(t *testing.T, y tenancy, copies bool) {
	ctx := t.Context()
	const key = "{job}" // on a cluster, tag and all: the prefix would otherwise put the keys of a lock into several slots
	red, blue := tenant{"red:", copies}, tenant{"blue:", copies}
	one, two, other := y.locker(red), y.locker(red), y.locker(blue)

	for range 2 {
		y.forget(t)
		x, err := one.TryAcquire(ctx, key, time.Minute)
		require.NoError(t, err)
		y.forget(t)
		_, err = two.TryAcquire(ctx, key, time.Minute)
		require.ErrorIs(t, err, leasehold.ErrHeld, "two leases of one tenant are valid")
		y.forget(t)
		theirs, err := other.TryAcquire(ctx, key, time.Minute)
		require.NoError(t, err, "tenants share a lock")
		y.forget(t)
		require.NoError(t, x.Renew(ctx))

		waited := make(chan *leasehold.Lease, 1)
		go func() {
			z, err := two.Acquire(ctx, key, time.Minute)
			assert.NoError(t, err)
			waited <- z
		}()
		require.Eventually(t, func() bool { return two.Stats().Waiting == 1 }, 10*time.Second, time.Millisecond)
		y.forget(t)
		state, err := other.Inspect(ctx, key)
		require.NoError(t, err)
		assert.Zero(t, state.Waiters, "tenants share a line")
		y.forget(t)
		require.NoError(t, x.Release(ctx))
		z := <-waited
		require.NotNil(t, z)
		assert.True(t, theirs.Valid())
		assert.Greater(t, z.FencingToken(), x.FencingToken())
		y.forget(t)
		require.NoError(t, z.Release(ctx))
		require.NoError(t, theirs.Release(ctx))
	}

	// Many at once share round trips.
	var all sync.WaitGroup
	for i := range 30 {
		all.Go(func() {
			err := one.WithLock(ctx, fmt.Sprintf("{k%d}", i), time.Minute, func(ctx context.Context, x *leasehold.Lease) error {
				if i%10 == 0 {
					y.forget(t)
				}
				second, _ := two.TryAcquire(ctx, fmt.Sprintf("{k%d}", i), time.Minute)
				assert.Nil(t, second, "two leases of one tenant are valid")
				return nil
			})
			assert.NoError(t, err)
		})
	}
	all.Wait()

	for _, key := range y.keys(t) {
		name, ok := strings.CutPrefix(key, "red:")
		if !ok {
			name, ok = strings.CutPrefix(key, "blue:")
		}
		assert.True(t, ok, "%q has no prefix", key)
		assert.NotRegexp(t, "^(red|blue):", name, "%q has two", key)
	}
}
