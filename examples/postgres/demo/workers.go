package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/examples/postgres"
)

const (
	workers  = 4
	rounds   = 8 // of each worker
	ttl      = 40 * time.Millisecond
	maxPause = 2 * ttl
)

// store is how a worker reads and writes the account.
type store struct {
	get func(ctx context.Context, db *pgxpool.Pool, name string, fencingToken int64) (int64, error)
	set func(ctx context.Context, db *pgxpool.Pool, name string, balance, fencingToken int64) error
}

var fenced = store{
	get: func(ctx context.Context, db *pgxpool.Pool, name string, fencingToken int64) (int64, error) {
		return postgres.Get(ctx, db, name, fencingToken)
	},
	set: func(ctx context.Context, db *pgxpool.Pool, name string, balance, fencingToken int64) error {
		return postgres.Set(ctx, db, name, balance, fencingToken)
	},
}

var unfenced = store{
	get: func(ctx context.Context, db *pgxpool.Pool, name string, _ int64) (balance int64, err error) {
		err = db.QueryRow(ctx, `SELECT balance FROM account WHERE name = $1`, name).Scan(&balance)
		return balance, err
	},
	set: func(ctx context.Context, db *pgxpool.Pool, name string, balance, _ int64) error {
		_, err := db.Exec(ctx, `UPDATE account SET balance = $2 WHERE name = $1`, name, balance)
		return err
	},
}

// writesFenced compares tokens on the write but not on the read.
var writesFenced = store{get: unfenced.get, set: fenced.set}

// result is what became of the updates.
type result struct {
	written int64 // a worker was told that they had been made
	refused int64 // they were answered by ErrStale
	lost    int64 // written, and yet not in the balance
}

// crew is workers that go from one account to the next.
type crew struct {
	db       *pgxpool.Pool
	redis    *redis.Client
	accounts int
}

// untilFault lets the workers run, again and again, until the fault was seen that the pauses are there to cause, and
// adds up.
func (c *crew) untilFault(ctx context.Context, s store, fault func(result) int64) (total result, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the pauses did no harm for a minute"))
	defer cancel()
	for fault(total) == 0 {
		r, err := c.work(ctx, s)
		if ctx.Err() != nil {
			return total, context.Cause(ctx)
		}
		if err != nil {
			return total, err
		}
		total.written += r.written
		total.refused += r.refused
		total.lost += r.lost
	}
	return total, nil
}

// work lets several workers add 1 to one account, each under a lease, with pauses between the read and the write that
// may last longer than the lease.
func (c *crew) work(ctx context.Context, s store) (r result, err error) {
	c.accounts++
	name := fmt.Sprintf("account:%d", c.accounts)
	if err := postgres.Set(ctx, c.db, name, 0, 1); err != nil {
		return r, err
	}
	var (
		mu    sync.Mutex // guards r and err
		group sync.WaitGroup
	)
	for range workers {
		group.Go(func() {
			locker := leasehold.New(c.redis)
			defer locker.Close()
			for range rounds {
				e := c.add(ctx, locker, s, name)
				mu.Lock()
				switch {
				case e == nil:
					r.written++
				case errors.Is(e, leasehold.ErrStale):
					r.refused++
				default:
					err = errors.Join(err, e)
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	if err != nil {
		return r, err
	}
	balance, err := unfenced.get(ctx, c.db, name, 0)
	r.lost = r.written - balance
	return r, err
}

func (c *crew) add(ctx context.Context, locker *leasehold.Locker, s store, name string) error {
	lease, err := locker.Acquire(ctx, name, ttl)
	if err != nil {
		return err
	}
	defer func() { _ = lease.Release(ctx) }() // ErrLost after a long pause
	balance, err := s.get(ctx, c.db, name, lease.FencingToken())
	if err != nil {
		return err
	}
	time.Sleep(rand.N(maxPause)) // the garbage collector, a slow disk, a suspended machine
	return s.set(ctx, c.db, name, balance+1, lease.FencingToken())
}
