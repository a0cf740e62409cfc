package main

import (
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

const rueidisPrefix = "rueidislock" // its default

// rueidislockColumn has the options of rueidislock's README: one key per lock,
// as the others have, in place of the default three, and no invalidations for what it wrote itself,
// without which each renewal here sets off the next. It renews every third of
// the TTL, as the others do, in place of every half.
func rueidislockColumn() column {
	return column{
		name:   "rueidislock",
		renews: true,
		key:    func(name string) string { return rueidisPrefix + ":0:" + name },
		open: func(addr string, ttl time.Duration) (client, error) {
			locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
				ClientOption:   rueidis.ClientOption{InitAddress: []string{addr}},
				KeyPrefix:      rueidisPrefix,
				KeyMajority:    1,
				NoLoopTracking: true,
				KeyValidity:    ttl,
				ExtendInterval: ttl / 3,
			})
			if err != nil {
				return nil, err
			}
			return rueidislockClient{locker}, nil
		},
	}
}

type rueidislockClient struct{ locker rueidislock.Locker }

type rueidislockLock context.CancelFunc

// TryLock tries again when the attempt took longer than the 20 ms that
// rueidislock grants it, which says nothing about the lock.
func (c rueidislockClient) TryLock(ctx context.Context, name string) (lock, error) {
	for {
		_, cancel, err := c.locker.TryWithContext(ctx, name)
		switch {
		case err == nil:
			return rueidislockLock(cancel), nil
		case errors.Is(err, rueidislock.ErrNotLocked):
			return nil, errHeld
		case !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil:
			return nil, err
		}
	}
}

func (c rueidislockClient) Lock(ctx context.Context, name string) (lock, error) {
	_, cancel, err := c.locker.WithContext(ctx, name)
	if err != nil {
		return nil, err
	}
	return rueidislockLock(cancel), nil
}

// Unlock waits until the key is deleted, and does not say whether it was.
func (l rueidislockLock) Unlock(context.Context) error {
	l()
	return nil
}

func (l rueidislockLock) Renew(context.Context, time.Duration) error {
	return errors.ErrUnsupported
}

func (c rueidislockClient) Abandon() { c.locker.Client().Close() }
func (c rueidislockClient) Close()   { c.locker.Close() }
