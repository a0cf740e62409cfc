package postgres

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
)

const (
	workers   = 4
	rounds    = 8
	workerTTL = 40 * time.Millisecond
)

// store is how a worker reads and writes the account.
type store struct {
	get func(ctx context.Context, name string, fencingToken int64) (int64, error)
	set func(ctx context.Context, name string, balance, fencingToken int64) error
}

var fenced = store{
	get: func(ctx context.Context, name string, fencingToken int64) (int64, error) {
		return Get(ctx, db, name, fencingToken)
	},
	set: func(ctx context.Context, name string, balance, fencingToken int64) error {
		return Set(ctx, db, name, balance, fencingToken)
	},
}

var unfenced = store{
	get: func(ctx context.Context, name string, _ int64) (balance int64, err error) {
		err = db.QueryRow(ctx, `SELECT balance FROM account WHERE name = $1`, name).Scan(&balance)
		return balance, err
	},
	set: func(ctx context.Context, name string, balance, _ int64) error {
		_, err := db.Exec(ctx, unfencedSet, name, balance)
		return err
	},
}

// writesOnlyFenced compares tokens on the write but not on the read.
var writesOnlyFenced = store{get: unfenced.get, set: fenced.set}

func TestWithoutFencingPausedWorkersLoseUpdates(t *testing.T) {
	total := untilFault(t, unfenced, func(r result) int64 { return r.lost })
	t.Logf("%d of %d updates lost", total.lost, total.written)
}

func TestWithFencingPausedWorkersLoseNoUpdate(t *testing.T) {
	total := untilFault(t, fenced, func(r result) int64 { return r.refused })
	assert.Zero(t, total.lost)
	t.Logf("%d updates written, %d refused", total.written, total.refused)
}

// A holder before may write between an unfenced read and the write that depends on it.
func TestToFenceTheWritesOnlyLosesUpdates(t *testing.T) {
	total := untilFault(t, writesOnlyFenced, func(r result) int64 { return r.lost })
	t.Logf("%d of %d updates lost, %d refused", total.lost, total.written, total.refused)
}

// untilFault lets workers run, again and again, until the fault was seen that the pauses are there to cause.
func untilFault(t *testing.T, s store, fault func(result) int64) (total result) {
	for deadline := time.Now().Add(time.Minute); fault(total) == 0; {
		require.True(t, time.Now().Before(deadline), "the fault did not occur")
		r := work(t, s)
		total.written += r.written
		total.refused += r.refused
		total.lost += r.lost
	}
	return total
}

type result struct {
	written int64 // updates that a worker was told had been made
	refused int64 // updates that were answered by ErrStale
	lost    int64 // written, and yet not in the balance
}

// work lets several workers add 1 to one account, each under a lease, with pauses between the read and the
// write that may last longer than the lease.
func work(t *testing.T, s store) result {
	name := newAccount()
	require.NoError(t, Set(t.Context(), db, name, 0, 1))
	var written, refused atomic.Int64
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			locker := leasehold.New(client)
			defer locker.Close()
			for range rounds {
				err := add(t.Context(), locker, s, name)
				switch {
				case err == nil:
					written.Add(1)
				case errors.Is(err, leasehold.ErrStale):
					refused.Add(1)
				default:
					assert.NoError(t, err)
				}
			}
		})
	}
	group.Wait()
	balance, _ := row(t, name)
	return result{written: written.Load(), refused: refused.Load(), lost: written.Load() - balance}
}

func add(ctx context.Context, locker *leasehold.Locker, s store, name string) error {
	lease, err := locker.Acquire(ctx, name, workerTTL)
	if err != nil {
		return err
	}
	defer lease.Release(ctx) // ErrLost after a long pause
	balance, err := s.get(ctx, name, lease.FencingToken())
	if err != nil {
		return err
	}
	time.Sleep(rand.N(2 * workerTTL)) // the garbage collector, a slow disk, a suspended machine
	return s.set(ctx, name, balance+1, lease.FencingToken())
}
