package worker_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/examples/worker"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/go-leasehold/leasehold/leaseholdtest"
)

// pool is one whose jobs take a second, and the jobs that it has begun, finished, and seen fail.
type pool struct {
	worker.Pool
	begun, finished, failed, broken atomic.Int32
	full                            chan struct{} // closed when as many as may be are under way
}

func newPool(locker *leasehold.Locker, takes, grace time.Duration) *pool {
	p := &pool{full: make(chan struct{})}
	p.Pool = worker.Pool{
		Locker: locker, Size: 200, Grace: grace,
		Do: func(ctx context.Context, _ string) error {
			if p.begun.Add(1) == 200 {
				close(p.full)
			}
			select {
			case <-time.After(takes):
				p.finished.Add(1)
				return nil
			case <-ctx.Done():
				p.broken.Add(1)
				return context.Cause(ctx)
			}
		},
		Failed: func(string, error) { p.failed.Add(1) },
	}
	return p
}

// jobs are without an end.
func jobs(ctx context.Context) <-chan string {
	ch := make(chan string)
	go func() {
		for i := 0; ; i++ {
			select {
			case ch <- fmt.Sprint(i):
			case <-ctx.Done():
				return
			}
		}
	}()
	return ch
}

// The signal comes while 200 jobs are under way.
func TestAWorkerFinishesItsJobsAfterSIGTERM(t *testing.T) {
	client := redistest.Server(t).Client()
	p := newPool(leasehold.New(client), time.Second, time.Minute)
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGTERM)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, jobs(t.Context())) }()
	<-p.full
	self, err := os.FindProcess(os.Getpid())
	require.NoError(t, err)
	require.NoError(t, self.Signal(syscall.SIGTERM))
	require.NoError(t, <-done)
	assert.Equal(t, p.begun.Load(), p.finished.Load(), "what has begun is finished")
	assert.Zero(t, p.broken.Load())
	locks, err := client.Keys(t.Context(), "job:*").Result()
	require.NoError(t, err)
	assert.Empty(t, locks, "nothing is locked any more")
}

// The jobs take three times as long as a lease, which is renewed until they have finished.
func TestLongJobsKeepTheirLocksWhileTheWorkerDrains(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		p := newPool(env.Locker(), 30*time.Second, time.Minute)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx, jobs(t.Context())) }()
		<-p.full
		stop()
		require.NoError(t, <-done)
		assert.EqualValues(t, 200, p.finished.Load())
		assert.Zero(t, p.failed.Load()+p.broken.Load())
	})
}

func TestJobsThatOutlastTheGraceAreBrokenOff(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		p := newPool(env.Locker(), time.Hour, 20*time.Second)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx, jobs(t.Context())) }()
		<-p.full
		stop()
		begun := time.Now()
		require.NoError(t, <-done)
		assert.Equal(t, 20*time.Second, time.Since(begun))
		assert.EqualValues(t, 200, p.broken.Load())
		assert.EqualValues(t, 200, p.failed.Load())
	})
}

func TestAWorkerWithoutJobsEnds(t *testing.T) {
	leaseholdtest.Bubble(t, func(t *testing.T, env *leaseholdtest.Env) {
		p := newPool(env.Locker(), time.Second, time.Minute)
		few := make(chan string, 3)
		few <- "a"
		few <- "b"
		few <- "c"
		close(few)
		require.NoError(t, p.Run(t.Context(), few))
		assert.EqualValues(t, 3, p.finished.Load())
	})
}
