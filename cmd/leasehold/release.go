package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/redis/go-redis/v9"
)

const releaseText = `release takes a lock from whoever holds it and gives it to the first waiter. It
says who held it, and asks before it does so. A holder that is alive works on
until its next renewal: only a resource that checks fencing tokens refuses its
writes. A key that is no lock, since something of another type is there, is
deleted.

The exit status is 0 if nobody of before holds the lock any more, and 1 if the
answer was not yes.

Example:

	leasehold release -redis redis://10.0.0.7:6379/0 invoice:7
`

func newRelease() *command {
	c := newCommand("release", "takes a lock from whoever holds it", "[-redis URL] [-prefix P] [-yes] [-json] KEY", releaseText)
	c.takes("KEY", 1)
	c.withRedis()
	c.withJSON()
	yes := c.Bool("yes", false, "do not ask")
	c.do = func(p *program) (int, error) { return c.release(p, *yes) }
	return c
}

func (c *command) release(p *program, yes bool) (int, error) {
	locker, _, done, err := c.servers.open()
	if err != nil {
		return exitUsage, err
	}
	defer done()
	key, asked := c.args[0], p.out
	if c.json {
		asked = p.errw
	}
	state, err := locker.Inspect(p.ctx, key)
	alien := err != nil && redis.HasErrorPrefix(err, "WRONGTYPE")
	switch {
	case alien:
		state.Key = c.servers.prefix + key
		fmt.Fprintf(asked, "%q is no lock: it has another type\n", state.Key)
	case err != nil:
		return exitRedis, err
	default:
		describe(asked, state)
	}
	free := !alien && !state.Held
	if !yes && !free {
		fmt.Fprint(asked, "Release it, whoever holds it by then? Type yes: ")
		if !agreed(p.in) {
			return exitFailed, fmt.Errorf("%q is not released", state.Key)
		}
	}
	// A lock that is free is left alone: by now somebody may have it whom nobody has decided to end.
	if !free {
		if err := locker.ForceRelease(p.ctx, key); err != nil {
			return exitRedis, err
		}
	}
	switch {
	case c.json:
		p.print(struct {
			lockJSON
			Released bool `json:"released"`
		}{jsonOf(state), !free})
	case free:
		fmt.Fprintln(p.out, "nobody holds it")
	default:
		fmt.Fprintln(p.out, "released")
	}
	return exitOK, nil
}

func agreed(in io.Reader) bool {
	answer, _ := bufio.NewReader(in).ReadString('\n')
	return strings.TrimSpace(answer) == "yes"
}
