package guarantees_test

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAServerThatForgotTheScriptsIsTaughtThemAgain(t *testing.T) {
	locktest.OnScriptServers(t, func(t *testing.T, s locktest.ScriptServer) {
		ctx, c := t.Context(), s.Client
		require.NoError(t, c.FlushAll(ctx).Err())
		log := &redistest.Trips{}
		c.AddHook(log)
		d, r := locktest.StoreOn(t, c), locktest.TestRequest("k")
		forget := func() { require.NoError(t, c.ScriptFlush(ctx).Err()) }
		for range 3 {
			forget()
			a, n, err := d.Tenure(r).Acquire(ctx, backend.Try, backend.CallBound)
			require.NoError(t, err)
			assert.Equal(t, backend.Granted, a.State)
			assert.EqualValues(t, 1, n, "the EVALSHA has certainly done nothing")
			forget()
			waiters, err := d.Tenure(r).Renew(ctx, backend.Renewal{PX: r.PX}, backend.CallBound)
			require.NoError(t, err)
			assert.Zero(t, waiters)
			forget()
			state, err := d.Inspect(ctx, r.Key, backend.CallBound)
			require.NoError(t, err)
			assert.Equal(t, backend.View{Held: true, Left: state.Left, Fence: a.Fence}, state)
			assert.InDelta(t, time.Minute, state.Left, float64(10*time.Second))
			forget()
			what, n, err := d.Tenure(r).Release(ctx, backend.Plain, backend.CallBound)
			require.NoError(t, err)
			assert.EqualValues(t, 1, n)
			assert.Equal(t, backend.ReleasedLock, what)
		}
		assert.Equal(t, slices.Repeat([]string{"evalsha", "eval"}, 12), log.Names)
	})
}

// Code of the user's that runs when a connection is made can break under a command as under a subscription. The call has an error
// within its bound then, no goroutine of ours lets the breaking through, and the next call is as any other.
func TestHooksThatBreakWhenAConnectionIsMadeAreTheErrorOfTheCall(t *testing.T) {
	ways := map[string]func(t *testing.T, client func() redis.UniversalClient) (*leasehold.Locker, []leasehold.Option){
		"a call": func(_ *testing.T, client func() redis.UniversalClient) (*leasehold.Locker, []leasehold.Option) {
			return leasehold.New(client()), nil
		},
		"with replicas": func(_ *testing.T, client func() redis.UniversalClient) (*leasehold.Locker, []leasehold.Option) {
			return leasehold.New(client()), []leasehold.Option{leasehold.WithReplicas(1, time.Millisecond)}
		},
		"a quorum": func(t *testing.T, client func() redis.UniversalClient) (*leasehold.Locker, []leasehold.Option) {
			q, err := leasehold.NewQuorum([]redis.UniversalClient{client(), client(), client()}, leasehold.WithRestartQuarantine(0))
			require.NoError(t, err)
			return q, nil
		},
	}
	for name, put := range locktest.BrokenHooks {
		for how, end := range map[string]func(){"panics": func() { panic("no") }, "exits": runtime.Goexit} {
			if how == "exits" && strings.Contains(name, "dial") {
				continue // go-redis dials in a goroutine of its own, and waits for it for ever
			}
			for way, locker := range ways {
				t.Run(name+" "+how+" in "+way, func(t *testing.T) {
					t.Parallel()
					var broken atomic.Bool
					broken.Store(true)
					hook := func() {
						if broken.Load() {
							end()
						}
					}
					l, opts := locker(t, func() redis.UniversalClient {
						m, _ := redistest.Mini(t)
						o := &redis.Options{Addr: m.Addr(), MaxRetries: -1, DialerRetries: 1}
						o.Dialer = redis.NewDialer(o)
						added := put(o, hook)
						c := redis.NewClient(o)
						t.Cleanup(func() { _ = c.Close() })
						if added != nil {
							c.AddHook(added)
						}
						return c
					})
					var all sync.WaitGroup
					for i := range 5 {
						all.Go(func() {
							_, err := l.TryAcquire(t.Context(), fmt.Sprint("k", i), time.Minute, opts...)
							assert.Error(t, err)
						})
					}
					all.Wait()
					broken.Store(false)
					acquire := l.TryAcquire
					if way == "a quorum" { // which gives its nodes less time than a busy machine may take
						acquire = l.Acquire
					}
					x, err := acquire(t.Context(), "k", time.Minute)
					require.NoError(t, err)
					require.NoError(t, x.Release(t.Context()))
					require.NoError(t, l.Close())
				})
			}
		}
	}
}
