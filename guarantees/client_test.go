package guarantees_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

// What docs/client.md says of the client's settings, as far as no other test shows it.

func TestEveryAdviceOnTheClientHasATest(t *testing.T) {
	text, err := os.ReadFile("../docs/client.md")
	require.NoError(t, err)
	requireTests(t, string(text))
	rows := 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if !strings.HasPrefix(line, "| ") || len(cells) != 3 || strings.Contains(line, "---") || cells[0] == "| setting" {
			continue
		}
		rows++
		assert.Regexp(t, "`Test\\w+`", cells[2], "what shows it?")
	}
	assert.Greater(t, rows, 8)
}

func TestTwoConnectionsServeManyGoroutines(t *testing.T) {
	t.Parallel()
	s := redistest.Server(t)
	c := s.Client(func(o *redis.Options) { o.PoolSize = 2 })
	l := locktest.Process(t, c)
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			for range 20 {
				err := l.WithLock(t.Context(), fmt.Sprint("k", i%50), time.Minute, func(context.Context, *leasehold.Lease) error { return nil })
				assert.NoError(t, err)
			}
		})
	}
	all.Wait()
	assert.Zero(t, c.PoolStats().Timeouts, "calls that found no connection")
}

// A function that blocks in Redis, as with BLPOP, keeps a connection. When all are kept, renewals find none but those of the pool for
// pipelines, and these only after a renewal has failed.
func TestFunctionsThatBlockInRedisWantAClientOfTheirOwn(t *testing.T) {
	for name, tt := range map[string]struct {
		own      bool
		options  func(*redis.Options)
		jeopardy bool
		lost     bool
	}{
		"a client of its own":        {own: true},
		"a shared one":               {jeopardy: true},
		"with no pool for pipelines": {options: func(o *redis.Options) { o.PipelinePoolSize = -1 }, jeopardy: true, lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Server(t)
			set := func(o *redis.Options) {
				if o.PoolSize = 1; tt.options != nil {
					tt.options(o)
				}
			}
			app := s.Client(set)
			locks := app
			if tt.own {
				locks = s.Client(set)
			}
			var mu sync.Mutex
			jeopardy := 0
			l := locktest.Process(t, locks, leasehold.WithHooks(leasehold.Hooks{Jeopardy: func(leasehold.Event) { mu.Lock(); jeopardy++; mu.Unlock() }}))
			admin := s.Client()
			err := l.WithLock(t.Context(), "k", 2*time.Second, func(ctx context.Context, _ *leasehold.Lease) error {
				push := func() { admin.LPush(context.Background(), "jobs", "job") }
				defer context.AfterFunc(ctx, push)() // so that the connection is free again
				defer time.AfterFunc(2500*time.Millisecond, push).Stop()
				return app.BLPop(ctx, time.Minute, "jobs").Err()
			})
			assert.Equal(t, tt.lost, errors.Is(err, leasehold.ErrLost), "%v", err)
			mu.Lock()
			defer mu.Unlock()
			assert.Equal(t, tt.jeopardy, jeopardy > 0)
		})
	}
}

func TestAReadTimeoutBelowThatOfReplicasGivesUpBefore(t *testing.T) {
	t.Parallel()
	s := redistest.Server(t)
	const short, long = 100 * time.Millisecond, 5 * time.Second // further apart than a stall of a busy machine
	for timeout, wait := range map[time.Duration]time.Duration{short: long, long: short} {
		c := s.Client(locktest.Once, func(o *redis.Options) { o.ReadTimeout = timeout })
		_, err := locktest.Process(t, c).TryAcquire(t.Context(), timeout.String(), time.Minute, leasehold.WithReplicas(1, wait))
		require.Error(t, err)
		assert.Equal(t, wait < timeout, fault.Has[*fault.Replicas](err), "%v: %v", timeout, err)
	}
}

// A connection that has been idle for longer than the balancer remembers it is not used any more, so nobody meets a dead one.
func TestAConnMaxIdleTimeBelowThatOfTheBalancerMeetsNoDeadConnection(t *testing.T) {
	t.Parallel()
	s := redistest.Server(t)
	proxy := redistest.Proxy(t, s.Addr())
	c := redis.NewClient(&redis.Options{Addr: proxy.Addr(), ConnMaxIdleTime: 100 * time.Millisecond})
	t.Cleanup(func() { _ = c.Close() })
	locktest.Fill(t, c, &proxy.Wire, 10, 5)
	l := locktest.Process(t, c)
	proxy.Forget()
	filled := time.Now()
	require.Eventually(t, func() bool { return time.Since(filled) > 200*time.Millisecond }, time.Minute, 10*time.Millisecond)
	begun := time.Now()
	x, err := l.TryAcquire(t.Context(), "k", time.Minute)
	require.NoError(t, err)
	assert.Less(t, time.Since(begun), time.Second)
	assert.Zero(t, c.PoolStats().Timeouts)
	require.NoError(t, x.Release(t.Context()))
}

// recorded is what a client writes.
type recorded struct {
	net.Conn
	mu    *sync.Mutex
	bytes *bytes.Buffer
}

func (r recorded) Write(b []byte) (int, error) {
	r.mu.Lock()
	r.bytes.Write(b)
	r.mu.Unlock()
	return r.Conn.Write(b)
}

// go-redis introduces each connection with CLIENT. The user of the runbook's rule may not call that, which from Redis 7.2 on stands in
// ACL LOG.
func TestWhatAConnectionIsIntroducedWith(t *testing.T) {
	t.Parallel()
	s := redistest.Server(t)
	introduction := func(set func(*redis.Options)) string {
		var mu sync.Mutex
		var all bytes.Buffer
		c := s.Client(func(o *redis.Options) {
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
				return recorded{conn, &mu, &all}, err
			}
			set(o)
		})
		x, err := locktest.Process(t, c).TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		require.NoError(t, x.Release(t.Context()))
		mu.Lock()
		defer mu.Unlock()
		return strings.ToLower(all.String())
	}
	assert.Contains(t, introduction(func(*redis.Options) {}), "client")
	quiet := introduction(func(o *redis.Options) {
		o.DisableIdentity = true
		o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	})
	assert.NotContains(t, quiet, "client")
	assert.Contains(t, quiet, "hello")
	assert.Contains(t, quiet, "evalsha")
}

// What go-redis does itself: it runs the pipelines of a cluster in goroutines of its own, and there a panic in a hook of a node's client
// ends the process. A single command runs in a goroutine of ours.
func TestAPanicOfANodesHookIsContainedButInAPipelineOfACluster(t *testing.T) {
	const child = "LEASEHOLD_TEST_PIPELINE"
	m, _ := redistest.Mini(t)
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{m.Addr()}})
	t.Cleanup(func() { _ = cluster.Close() })
	var broken atomic.Bool
	cluster.OnNewNode(func(node *redis.Client) {
		node.AddHook(locktest.HelloHook(func() {
			if broken.Load() {
				panic("no")
			}
		}))
	})
	d := locktest.StoreOn(t, cluster)
	rs := []backend.Request{locktest.TestRequest("a"), locktest.TestRequest("b")}
	for _, r := range rs {
		_, _, err := d.Tenure(r).Acquire(t.Context(), backend.Try, backend.CallBound)
		require.NoError(t, err)
	}
	broken.Store(true)
	_, err := d.Tenure(rs[0]).Renew(t.Context(), backend.Renewal{PX: rs[0].PX}, backend.CallBound)
	require.ErrorContains(t, err, "the redis client panicked: no")

	if os.Getenv(child) != "" {
		for _, r := range rs {
			d.Tenure(r).RenewLater(backend.Renewal{PX: r.PX}, func(backend.Pending, int, error) {})
		}
		d.Flush()
		select {} // until the process ends, or the parent's patience
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	run := exec.CommandContext(ctx, os.Args[0], "-test.run", "^"+t.Name()+"$")
	run.Env = append(os.Environ(), child+"=1")
	out, err := run.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "processPipelineNode", "go-redis contains it now: say so in docs/client.md")
}
