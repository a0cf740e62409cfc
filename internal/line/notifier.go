package line

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

// message is what a waiter is told: the fencing token with which a release has handed the lock over
// to it, and, if it is placed, the slot beside other holders.
type message struct {
	fence  int64
	slot   int
	placed bool
}

// pollNow is the message that hands nothing over: it only has the waiter poll.
var pollNow message

// notifier delivers the messages that tell a waiter that the lock was handed over to it. They may
// be lost, late or impossible: they only spare a waiter the time until its next poll.
//
// Rejected: keyspace notifications, which a server must be configured for, and which reach everyone
// and say nothing of the grant.
//
// One server has one channel for each Locker, shared by all its waiters and subscribed by the
// first. A cluster would relay that to every node, and a ring has no server for it, so there a
// channel belongs to one key of one Locker and is on the key's own server, on a cluster as a
// sharded one: a subscription then is one connection to each server that has keys which are waited
// for. What is behind a client of an unknown kind is taken for one server.
//
// A connection that lives may still bring no messages: the key has moved to another server, or the
// address has. What shows it is a poll that finds the lock handed over; see missed.
type notifier struct {
	client   redis.UniversalClient
	topology *roundtrip.Topology
	prefix   string
	channel  string // of all keys, if there is one
	id       string
	ctx      context.Context // ends with close
	end      context.CancelFunc

	mu      sync.Mutex // guards what follows, and the topics and subscriptions; sends under it do not block
	closed  bool
	topics  map[string]*topic               // by channel
	subs    map[*redis.Client]*subscription // by the server's client; nil is the client as a whole
	running inflight.Group                  // the goroutines; it has a mutex of its own
}

// topic is one channel and the places to which its messages go. The notifier's mutex guards it.
type topic struct {
	key       string            // whose server has the channel
	sub       *subscription     // nil: the server is being asked for
	confirmed time.Time         // when the server has said that the channel is subscribed; zero: it has not
	places    map[string]*place // by their ids
	left      time.Time         // when the last one left
	missed    int               // how many hand-overs in a row were found by a poll, though their message should have come
}

func newNotifier(c Config) *notifier {
	n := &notifier{
		client:   c.Client.Redis(),
		topology: c.Client.Topology(),
		prefix:   c.Prefix,
		channel:  c.Prefix + rediskey.WakeChannel + c.ID,
		id:       c.ID,
		topics:   map[string]*topic{},
		subs:     map[*redis.Client]*subscription{},
	}
	n.ctx, n.end = context.WithCancel(context.Background())
	return n
}

// channelOf names the channel on which a place is told of its grant.
func (n *notifier) channelOf(p *place) string {
	if !n.topology.Many() {
		return n.channel
	}
	return string(rediskey.Derive(nil, n.prefix, rediskey.Wake, p.w.Key)) + ":" + n.id
}

// add has messages delivered to the place if there is a subscription for them. A place that is
// added before its join is sent misses no message but one that is lost.
func (n *notifier) add(p *place) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if t := n.topics[n.channelOf(p)]; t != nil {
		t.places[p.id] = p
	}
}

// listen is add for a place that stands in the line already. It has the waiter poll as soon as a
// message could not be missed: at once, or when the subscription that it begins is confirmed. It
// does not wait for the client.
func (n *notifier) listen(p *place) {
	n.mu.Lock()
	defer n.mu.Unlock()
	channel := n.channelOf(p)
	t := n.topics[channel]
	switch {
	case n.closed:
	case t == nil:
		t = &topic{key: p.w.Key, places: map[string]*place{p.id: p}}
		n.topics[channel] = t
		n.start(func() { n.begin(channel, t) })
	case t.places[p.id] == nil:
		t.places[p.id] = p
		p.notify(pollNow)
	}
}

// remove ends the delivery. The topic stays for a while, since the next waiter may come soon, and
// is forgotten by sort.
func (n *notifier) remove(p *place) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if t := n.topics[n.channelOf(p)]; t != nil {
		delete(t.places, p.id)
		if len(t.places) == 0 {
			t.left = time.Now()
		}
	}
}

// missed is told of a lock that a poll has found handed over, though the place was there to be
// told. One message may be late, or lost with a connection that breaks. Two in a row show that the
// subscription is of no use as it is: its connection is made anew, to the server that has the key
// now. Where no message can come at all, as without the right to publish, that goes on, but rarely.
func (n *notifier) missed(p *place) {
	n.mu.Lock()
	defer n.mu.Unlock()
	t := n.topics[n.channelOf(p)]
	if t == nil || t.places[p.id] != p || t.confirmed.IsZero() || p.anchor.Before(t.confirmed) {
		return // handed over before it was subscribed
	}
	if t.missed++; t.missed >= maxMissed {
		t.sub.reconnect()
	}
}

// begin subscribes to a channel for the first time. If no server is found for it, a later poll
// tries again.
func (n *notifier) begin(channel string, t *topic) {
	_ = n.apart(func() error { n.assign(channel, t); return nil })
	n.mu.Lock()
	defer n.mu.Unlock()
	if t.sub == nil && n.topics[channel] == t {
		delete(n.topics, channel)
	}
}

// assign gives the channel to the subscription on the server that has its key now, or leaves it
// where it is if none is found.
func (n *notifier) assign(channel string, t *topic) {
	var node *redis.Client
	if n.topology.Many() {
		var err error
		if node, err = n.topology.Node(n.ctx, t.key); err != nil {
			return
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.subs[node]
	switch {
	case n.closed || n.topics[channel] != t || t.sub != nil && t.sub == s:
	case s == nil:
		s = &subscription{n: n, node: node}
		t.sub, n.subs[node] = s, s
		n.running.Go(s.run)
	default:
		if t.sub = s; s.pubsub != nil {
			pubsub := s.pubsub
			n.start(func() { _ = s.add(pubsub, channel) })
		}
	}
}

// close ends all subscriptions and waits for their goroutines, no longer than ctx allows: a client
// that does not return from a call holds nobody up. No subscription begins after it.
func (n *notifier) close(ctx context.Context) {
	n.mu.Lock()
	n.closed = true
	n.end()
	for _, s := range n.subs {
		s.hangUp()
	}
	n.mu.Unlock()
	n.running.Wait(ctx)
}

// start runs f, which calls the client, in a goroutine of its own, which close waits for. A hook of
// the client's that panics, or ends the goroutine, ends that one and nothing else.
func (n *notifier) start(f func()) {
	n.running.Go(func() {
		defer func() { _ = recover() }()
		f()
	})
}

// apart is start for a caller that waits for f.
func (n *notifier) apart(f func() error) error {
	err := fault.ErrExited // or a panic
	done := make(chan struct{})
	n.start(func() {
		defer close(done)
		err = f()
	})
	<-done
	return err
}

// count adds what the notifier has in hand.
func (n *notifier) count(load *Load) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, t := range n.topics {
		load.Places += len(t.places)
	}
	load.Subscriptions = len(n.subs)
	load.Goroutines = n.running.Len()
}

// pollAll has everyone on the channel poll. The notifier's mutex is held.
func (t *topic) pollAll() {
	for _, p := range t.places {
		p.notify(pollNow)
	}
}

// parseMessage reads what handover.lua publishes: the id of the waiter and the fencing token of its
// grant. In what internal/several publishes the slot stands behind them. Anybody may publish
// anything: what cannot be read has the waiter poll, and whether a grant is believed is for
// place.trust to say.
func parseMessage(payload string) (id string, m message) {
	id, digits, _ := strings.Cut(payload, " ")
	digits, last, placed := strings.Cut(digits, "/")
	fence, err := strconv.ParseInt(digits, 10, 64)
	slot := uint64(0)
	if placed && err == nil {
		slot, err = strconv.ParseUint(last, 10, 15)
	}
	if err != nil {
		return id, pollNow
	}
	return id, message{fence, int(slot), placed}
}

// notify leaves a message with the place. The newest is kept, but pollNow takes the place of no
// other. It is called under the notifier's mutex alone, so there is one sender, and the send does
// not block.
func (p *place) notify(m message) {
	select {
	case p.messages <- m:
		return
	default:
	}
	if m == pollNow {
		return
	}
	select {
	case <-p.messages:
	default:
	}
	p.messages <- m
}
