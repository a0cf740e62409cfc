package roundtrip

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// unused is for how long the sender of a server is kept after its last use.
const unused = 15 * time.Second

// Client sends commands by a client of the user's. It is safe for concurrent use.
type Client struct {
	sender   *sender // of the client as a whole
	topology *Topology

	// The servers of a cluster or a ring each have a sender, so that a slow one holds up nobody but
	// its own callers. What they send goes through the client all the same: it has the hooks, and
	// it knows best which server has a key.
	mu    sync.Mutex // guards nodes
	nodes map[*redis.Client]*sender
}

// NewClient makes a Client. It sends nothing.
func NewClient(client redis.UniversalClient) *Client {
	t := newTopology(client)
	c := &Client{sender: newSender(client, t), topology: t}
	if t.Many() {
		c.nodes = map[*redis.Client]*sender{}
	}
	return c
}

// Topology says what stands behind the client.
func (c *Client) Topology() *Topology { return c.topology }

// Redis returns the client of the user's.
func (c *Client) Redis() redis.UniversalClient { return c.sender.client }

// Do sends a command and waits for its answer, no longer than ctx and bound allow. It also returns
// how often the command may have been written to a connection.
func (c *Client) Do(ctx context.Context, cmd *Command, bound time.Duration) (reply any, writes int, _ error) {
	s := c.to(cmd.key)
	if s.leads(ctx, cmd, bound) {
		return cmd.reply, cmd.Writes(), cmd.err
	}
	return s.await(ctx, cmd, bound, s.send)
}

// Send sends a command whose Then was set. It waits for nothing.
func (c *Client) Send(cmd *Command) { c.to(cmd.key).send(cmd) }

// Queue is Send for a command that may wait for the next Flush.
func (c *Client) Queue(cmd *Command) { c.to(cmd.key).enqueue(cmd) }

// Flush sends what was queued.
func (c *Client) Flush() {
	for _, s := range c.senders() {
		s.flush()
	}
}

// Lane names the server of a key: two keys of one server have the same.
func (c *Client) Lane(key string) any { return c.to(key) }

// IsUnknown reports whether nothing was ever heard from the server, neither an answer nor an error,
// and there is no connection.
func (c *Client) IsUnknown() bool { return c.sender.way.unknown() }

// Close waits until no round trip is under way, or until ctx ends, and reports which.
func (c *Client) Close(ctx context.Context) bool {
	ended := true
	for _, s := range c.senders() {
		ended = s.close(ctx) && ended
	}
	return ended
}

// to is the sender for a key.
func (c *Client) to(key string) *sender {
	if !c.topology.known.Load() {
		// To ask now might wait for the client. The first answer shows that the client knows.
		return c.sender
	}
	node, err := c.topology.Node(context.Background(), key)
	if err != nil {
		return c.sender
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.nodes[node]
	if s == nil {
		// A node is new when the cluster has changed: the others may have left it, and are made
		// again if not.
		maps.DeleteFunc(c.nodes, func(_ *redis.Client, s *sender) bool { return time.Since(s.used) > unused && s.isIdle() })
		s = newSender(c.sender.client, c.topology)
		c.nodes[node] = s
	}
	s.used = time.Now()
	return s
}

// senders returns all of them: those of the servers, and that of the client as a whole, which has
// what was sent before the servers were known.
func (c *Client) senders() []*sender {
	if c.nodes == nil {
		return []*sender{c.sender}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return append(slices.Collect(maps.Values(c.nodes)), c.sender)
}
