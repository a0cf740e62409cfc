package sim_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

// Five real servers, of which any two are killed and started again at any time, under load.
//
//	LEASEHOLD_KILL_TIME=1m go test -race -run TestQuorumSurvivesKilledServers .
func TestQuorumSurvivesKilledServers(t *testing.T) {
	for _, c := range []struct {
		name       string
		args       []string
		quarantine time.Duration
	}{
		{"that write every command to disk, without a quarantine", []string{"--appendonly", "yes", "--appendfsync", "always"}, 0},
		{"that keep nothing, under a quarantine", nil, time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			surviveKills(t, c.quarantine, c.args...)
		})
	}
}

func surviveKills(t *testing.T, quarantine time.Duration, args ...string) {
	length := 2 * time.Second
	if s := os.Getenv("LEASEHOLD_KILL_TIME"); s != "" {
		var err error
		length, err = time.ParseDuration(s)
		require.NoError(t, err)
	}
	var servers []*redistest.RedisServer
	for range 5 {
		servers = append(servers, redistest.Server(t, args...))
	}
	const (
		ttl    = 400 * time.Millisecond
		enough = 5 // leases, or nothing was tested
	)
	length += quarantine
	begun := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), length+20*time.Second) // the more for a machine that has other things to do
	defer cancel()
	o := &simObserver{}
	var all sync.WaitGroup
	for range 6 {
		var nodes []redis.UniversalClient
		for _, s := range servers {
			nodes = append(nodes, s.Client(func(o *redis.Options) { o.DialTimeout, o.ReadTimeout = time.Second, time.Second }))
		}
		q, err := leasehold.NewQuorum(nodes, leasehold.WithRestartQuarantine(quarantine))
		require.NoError(t, err)
		all.Go(func() {
			defer q.Close()
			for ctx.Err() == nil {
				loadQuorum(ctx, o, q, ttl)
			}
		})
	}

	for ctx.Err() == nil && (time.Since(begun) < length || o.grants.Load() <= enough) {
		pause(ctx, rand.N(300*time.Millisecond))
		two := rand.Perm(len(servers))[:1+rand.IntN(2)]
		for _, i := range two {
			servers[i].Kill()
		}
		pause(ctx, rand.N(200*time.Millisecond))
		for _, i := range two {
			servers[i].Restart()
		}
		if quarantine > 0 && rand.IntN(3) > 0 { // or more and more nodes have no vote, which is safe and dull
			pause(ctx, quarantine+time.Second)
		}
	}
	cancel()
	all.Wait()
	for _, f := range o.faults {
		t.Error(f)
	}
	t.Logf("%d calls, %d leases", o.calls.Load(), o.grants.Load())
	require.Greater(t, o.grants.Load(), int64(enough), "it went on")
}

// pause waits for real processes.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func loadQuorum(ctx context.Context, o *simObserver, q *leasehold.Locker, ttl time.Duration) {
	const slack = time.Second // for a machine that has other things to do
	var x *leasehold.Lease
	var err error
	called := o.tick.Add(1)
	auto := rand.IntN(2) == 0
	if rand.IntN(2) == 0 {
		o.within("TryAcquire", ttl+slack, func() { x, err = q.TryAcquire(ctx, "k", ttl, leasehold.WithAutoRenew(auto)) })
	} else {
		wait, cancel := context.WithTimeout(ctx, ttl)
		o.within("Acquire", ttl+slack, func() { x, err = q.Acquire(wait, "k", ttl, leasehold.WithAutoRenew(auto)) })
		cancel()
	}
	if err != nil {
		if ctx.Err() == nil && !errors.Is(err, leasehold.ErrHeld) && !errors.Is(err, leasehold.ErrNoQuorum) && !errors.Is(err, context.DeadlineExceeded) && !isNoAnswer(err) {
			o.fault("acquire failed for no good reason: %v", err)
		}
		pause(ctx, rand.N(10*time.Millisecond))
		return
	}
	o.handedOut(x, called)
	for rand.IntN(3) == 0 {
		pause(ctx, rand.N(ttl/2))
		o.within("Renew", ttl+slack, func() { _ = x.Renew(ctx) })
	}
	if auto || rand.IntN(8) > 0 {
		o.within("Release", backend.CallBound+slack, func() { _ = x.Release(ctx) })
		return
	}
	// Somebody who goes on for a while after the lock was lost, and does not release it.
	for x.Valid() && ctx.Err() == nil && rand.IntN(3) > 0 {
		pause(ctx, ttl/3)
	}
}
