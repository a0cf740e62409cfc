package main

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/go-redsync/redsync/v4"
	syncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/go-leasehold/leasehold"
)

var quorum = workload{
	name:  "quorum",
	about: "one goroutine acquires and releases on 3 and 5 nodes; then one of them is silent",
	setup: func(fs *flag.FlagSet) func(context.Context, *bench) error {
		var q quorumRun
		fs.IntVar(&q.rounds, "rounds", 21, "rounds")
		fs.IntVar(&q.cycles, "cycles", 500, "cycles per round, column and number of nodes")
		fs.IntVar(&q.silentRounds, "silent-rounds", 3, "rounds with a silent node")
		fs.DurationVar(&q.span, "silent-for", 5*time.Second, "how long the node is silent in each")
		fs.DurationVar(&q.quarantine, "quarantine", 0, "leasehold's `WithRestartQuarantine`, waited for at the start; 0: none")
		return func(ctx context.Context, b *bench) error {
			if err := q.start(ctx, b); err != nil {
				return err
			}
			defer q.stop()
			if err := q.uncontended(ctx, b); err != nil {
				return err
			}
			return q.silent(ctx, b)
		}
	},
	metrics: []metric{
		{"us", "µs per cycle", "%.0f", median},
		{"toSingle", "ratio to leasehold on 1 node", "%.2f", median},
		{"toRedsync", "ratio to redsync", "%.2f", median},
		{"client", "client CPU, µs", "%.0f", median},
		{"redis", "Redis CPU, µs", "%.0f", median},
		{"allocs", "allocations", "%.0f", median},
		{"bytes", "bytes", "%.0f", median},
		{"sent", "commands per node", "%.3f", median},
		{"oneRound", "acquires of one round, %", "%.1f", median},
		{"acquires", "acquires", "%.0f", sum},
		{"p50", "acquire p50, ms", "%.2f", median},
		{"p99", "p99, ms", "%.2f", median},
		{"max", "max, ms", "%.2f", highest},
	},
}

// quorumRun is the flags and the nodes.
type quorumRun struct {
	rounds, cycles, silentRounds int
	span, quarantine             time.Duration

	nodes []*server // the first is the bench's own
}

const mostNodes = 5

func (q *quorumRun) start(ctx context.Context, b *bench) error {
	q.nodes = []*server{b.server}
	for len(q.nodes) < mostNodes {
		s, err := startServer(ctx)
		if err != nil {
			q.stop()
			return err
		}
		q.nodes = append(q.nodes, s)
	}
	if q.quarantine > 0 {
		pause(ctx, q.quarantine+2*time.Second) // a server tells its age in whole seconds
	}
	return ctx.Err()
}

// stop ends the nodes that start has started.
func (q *quorumRun) stop() {
	for _, s := range q.nodes[1:] {
		s.stop()
	}
}

// title is the case of n nodes.
func (q *quorumRun) title(n int) string {
	title := fmt.Sprintf("%d nodes", n)
	if n == 1 {
		title = "1 node"
	}
	if q.quarantine > 0 && n > 1 {
		title += fmt.Sprintf(", quarantine %v", q.quarantine)
	}
	if runtime.NumCPU() == 1 { // by -pin, if not by nature
		title += ", on one CPU"
	}
	return title
}

// uncontended measures every column on every number of nodes.
func (q *quorumRun) uncontended(ctx context.Context, b *bench) error {
	var turns []turn
	for _, n := range []int{1, 3, mostNodes} {
		for _, c := range b.columns("redsync", "leasehold") {
			turns = append(turns, turn{record{Case: q.title(n), Column: c.name}, func() (map[string]float64, error) {
				return q.cycle(ctx, c, q.nodes[:n])
			}})
		}
	}
	return b.takeTurns(ctx, q.rounds, turns, func(measured []map[string]float64) {
		divide(turns, measured, "us", "toSingle", func(record) (string, string) { return q.title(1), "leasehold" })
		divide(turns, measured, "us", "toRedsync", func(r record) (string, string) { return r.Case, "redsync" })
	})
}

// party is a client of several nodes.
type party struct {
	take  func(ctx context.Context, name string) (lock, error)
	nodes []*redis.Client
	end   func() error // nil: there is nothing to end
}

func (p *party) close() {
	if p.end != nil {
		p.end()
	}
	for _, rdb := range p.nodes {
		rdb.Close()
	}
}

// open makes a party of the column's library, on an empty database.
func (q *quorumRun) open(ctx context.Context, c column, nodes []*server) (*party, error) {
	p := &party{}
	var pools []syncredis.Pool
	var clients []redis.UniversalClient
	for _, s := range nodes {
		if err := s.admin.FlushAll(ctx).Err(); err != nil {
			return nil, err
		}
		// Without it go-redis would wait for a silent node as long as its own timeouts say, whatever redsync's is.
		// leasehold's clients are left as they are.
		rdb := redis.NewClient(&redis.Options{Addr: s.addr, ContextTimeoutEnabled: c.name == "redsync"})
		p.nodes, pools, clients = append(p.nodes, rdb), append(pools, goredis.NewPool(rdb)), append(clients, rdb)
	}
	if c.name == "redsync" {
		p.take = (&redsyncClient{rs: redsync.New(pools...), opts: []redsync.Option{redsync.WithExpiry(ttl)}}).TryLock
		return p, nil
	}
	locker, err := leasehold.New(p.nodes[0], leasehold.WithAutoRenew(true)), error(nil)
	if len(nodes) > 1 {
		locker, err = leasehold.NewQuorum(clients, leasehold.WithAutoRenew(true), leasehold.WithRestartQuarantine(q.quarantine))
	}
	if err != nil {
		return nil, err
	}
	p.take, p.end = (&leaseholdClient{locker: locker, ttl: ttl}).TryLock, locker.Close
	return p, nil
}

// cycles acquires and releases n times.
func (p *party) cycles(ctx context.Context, n int) error {
	for range n {
		l, err := p.take(ctx, "bench:lock")
		if err != nil {
			return err
		}
		if err := l.Unlock(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (q *quorumRun) cycle(ctx context.Context, c column, nodes []*server) (map[string]float64, error) {
	p, err := q.open(ctx, c, nodes)
	if err != nil {
		return nil, err
	}
	defer p.close()
	if err := p.cycles(ctx, 100); err != nil { // connections, scripts, and what a quorum learns about its nodes
		return nil, err
	}
	before, err := settled(ctx, nodes)
	if err != nil {
		return nil, err
	}
	begun := readProcess()
	if err := p.cycles(ctx, q.cycles); err != nil {
		return nil, err
	}
	done := readProcess()
	after, err := settled(ctx, nodes)
	if err != nil {
		return nil, err
	}

	n, size := float64(q.cycles), float64(len(nodes))
	var cpu time.Duration
	var clients int64
	ran := map[string]int64{}
	for i := range nodes {
		calls := map[string]int64{}
		for command, count := range after[i].calls {
			calls[command] = count - before[i].calls[command]
		}
		client, _ := sent(calls, c.sends...)
		clients += client
		for _, command := range []string{"time", "set"} {
			ran[command] += calls[command]
		}
		cpu += after[i].cpu - before[i].cpu
	}
	values := map[string]float64{
		"us":     micros(done.at.Sub(begun.at)) / n,
		"client": micros(done.cpu-begun.cpu) / n,
		"redis":  micros(cpu) / n,
		"allocs": float64(done.mallocs-begun.mallocs) / n,
		"bytes":  float64(done.bytes-begun.bytes) / n,
		"sent":   float64(clients) / n / size,
	}
	if c.name == "leasehold" && len(nodes) > 1 {
		values["oneRound"] = oneRound(ran, q.cycles)
	}
	return values, nil
}

// oneRound is the share of acquires, in percent, that needed one round trip to the nodes. A second round raises the fencing token of
// some nodes. The script that acquires runs TIME once and SET twice, the one that raises runs each once, and no other runs either.
// Each raise is taken for an acquire of its own, and so is an acquire that a node refuses; so the share is this or higher.
func oneRound(ran map[string]int64, cycles int) float64 {
	raises := 2*ran["time"] - ran["set"]
	return 100 * (1 - float64(raises)/float64(cycles))
}

// settled returns what the nodes have done once they do nothing more: a quorum answers when a majority has, and the other
// nodes are still busy.
func settled(ctx context.Context, nodes []*server) ([]info, error) {
	var last int64
	for {
		infos := make([]info, len(nodes))
		var done int64
		for i, s := range nodes {
			in, err := s.info(ctx)
			if err != nil {
				return nil, err
			}
			infos[i] = in
			n, m := sent(in.calls)
			done += n + m
		}
		if done == last {
			return infos, nil
		}
		last = done
		pause(ctx, 5*time.Millisecond)
	}
}

// silent measures the columns while one node is stopped: its connections stay open, new ones are accepted, and nothing is
// answered.
func (q *quorumRun) silent(ctx context.Context, b *bench) error {
	var turns []turn
	for _, n := range []int{3, mostNodes} {
		for _, c := range b.columns("redsync", "leasehold") {
			as := record{Case: q.title(n) + ", one silent", Column: c.name}
			turns = append(turns, turn{as, func() (map[string]float64, error) { return q.withOneSilent(ctx, c, q.nodes[:n]) }})
		}
	}
	return b.takeTurns(ctx, q.silentRounds, turns, func([]map[string]float64) {})
}

func (q *quorumRun) withOneSilent(ctx context.Context, c column, nodes []*server) (values map[string]float64, err error) {
	p, err := q.open(ctx, c, nodes)
	if err != nil {
		return nil, err
	}
	defer p.close()
	if err := p.cycles(ctx, 100); err != nil {
		return nil, err
	}
	if _, err := settled(ctx, nodes); err != nil {
		return nil, err
	}
	victim := nodes[len(nodes)-1]
	if err := victim.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return nil, err
	}
	defer func() {
		if e := victim.cmd.Process.Signal(syscall.SIGCONT); err == nil {
			err = e
		}
		if _, e := settled(ctx, nodes); err == nil { // or it would still do what it was sent, beside the next column
			err = e
		}
	}()
	var waits []float64
	for end := time.Now().Add(q.span); time.Now().Before(end) || len(waits) == 0; {
		asked := time.Now()
		l, err := p.take(ctx, "bench:lock")
		if err != nil {
			return nil, err
		}
		waits = append(waits, millis(time.Since(asked)))
		bounded, cancel := context.WithTimeout(ctx, ttl/20)
		err = l.Unlock(bounded)
		cancel()
		if err != nil {
			return nil, err
		}
	}
	return map[string]float64{
		"acquires": float64(len(waits)),
		"p50":      percentile(waits, 50),
		"p99":      percentile(waits, 99),
		"max":      slices.Max(waits),
	}, nil
}
