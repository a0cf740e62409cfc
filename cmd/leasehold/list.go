package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-leasehold/leasehold"
)

const listText = `list shows the locks that are held or waited for, and whose keys begin with P. It
finds them by their fencing counters, which outlive a lease by a week. So locks
that other libraries took are not in the list.

It reads all names with SCAN, a part at a time, so Redis serves others meanwhile.
The list may be out of date when you read it.

Examples:

	leasehold list -redis redis://10.0.0.7:6379/0 -prefix invoice:
	leasehold list -all -json
`

func newList() *command {
	c := newCommand("list", "lists the locks whose keys begin with a prefix", "[-redis URL] [-prefix P] [-all] [-json]", listText)
	c.withRedis()
	c.Lookup("prefix").Usage = "list the locks whose Redis keys begin with `P`"
	c.withJSON()
	all := c.Bool("all", false, "list also the locks that were free since their last lease")
	c.do = func(p *program) (int, error) {
		want := c.servers.prefix
		c.servers.prefix = ""
		ctx, stop := p.interruptible()
		defer stop()
		return c.list(ctx, p, want, *all)
	}
	return c
}

// A lockName is a lock as the name of its counter tells it.
type lockName struct{ prefix, key string } // prefix is that of WithKeyPrefix, and key begins with it

func (c *command) list(ctx context.Context, p *program, want string, all bool) (int, error) {
	lockers := map[string]*leasehold.Locker{}
	first, clients, done, err := c.servers.open()
	if err != nil {
		return exitUsage, err
	}
	defer done()
	lockers[""] = first
	names, err := scan(ctx, clients, want)
	if err != nil {
		return exitRedis, err
	}
	t := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	defer func() { _ = t.Flush() }()
	shown := 0
	for _, name := range names {
		l := lockers[name.prefix]
		if l == nil {
			s := c.servers
			s.prefix = name.prefix
			var end func()
			if l, _, end, err = s.open(); err != nil {
				return exitRedis, err
			}
			defer end()
			lockers[name.prefix] = l
		}
		state, err := l.Inspect(ctx, strings.TrimPrefix(name.key, name.prefix))
		switch {
		case err != nil && redis.HasErrorPrefix(err, "WRONGTYPE"):
			continue // something else is there
		case err != nil:
			return exitRedis, err
		case !all && !state.Held && state.Waiters == 0:
			continue
		case c.json:
			p.print(jsonOf(state))
			continue
		}
		if shown++; shown == 1 {
			fmt.Fprintln(t, "KEY\tHOLDER\tEXPIRES IN\tWAITING\tFENCING TOKEN")
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\n", printable(state.Key), holder(state), expiry(state), state.Waiters, state.FencingToken)
	}
	return exitOK, nil
}

func holder(s leasehold.LockState) string {
	switch {
	case !s.Held:
		return "-"
	case s.Resting:
		return "(rests)"
	case s.Holders > 1:
		return fmt.Sprintf("(%d holders)", s.Holders)
	case s.Owner == "":
		return "(no label)"
	}
	return s.Owner
}

func expiry(s leasehold.LockState) string {
	switch {
	case !s.Held:
		return "-"
	case s.TTL < 0:
		return "never"
	}
	return s.TTL.Round(100 * time.Millisecond).String()
}

// printable is the key, quoted if a terminal could take it for something else.
func printable(key string) string {
	if q := fmt.Sprintf("%q", key); q != `"`+key+`"` || strings.Contains(key, " ") {
		return q
	}
	return key
}

// scan finds the locks on all servers whose keys begin with want, sorted by key.
func scan(ctx context.Context, clients []redis.UniversalClient, want string) (names []lockName, _ error) {
	var mu sync.Mutex // guards names: a cluster's servers are asked side by side
	one := func(ctx context.Context, c redis.Cmdable) error {
		for cursor := uint64(0); ; {
			keys, next, err := c.Scan(ctx, cursor, "*"+counterMark+"*", 1000).Result()
			if err != nil {
				return err
			}
			mu.Lock()
			for _, counter := range keys {
				if name, ok := nameOf(counter); ok && strings.HasPrefix(name.key, want) {
					names = append(names, name)
				}
			}
			mu.Unlock()
			if cursor = next; cursor == 0 {
				return nil
			}
		}
	}
	for _, client := range clients {
		var err error
		if cluster, ok := client.(*redis.ClusterClient); ok {
			err = cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return one(ctx, c) })
		} else {
			err = one(ctx, client)
		}
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(names, func(a, b lockName) int { return strings.Compare(a.key+"\x00"+a.prefix, b.key+"\x00"+b.prefix) })
	return slices.Compact(names), nil
}

const counterMark = "leasehold:counter:"

// nameOf is the lock that a fencing counter belongs to. The three forms of its name are in the runbook.
func nameOf(counter string) (lockName, bool) {
	prefix, rest, ok := strings.Cut(counter, counterMark)
	if !ok || rest == "" {
		return lockName{}, false
	}
	if key, tagged := strings.CutPrefix(rest, ":"); tagged {
		return lockName{prefix, key}, strings.HasPrefix(key, prefix)
	}
	tag, tail, ok := strings.Cut(strings.TrimPrefix(rest, "{"), "}")
	key := tag
	if tail != "" {
		key = tail // the tag is a number that stands for the slot
	}
	return lockName{prefix, key}, ok && rest[0] == '{' && key != "" && strings.HasPrefix(key, prefix)
}
