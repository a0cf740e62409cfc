package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/go-leasehold/leasehold"
)

const watchText = `watch shows a lock while it changes, until it is interrupted. A terminal sees one
picture that is drawn anew. Elsewhere a line is written at each change: another
holder, another number of waiters, or trouble with Redis.

Holders that come and go between two looks are not seen.

Example:

	leasehold watch -redis redis://10.0.0.7:6379/0 invoice:7
`

func newWatch() *command {
	c := newCommand("watch", "shows a lock while it changes", "[-redis URL] [-prefix P] [-every D] [-json] KEY", watchText)
	c.takes("KEY", 1)
	c.withRedis()
	c.withJSON()
	every := c.Duration("every", 500*time.Millisecond, "look once in `D`; default 500ms")
	c.do = func(p *program) (int, error) {
		if *every < 10*time.Millisecond {
			return exitUsage, fmt.Errorf("-every %v: want 10ms or more", *every)
		}
		locker, _, done, err := c.servers.open()
		if err != nil {
			return exitUsage, err
		}
		defer done()
		ctx, stop := p.interruptible()
		defer stop()
		p.watch(ctx, locker, c.args[0], *every, c.json)
		return exitOK, nil
	}
	return c
}

// A view is what one look has found.
type view struct {
	state leasehold.LockState
	err   error
}

// same reports whether there is nothing to tell since the look before.
func (v view) same(old view) bool {
	v.state.TTL, old.state.TTL = 0, 0
	return v.state == old.state && fmt.Sprint(v.err) == fmt.Sprint(old.err)
}

func (p *program) watch(ctx context.Context, locker *leasehold.Locker, key string, every time.Duration, json bool) {
	s := newScreen(p.out)
	drawn, longest, started := 0, time.Duration(0), false
	var last view
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		var v view
		v.state, v.err = locker.Inspect(ctx, key)
		if ctx.Err() != nil {
			return
		}
		changed := !started || !v.same(last)
		if v.state.FencingToken != last.state.FencingToken {
			longest = 0
		}
		longest = max(longest, v.state.TTL)
		switch {
		case json && changed:
			p.print(v.json(time.Now()))
		case json:
		case s.terminal:
			drawn = s.redraw(drawn, v.picture(key, longest, s))
		case changed:
			s.println(time.Now().Format("15:04:05.000") + "  " + v.line())
		}
		last, started = v, true
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (v view) json(now time.Time) any {
	told := struct {
		Time string `json:"time"`
		*lockJSON
		Error string `json:"error,omitempty"`
	}{Time: now.Format(time.RFC3339Nano)}
	if v.err != nil {
		told.Error = v.err.Error()
	} else {
		state := jsonOf(v.state)
		told.lockJSON = &state
	}
	return told
}

// line is the view in one line.
func (v view) line() string {
	if v.err != nil {
		return "cannot look: " + v.err.Error()
	}
	text := "free"
	if v.state.Held {
		text = fmt.Sprintf("held by %s, expires in %s", holder(v.state), expiry(v.state))
		if v.state.Resting {
			text = "rests for " + expiry(v.state)
		}
	}
	return fmt.Sprintf("%s, %d waiting, fencing token %d", text, v.state.Waiters, v.state.FencingToken)
}

// picture is the view in a few lines for a terminal, with what is left of the longest TTL as a bar.
func (v view) picture(key string, longest time.Duration, s *screen) []string {
	const width = 40
	lines := []string{s.paint(bold, printable(key)) + s.paint(faint, "  "+time.Now().Format("15:04:05"))}
	if v.err != nil {
		return append(lines, "", s.paint(red, "cannot look: ")+v.err.Error())
	}
	state := s.paint(green, "free")
	if v.state.Held {
		full := 0
		if longest > 0 {
			full = min(int(v.state.TTL*width/longest), width)
		}
		state = s.paint(red, "held") + " by " + holder(v.state) + "\n" +
			"expires in " + fmt.Sprintf("%-8s", expiry(v.state)) + strings.Repeat("█", max(full, 0))
	}
	lines = append(lines, strings.Split(state, "\n")...)
	return append(lines, fmt.Sprintf("%d waiting", v.state.Waiters), fmt.Sprintf("fencing token %d", v.state.FencingToken))
}
