package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

// The exit statuses.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

const usage = `leasehold shows what leases on Redis keys do, and looks after locks by hand.

Usage:

	leasehold demo    [-redis URL]
	leasehold inspect [-redis URL] [-prefix P] KEY
	leasehold release [-redis URL] [-prefix P] [-yes] KEY

demo     plays four scenes in about ten seconds and checks what happened
inspect  says who holds a lock, for how long, and how many wait for it
release  takes a lock from whoever holds it and gives it to the first waiter

Example, with nothing installed:

	leasehold demo

"leasehold demo -h" tells more, and so do the others.
`

// A program is one run of the command: what it reads and writes, and how fast its demo goes.
type program struct {
	in   io.Reader
	out  io.Writer
	errw io.Writer
	beat time.Duration // the unit of the demo's times
}

// run is the command without its process.
func run(args []string, in io.Reader, out, errw io.Writer) int {
	logging.Disable() // go-redis would report in the middle of a scene what the scene is about
	return (&program{in: in, out: out, errw: errw, beat: 100 * time.Millisecond}).run(args)
}

func (p *program) run(args []string) int {
	if len(args) == 0 {
		fmt.Fprint(p.errw, usage)
		return exitUsage
	}
	switch name, args := args[0], args[1:]; name {
	case "demo":
		return p.demo(args)
	case "inspect":
		return p.inspect(args)
	case "release":
		return p.release(args)
	case "help", "-h", "-help", "--help":
		fmt.Fprint(p.out, usage)
		return exitOK
	default:
		fmt.Fprintf(p.errw, "leasehold: unknown command %q\n\n%s", name, usage)
		return exitUsage
	}
}

// A command is what the subcommands' command lines have in common.
type command struct {
	*flag.FlagSet
	usage string         // above the list of the flags
	redis *redis.Options // of the URL
}

func newCommand(name, usage, redisHelp string) *command {
	c := &command{FlagSet: flag.NewFlagSet(name, flag.ContinueOnError), usage: usage}
	c.SetOutput(io.Discard) // parse tells, once and where it belongs
	c.Func("redis", redisHelp, func(url string) (err error) {
		c.redis, err = redis.ParseURL(url)
		return err
	})
	return c
}

// parse takes the command line apart, flags before and after the operands. Unless it reports ok, the command
// ends with that status.
func (p *program) parse(c *command, args []string, operands ...*string) (status int, ok bool) {
	err := c.take(args, operands)
	switch {
	case errors.Is(err, flag.ErrHelp):
		c.help(p.out)
		return exitOK, false
	case err != nil:
		fmt.Fprintf(p.errw, "leasehold %s: %v\n\n", c.Name(), err)
		c.help(p.errw)
		return exitUsage, false
	}
	return exitOK, true
}

func (c *command) take(args []string, operands []*string) error {
	for {
		if err := c.Parse(args); err != nil {
			return err
		}
		if c.NArg() == 0 {
			break
		}
		if len(operands) == 0 {
			return fmt.Errorf("unexpected argument %q", c.Arg(0))
		}
		*operands[0], operands, args = c.Arg(0), operands[1:], c.Args()[1:]
	}
	if len(operands) > 0 {
		return errors.New("the KEY is missing")
	}
	return nil
}

func (c *command) help(w io.Writer) {
	fmt.Fprint(w, c.usage, "\nFlags:\n\n")
	c.VisitAll(func(f *flag.Flag) {
		arg, help := flag.UnquoteUsage(f)
		fmt.Fprintf(w, "\t-%s\n\t\t%s\n", strings.TrimSpace(f.Name+" "+arg), help)
	})
}
