package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"time"

	"github.com/go-leasehold/leasehold/internal/script"
	"github.com/go-leasehold/leasehold/internal/short"
	"github.com/redis/go-redis/v9"
)

// floorCounter makes a counter where there is none, or one of another hour. The full script would see to that.
var floorCounter = redis.NewScript(`redis.call("SET", KEYS[2], string.format("%.0f", redis.call("TIME")[1] * 1000000), "EX", 3600) return 1`)

// floorColumn is this library's own short scripts, sent by bare go-redis: what a lock with such a fencing token costs at least.
func floorColumn() column {
	return column{name: "floor", open: func(addr string, ttl time.Duration) (client, error) {
		c := &floorClient{rdb: redis.NewClient(&redis.Options{Addr: addr}), ttl: ttl}
		for _, sc := range []*script.Script{short.Acquire.One, short.Release.One} {
			if err := c.rdb.ScriptLoad(context.Background(), sc.Src).Err(); err != nil {
				return nil, err
			}
		}
		return c, nil
	}}
}

type floorClient struct {
	noWait
	rdb *redis.Client
	ttl time.Duration
}

type floorLock struct {
	c     *floorClient
	keys  []string
	token string
}

func (c *floorClient) TryLock(ctx context.Context, name string) (lock, error) {
	var b [16]byte
	rand.Read(b[:])
	l := &floorLock{c: c, keys: []string{name, name + ":counter"}, token: hex.EncodeToString(b[:])}
	for first := true; ; first = false {
		n, err := c.rdb.EvalSha(ctx, short.Acquire.One.Hash.(string), l.keys, l.token, c.ttl.Milliseconds()).Int64()
		switch {
		case n > 0 || err != nil:
			return l, err
		case !first:
			return nil, errHeld
		}
		if err := floorCounter.Run(ctx, c.rdb, l.keys).Err(); err != nil {
			return nil, err
		}
	}
}

func (l *floorLock) Unlock(ctx context.Context) error {
	return yes(l.c.rdb.EvalSha(ctx, short.Release.One.Hash.(string), l.keys, l.token).Int64())
}

func (l *floorLock) Renew(ctx context.Context, ttl time.Duration) error {
	return yes(rawRenew.Run(ctx, l.c.rdb, l.keys[:1], l.token, ttl.Milliseconds()).Int64())
}

func (c *floorClient) Abandon() { c.rdb.Close() }
func (c *floorClient) Close()   { c.rdb.Close() }
