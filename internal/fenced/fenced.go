// Package fenced runs a script of the user's behind a comparison of fencing tokens, in one atomic step.
package fenced

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"

	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/redis/go-redis/v9"
)

//go:embed fenced.lua
var lua string

// Stale is the refusal of a fencing token: the resource has seen a higher one.
type Stale struct{ Highest int64 }

func (e *Stale) Error() string { return fmt.Sprintf("the resource has seen %d", e.Highest) }

// New makes the script whose body is given. It sends nothing.
func New(body string) *redis.Script {
	return redis.NewScript("local body = (function() " + body + "\nend)\n" + lua)
}

// Run runs a script that New has made, for the fencing token of an exclusive or a shared lease. An error that matches
// fault.ErrInvalid comes before anything was sent. After a Stale, and after an error about the mark, the body did not run.
func Run(ctx context.Context, client redis.Scripter, script *redis.Script, resource string, token int64, shared bool, keys []string, args []any) (any, error) {
	if _, ok := client.(redis.Pipeliner); ok {
		return nil, fault.Invalid("a pipeline has no answer when Run returns")
	}
	home := rediskey.Slot(resource)
	for _, key := range keys {
		if s := rediskey.Slot(key); s != home {
			return nil, fault.Invalid("key %s is in cluster slot %d, the resource in %d: give them one {tag}", fault.Quote(key), s, home)
		}
	}

	// The mark is the first key because a redis.Ring picks the server by it: one mark for each resource, whatever keys a script has.
	mark := string(rediskey.Derive(nil, "", rediskey.Fenced, resource))
	allKeys := append([]string{mark}, keys...)
	last := strconv.FormatInt(token, 10)
	if shared {
		last = "r" + last
	}
	allArgs := append(args[:len(args):len(args)], last)
	reply, err := script.Run(ctx, client, allKeys, allArgs...).Slice()
	if err != nil {
		return nil, fault.Weigh(err)
	}

	// A body's nil ends the reply: Lua has no nil at the end of a table.
	switch {
	case len(reply) == 1 && reply[0] == int64(1):
		return nil, nil
	case len(reply) == 2 && reply[0] == int64(1):
		return reply[1], nil
	case len(reply) == 2 && reply[0] == int64(0):
		highest, err := strconv.ParseInt(fmt.Sprint(reply[1]), 10, 64)
		if err != nil || highest <= token || strconv.FormatInt(highest, 10) != reply[1] {
			return nil, fmt.Errorf("the fencing mark %s holds %s, which is no fencing token", fault.Quote(mark), fault.Quote(fmt.Sprint(reply[1])))
		}
		return nil, &Stale{highest}
	}
	return nil, fmt.Errorf("%w %v", fault.ErrReply, reply)
}
