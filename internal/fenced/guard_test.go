package fenced_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
)

// requireStale checks that err refuses the token and says which one was seen.
func requireStale(t *testing.T, err error, token, highest int64) {
	t.Helper()
	require.ErrorIs(t, err, leasehold.ErrStale)
	var stale *leasehold.StaleError
	require.ErrorAs(t, err, &stale)
	assert.Equal(t, leasehold.StaleError{Token: token, Highest: highest}, *stale)
}

func TestGuardAdmitsATokenAtOrAboveTheHighest(t *testing.T) {
	var guard leasehold.Guard
	require.NoError(t, guard.Admit("", 33))
	require.NoError(t, guard.Admit("", 33))
	require.NoError(t, guard.Admit("", 34))
	requireStale(t, guard.Admit("", 33), 33, 34)
	require.NoError(t, guard.Admit("", 34), "a refusal changed the mark")
	require.NoError(t, guard.Admit("", math.MaxInt64))
	requireStale(t, guard.Admit("", math.MaxInt64-1), math.MaxInt64-1, math.MaxInt64)
}

func TestGuardRefusesATokenBelowOne(t *testing.T) {
	var guard leasehold.Guard
	for _, token := range []int64{0, -1, math.MinInt64} {
		err := guard.Admit("", token)
		require.ErrorIs(t, err, leasehold.ErrInvalid)
		require.NotErrorIs(t, err, leasehold.ErrStale)
	}
	require.NoError(t, guard.Admit("", 1))
}

func TestGuardLetsNothingLowerInAfterATokenWasAdmitted(t *testing.T) {
	var (
		guard    leasehold.Guard
		mu       sync.Mutex
		admitted int64 // under mu
		refused  atomic.Int64
		workers  sync.WaitGroup
	)
	for range 8 {
		workers.Go(func() {
			for range 500 {
				token := 1 + rand.Int64N(1000)
				mu.Lock()
				before := admitted
				mu.Unlock()
				if guard.Admit("", token) != nil {
					refused.Add(1)
					continue
				}
				assert.GreaterOrEqual(t, token, before)
				mu.Lock()
				admitted = max(admitted, token)
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	assert.Positive(t, refused.Load())
}

func TestGuardKeepsOneMarkForEachResource(t *testing.T) {
	var guards leasehold.Guard
	require.NoError(t, guards.Admit("a", 34))
	require.NoError(t, guards.Admit("b", 33))
	err := guards.Admit("a", 33)
	requireStale(t, err, 33, 34)
	assert.EqualError(t, err, `leasehold: admit "a": stale fencing token 33: the resource has seen 34`)
	require.ErrorIs(t, guards.Admit("c", 0), leasehold.ErrInvalid)
	require.NoError(t, guards.Admit("b", 33))
}

// A resource in memory: Admit and the write happen under one mutex, so nothing comes between them.
func ExampleGuard() {
	var (
		mu    sync.Mutex
		guard leasehold.Guard
		owner string
	)
	write := func(fencingToken int64, value string) error {
		mu.Lock()
		defer mu.Unlock()
		if err := guard.Admit("", fencingToken); err != nil {
			return err
		}
		owner = value
		return nil
	}

	fmt.Println(write(33, "first holder"))
	fmt.Println(write(34, "second holder"))
	err := write(33, "first holder, late") // paused while its lease ran out
	fmt.Println(errors.Is(err, leasehold.ErrStale), owner)
	// Output:
	// <nil>
	// <nil>
	// true second holder
}
