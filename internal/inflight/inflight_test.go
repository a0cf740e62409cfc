package inflight_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/go-leasehold/leasehold/internal/inflight"
	"github.com/stretchr/testify/assert"
)

func TestWaitEndsWithTheLastThatLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g inflight.Group
		g.Wait(t.Context()) // nothing is under way

		first, second := make(chan struct{}), make(chan struct{})
		g.Go(func() { <-first })
		waited := false
		go func() {
			g.Wait(t.Context())
			waited = true
		}()
		synctest.Wait()
		g.Go(func() { <-second }) // the group grows while somebody waits
		close(first)
		synctest.Wait()
		assert.Equal(t, 1, g.Len())
		assert.False(t, waited)

		close(second)
		synctest.Wait()
		assert.Zero(t, g.Len())
		assert.True(t, waited)
	})
}

func TestWaitEndsWithItsContext(t *testing.T) {
	var g inflight.Group
	g.Enter()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	g.Wait(ctx)
	assert.Equal(t, 1, g.Len())
	g.Leave()
}
