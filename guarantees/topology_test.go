package guarantees_test

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A lookup only chooses a queue. It is made where a broken client harms nobody: every call is answered, and no goroutine of
// the process ends with it but our own.
func TestAClientThatBreaksWhereItNamesAServerStillLocks(t *testing.T) {
	for name, how := range map[string]func(){"panics": func() { panic("no") }, "exits": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			_, one := redistest.Mini(t)
			l := locktest.Process(t, locktest.LostClient{UniversalClient: one, How: how})
			var all sync.WaitGroup
			for i := range 100 {
				all.Go(func() {
					x, err := l.TryAcquire(t.Context(), fmt.Sprint("k", i), time.Minute)
					if assert.NoError(t, err) {
						assert.NoError(t, x.Renew(t.Context()))
						assert.NoError(t, x.Release(t.Context()))
					}
				})
			}
			all.Wait()
			_, two := redistest.Mini(t)
			_, three := redistest.Mini(t)
			q, err := leasehold.NewQuorum([]redis.UniversalClient{locktest.LostClient{UniversalClient: one, How: how}, locktest.LostClient{UniversalClient: two, How: how}, locktest.LostClient{UniversalClient: three, How: how}}, leasehold.WithRestartQuarantine(0))
			require.NoError(t, err)
			x, err := q.TryAcquire(t.Context(), "k", time.Minute)
			require.NoError(t, err)
			require.NoError(t, x.Release(t.Context()))
			require.NoError(t, q.Close())
		})
	}
}

// A ring moves keys between its servers when one of them does not answer, so as a node of a quorum it forgets.
func TestARingIsNoNodeOfAQuorum(t *testing.T) {
	_, one := redistest.Mini(t)
	m, two := redistest.Mini(t)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"only": m.Addr()}})
	t.Cleanup(func() { _ = ring.Close() })
	_, err := leasehold.NewQuorum([]redis.UniversalClient{one, two, locktest.Wrapper{UniversalClient: ring}})
	require.ErrorIs(t, err, leasehold.ErrInvalid)
	require.ErrorContains(t, err, "client of node 2 is a redis.Ring")
}
