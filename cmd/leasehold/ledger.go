package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-leasehold/leasehold"
)

// A ledger is a number in Redis. Who wants to add to it reads it and writes the sum, which is wrong as soon as
// somebody else has written in between.
type ledger interface {
	read(ctx context.Context, client *redis.Client, fencingToken int64) (int, error)
	write(ctx context.Context, client *redis.Client, fencingToken int64, n int) error
}

const ledgerLife = time.Minute

// plain is a ledger, by its key, that takes every write.
type plain string

func (l plain) read(ctx context.Context, client *redis.Client, _ int64) (int, error) {
	return client.Get(ctx, string(l)).Int()
}

func (l plain) write(ctx context.Context, client *redis.Client, _ int64, n int) error {
	return client.Set(ctx, string(l), n, ledgerLife).Err()
}

// fenced is a ledger, by its key, that takes nothing from a holder who is out of date. Reading raises the mark
// as well: once a newer holder has read, the older one can no longer write between that and the newer one's write.
type fenced string

var (
	readFenced  = leasehold.NewFencedScript(`return redis.call('GET', KEYS[1])`)
	writeFenced = leasehold.NewFencedScript(`redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])`)
)

func (l fenced) read(ctx context.Context, client *redis.Client, fencingToken int64) (int, error) {
	v, err := readFenced.Run(ctx, client, string(l), fencingToken, []string{string(l)})
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(fmt.Sprint(v))
}

func (l fenced) write(ctx context.Context, client *redis.Client, fencingToken int64, n int) error {
	_, err := writeFenced.Run(ctx, client, string(l), fencingToken, []string{string(l)}, n, int(ledgerLife/time.Second))
	return err
}

// An account is kept in two ledgers, the first one plain and the second one fenced.
type account [2]ledger

func (a account) read(ctx context.Context, client *redis.Client, fencingToken int64) (sums [2]int, err error) {
	for i, l := range a {
		if sums[i], err = l.read(ctx, client, fencingToken); err != nil {
			return sums, err
		}
	}
	return sums, nil
}

// add writes n more than was read.
func (a account) add(ctx context.Context, client *redis.Client, fencingToken int64, read [2]int, n int) (errs [2]error) {
	for i, l := range a {
		errs[i] = l.write(ctx, client, fencingToken, read[i]+n)
	}
	return errs
}
