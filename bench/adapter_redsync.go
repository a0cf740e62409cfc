package main

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// redsyncColumn retries every so often, or as redsync does by default: 32
// times after a random 50 to 250 ms.
func redsyncColumn(name string, retry time.Duration) column {
	return column{name: name, sends: []string{"set"}, open: func(addr string, ttl time.Duration) (client, error) {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		c := &redsyncClient{rdb: rdb, rs: redsync.New(goredis.NewPool(rdb)), opts: []redsync.Option{redsync.WithExpiry(ttl)}}
		if retry > 0 {
			c.opts = append(c.opts, redsync.WithRetryDelay(retry), redsync.WithTries(math.MaxInt))
		}
		return c, nil
	}}
}

type redsyncClient struct {
	rdb  *redis.Client
	rs   *redsync.Redsync
	opts []redsync.Option
}

type redsyncLock redsync.Mutex

func (c *redsyncClient) TryLock(ctx context.Context, name string) (lock, error) {
	m := c.rs.NewMutex(name, c.opts...)
	if err := m.TryLockContext(ctx); err != nil {
		return nil, redsyncError(err)
	}
	return (*redsyncLock)(m), nil
}

func (c *redsyncClient) Lock(ctx context.Context, name string) (lock, error) {
	m := c.rs.NewMutex(name, c.opts...)
	for {
		err := redsyncError(m.LockContext(ctx))
		switch {
		case err == nil:
			return (*redsyncLock)(m), nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case !errors.Is(err, errHeld):
			return nil, err
		}
	}
}

func redsyncError(err error) error {
	if taken := new(redsync.ErrTaken); errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) {
		return errHeld
	}
	return err
}

func (l *redsyncLock) Unlock(ctx context.Context) error {
	ok, err := (*redsync.Mutex)(l).UnlockContext(ctx)
	if !ok && err == nil {
		err = errNotOurs
	}
	return err
}

// Renew goes by the expiry that the mutex was made with.
func (l *redsyncLock) Renew(ctx context.Context, _ time.Duration) error {
	ok, err := (*redsync.Mutex)(l).ExtendContext(ctx)
	if !ok && err == nil {
		err = errNotOurs
	}
	return err
}

func (c *redsyncClient) Abandon() { c.rdb.Close() }
func (c *redsyncClient) Close()   { c.rdb.Close() }
