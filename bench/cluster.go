package main

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"

	"github.com/go-leasehold/leasehold"
)

// cluster is parallel on a cluster of one node. There leasehold sends no script for the locks of several callers, since a
// command of a cluster may not name keys of several slots. So this is also what many callers get from a Redis that refuses
// such scripts.
var cluster = workload{
	name:  "cluster",
	about: "the same on a cluster of one node",
	setup: func(fs *flag.FlagSet) func(context.Context, *bench) error {
		rounds := fs.Int("rounds", 11, "rounds")
		goroutines := fs.Int("goroutines", 64, "goroutines and keys")
		span := fs.Duration("for", 500*time.Millisecond, "time per round and column")
		return func(ctx context.Context, b *bench) error {
			s, err := startClusterOfOne(ctx)
			if err != nil {
				return err
			}
			single := b.server
			b.server = s
			defer func() {
				b.server = single
				s.stop()
			}()
			cols := b.columns("raw", "redislock", "leasehold")
			for i := range cols {
				cols[i].open = openOnCluster[cols[i].name]
			}
			as := record{Case: fmt.Sprintf("%d goroutines, %d keys, a cluster", *goroutines, *goroutines)}
			return b.interleave(ctx, *rounds, as, perRaw("cycles"), cols, func(c column) (map[string]float64, error) {
				return cyclesInParallel(ctx, s, c, *goroutines, *span)
			})
		}
	},
	metrics: ofParallel,
}

var openOnCluster = map[string]func(addr string, ttl time.Duration) (client, error){
	"raw": func(addr string, ttl time.Duration) (client, error) {
		return &rawClient{rdb: clusterClient(addr), ttl: ttl}, nil
	},
	"redislock": func(addr string, ttl time.Duration) (client, error) {
		rdb := clusterClient(addr)
		return &redislockClient{rdb: rdb, locks: redislock.New(rdb), ttl: ttl}, nil
	},
	"leasehold": func(addr string, ttl time.Duration) (client, error) {
		rdb := clusterClient(addr)
		return &leaseholdClient{rdb: rdb, locker: leasehold.New(rdb, leasehold.WithAutoRenew(true)), ttl: ttl}, nil
	},
}

func clusterClient(addr string) *redis.ClusterClient {
	return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}})
}

// startClusterOfOne starts a server that is a cluster by itself.
func startClusterOfOne(ctx context.Context) (*server, error) {
	s, err := startServer(ctx, "--cluster-enabled", "yes")
	if err != nil {
		return nil, err
	}
	err = s.admin.ClusterAddSlotsRange(ctx, 0, 16383).Err()
	for err == nil && !strings.Contains(s.admin.ClusterInfo(ctx).Val(), "cluster_state:ok") {
		pause(ctx, 50*time.Millisecond)
		err = ctx.Err()
	}
	if err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}
