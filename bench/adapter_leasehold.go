package main

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-leasehold/leasehold"
)

// leaseholdColumn has its leases renewed by the Locker, or leaves that to the
// holder, which is Acquire's default and costs a waiter one confirmation.
func leaseholdColumn(name string, auto bool) column {
	return column{name: name, renews: auto, token: leaseholdToken, open: func(addr string, ttl time.Duration) (client, error) {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		return &leaseholdClient{rdb: rdb, locker: leasehold.New(rdb, leasehold.WithAutoRenew(auto)), ttl: ttl}, nil
	}}
}

// leaseholdToken is that of a lease that was given back. A waiter looks more
// often where the holder is a client of another library.
func leaseholdToken(ctx context.Context, addr string) (string, error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	locker := leasehold.New(rdb)
	defer locker.Close()
	l, err := locker.TryAcquire(ctx, "bench:token", time.Minute)
	if err != nil {
		return "", err
	}
	return l.Token(), l.Release(ctx)
}

type leaseholdClient struct {
	rdb    redis.UniversalClient
	locker *leasehold.Locker
	ttl    time.Duration
}

type leaseholdLock leasehold.Lease

func (c *leaseholdClient) TryLock(ctx context.Context, name string) (lock, error) {
	l, err := c.locker.TryAcquire(ctx, name, c.ttl)
	if errors.Is(err, leasehold.ErrHeld) {
		return nil, errHeld
	}
	if err != nil {
		return nil, err
	}
	return (*leaseholdLock)(l), nil
}

func (c *leaseholdClient) Lock(ctx context.Context, name string) (lock, error) {
	l, err := c.locker.Acquire(ctx, name, c.ttl)
	if err != nil {
		return nil, err
	}
	return (*leaseholdLock)(l), nil
}

func (l *leaseholdLock) Unlock(ctx context.Context) error {
	return (*leasehold.Lease)(l).Release(ctx)
}

// Renew goes by the TTL that the lease was acquired with.
func (l *leaseholdLock) Renew(ctx context.Context, _ time.Duration) error {
	return (*leasehold.Lease)(l).Renew(ctx)
}

// Lost is asked by the renew workload: a lease may have ended for its holder
// while the key is still there.
func (l *leaseholdLock) Lost() bool {
	return (*leasehold.Lease)(l).Err() != nil
}

func (c *leaseholdClient) Abandon() { c.rdb.Close() }

func (c *leaseholdClient) Close() {
	c.locker.Close()
	c.rdb.Close()
}
