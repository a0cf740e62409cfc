package main

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

// redislockColumn waits with a retry every so often; redislock has no default
// for that. TryLock passes no options.
func redislockColumn(name string, retry time.Duration) column {
	return column{name: name, open: func(addr string, ttl time.Duration) (client, error) {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		return &redislockClient{rdb: rdb, locks: redislock.New(rdb), ttl: ttl,
			wait: &redislock.Options{RetryStrategy: redislock.LinearBackoff(retry)}}, nil
	}}
}

type redislockClient struct {
	rdb   redis.UniversalClient
	locks *redislock.Client
	ttl   time.Duration
	wait  *redislock.Options
}

type redislockLock redislock.Lock

func (c *redislockClient) TryLock(ctx context.Context, name string) (lock, error) {
	return c.obtain(ctx, name, nil)
}

func (c *redislockClient) Lock(ctx context.Context, name string) (lock, error) {
	for {
		// Without a deadline Obtain gives up after one TTL.
		l, err := c.obtain(ctx, name, c.wait)
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return l, err
		}
	}
}

func (c *redislockClient) obtain(ctx context.Context, name string, opts *redislock.Options) (lock, error) {
	l, err := c.locks.Obtain(ctx, name, c.ttl, opts)
	if errors.Is(err, redislock.ErrNotObtained) {
		return nil, errHeld
	}
	if err != nil {
		return nil, err
	}
	return (*redislockLock)(l), nil
}

func (l *redislockLock) Unlock(ctx context.Context) error {
	return (*redislock.Lock)(l).Release(ctx)
}

func (l *redislockLock) Renew(ctx context.Context, ttl time.Duration) error {
	return (*redislock.Lock)(l).Refresh(ctx, ttl, nil)
}

func (c *redislockClient) Abandon() { c.rdb.Close() }
func (c *redislockClient) Close()   { c.rdb.Close() }
