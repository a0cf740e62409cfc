package inflight_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-leasehold/leasehold/internal/inflight"
	"github.com/stretchr/testify/assert"
)

func TestALifeClosesAndThenEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := inflight.NewLife()
		assert.False(t, l.IsClosing())
		var tries atomic.Int32
		l.Go(func() {
			l.Retry(time.Hour, every(time.Second), func(context.Context) bool { tries.Add(1); return false })
		})
		time.Sleep(1500 * time.Millisecond)
		l.Close()
		<-l.Closing()
		assert.True(t, l.IsClosing())
		time.Sleep(time.Second)
		assert.EqualValues(t, 3, tries.Load(), "what is under way goes on")
		l.End()
		l.Wait(t.Context())
		assert.EqualValues(t, 3, tries.Load())
	})
}

func TestARetryEndsWhenItIsDoneOrItsTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := inflight.NewLife()
		begun, tries := time.Now(), 0
		l.Retry(time.Minute, every(time.Second), func(context.Context) bool { tries++; return tries == 3 })
		assert.Equal(t, 2*time.Second, time.Since(begun))

		begun = time.Now()
		l.Retry(10*time.Second, every(4*time.Second), func(ctx context.Context) bool { <-ctx.Done(); return false })
		assert.Equal(t, 10*time.Second, time.Since(begun), "no call outlasts it")

		begun, tries = time.Now(), 0
		l.Retry(10*time.Second, every(4*time.Second), func(context.Context) bool { tries++; return false })
		assert.Equal(t, 10*time.Second, time.Since(begun))
		assert.Equal(t, 3, tries)
		l.End()
	})
}

func every(d time.Duration) func(int) time.Duration { return func(int) time.Duration { return d } }

func TestALifeDrainsBeforeItCloses(t *testing.T) {
	l := inflight.NewLife()
	assert.False(t, l.IsDraining())
	l.Drain()
	<-l.Draining()
	assert.True(t, l.IsDraining())
	assert.False(t, l.IsClosing())
	l.Close()
	assert.True(t, l.IsClosing())

	l = inflight.NewLife()
	l.Close()
	assert.True(t, l.IsDraining(), "nothing that closes begins anything")
}
