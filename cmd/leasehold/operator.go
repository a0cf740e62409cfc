package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-leasehold/leasehold"
)

const inspectUsage = `Usage: leasehold inspect [-redis URL] [-prefix P] KEY

inspect says who holds a lock, for how long, and how many wait for it. It
changes nothing, and its answer may be out of date when you read it.

Example:

	leasehold inspect -redis redis://10.0.0.7:6379/0 invoice:7
`

const releaseUsage = `Usage: leasehold release [-redis URL] [-prefix P] [-yes] KEY

release takes a lock from whoever holds it and gives it to the first waiter. It
asks before it does so. A holder that is alive works on until its next renewal:
only a resource that checks fencing tokens refuses its writes. A key that is no
lock, since something of another type is there, is deleted.

Example:

	leasehold release -redis redis://10.0.0.7:6379/0 invoice:7
`

// lockCommand is a command about one lock.
type lockCommand struct {
	*command
	key    string
	prefix string
}

func newLockCommand(name, usage string) *lockCommand {
	c := &lockCommand{command: newCommand(name, usage, "the `URL` of the Redis; default redis://127.0.0.1:6379/0")}
	c.redis = &redis.Options{Addr: "127.0.0.1:6379"}
	c.StringVar(&c.prefix, "prefix", "", "the `P` of WithKeyPrefix, where it is used; KEY is then without it")
	return c
}

// with parses the command line and runs do with a Locker for it.
func (c *lockCommand) with(p *program, args []string, do func(context.Context, *leasehold.Locker) error) int {
	if status, ok := p.parse(c.command, args, &c.key); !ok {
		return status
	}
	client := redis.NewClient(c.redis)
	defer client.Close()
	locker := leasehold.New(client, leasehold.WithKeyPrefix(c.prefix))
	defer locker.Close()
	if err := do(context.Background(), locker); err != nil {
		fmt.Fprintf(p.errw, "leasehold %s: %v\n", c.Name(), err)
		return exitFailed
	}
	return exitOK
}

func (p *program) inspect(args []string) int {
	c := newLockCommand("inspect", inspectUsage)
	return c.with(p, args, func(ctx context.Context, locker *leasehold.Locker) error {
		state, err := locker.Inspect(ctx, c.key)
		if err != nil {
			return err
		}
		describe(p.out, state)
		return nil
	})
}

func (p *program) release(args []string) int {
	c := newLockCommand("release", releaseUsage)
	yes := c.Bool("yes", false, "do not ask")
	return c.with(p, args, func(ctx context.Context, locker *leasehold.Locker) error {
		if !*yes {
			state, err := locker.Inspect(ctx, c.key)
			switch {
			case err == nil:
				describe(p.out, state)
			case redis.HasErrorPrefix(err, "WRONGTYPE"):
				fmt.Fprintf(p.out, "%q is no lock: it has another type\n", c.prefix+c.key)
			default:
				return err
			}
			fmt.Fprint(p.out, "Release it, whoever holds it by then? Type yes: ")
			answer, _ := bufio.NewReader(p.in).ReadString('\n')
			if strings.TrimSpace(answer) != "yes" {
				return fmt.Errorf("%q is not released", c.prefix+c.key)
			}
		}
		if err := locker.ForceRelease(ctx, c.key); err != nil {
			return err
		}
		fmt.Fprintln(p.out, "released")
		return nil
	})
}

// describe prints the state of a lock, a line for each thing known.
func describe(w io.Writer, s leasehold.LockState) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer func() { _ = t.Flush() }()
	fmt.Fprintf(t, "key\t%q\n", s.Key)
	switch {
	case !s.Held:
		fmt.Fprint(t, "held\tno\n")
	case s.Owner == "":
		fmt.Fprint(t, "held\tyes, by a holder without a label\n")
	default:
		fmt.Fprintf(t, "held\tyes, by %q\n", s.Owner)
	}
	switch {
	case s.Held && s.TTL < 0:
		fmt.Fprint(t, "expires\tnever: no lease has that, so it is not one of this library\n")
	case s.Held:
		fmt.Fprintf(t, "expires\tin %v\n", s.TTL.Round(time.Millisecond))
	}
	fmt.Fprintf(t, "waiting\t%d\n", s.Waiters)
	if s.FencingToken > 0 {
		fmt.Fprintf(t, "fencing token\t%d\n", s.FencingToken)
	}
}
