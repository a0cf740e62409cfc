package leasehold

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// An acquire that replicas have to acknowledge ends with a WAIT. It asks about the writes that came before it on its own
// connection, so the two have to share one, and that has to be a connection to the server which has the key.

// runReplicated is run with a WAIT for replicas.
func (d *deployment) runReplicated(ctx context.Context, sc *script, r *request, mode string, bound time.Duration) (any, sent, error) {
	return d.await(ctx, d.call(sc, r, mode), bound, func(c *call) {
		// It has a round trip to itself: those who shared it would wait for the replicas too.
		c.with.Store(d.sender)
		d.landed.Go(func() {
			defer c.finish()
			defer c.abandoned()
			defer recovered(c)
			if d.topology.many() {
				d.sendConfirmed(c, d.call(renewScript, r, ""))
			} else {
				c.reply, c.err = d.sendReplicated(d.client, c)
			}
		})
	})
}

// sendReplicated sends a call with a WAIT behind it in one pipeline, which is one connection of one server.
func (s *sender) sendReplicated(client redis.Cmdable, c *call) (reply any, err error) {
	ctx := context.Background()
	var cmd *redis.Cmd
	var acks *redis.IntCmd
	for again := true; again; again = c.unknownScript(cmd) {
		pipe := client.Pipeline()
		cmd = c.command(ctx)
		_ = pipe.Process(ctx, cmd)
		acks = redis.NewIntCmd(ctx, "wait", c.o.replicas, c.o.replicasIn.Milliseconds())
		_ = pipe.Process(ctx, acks)
		_, _ = pipe.Exec(ctx)
	}
	reply, err = cmd.Val(), cmd.Err()
	if _, refused := reply.([]any); refused || err != nil {
		return reply, err // the lock was not had: nothing to be acknowledged
	}
	if err = acks.Err(); err == nil && int(acks.Val()) < c.o.replicas {
		err = &replicasError{int(acks.Val()), c.o.replicas, c.o.replicasIn}
	}
	return reply, err
}

// sendConfirmed sends a call by a client of several servers, and then a renewal of its token with a WAIT to the server that has
// the key.
//
// Such a client sends a WAIT anywhere. So the acquire goes the way of all calls, by which the client's hooks see it, and the
// renewal, a later write, takes the WAIT to the connection that it is about: replicas which acknowledge it have the lock too. The
// renewal writes nothing where the token does not hold the key. So whatever the client and its hooks do with keys, and wherever
// the key has moved meanwhile, the attempt can fail, and cannot take one server's replicas for another's.
func (d *deployment) sendConfirmed(c, renewal *call) {
	cmd := d.sendOne(c)
	reply, err := c.reply, c.err
	if _, refused := reply.([]any); refused || err != nil {
		return
	}
	c.reply, c.err = nil, nil               // not yet
	key, _ := cmd.Args()[firstKey].(string) // as it was sent: a hook may have rewritten it
	node, err := d.topology.node(context.Background(), key)
	if err == nil {
		var held any
		renewal.args[firstKey] = key
		held, err = d.sendReplicated(node, renewal)
		if n, is := held.(int64); is && n < 0 {
			err = fmt.Errorf("%w: the server which the client names for the key does not have the lock",
				&replicasError{0, c.o.replicas, c.o.replicasIn})
		}
	}
	c.reply, c.err = reply, err
}
