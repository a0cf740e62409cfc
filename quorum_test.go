package leasehold

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
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/go-leasehold/leasehold/internal/script"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"
)

// fakeNode is one node of a quorum in a bubble: a miniredis with a clock of its own, that knows since when it runs.
type fakeNode struct {
	*miniredis.Miniredis
	i int

	mu     sync.Mutex
	offset time.Duration // of its clock to the bubble's
	booted time.Time     // by its clock
	runs   int
	masked bool // a restart does not change its run_id
}

func newFakeNode(t *testing.T, i int) *fakeNode {
	n := &fakeNode{Miniredis: miniredis.NewMiniRedis(), i: i}
	n.ClockTTL(true)
	conn, err := n.Dial() // starts it
	require.NoError(t, err)
	_ = conn.Close()
	c, _ := n.client(t)
	for _, sc := range nodeScripts { // so that one call is one command
		require.NoError(t, c.ScriptLoad(t.Context(), sc.Src).Err())
	}
	n.booted = time.Now().Add(-365 * 24 * time.Hour)
	n.Server().SetPreHook(n.answer)
	return n
}

// answer is what the node says for the commands that miniredis does not have or that ask for the time; scripts come here too.
func (n *fakeNode) answer(c *server.Peer, cmd string, args ...string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now().Add(n.offset)
	switch {
	case cmd == "TIME":
		c.WriteLen(2)
		c.WriteBulk(strconv.FormatInt(now.Unix(), 10))
		c.WriteBulk(strconv.Itoa(now.Nanosecond() / 1000))
	case cmd == "INFO" && len(args) == 1 && strings.EqualFold(args[0], "server"):
		c.WriteBulk(fmt.Sprintf("# Server\r\nrun_id:%040x\r\nuptime_in_seconds:%d\r\n", n.i<<16+n.runs, int(now.Sub(n.booted).Seconds())))
	default:
		return false
	}
	return true
}

// forget is a crash that loses all data, and a restart at once.
func (n *fakeNode) forget() {
	n.FlushAll()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.booted = time.Now().Add(n.offset)
	if !n.masked {
		n.runs++
	}
}

// step moves the node's clock, on which keys expire.
func (n *fakeNode) step(d time.Duration) {
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

// counter is the fencing counter of a lock.
func (n *fakeNode) counter(key string) int64 {
	v, _ := n.Get(string(rediskey.Derive(nil, "", "fence", key)))
	f, _ := strconv.ParseInt(v, 10, 64)
	return f
}

// client makes a client of the node, on a wire of its own.
func (n *fakeNode) client(t *testing.T, opts ...func(*redis.Options)) (*redis.Client, *redistest.DialFault) {
	wire := redistest.FaultyDialer(func(context.Context, string, string) (net.Conn, error) { return n.Dial() })
	opt := &redis.Options{
		Addr:                     fmt.Sprint("node ", n.i),
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

// fakeQuorum is a Locker over nodes in a bubble and the faults on its way to each.
type fakeQuorum struct {
	*Locker
	nodes []*fakeNode
	wires []*redistest.DialFault
	hooks []*redistest.Fault
	spies []*spy
}

// spy notes the scripts that a client sends, behind the faults of its hook.
type spy struct {
	mu     sync.Mutex
	ran    []string
	tokens []string // of the acquires
}

var nodeScripts = map[string]*script.Script{
	"acquire": acquireNodeScript, "renew": renewNodeScript, "refill": refillNodeScript,
	"release": releaseNodeScript, "inspect": inspectNodeScript,
}

// note takes a command in. An EVAL repeats an EVALSHA that the server did not know.
func (s *spy) note(cmds ...redis.Cmder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, cmd := range cmds {
		for name, sc := range nodeScripts {
			if cmd.Name() == "evalsha" && cmd.Args()[1] == sc.Hash {
				s.ran = append(s.ran, name)
				if name == "acquire" {
					s.tokens = append(s.tokens, tokenIn(cmd.Args()[5]))
				}
			}
		}
	}
}

// took returns what was noted since the last call.
func (s *spy) took() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ran := s.ran
	s.ran = nil
	return ran
}

func (s *spy) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *spy) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { s.note(cmd); return next(ctx, cmd) }
}

func (s *spy) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { s.note(cmds...); return next(ctx, cmds) }
}

// runs matches the commands that run a script.
func runs(sc *script.Script) func(redis.Cmder) bool {
	return func(cmd redis.Cmder) bool {
		return len(cmd.Args()) > 1 && (cmd.Args()[1] == sc.Hash || cmd.Args()[1] == sc.Src)
	}
}

// joinFunc makes a Locker on the nodes of a bubble. Unless an option says so, it has no quarantine.
type joinFunc func(opts ...Option) *fakeQuorum

// quorumBubble runs fn in a bubble with n nodes.
func quorumBubble(t *testing.T, n int, fn func(t *testing.T, nodes []*fakeNode, join joinFunc)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var nodes []*fakeNode
		for i := range n {
			nodes = append(nodes, newFakeNode(t, i))
		}
		t.Cleanup(func() {
			for _, n := range nodes {
				n.Close()
			}
			time.Sleep(time.Minute) // the last sleepers see the end
		})
		fn(t, nodes, func(opts ...Option) *fakeQuorum {
			return joinNodes(t, nodes, nil, opts...)
		})
	})
}

func joinNodes(t *testing.T, nodes []*fakeNode, with func(*redis.Options), opts ...Option) *fakeQuorum {
	q := &fakeQuorum{nodes: nodes}
	var clients []redis.UniversalClient
	for _, n := range nodes {
		c, wire := n.client(t, func(o *redis.Options) {
			if with != nil {
				with(o)
			}
		})
		clients = append(clients, c)
		q.wires = append(q.wires, wire)
		q.hooks = append(q.hooks, redistest.Faulty(c))
		q.spies = append(q.spies, &spy{})
		c.AddHook(q.spies[len(q.spies)-1])
	}
	var err error
	q.Locker, err = NewQuorum(clients, append([]Option{WithRestartQuarantine(0)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = q.Close() })
	return q
}

// holders returns the tokens at the key, by node.
func (q *fakeQuorum) holders(key string) []string {
	var tokens []string
	for _, n := range q.nodes {
		token, _ := n.Get(key)
		tokens = append(tokens, token)
	}
	return tokens
}
