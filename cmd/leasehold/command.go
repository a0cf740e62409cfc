package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

// A command is one of the program's: its flags, its help and what it does.
type command struct {
	*flag.FlagSet
	summary  string // of one line
	synopsis string // the flags and the arguments
	text     string // the help between the synopsis and the flags
	operands string // how the arguments are called in a complaint; "": there are none
	most     int    // how many arguments there may be
	verbatim bool   // everything from the first argument on belongs to another command

	servers servers
	json    bool
	args    []string
	do      func(p *program) (status int, err error)

	usageStatus int // of a call that is not understood
}

// errHelp says that the help was asked for.
var errHelp = flag.ErrHelp

func newCommand(name, summary, synopsis, text string) *command {
	c := &command{
		FlagSet: flag.NewFlagSet(name, flag.ContinueOnError), summary: summary, synopsis: synopsis, text: text,
		usageStatus: exitUsage,
	}
	c.SetOutput(io.Discard) // the program tells, once and where it belongs
	return c
}

// takes says which arguments the command has.
func (c *command) takes(operands string, most int) { c.operands, c.most = operands, most }

func (c *command) withJSON() { c.BoolVar(&c.json, "json", false, "write JSON, one value a line") }

// withRedis adds the flags that say where the locks are.
func (c *command) withRedis() {
	c.Func("redis", "the `URL` of the Redis; several times for a quorum; default $REDIS_URL or 127.0.0.1:6379", c.servers.add)
	c.StringVar(&c.servers.prefix, "prefix", "", "the `P` of WithKeyPrefix, where it is used; KEY is then without it")
	c.DurationVar(&c.servers.quarantine, "quarantine", 0, "`D` of WithRestartQuarantine, for a quorum; default 1m")
}

// parse takes the arguments apart. Flags may stand before and behind the operands.
func (c *command) parse(args []string) error {
	for {
		if err := c.Parse(args); err != nil {
			return err
		}
		rest := c.Args()
		ended := len(args) > len(rest) && args[len(args)-len(rest)-1] == "--"
		if c.verbatim || ended {
			c.args = append(c.args, rest...)
			break
		}
		if len(rest) == 0 {
			break
		}
		c.args, args = append(c.args, rest[0]), rest[1:]
	}
	switch {
	case len(c.args) > c.most:
		return fmt.Errorf("unexpected argument %q", c.args[c.most])
	case len(c.args) == 0 && c.operands != "":
		return fmt.Errorf("the %s is missing", c.operands)
	}
	return c.servers.complete(os.Getenv("REDIS_URL"))
}

func (c *command) help(w io.Writer) {
	fmt.Fprintf(w, "Usage: leasehold %s\n\n%s\nFlags:\n\n", strings.TrimSpace(c.Name()+" "+c.synopsis), c.text)
	c.VisitAll(func(f *flag.Flag) {
		arg, help := flag.UnquoteUsage(f)
		fmt.Fprintf(w, "\t%s\n", strings.TrimSpace("-"+f.Name+" "+arg))
		for _, line := range wrap(help, 64) {
			fmt.Fprintf(w, "\t\t%s\n", line)
		}
	})
}

// wrap breaks a text into lines of at most that many bytes.
func wrap(text string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case len(line)+1+len(word) > width:
			lines, line = append(lines, line), word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
}

// errOneRedis is for a command that works on one Redis alone.
var errOneRedis = errors.New("want one -redis, and no cluster or Sentinel")
