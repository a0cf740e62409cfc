// Package diagnose looks for what is wrong with a Redis deployment for locks. It changes nothing: the keys that it tries
// its rights with are gone when their script returns.
package diagnose

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Finding is what one check has found.
type Finding struct {
	Check, Server      string
	Level              slog.Level
	Found, Why, Advice string
}

// Config is what a Locker knows of its servers.
type Config struct {
	Clients    []redis.UniversalClient // one, or the nodes of a quorum
	Prefix     string
	Quarantine time.Duration // of a quorum's nodes
}

// deployment is one client and what was found behind it.
type deployment struct {
	Config
	client  redis.UniversalClient
	name    string // "": there is one
	found   []Finding
	runs    map[string]bool // the run ids of its servers
	waiting time.Duration   // until the last quarantine is over
}

// bound is for how long one client is looked at.
const bound = 15 * time.Second

// Run makes all checks. Its error is that no deployment could be reached, or the end of ctx; the findings until then are
// returned with it.
func Run(ctx context.Context, c Config) (found []Finding, _ error) {
	var errs []error
	missing, runs := 0, map[string]string{}
	for i, client := range c.Clients {
		d := &deployment{Config: c, client: client, runs: map[string]bool{}}
		if len(c.Clients) > 1 {
			d.name = fmt.Sprintf("node %d", i)
		}
		err := d.look(ctx)
		found = append(found, d.found...)
		if err != nil {
			missing++
			errs = append(errs, err)
			found = append(found, Finding{"reachable", d.name, slog.LevelError, err.Error(), "No lock can be taken there.",
				"Start the server, or mend the address, the password or the network."})
			continue
		}
		if d.waiting > 0 {
			missing++
		}
		for run := range d.runs {
			if other, twice := runs[run]; twice && other != d.name {
				found = append(found, Finding{"nodes", d.name, slog.LevelError, "it is the same server as " + other,
					"One server that votes twice makes a majority alone.", "Give each node a server of its own."})
			}
			runs[run] = d.name
		}
	}
	if n := len(c.Clients); n > 1 && missing > n/2 {
		found = append(found, Finding{"quorum", "", slog.LevelError, fmt.Sprintf("%d of %d nodes do not vote", missing, n),
			"No lock can be taken without a majority.", "Start the nodes, and wait until their quarantine is over."})
	}
	if ctx.Err() != nil {
		return found, context.Cause(ctx)
	}
	if len(errs) == len(c.Clients) {
		return found, errors.Join(errs...)
	}
	return found, nil
}

func (d *deployment) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	if err := d.client.Ping(ctx).Err(); err != nil && !denied(err) {
		return err
	}
	d.rights(ctx)
	d.messages(ctx)
	return d.each(ctx, func(name string, c *redis.Client) { d.server(ctx, name, c) })
}

// each calls look for each server that takes writes.
func (d *deployment) each(ctx context.Context, look func(name string, c *redis.Client)) error {
	type server struct {
		name string
		c    *redis.Client
	}
	servers := make(chan server, 1<<10)
	put := func(_ context.Context, c *redis.Client) error {
		servers <- server{strings.TrimSpace(d.name + " " + c.Options().Addr), c}
		return nil
	}
	var err error
	switch client := d.client.(type) {
	case *redis.ClusterClient:
		err = client.ForEachMaster(ctx, put)
	case *redis.Ring:
		err = client.ForEachShard(ctx, put)
	case *redis.Client:
		_ = put(ctx, client)
	default:
		d.note("servers", d.name, "the type of the client hides the servers", "They could not be looked at.", "Give it the client itself.")
	}
	close(servers)
	for s := range servers {
		look(s.name, s.c)
	}
	return err
}

func (d *deployment) add(level slog.Level, check, server, found, why, advice string) {
	d.found = append(d.found, Finding{check, server, level, found, why, advice})
}

func (d *deployment) fine(check, server, found string) {
	d.add(slog.LevelInfo, check, server, found, "", "")
}
func (d *deployment) note(check, server, found, why, advice string) {
	d.add(slog.LevelWarn, check, server, found, why, advice)
}
func (d *deployment) serious(check, server, found, why, advice string) {
	d.add(slog.LevelError, check, server, found, why, advice)
}

// denied reports whether the server forbids a command, by a right or by a command that was renamed.
func denied(err error) bool {
	if err == nil {
		return false
	}
	text := err.Error()
	return strings.HasPrefix(text, "NOPERM") || strings.Contains(text, "unknown command") || strings.Contains(text, "ACL failure")
}
