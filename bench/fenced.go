package main

import (
	"context"
	"flag"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-leasehold/leasehold"
)

// fencedRows are the same write three times: a command, a script, and a script that compares fencing tokens first.
var fencedRows = []string{"SET", "EVALSHA", "FencedScript"}

var fenced = workload{
	name:  "fenced",
	about: "one goroutine writes through a FencedScript (use -pin)",
	rows:  fencedRows,
	setup: func(fs *flag.FlagSet) func(context.Context, *bench) error {
		rounds := fs.Int("rounds", 21, "rounds")
		writes := fs.Int("writes", 4000, "writes per round and row")
		return func(ctx context.Context, b *bench) error {
			var turns []turn
			for _, name := range b.pick(fencedRows) {
				turns = append(turns, turn{record{Case: "one goroutine", Column: name}, func() (map[string]float64, error) {
					return writeAll(ctx, b.server, name, *writes)
				}})
			}
			return b.takeTurns(ctx, *rounds, turns, func(measured []map[string]float64) {
				divide(turns, measured, "us", "ratio", func(r record) (string, string) { return r.Case, "EVALSHA" })
			})
		}
	},
	metrics: []metric{
		{"us", "µs per write", "%.1f", median},
		{"ratio", "ratio to EVALSHA", "%.2f", median},
		{"client", "client CPU, µs", "%.1f", median},
		{"redis", "Redis CPU, µs", "%.1f", median},
		{"allocs", "allocations", "%.0f", median},
		{"bytes", "bytes", "%.0f", median},
		{"commands", "commands in the server", "%.2f", median},
	},
}

// setBody is the script; a FencedScript runs the same.
const setBody = `return redis.call('SET', KEYS[1], ARGV[1])`

// fencedWrite returns one write of a row. Its key and the resource are in one slot, as a cluster would want it.
func fencedWrite(name string, rdb *redis.Client) func(context.Context) error {
	const resource, key, value = "{bench}:lock", "{bench}:data", "some text to be kept"
	switch name {
	case "SET":
		return func(ctx context.Context) error { return rdb.Set(ctx, key, value, 0).Err() }
	case "EVALSHA":
		script, keys := redis.NewScript(setBody), []string{key}
		return func(ctx context.Context) error { return script.Run(ctx, rdb, keys, value).Err() }
	default:
		script, keys := leasehold.NewFencedScript(setBody), []string{key}
		fencingToken := time.Now().UnixMicro() // one lease, many writes
		return func(ctx context.Context) error {
			_, err := script.Run(ctx, rdb, resource, fencingToken, keys, value)
			return err
		}
	}
}

func writeAll(ctx context.Context, s *server, name string, writes int) (map[string]float64, error) {
	if err := s.admin.FlushAll(ctx).Err(); err != nil {
		return nil, err
	}
	rdb := redis.NewClient(&redis.Options{Addr: s.addr})
	defer rdb.Close()
	write := fencedWrite(name, rdb)
	run := func(n int) error {
		for range n {
			if err := write(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	if err := run(100); err != nil { // the connection, the script
		return nil, err
	}
	before, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	if err := run(writes); err != nil {
		return nil, err
	}
	d, err := s.since(ctx, before)
	if err != nil {
		return nil, err
	}
	client, script := sent(d.calls)
	n := float64(writes)
	return map[string]float64{
		"us":       micros(d.elapsed) / n,
		"client":   micros(d.client) / n,
		"redis":    micros(d.redis) / n,
		"allocs":   d.mallocs / n,
		"bytes":    d.bytes / n,
		"commands": float64(client+script) / n,
	}, nil
}
