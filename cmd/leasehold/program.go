package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9/logging"
)

// The exit statuses of all commands but run, which has its own.
const (
	exitOK     = 0
	exitFailed = 1 // the answer is no
	exitUsage  = 2
	exitRedis  = 3 // Redis could not be asked
)

const intro = `leasehold runs commands under a lock on Redis, and looks after locks by hand.

Usage:

	leasehold COMMAND [flags] [arguments]

Commands:

`

const outro = `
"leasehold COMMAND -h" explains a command.

Redis is named by -redis or by the variable REDIS_URL:

	10.0.0.7:6379                              a host and a port, or a host
	redis://user:password@10.0.0.7:6379/0      rediss:// with TLS, unix:///path
	redis-cluster://10.0.0.7:7000,10.0.0.8     rediss-cluster:// with TLS
	redis-sentinel://10.0.0.7:26379/mymaster   rediss-sentinel:// with TLS

Several -redis, an odd number of them, are the nodes of a quorum.

Exit statuses: 0 yes or done, 1 no, 2 a wrong call, 3 Redis could not be asked.
"run" has others: see "leasehold run -h".

Example, with nothing installed:

	leasehold demo
`

// commands makes each command, in the order in which the help lists them.
var commands = []func() *command{
	newRun, newInspect, newList, newWatch, newRelease, newDoctor, newDemo, newVersion,
}

func find(name string) *command {
	for _, make := range commands {
		if c := make(); c.Name() == name {
			return c
		}
	}
	return nil
}

func usage() string {
	text := intro
	for _, make := range commands {
		c := make()
		text += fmt.Sprintf("\t%-10s  %s\n", c.Name(), c.summary)
	}
	return text + outro
}

// A program is one run of the command: what it reads and writes, and how fast its demo goes.
type program struct {
	ctx  context.Context // ends what does not end by itself, as an interrupt does
	in   io.Reader
	out  io.Writer
	errw io.Writer
	beat time.Duration // the unit of the demo's times
}

// run is the program without its process.
func run(ctx context.Context, args []string, in io.Reader, out, errw io.Writer) int {
	logging.Disable() // go-redis would report what the errors of the calls say anyway
	return (&program{ctx: ctx, in: in, out: out, errw: errw, beat: 100 * time.Millisecond}).run(args)
}

func (p *program) run(args []string) int {
	if len(args) == 0 {
		fmt.Fprint(p.errw, usage())
		return exitUsage
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		fmt.Fprint(p.out, usage())
		return exitOK
	case "markdown": // for docs/cli.md
		fmt.Fprint(p.out, manual())
		return exitOK
	}
	c := find(args[0])
	if c == nil {
		fmt.Fprintf(p.errw, "%s\nleasehold: unknown command %q\n", usage(), args[0])
		return exitUsage
	}
	switch err := c.parse(args[1:]); {
	case errors.Is(err, errHelp):
		c.help(p.out)
		return exitOK
	case err != nil:
		c.help(p.errw)
		fmt.Fprintf(p.errw, "\nleasehold %s: %v\n", c.Name(), err)
		return c.usageStatus
	}
	status, err := c.do(p)
	if err != nil {
		fmt.Fprintf(p.errw, "leasehold %s: %v\n", c.Name(), err)
	}
	return status
}

// interruptible is the context of a command that goes on until it is interrupted. A second interrupt ends the process.
func (p *program) interruptible() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(p.ctx, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// print writes a value as one line of JSON.
func (p *program) print(v any) {
	e := json.NewEncoder(p.out)
	e.SetEscapeHTML(false)
	_ = e.Encode(v)
}

// manual is docs/cli.md: every help, as the program prints it.
func manual() string {
	var b strings.Builder
	b.WriteString("# The command\n\nThis page is made from the help of the program, by `go generate ./cmd/leasehold`.\n\n```text\n" + usage() + "```\n")
	for _, make := range commands {
		c := make()
		b.WriteString("\n## " + c.Name() + "\n\n```text\n")
		c.help(&b)
		b.WriteString("```\n")
	}
	return b.String()
}
