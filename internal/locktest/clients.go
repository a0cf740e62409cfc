package locktest

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Fill has the pools of a client keep idle connections: that of commands, and the one that go-redis has for pipelines.
func Fill(t *testing.T, c *redis.Client, wire *redistest.Wire, commands, pipelines int) {
	t.Helper()
	wire.Delay(50 * time.Millisecond)
	defer wire.Delay(0)
	var all sync.WaitGroup
	for range commands {
		all.Go(func() { assert.NoError(t, c.Ping(t.Context()).Err()) })
	}
	for range pipelines {
		all.Go(func() {
			pipe := c.Pipeline()
			pipe.Ping(t.Context())
			_, err := pipe.Exec(t.Context())
			assert.NoError(t, err)
		})
	}
	all.Wait()
	stats := c.PoolStats()
	require.EqualValues(t, commands, stats.IdleConns)
	require.EqualValues(t, pipelines, stats.PipelineStats.IdleConns)
}

// PanicHook panics at every command.
type PanicHook struct{ redis.Hook }

func (PanicHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (PanicHook) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(context.Context, redis.Cmder) error { panic("in a hook") }
}

func (PanicHook) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(context.Context, []redis.Cmder) error { panic("in a hook") }
}

// clients that cannot work, and what every call says of them.
func BrokenClients(w *World) map[string]redis.UniversalClient {
	panics := w.Dial()
	panics.AddHook(PanicHook{})
	return map[string]redis.UniversalClient{
		"invalid argument: the redis client is nil":                                                    (*redis.Client)(nil),
		"invalid argument: the redis client is nil ":                                                   (*redis.ClusterClient)(nil),
		"invalid argument: the redis client is nil  ":                                                  nil,
		"the redis client panicked: runtime error: invalid memory address or nil pointer dereference":  struct{ redis.UniversalClient }{},
		"the redis client panicked: runtime error: invalid memory address or nil pointer dereference ": &redis.Client{},
		"the redis client panicked: in a hook":                                                         panics,
	}
}

var ErrBroken = errors.New("the node is broken")

// lost is a cluster's client that cannot tell where a key is.
type LostClient struct {
	redis.UniversalClient
	How func()
}

func (c LostClient) MasterForKey(context.Context, string) (*redis.Client, error) {
	c.How()
	return nil, nil
}

// Once is a client that leaves every retry to us.
func Once(o *redis.Options) { o.MaxRetries = -1 }

// BrokenHooks are the places in which code of the user's runs when a connection is made.
var BrokenHooks = map[string]func(o *redis.Options, hook func()) redis.Hook{
	"the dialer": func(o *redis.Options, hook func()) redis.Hook {
		dial := o.Dialer
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			hook()
			return dial(ctx, network, addr)
		}
		return nil
	},
	"OnConnect": func(o *redis.Options, hook func()) redis.Hook {
		o.OnConnect = func(context.Context, *redis.Conn) error { hook(); return nil }
		return nil
	},
	"the credentials": func(o *redis.Options, hook func()) redis.Hook {
		o.CredentialsProviderContext = func(context.Context) (string, string, error) { hook(); return "", "", nil }
		return nil
	},
	"the limiter":     func(o *redis.Options, hook func()) redis.Hook { o.Limiter = Limiter(hook); return nil },
	"a dial hook":     func(_ *redis.Options, hook func()) redis.Hook { return DialHook(hook) },
	"a hook of HELLO": func(_ *redis.Options, hook func()) redis.Hook { return HelloHook(hook) },
}

type Limiter func()

func (l Limiter) Allow() error { l(); return nil }

func (l Limiter) ReportResult(error) { l() }

type DialHook func()

func (h DialHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		h()
		return next(ctx, network, addr)
	}
}

func (DialHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (DialHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

type HelloHook func()

func (HelloHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h HelloHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { h(); return next(ctx, cmd) }
}

func (h HelloHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { h(); return next(ctx, cmds) }
}

// Opaque hides what a client can do, as a struct that embeds the interface does.
type Opaque struct{ redis.UniversalClient }

// Wrapper is one that can be looked through.
type Wrapper struct{ redis.UniversalClient }

func (w Wrapper) Unwrap() redis.UniversalClient { return w.UniversalClient }
