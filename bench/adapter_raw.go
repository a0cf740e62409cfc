package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	rawRelease = redis.NewScript(`if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`)
	rawRenew   = redis.NewScript(`if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("PEXPIRE", KEYS[1], ARGV[2]) end return 0`)
	rawFenced  = redis.NewScript(`if redis.call("SET", KEYS[1], ARGV[1], "NX", "PX", ARGV[2]) then return redis.call("INCR", KEYS[2]) end return 0`)
)

// rawColumn is what a lock costs at least with go-redis: SET NX PX, and
// EVALSHA of a compare-and-delete.
func rawColumn() column {
	return column{name: "raw", sends: []string{"set"}, open: func(addr string, ttl time.Duration) (client, error) {
		return &rawClient{rdb: redis.NewClient(&redis.Options{Addr: addr}), ttl: ttl}, nil
	}}
}

// rawFenceColumn is the same with a fencing token, which needs a script to
// acquire as well.
func rawFenceColumn() column {
	return column{name: "raw+fence", open: func(addr string, ttl time.Duration) (client, error) {
		return &rawClient{rdb: redis.NewClient(&redis.Options{Addr: addr}), ttl: ttl, fence: true}, nil
	}}
}

type rawClient struct {
	noWait
	rdb   redis.UniversalClient
	ttl   time.Duration
	fence bool
}

type rawLock struct {
	c           *rawClient
	name, token string
	fence       int64
}

func (c *rawClient) TryLock(ctx context.Context, name string) (lock, error) {
	var b [16]byte
	rand.Read(b[:])
	l := &rawLock{c: c, name: name, token: hex.EncodeToString(b[:])}
	if c.fence {
		n, err := rawFenced.Run(ctx, c.rdb, []string{name, name + ":fence"}, l.token, c.ttl.Milliseconds()).Int64()
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return nil, errHeld
		}
		l.fence = n
		return l, nil
	}
	err := c.rdb.SetArgs(ctx, name, l.token, redis.SetArgs{Mode: "NX", TTL: c.ttl}).Err()
	if errors.Is(err, redis.Nil) {
		return nil, errHeld
	}
	return l, err
}

func (l *rawLock) Unlock(ctx context.Context) error {
	return yes(rawRelease.Run(ctx, l.c.rdb, []string{l.name}, l.token).Int64())
}

func (l *rawLock) Renew(ctx context.Context, ttl time.Duration) error {
	return yes(rawRenew.Run(ctx, l.c.rdb, []string{l.name}, l.token, ttl.Milliseconds()).Int64())
}

func yes(n int64, err error) error {
	if err == nil && n == 0 {
		return errNotOurs
	}
	return err
}

func (c *rawClient) Abandon() { c.rdb.Close() }
func (c *rawClient) Close()   { c.rdb.Close() }
