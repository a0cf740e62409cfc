// Command bench measures leasehold beside other lock libraries on a
// redis-server that it starts itself. README.md says what is measured and how to read it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

const usage = `usage: bench COMMAND [flags]

workloads, each with a redis-server of its own; -h lists the flags:
%s  all          every workload with its defaults: most of an hour
on what -json FILE has kept:
  report       the tables, on standard output or into README.md
  chart        the workloads uncontended, parallel and contended as SVG
`

// run is the command; it returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := dispatch(ctx, args, stdout, stderr)
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		var list strings.Builder
		for _, w := range workloads() {
			fmt.Fprintf(&list, "  %-12s %s\n", w.name, w.about)
		}
		fmt.Fprintf(stderr, usage, list.String())
		return 2
	default:
		fmt.Fprintln(stderr, "bench:", err)
		return 1
	}
}

var errUsage = errors.New("no such command")

func dispatch(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return errUsage
	}
	name, args := args[0], args[1:]
	switch name {
	case "all":
		return all(ctx, args, stdout, stderr)
	case "report":
		return report(args, stdout, stderr)
	case "chart":
		return chart(args, stderr)
	case "one":
		return one(ctx, args, stdout, stderr)
	}
	for _, w := range workloads() {
		if w.name == name {
			return measure(ctx, w, args, stdout, stderr)
		}
	}
	return errUsage
}

// all runs the workloads one after the other, as somebody would at the shell.
func all(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("all", flag.ContinueOnError)
	fs.SetOutput(stderr)
	file := fs.String("json", "", "append the results to this `file`")
	if err := fs.Parse(args); err != nil {
		return err
	}
	for _, line := range []string{
		"uncontended -pin", "uncontended -pin -procs 2", "parallel", "parallel -pin", "cluster", "cluster -pin", "contended", "crash", "liveness", "idle",
		"renew -leases 10000,50000 -ttl 10s", "renew -leases 100000 -ttl 30s -rounds 1",
		"outage", "cycles", "quorum", "fenced -pin",
	} {
		if err := dispatch(ctx, append(strings.Fields(line), "-json", *file), stdout, stderr); err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
	}
	return nil
}

// measure runs one workload: flags, server, rounds, tables.
func measure(ctx context.Context, w workload, args []string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet(w.name, flag.ContinueOnError)
	fs.SetOutput(stderr)
	b := &bench{workload: w.name, out: stdout}
	fs.StringVar(&b.file, "json", "", "append the results to this `file`")
	only := fs.String("only", "", "measure only these `columns`, separated by commas")
	pin := fs.Bool("pin", false, "run on one CPU together with the server, through taskset")
	procs := fs.Int("procs", 0, "GOMAXPROCS of the client process; 0: what Go chooses, which is 1 with -pin. A process that has set it,\n"+
		"or was pinned a moment ago, has more threads than CPUs: -pin -procs 2 measures that")
	work := w.setup(fs)
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *only != "" {
		b.only = strings.Split(*only, ",")
		for _, name := range b.only {
			if _, err := columnNamed(name); err != nil && !slices.Contains(w.rows, name) {
				return err
			}
		}
	}
	if *procs < 0 {
		return fmt.Errorf("-procs %d: it is a number of threads, or 0", *procs)
	}
	if *pin {
		return pinned(ctx, append([]string{w.name}, args...), stdout, stderr)
	}

	if *procs > 0 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(*procs))
	}
	var err error
	if b.server, err = startServer(ctx); err != nil {
		return err
	}
	defer b.server.stop()
	if err := b.recordMachine(ctx); err != nil {
		return err
	}
	if err := work(ctx, b); err != nil {
		return err
	}
	return writeTables(stdout, w, b.records)
}

// pinned runs this program again on CPU 0. The children of that process, the
// server among them, stay there too.
func pinned(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "taskset", append([]string{"-c", "0", self}, append(args, "-pin=false")...)...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // so that it ends its server
	return cmd.Run()
}

func columnNamed(name string) (column, error) {
	all := columns()
	if i := slices.IndexFunc(all, func(c column) bool { return c.name == name }); i >= 0 {
		return all[i], nil
	}
	names := make([]string, len(all))
	for i, c := range all {
		names[i] = c.name
	}
	return column{}, fmt.Errorf("no column %q; there are: %s", name, strings.Join(names, ", "))
}
