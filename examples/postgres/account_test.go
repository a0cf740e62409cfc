package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
)

var accounts atomic.Int64

// newAccount returns a name that no test has used.
func newAccount() string { return fmt.Sprintf("account:%d", 100+accounts.Add(1)) }

// row reads an account without touching its mark.
func row(t *testing.T, name string) (balance, fencingToken int64) {
	t.Helper()
	const get = `SELECT balance, fencing_token FROM account WHERE name = $1`
	require.NoError(t, db.QueryRow(t.Context(), get, name).Scan(&balance, &fencingToken))
	return balance, fencingToken
}

func requireStale(t *testing.T, err error, token, highest int64) {
	t.Helper()
	require.ErrorIs(t, err, leasehold.ErrStale)
	var stale *leasehold.StaleError
	require.ErrorAs(t, err, &stale)
	assert.Equal(t, leasehold.StaleError{Token: token, Highest: highest}, *stale)
}

func TestSetWritesUnderATokenAtOrAboveTheHighest(t *testing.T) {
	ctx, name := t.Context(), newAccount()
	require.NoError(t, Set(ctx, db, name, 100, 33), "the first write")
	require.NoError(t, Set(ctx, db, name, 200, 33))
	require.NoError(t, Set(ctx, db, name, 300, math.MaxInt64-1))
	requireStale(t, Set(ctx, db, name, 400, math.MaxInt64-2), math.MaxInt64-2, math.MaxInt64-1)
	balance, mark := row(t, name)
	assert.Equal(t, int64(300), balance)
	assert.Equal(t, int64(math.MaxInt64-1), mark)
}

func TestGetRefusesTheHolderBefore(t *testing.T) {
	ctx, name := t.Context(), newAccount()
	balance, err := Get(ctx, db, name, 33)
	require.NoError(t, err)
	assert.Zero(t, balance)
	require.NoError(t, Set(ctx, db, name, 100, 33))

	balance, err = Get(ctx, db, name, 34)
	require.NoError(t, err)
	assert.Equal(t, int64(100), balance)
	requireStale(t, Set(ctx, db, name, 200, 33), 33, 34)
	_, err = Get(ctx, db, name, 33)
	requireStale(t, err, 33, 34)
}

func TestTheTableTakesNoTokenBelowOne(t *testing.T) {
	ctx, name := t.Context(), newAccount()
	for _, token := range []int64{0, -1} {
		require.ErrorContains(t, Set(ctx, db, name, 100, token), "check constraint")
		_, err := Get(ctx, db, name, token)
		require.ErrorContains(t, err, "check constraint")
	}
}

func TestOfManyFirstWritesTheHighestTokenStays(t *testing.T) {
	const writers = 16
	for range 10 {
		name := newAccount()
		var group sync.WaitGroup
		for token := int64(1); token <= writers; token++ {
			group.Go(func() {
				if err := Set(t.Context(), db, name, token*10, token); err != nil {
					assert.ErrorIs(t, err, leasehold.ErrStale)
				}
			})
		}
		group.Wait()
		balance, mark := row(t, name)
		require.Equal(t, int64(writers), mark)
		require.Equal(t, int64(writers*10), balance)
	}
}

func TestTransferMovesAllOrNothing(t *testing.T) {
	ctx, from, to := t.Context(), newAccount(), newAccount()
	require.NoError(t, Set(ctx, db, from, 100, 33))
	require.NoError(t, Transfer(ctx, db, from, to, 30, 33))
	require.ErrorContains(t, Transfer(ctx, db, from, to, 71, 33), "not enough money")

	require.NoError(t, Set(ctx, db, to, 30, 35)) // the second row has seen a later holder, the first has not
	requireStale(t, Transfer(ctx, db, from, to, 1, 34), 34, 35)
	balance, mark := row(t, from)
	assert.Equal(t, int64(70), balance)
	assert.Equal(t, int64(33), mark, "a transaction that was refused left a mark")
	balance, _ = row(t, to)
	assert.Equal(t, int64(30), balance)
}

// A later holder that comes in the middle of a transaction waits for its end and finds what it wrote.
func TestATransactionHoldsTheRowFromItsFirstStatement(t *testing.T) {
	ctx, name := t.Context(), newAccount()
	require.NoError(t, Set(ctx, db, name, 100, 33))
	tx, err := db.Begin(ctx)
	require.NoError(t, err)
	defer tx.Rollback(context.WithoutCancel(ctx))
	balance, err := Get(ctx, tx, name, 33)
	require.NoError(t, err)

	later := make(chan int64, 1)
	go func() {
		balance, err := Get(ctx, db, name, 34)
		assert.NoError(t, err)
		later <- balance
	}()
	require.Eventually(t, func() bool {
		var waiting int
		err := db.QueryRow(ctx, `SELECT count(*) FROM pg_locks WHERE NOT granted`).Scan(&waiting)
		return err == nil && waiting > 0
	}, 30*time.Second, 20*time.Millisecond, "the later holder does not wait")
	require.NoError(t, Set(ctx, tx, name, balance+1, 33))
	require.NoError(t, tx.Commit(ctx))
	assert.Equal(t, int64(101), <-later)
}

func Example() {
	ctx := context.Background()
	locker := leasehold.New(client)
	defer locker.Close()

	first, err := locker.TryAcquire(ctx, "account:7", time.Minute)
	check(err)
	fmt.Println(Set(ctx, db, "account:7", 100, first.FencingToken()))

	check(first.Release(ctx)) // or it ran out, while this process was paused
	second, err := locker.TryAcquire(ctx, "account:7", time.Minute)
	check(err)
	balance, err := Get(ctx, db, "account:7", second.FencingToken())
	fmt.Println(balance, err)

	err = Set(ctx, db, "account:7", 0, first.FencingToken())
	fmt.Println(errors.Is(err, leasehold.ErrStale))
	check(second.Release(ctx))
	// Output:
	// <nil>
	// 100 <nil>
	// true
}
