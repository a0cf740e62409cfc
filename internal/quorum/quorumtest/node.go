// Package quorumtest has the nodes of a quorum for tests, in a bubble: each with a clock, restarts and faults of its own.
package quorumtest

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

// Node is one node of a quorum in a bubble: a miniredis with a clock of its own, which knows since when it has been running.
type Node struct {
	*miniredis.Miniredis
	Index int

	mu     sync.Mutex // guards what follows
	offset time.Duration
	booted time.Time // by its clock
	runs   int
	masked bool
}

// NewNode starts a node that knows the scripts, so that one call is one command, and has been running for a year.
func NewNode(t testing.TB, index int) *Node {
	t.Helper()
	n := &Node{Miniredis: miniredis.NewMiniRedis(), Index: index}
	n.ClockTTL(true)
	conn, err := n.Dial() // starts it
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	c, _ := n.Client(t)
	for _, sc := range scripts {
		if err := c.ScriptLoad(t.Context(), sc.Src).Err(); err != nil {
			t.Fatal(err)
		}
	}
	n.booted = time.Now().Add(-365 * 24 * time.Hour)
	n.Server().SetPreHook(n.Answer)
	return n
}

// Bubble runs fn inside a synctest bubble with that many nodes.
func Bubble(t *testing.T, nodes int, fn func(t *testing.T, nodes []*Node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var all []*Node
		for i := range nodes {
			all = append(all, NewNode(t, i))
		}
		t.Cleanup(func() {
			for _, n := range all {
				n.Close()
			}
			time.Sleep(time.Minute) // the last sleepers see the end
		})
		fn(t, all)
	})
}

// Answer is what the node says for the commands that miniredis does not have or that ask for the time; those of scripts come here
// too. It reports false for all others.
func (n *Node) Answer(c *server.Peer, cmd string, args ...string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now().Add(n.offset)
	switch {
	case cmd == "TIME":
		c.WriteLen(2)
		c.WriteBulk(strconv.FormatInt(now.Unix(), 10))
		c.WriteBulk(strconv.Itoa(now.Nanosecond() / 1000))
	case cmd == "INFO" && len(args) == 1 && strings.EqualFold(args[0], "server"):
		c.WriteBulk(fmt.Sprintf("# Server\r\nrun_id:%040x\r\nuptime_in_seconds:%d\r\n",
			n.Index<<16+n.runs, int(now.Sub(n.booted).Seconds())))
	default:
		return false
	}
	return true
}

// Forget is a crash that loses all data, and a restart at once.
func (n *Node) Forget() {
	n.FlushAll()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.booted = time.Now().Add(n.offset)
	if !n.masked {
		n.runs++
	}
}

// Mask makes restarts of the node leave its run_id as it is, so that the uptime is the only sign of one.
func (n *Node) Mask(masked bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.masked = masked
}

// Rerun gives the node another run_id, as if a replica had been promoted: its uptime and its data stay.
func (n *Node) Rerun() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.runs++
}

// SetOffset sets by how much the node's clock is ahead of the bubble's, before anything is on the node.
func (n *Node) SetOffset(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.offset = d
}

// Step moves the node's clock, on which keys expire.
func (n *Node) Step(d time.Duration) {
	n.mu.Lock()
	n.offset += d
	n.mu.Unlock()
	if d > 0 {
		n.FastForward(d)
		return
	}
	for _, key := range n.Keys() {
		n.SetTTL(key, n.TTL(key)-d)
	}
}

// counterOf is the key of a lock's fencing counter.
func counterOf(key string) string { return string(rediskey.Derive(nil, "", rediskey.Counter, key)) }

// Counter is the fencing counter of a lock.
func (n *Node) Counter(key string) int64 {
	v, _ := n.Get(counterOf(key))
	f, _ := strconv.ParseInt(v, 10, 64)
	return f
}

// SetCounter sets the fencing counter of a lock to the node's clock and d, and returns it.
func (n *Node) SetCounter(key string, d time.Duration) int64 {
	n.mu.Lock()
	f := time.Now().Add(n.offset + d).UnixMicro()
	n.mu.Unlock()
	_ = n.Set(counterOf(key), strconv.FormatInt(f, 10))
	return f
}

// Client makes a client of the node, on a wire of its own.
func (n *Node) Client(t testing.TB, opts ...func(*redis.Options)) (*redis.Client, *redistest.DialFault) {
	wire := redistest.FaultyDialer(func(context.Context, string, string) (net.Conn, error) { return n.Dial() })
	opt := &redis.Options{
		Addr:                     fmt.Sprint("node ", n.Index),
		Dialer:                   wire.Dial,
		DialerRetries:            1,
		PoolSize:                 1 << 10, // see redistest.Bubble
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	for _, o := range opts {
		o(opt)
	}
	c := redis.NewClient(opt)
	t.Cleanup(func() { _ = c.Close() })
	return c, wire
}

// Reach is how one process reaches the nodes: by a client of each, with the faults of its wire and its calls, and a Spy behind
// these.
type Reach struct {
	Nodes   []*Node
	Clients []redis.UniversalClient
	Wires   []*redistest.DialFault
	Hooks   []*redistest.Fault
	Spies   []*Spy
}

// NewReach makes the clients of a process.
func NewReach(t testing.TB, nodes []*Node, opts ...func(*redis.Options)) *Reach {
	r := &Reach{Nodes: nodes}
	for _, n := range nodes {
		c, wire := n.Client(t, opts...)
		hook, spy := redistest.Faulty(c), &Spy{}
		c.AddHook(spy)
		r.Clients, r.Wires = append(r.Clients, c), append(r.Wires, wire)
		r.Hooks, r.Spies = append(r.Hooks, hook), append(r.Spies, spy)
	}
	return r
}

// Holders are the tokens at the key, by node.
func (r *Reach) Holders(key string) (tokens []string) {
	for _, n := range r.Nodes {
		token, _ := n.Get(key)
		tokens = append(tokens, token)
	}
	return tokens
}
