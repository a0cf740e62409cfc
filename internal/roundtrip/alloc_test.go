//go:build !race

package roundtrip_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/go-leasehold/leasehold/internal/token"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What a lone acquire and its release allocate, by go-redis and by this library together. The keys are made once for both. (Under the
// race detector the count is another one.)
func TestAnAcquireAndItsReleaseAllocateLittle(t *testing.T) {
	s := redistest.Server(t)
	l := leasehold.New(s.Client())
	t.Cleanup(func() { _ = l.Close() })
	ctx := t.Context()
	cycle := func() {
		x, err := l.TryAcquire(ctx, "invoice:4711", time.Minute)
		require.NoError(t, err)
		require.NoError(t, x.Release(ctx))
	}
	const cycles = 2000
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	n := testing.AllocsPerRun(cycles, cycle)
	runtime.ReadMemStats(&after)
	bytes := (after.TotalAlloc - before.TotalAlloc) / cycles
	t.Logf("%v allocations, %d bytes", n, bytes)
	assert.LessOrEqual(t, n, 24.0)
	assert.LessOrEqual(t, bytes, uint64(1900), "a command that its caller has led is used again")
}

func TestATokenIsOneAllocation(t *testing.T) {
	id := token.NewID()
	assert.LessOrEqual(t, testing.AllocsPerRun(100, func() { token.New(id, token.Exclusive, "a label") }), 1.0)
}
