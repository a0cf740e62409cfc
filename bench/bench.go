package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
)

// workload is one subcommand and its tables.
type workload struct {
	name, about string
	rows        []string // of its tables; nil: the columns
	// setup declares the flags of the workload and returns what runs after they are parsed.
	setup   func(fs *flag.FlagSet) func(context.Context, *bench) error
	metrics []metric
}

func workloads() []workload {
	return []workload{
		uncontended, parallel, cluster, contended, crash, liveness, idle, renew, outage, cycles, quorum, fenced,
	}
}

// metric is one column of figures in a table.
type metric struct {
	key, title, format string
	over               func([]float64) float64 // what the rounds are reduced by
}

// bench is one run of one workload.
type bench struct {
	*server
	workload string
	out      io.Writer
	file     string   // of -json
	only     []string // of -only
	records  []record
}

// columns are those of the names that -only lets through.
func (b *bench) columns(names ...string) []column {
	var picked []column
	for _, c := range columns() {
		if slices.Contains(names, c.name) && (b.only == nil || slices.Contains(b.only, c.name)) {
			picked = append(picked, c)
		}
	}
	return picked
}

// pick returns those of the names that -only lets through.
func (b *bench) pick(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return b.only != nil && !slices.Contains(b.only, name)
	})
}

func (b *bench) add(r record) error {
	r.Workload, r.setting, r.Load = b.workload, settingNow(), loadOfMachine()
	b.records = append(b.records, r)
	if b.file == "" {
		return nil
	}
	return appendRecord(b.file, r)
}

// compare sees the values of a round, by turn, before they are written down.
type compare func(turns []turn, measured []map[string]float64)

// perRaw sets each column's "ratio" to that of its value at key to raw's of the same round.
func perRaw(key string) compare {
	return func(turns []turn, measured []map[string]float64) {
		divide(turns, measured, key, "ratio", func(r record) (string, string) { return r.Case, "raw" })
	}
}

// alone is for a workload that compares nothing within a round.
func alone([]turn, []map[string]float64) {}

// interleave measures every column once per round on an empty database.
func (b *bench) interleave(ctx context.Context, rounds int, as record, see compare, cols []column,
	measure func(column) (map[string]float64, error),
) error {
	var turns []turn
	for _, c := range cols {
		as.Column = c.name
		turns = append(turns, turn{as, func() (map[string]float64, error) {
			if err := b.admin.FlushAll(ctx).Err(); err != nil {
				return nil, err
			}
			return measure(c)
		}})
	}
	return b.takeTurns(ctx, rounds, turns, func(measured []map[string]float64) { see(turns, measured) })
}

// recordMachine writes down where the figures come from.
func (b *bench) recordMachine(ctx context.Context) error {
	in, err := b.info(ctx)
	if err != nil {
		return err
	}
	facts := map[string]string{
		"Go":           strings.TrimPrefix(runtime.Version(), "go"),
		"redis-server": in.version,
		"CPUs":         processors(),
		"platform":     runtime.GOOS + "/" + runtime.GOARCH,
	}
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range build.Deps {
			switch name := strings.TrimPrefix(dep.Path, "github.com/"); name {
			case "redis/go-redis/v9", "go-redsync/redsync/v4", "bsm/redislock", "redis/rueidis":
				facts[name] = dep.Version
			}
		}
	}
	if b.file == "" {
		return nil
	}
	return appendRecord(b.file, record{Workload: "machine", Facts: facts})
}

// processors are those of the machine, not only the one that -pin leaves to this process.
func processors() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	if n := strings.Count(string(text), "processor\t:"); n > 0 {
		return strconv.Itoa(n)
	}
	return strconv.Itoa(runtime.NumCPU())
}

// inChild measures one column in a process of its own, with a server of its
// own, so that memory, goroutines and CPU are that column's alone.
func inChild(ctx context.Context, args ...string) (map[string]float64, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, append([]string{"one"}, args...)...)
	cmd.Env = append(os.Environ(), fmt.Sprintf("GOMAXPROCS=%d", runtime.GOMAXPROCS(0))) // -procs is meant for it too
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }               // so that it ends its server
	var stdout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, err
	}
	var r record
	err = json.Unmarshal(stdout.Bytes(), &r)
	return r.Values, err
}

// one is the child of inChild: bench one WORKLOAD COLUMN flags.
func one(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) < 2 {
		return errUsage
	}
	c, err := columnNamed(args[1])
	if err != nil {
		return err
	}
	fs := flag.NewFlagSet("one", flag.ContinueOnError)
	fs.SetOutput(stderr)
	var work func(context.Context, *server, column) (map[string]float64, error)
	switch args[0] {
	case "idle":
		work = idleOne(fs)
	case "renew":
		work = renewOne(fs)
	case "cycles":
		work = cyclesOne(fs)
	default:
		return errUsage
	}
	if err := fs.Parse(args[2:]); err != nil {
		return err
	}
	s, err := startServer(ctx)
	if err != nil {
		return err
	}
	defer s.stop()
	values, err := work(ctx, s, c)
	if err != nil {
		return err
	}
	return json.NewEncoder(stdout).Encode(record{Values: values})
}

// ints is a flag of numbers separated by commas.
type ints []int

func (v *ints) String() string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint([]int(*v)), " ", ","), "[]")
}

func (v *ints) Set(s string) error {
	*v = nil
	for field := range strings.SplitSeq(s, ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n < 0 {
			return fmt.Errorf("%q is not a number", field)
		}
		*v = append(*v, n)
	}
	return nil
}

func intsVar(fs *flag.FlagSet, name, usage string, values ...int) *ints {
	v := ints(values)
	fs.Var(&v, name, usage)
	return &v
}
