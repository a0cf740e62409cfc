package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/go-leasehold/leasehold"
)

const inspectText = `inspect says who holds a lock, for how long, and how many wait for it. It
changes nothing, and its answer may be out of date when you read it.

The exit status is 0 if every KEY is held or rests, and 1 if one is free.

Example:

	leasehold inspect -redis redis://10.0.0.7:6379/0 invoice:7
`

func newInspect() *command {
	c := newCommand("inspect", "says who holds a lock, for how long, and how many wait", "[-redis URL] [-prefix P] [-json] KEY…", inspectText)
	c.takes("KEY", 1000)
	c.withRedis()
	c.withJSON()
	c.do = func(p *program) (int, error) {
		locker, _, done, err := c.servers.open()
		if err != nil {
			return exitUsage, err
		}
		defer done()
		status := exitOK
		for i, key := range c.args {
			state, err := locker.Inspect(p.ctx, key)
			if err != nil {
				return exitRedis, err
			}
			if !state.Held {
				status = exitFailed
			}
			switch {
			case c.json:
				p.print(jsonOf(state))
			default:
				if i > 0 {
					fmt.Fprintln(p.out)
				}
				describe(p.out, state)
			}
		}
		return status, nil
	}
	return c
}

// A lockJSON is a lock as -json shows it.
type lockJSON struct {
	Key          string `json:"key"`
	Held         bool   `json:"held"`
	Owner        string `json:"owner,omitempty"`
	TTL          int64  `json:"ttl_ms"` // -1: never
	FencingToken int64  `json:"fencing_token,omitempty"`
	Waiters      int    `json:"waiters"`
	Resting      bool   `json:"resting,omitempty"`
	Holders      int    `json:"holders,omitempty"`
}

func jsonOf(s leasehold.LockState) lockJSON {
	ttl := s.TTL.Milliseconds()
	if s.TTL < 0 {
		ttl = -1
	}
	return lockJSON{s.Key, s.Held, s.Owner, ttl, s.FencingToken, s.Waiters, s.Resting, s.Holders}
}

// describe prints the state of a lock, a line for each thing known.
func describe(w io.Writer, s leasehold.LockState) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer func() { _ = t.Flush() }()
	fmt.Fprintf(t, "key\t%q\n", s.Key)
	switch {
	case !s.Held:
		fmt.Fprint(t, "held\tno\n")
	case s.Resting:
		fmt.Fprint(t, "held\tno, it rests after its last lease\n")
	case s.Holders > 1:
		fmt.Fprintf(t, "held\tyes, by %d holders\n", s.Holders)
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
