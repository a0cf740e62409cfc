package main

import (
	"fmt"
	"log/slog"

	"github.com/go-leasehold/leasehold/internal/diagnose"
)

const doctorText = `doctor looks for what is wrong with a Redis for locks: version, memory and
eviction, persistence, replicas, the clock, the state of a cluster or of the
nodes of a quorum, each right that leasehold needs, messages, and the time of a
round trip. Each finding says why it matters and what to do. It changes nothing.
What it may not look at, for want of the rights to INFO or CONFIG, it says.

It cannot know the keys of your locks: it tries the rights on keys of its own,
which begin with P and "leasehold:".

The exit status is 1 if a finding is serious.

Example:

	leasehold doctor -redis redis://10.0.0.7:6379/0 -prefix app:
`

func newDoctor() *command {
	c := newCommand("doctor", "looks for what is wrong with a Redis for locks", "[-redis URL] [-prefix P] [-json]", doctorText)
	c.withRedis()
	c.withJSON()
	c.do = func(p *program) (int, error) {
		_, clients, done, err := c.servers.open()
		if err != nil {
			return exitUsage, err
		}
		defer done()
		ctx, stop := p.interruptible()
		defer stop()
		findings, err := diagnose.Run(ctx, c.servers.diagnosis(clients))
		status := exitOK
		for _, f := range findings {
			if f.Level >= slog.LevelError {
				status = exitFailed
			}
			if c.json {
				p.print(findingJSON{f.Check, f.Server, words[f.Level], f.Found, f.Why, f.Advice})
			} else {
				p.tell(f)
			}
		}
		if err != nil {
			return exitRedis, err
		}
		return status, nil
	}
	return c
}

type findingJSON struct {
	Check  string `json:"check"`
	Server string `json:"server,omitempty"`
	Level  string `json:"level"`
	Found  string `json:"found"`
	Why    string `json:"why,omitempty"`
	Advice string `json:"advice,omitempty"`
}

var words = map[slog.Level]string{slog.LevelInfo: "ok", slog.LevelWarn: "warning", slog.LevelError: "serious"}

func (p *program) tell(f diagnose.Finding) {
	s := newScreen(p.out)
	color := map[slog.Level]string{slog.LevelInfo: green, slog.LevelWarn: bold, slog.LevelError: red}[f.Level]
	where := ""
	if f.Server != "" {
		where = " (" + f.Server + ")"
	}
	s.println(s.paint(color, fmt.Sprintf("%-8s", words[f.Level])) + " " + f.Check + where + ": " + f.Found)
	if f.Why != "" {
		for _, line := range wrap(f.Why+" "+f.Advice, 70) {
			s.println("         " + line)
		}
	}
}
