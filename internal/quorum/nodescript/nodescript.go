// Package nodescript has the scripts that a quorum runs on each of its nodes, and reads their replies. A script runs on one node
// alone, and knows of no other.
package nodescript

import (
	"context"
	"embed"

	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/roundtrip"
	"github.com/go-leasehold/leasehold/internal/script"
)

//go:embed *.lua
var files embed.FS

// The scripts. Their files say what each is given, what it replies, and what it never does.
var (
	Acquire = script.Load(files, "acquire.lua", nil)
	Renew   = script.Load(files, "renew.lua", nil) // also the raise, by which a node accepts a fencing token
	Refill  = script.Load(files, "refill.lua", nil)
	Release = script.Load(files, "release.lua", nil)
	Inspect = script.Load(files, "inspect.lua", nil)
)

// Renewals is the form of Renew in which renewals of several leases on a node share one run of a script, each under a token under
// which the node has accepted the fencing token.
var Renewals = &roundtrip.Short{Many: script.Load(files, "renewals.lua", nil), Keys: []int{0, 1}, Millis: true, Nothing: 0}

// Keys are those that the scripts declare: the lock, and its fencing counter. They are made once for a lease, since each costs an
// allocation.
type Keys [2]any

// KeysOf returns the keys of the lock at that key.
func KeysOf(prefix, key string) Keys {
	var buf [128]byte
	return Keys{key, string(rediskey.Derive(buf[:0], prefix, rediskey.Counter, key))}
}

// ReleaseCommand prepares the run of Release on the lock: with the token, and then args. It has no use for the counter or a time.
func ReleaseCommand(ctx context.Context, keys *Keys, token string, args ...any) *roundtrip.Command {
	c := roundtrip.New(ctx, Release, token, 0, keys[0])
	c.AddToken()
	c.Add(args...)
	return c
}

// Command prepares the run of any other script on the keys of a lock: with the token, the milliseconds, and then args.
func Command(ctx context.Context, sc *script.Script, keys *Keys, token string, px int64, args ...any) *roundtrip.Command {
	c := roundtrip.New(ctx, sc, token, px, keys[:]...)
	c.AddToken()
	c.AddMillis()
	c.Add(args...)
	return c
}
