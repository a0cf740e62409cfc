package leasehold

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-leasehold/leasehold/internal/inflight"
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/redis/go-redis/v9"
)

const (
	// quiet is how long a subscription may be silent before it is asked whether it lives; silent once more as long, it
	// is made anew.
	quiet = 5 * time.Second
	// unused is how long a subscription outlives the last waiter.
	unused = 15 * time.Second
	// refused is the pause after the server has refused a subscription. The tick serves everyone meanwhile.
	refused = 30 * time.Second
)

// wakes passes on the messages that tell a waiter that the lock was handed to it. They may be lost, late or impossible:
// they only spare a waiter the time until its next look.
//
// One server has one channel for each Locker, shared by all its waits and subscribed by the first. A cluster would relay
// that to every node, so there a channel belongs to one key of one Locker, in the key's slot, and is sharded: a
// subscription then is one connection to each node that has keys which are waited for.
type wakes struct {
	client  redis.UniversalClient
	cluster *redis.ClusterClient // nil: one server
	channel string               // of one server
	id      string

	mu     sync.Mutex // guards what follows; sends under it do not block
	closed bool
	topics map[string]*topic // by channel
	lines  map[subscriber]*subscription
	ended  inflight.Group // the goroutines
}

// topic is one channel and those who wait for its messages.
type topic struct {
	line  *subscription
	stays map[string]*stay // by wake id
	left  time.Time        // when the last one left
}

// subscriber is what can be subscribed to: a client, or the client of one node.
type subscriber interface {
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
	SSubscribe(ctx context.Context, channels ...string) *redis.PubSub
}

// subscription is one connection that receives messages, and the goroutine that does.
type subscription struct {
	w       *wakes
	node    subscriber
	sharded bool
	pubsub  *redis.PubSub      // guarded by wakes.mu; nil before the first
	stop    context.CancelFunc // of the goroutine
}

func newWakes(client redis.UniversalClient, prefix, id string) *wakes {
	w := &wakes{
		client:  client,
		channel: prefix + rediskey.WakeChannel + id,
		id:      id,
		topics:  map[string]*topic{},
		lines:   map[subscriber]*subscription{},
	}
	w.cluster, _ = client.(*redis.ClusterClient)
	return w
}

// of names the channel for a stay.
func (w *wakes) of(s *stay) string {
	if w.cluster == nil {
		return w.channel
	}
	return string(rediskey.Derive(nil, s.a.o.prefix, rediskey.Wake, s.a.key)) + ":" + w.id
}

// enter has messages delivered to the stay if there is a subscription for them: a stay that is entered before its join is
// sent misses no message but one that is lost.
func (w *wakes) enter(s *stay) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.topics[w.of(s)]; t != nil {
		t.stays[s.wakeID()] = s
	}
}

// listen is enter for a stay that waits already. The stay is woken to look again as soon as a message could not be missed:
// at once, or when the subscription that it begins is confirmed.
func (w *wakes) listen(ctx context.Context, s *stay) {
	var node subscriber = w.client
	if w.cluster != nil {
		master, err := w.cluster.MasterForKey(ctx, s.a.key)
		if err != nil {
			return // the tick will do, and a later look tries again
		}
		node = master
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	channel := w.of(s)
	t := w.topics[channel]
	if t != nil {
		if t.stays[s.wakeID()] == nil {
			t.stays[s.wakeID()] = s
			s.wake(grant(0))
		}
		return
	}
	line := w.lines[node]
	t = &topic{line: line, stays: map[string]*stay{s.wakeID(): s}}
	w.topics[channel] = t
	switch {
	case line == nil:
		ctx, stop := context.WithCancel(context.Background())
		t.line = &subscription{w: w, node: node, sharded: w.cluster != nil, stop: stop}
		w.lines[node] = t.line
		w.ended.Go(func() { t.line.run(ctx) })
	case line.pubsub != nil:
		pubsub := line.pubsub
		w.ended.Go(func() { _ = line.add(pubsub, channel) })
	}
}

// leave ends the delivery.
func (w *wakes) leave(s *stay) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.topics[w.of(s)]; t != nil {
		delete(t.stays, s.wakeID())
		if len(t.stays) == 0 {
			t.left = time.Now()
		}
	}
}

// close ends all subscriptions and waits for their goroutines, no longer than ctx allows.
func (w *wakes) close(ctx context.Context) {
	w.mu.Lock()
	w.closed = true
	var open []*redis.PubSub
	for _, line := range w.lines {
		line.stop()
		if line.pubsub != nil {
			open = append(open, line.pubsub)
		}
	}
	w.mu.Unlock()
	for _, pubsub := range open {
		// Ends a read that is under way; waits for a subscribing that is, however long that may take.
		w.ended.Go(func() { _ = pubsub.Close() })
	}
	w.ended.Wait(ctx)
}

// run keeps the subscription until nobody has waited for a while.
func (u *subscription) run(ctx context.Context) {
	defer u.stop()
	for failures := 0; ; failures++ {
		pubsub := u.begin(ctx)
		if pubsub == nil {
			return
		}
		pause := u.receive(ctx, pubsub, &failures)
		if pause == 0 {
			pause = backoff(failures)
		}
		u.w.mu.Lock()
		u.pubsub = nil
		u.w.mu.Unlock()
		_ = pubsub.Close()
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// begin subscribes to the channels that are needed. It returns nil if none is any more.
func (u *subscription) begin(ctx context.Context) *redis.PubSub {
	subscribe := u.node.Subscribe
	if u.sharded {
		subscribe = u.node.SSubscribe
	}
	pubsub := subscribe(ctx) // without channels it sends nothing
	u.w.mu.Lock()
	u.pubsub = pubsub // from here on a new topic subscribes itself
	u.w.mu.Unlock()
	channels, _ := u.sort()
	if len(channels) == 0 {
		_ = pubsub.Close()
		return nil
	}
	_ = u.add(pubsub, channels...) // receive meets the error
	return pubsub
}

// add subscribes to channels one by one: those of a cluster need not be in one slot.
func (u *subscription) add(pubsub *redis.PubSub, channels ...string) error {
	subscribe := pubsub.Subscribe
	if u.sharded {
		subscribe = pubsub.SSubscribe
	}
	for _, channel := range channels {
		if err := subscribe(context.Background(), channel); err != nil {
			return err
		}
	}
	return nil
}

// sort forgets the channels that nobody has waited on for a while, and the subscription if no other is left.
func (u *subscription) sort() (needed, dropped []string) {
	u.w.mu.Lock()
	defer u.w.mu.Unlock()
	for channel, t := range u.w.topics {
		switch {
		case t.line != u:
		case u.w.closed, len(t.stays) == 0 && time.Since(t.left) >= unused:
			delete(u.w.topics, channel)
			dropped = append(dropped, channel)
		default:
			needed = append(needed, channel)
		}
	}
	if len(needed) == 0 && u.w.lines[u.node] == u {
		delete(u.w.lines, u.node)
	}
	return needed, dropped
}

// receive delivers messages until the subscription breaks, is refused or not needed. It answers the pause that is due
// before the next one, 0 for the usual. go-redis restores a connection that broke by itself and has the subscription
// confirmed again.
func (u *subscription) receive(ctx context.Context, pubsub *redis.PubSub, failures *int) time.Duration {
	asked := false
	sorted := time.Now()
	for ctx.Err() == nil {
		msg, err := pubsub.ReceiveTimeout(ctx, quiet)
		var slow net.Error
		var server redis.Error
		switch {
		case err == nil:
			asked, *failures = false, 0
			u.deliver(msg)
		case errors.As(err, &slow) && slow.Timeout() && !asked:
			asked = true
			_ = pubsub.Ping(ctx)
		case !errors.As(err, &server):
			return 0
		case !u.sharded:
			return refused
		case redis.HasErrorPrefix(err, "MOVED") || transient(err):
			u.forget() // they will ask which node it is now
			return 0
		default:
			u.sharded = false // a server before version 7: the cluster relays
			return 1
		}
		if time.Since(sorted) >= quiet {
			sorted = time.Now()
			needed, dropped := u.sort()
			if len(needed) == 0 {
				return 1
			}
			if u.sharded && len(dropped) > 0 {
				for _, channel := range dropped {
					_ = pubsub.SUnsubscribe(ctx, channel)
				}
			}
		}
	}
	return 1
}

// forget drops all channels of the subscription and wakes their waiters, who look and listen anew.
func (u *subscription) forget() {
	u.w.mu.Lock()
	defer u.w.mu.Unlock()
	for channel, t := range u.w.topics {
		if t.line == u {
			u.w.drop(channel)
		}
	}
}

// drop forgets a channel. w.mu is held.
func (w *wakes) drop(channel string) {
	t := w.topics[channel]
	delete(w.topics, channel)
	t.hint()
}

// hint wakes everyone on the channel to look.
func (t *topic) hint() {
	for _, s := range t.stays {
		s.wake(grant(0))
	}
}

// deliver passes a message on.
func (u *subscription) deliver(msg any) {
	w := u.w
	w.mu.Lock()
	defer w.mu.Unlock()
	switch msg := msg.(type) {
	case *redis.Subscription:
		switch t := w.topics[msg.Channel]; {
		case t == nil || t.line != u:
		case strings.HasSuffix(msg.Kind, "unsubscribe"):
			w.drop(msg.Channel) // its slot has moved
		default:
			t.hint() // confirmed, or restored: a message may have been missed
		}
	case *redis.Message:
		id, g := parseGrant(msg.Payload)
		if t := w.topics[msg.Channel]; t != nil && t.stays[id] != nil {
			t.stays[id].wake(g)
		}
	}
}

// parseGrant reads what line.lua publishes: the wake id of the waiter and the fencing token of its grant. Anybody may publish
// anything: what cannot be read is a hint to look, and whether a grant is believed is for stay.trust to say.
func parseGrant(payload string) (wakeID string, g grant) {
	wakeID, digits, _ := strings.Cut(payload, " ")
	fence, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return wakeID, grant(0)
	}
	return wakeID, grant(fence)
}

// wake leaves a message with the stay. The newest is kept, but for a hint, which a grant outlasts. Only called under
// wakes.mu, so there is one sender.
func (s *stay) wake(g grant) {
	select {
	case s.grants <- g:
		return
	default:
	}
	if g == 0 {
		return
	}
	select {
	case <-s.grants:
	default:
	}
	s.grants <- g
}
