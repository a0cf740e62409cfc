package roundtrip

import (
	"context"
	"fmt"
	"time"

	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/redis/go-redis/v9"
)

// An acquire that replicas have to acknowledge ends with a WAIT. It asks about the writes that came
// before it on its own connection, so the two have to share one, and that has to be a connection to
// the server which has the key.

// Ack is what an acquire asks of the replicas.
type Ack struct {
	Replicas int
	Within   time.Duration
}

// DoReplicated is Do with a WAIT for replicas. On a client of several servers the WAIT stands
// behind the renewal, a run of another script for the same token.
func (c *Client) DoReplicated(ctx context.Context, cmd, renewal *Command, want Ack, bound time.Duration) (reply any, writes int, _ error) {
	return c.sender.await(ctx, cmd, bound, func(cmd *Command) {
		// It has a round trip to itself: those who shared it would wait for the replicas too.
		cmd.with.Store(c.sender)
		c.sender.goroutines.Go(func() {
			defer cmd.finish()
			defer cmd.abandoned()
			defer recovered(cmd)
			if c.topology.Many() {
				c.sender.sendConfirmed(cmd, renewal, want)
			} else {
				cmd.reply, cmd.err = sendReplicated(c.sender.client, cmd, want)
			}
		})
	})
}

// sendReplicated sends a command with a WAIT behind it in one pipeline, which is one connection of
// one server.
func sendReplicated(client redis.Cmdable, c *Command, want Ack) (reply any, err error) {
	ctx := context.Background()
	var cmd *redis.Cmd
	var acks *redis.IntCmd
	for again := true; again; again = c.again(cmd) {
		// A pipeline is one write on one connection, so WAIT asks about the acquire before it.
		pipe := client.Pipeline()
		cmd = c.command(ctx)
		_ = pipe.Process(ctx, cmd)
		acks = redis.NewIntCmd(ctx, "wait", want.Replicas, want.Within.Milliseconds())
		_ = pipe.Process(ctx, acks)
		_, _ = pipe.Exec(ctx)
	}
	reply, err = cmd.Val(), cmd.Err()
	if _, refused := reply.([]any); refused || err != nil {
		return reply, err // the lock was not had: nothing to be acknowledged
	}
	if err = acks.Err(); err == nil && int(acks.Val()) < want.Replicas {
		err = &fault.Replicas{Acks: int(acks.Val()), Want: want.Replicas, Within: want.Within}
	}
	return reply, err
}

// sendConfirmed sends a command by a client of several servers, and then a renewal of its token
// with a WAIT to the server that has the key.
//
// Such a client sends a WAIT anywhere. So the acquire goes the way of all commands, by which the
// client's hooks see it, and the renewal, a later write, takes the WAIT to the connection that it
// is about: replicas which acknowledge it have the lock too. The renewal writes nothing where the
// token does not hold the key. So whatever the client and its hooks do with keys, and wherever the
// key has moved meanwhile, the attempt can fail, and cannot take one server's replicas for
// another's.
func (s *sender) sendConfirmed(c, renewal *Command, want Ack) {
	cmd := c.sendOne(s.client, &c.values)
	reply, err := c.reply, c.err
	if _, refused := reply.([]any); refused || err != nil {
		return
	}
	c.reply, c.err = nil, nil               // not yet
	key, _ := cmd.Args()[firstKey].(string) // as it was sent: a hook may have rewritten it
	node, err := s.topology.Node(context.Background(), key)
	if err == nil {
		var held any
		renewal.args[firstKey] = key
		held, err = sendReplicated(node, renewal, want)
		if n, is := held.(int64); is && n < 0 {
			err = fmt.Errorf("%w: the server which the client names for the key does not have the lock",
				&fault.Replicas{Acks: 0, Want: want.Replicas, Within: want.Within})
		}
	}
	c.reply, c.err = reply, err
}
