package leasehold

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/inflight"
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/roundtrip"
	"github.com/redis/go-redis/v9"
)

// wakes passes on the messages that tell a waiter that the lock was handed to it. They may be lost, late or impossible:
// they only spare a waiter the time until its next look.
//
// One server has one channel for each Locker, shared by all its waits and subscribed by the first. A cluster would relay
// that to every node, and a ring has no server for it, so there a channel belongs to one key of one Locker and is on the key's
// own server, on a cluster as a sharded one: a subscription then is one connection to each server that has keys which are
// waited for. What is behind a client of an unknown kind is taken for one server.
//
// A connection that lives may still bring no messages: the key has moved to another server, or the address has. What shows it is
// a look that finds the lock handed over; see missed.
type wakes struct {
	client   redis.UniversalClient
	topology *roundtrip.Topology
	channel  string // of all keys, if there is one
	id       string
	ctx      context.Context // ends with close
	end      context.CancelFunc

	mu     sync.Mutex // guards what follows; sends under it do not block
	closed bool
	topics map[string]*topic               // by channel
	lines  map[*redis.Client]*subscription // by the server's client; nil is the client as a whole
	ended  inflight.Group                  // the goroutines
}

// topic is one channel and those who wait for its messages.
type topic struct {
	key    string           // whose server has the channel
	line   *subscription    // nil: the server is being asked for
	since  time.Time        // when the subscription was confirmed; zero: it is not
	stays  map[string]*stay // by wake id
	left   time.Time        // when the last one left
	missed int              // how many hand-overs in a row were found by a look, though their message should have come
}

func newWakes(client redis.UniversalClient, at *roundtrip.Topology, prefix, id string) *wakes {
	w := &wakes{
		client:   client,
		topology: at,
		channel:  prefix + rediskey.WakeChannel + id,
		id:       id,
		topics:   map[string]*topic{},
		lines:    map[*redis.Client]*subscription{},
	}
	w.ctx, w.end = context.WithCancel(context.Background())
	return w
}

// of names the channel for a stay.
func (w *wakes) of(s *stay) string {
	if !w.topology.Many() {
		return w.channel
	}
	return string(rediskey.Derive(nil, s.a.o.prefix, rediskey.Wake, s.a.asks.Key)) + ":" + w.id
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
// at once, or when the subscription that it begins is confirmed. It does not wait for the client.
func (w *wakes) listen(s *stay) {
	w.mu.Lock()
	defer w.mu.Unlock()
	channel := w.of(s)
	t := w.topics[channel]
	switch {
	case w.closed:
	case t == nil:
		t = &topic{key: s.a.asks.Key, stays: map[string]*stay{s.wakeID(): s}}
		w.topics[channel] = t
		w.start(func() { w.begin(channel, t) })
	case t.stays[s.wakeID()] == nil:
		t.stays[s.wakeID()] = s
		s.wake(grant(0))
	}
}

// begin subscribes to a channel for the first time. If no server is found for it, a later look tries again.
func (w *wakes) begin(channel string, t *topic) {
	_ = w.apart(func() error { w.place(channel, t); return nil })
	w.mu.Lock()
	defer w.mu.Unlock()
	if t.line == nil && w.topics[channel] == t {
		delete(w.topics, channel)
	}
}

// place gives the channel to the subscription on the server that has its key now, or leaves it where it is if none is found.
func (w *wakes) place(channel string, t *topic) {
	var node *redis.Client
	if w.topology.Many() {
		var err error
		if node, err = w.topology.Node(w.ctx, t.key); err != nil {
			return
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	u := w.lines[node]
	switch {
	case w.closed || w.topics[channel] != t || t.line != nil && t.line == u:
	case u == nil:
		u = &subscription{w: w, node: node}
		t.line, w.lines[node] = u, u
		w.ended.Go(u.run)
	default:
		if t.line = u; u.pubsub != nil {
			pubsub := u.pubsub
			w.start(func() { _ = u.add(pubsub, channel) })
		}
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

// missed is told of a lock that a look found handed over, though the stay was there to be told. One message may be late, or lost
// with a connection that breaks. Two in a row show that the subscription is of no use as it is: it is made anew, on the
// server that has the key now. Where no message can come at all, as without the right to publish, that goes on, but rarely.
func (w *wakes) missed(s *stay) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.topics[w.of(s)]
	if t == nil || t.stays[s.wakeID()] != s || t.since.IsZero() || s.anchor.Before(t.since) {
		return // handed over before it was subscribed
	}
	if t.missed++; t.missed >= deaf {
		t.line.renew()
	}
}

// close ends all subscriptions and waits for their goroutines, no longer than ctx allows.
func (w *wakes) close(ctx context.Context) {
	w.mu.Lock()
	w.closed = true
	w.end()
	for _, line := range w.lines {
		line.hangUp()
	}
	w.mu.Unlock()
	w.ended.Wait(ctx)
}

// start runs f, which calls the client, in a goroutine of its own. A hook of the client's that panics, or ends the goroutine, ends
// that one and nothing else.
func (w *wakes) start(f func()) {
	w.ended.Go(func() {
		defer func() { _ = recover() }()
		f()
	})
}

// apart is start for a caller that waits for f.
func (w *wakes) apart(f func() error) error {
	err := fault.ErrExited // or a panic
	done := make(chan struct{})
	w.start(func() {
		defer close(done)
		err = f()
	})
	<-done
	return err
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
			delete(w.topics, msg.Channel) // its slot has moved: they look, and listen anew
			t.hint()
		default:
			t.since = time.Now()
			t.hint() // confirmed: a message may have been missed before
		}
	case *redis.Message:
		t := w.topics[msg.Channel]
		if t == nil {
			return
		}
		t.missed, u.renewed, u.next = 0, 0, time.Time{}
		id, g := parseGrant(msg.Payload)
		if s := t.stays[id]; s != nil {
			s.wake(g)
		}
	}
}

// parseGrant reads what handover.lua publishes: the wake id of the waiter and the fencing token of its grant. Anybody may publish
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
