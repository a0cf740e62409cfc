package line

import (
	"errors"
	"net"
	"strings"
	"time"

	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/roundtrip"
	"github.com/redis/go-redis/v9"
)

const (
	// quiet is how long a subscription may be silent before it is asked whether it lives; silent
	// once more as long, it is made anew.
	quiet = 5 * time.Second
	// unused is how long a subscription outlives the last waiter.
	unused = 15 * time.Second
	// refused is the pause after the server has refused a subscription, and the longest before one
	// that brings no messages is made anew. Polls serve everyone meanwhile.
	refused = 30 * time.Second
	// maxUnheard is how many subscriptions in a row may be asked for and end unheard before that is
	// taken for a refusal. Some proxies know no other.
	maxUnheard = 3
	// maxMissed is how many messages in a row a subscription may miss before it is made anew.
	maxMissed = 2
)

// subscription is one connection that receives messages, and the goroutine that sees to it: run,
// which begins with the first topic on the server and ends when none is needed any more.
//
// A topic on it goes through these states:
//
//	state         sub   pubsub   confirmed   what comes next
//	sought        nil   –        zero        assign: the server's subscription has it; or no server is found, and it is forgotten
//	unconnected   set   nil      zero        run: at once, or after a pause, attempt makes a connection and asks for it
//	asked for     set   set      zero        deliver: the server confirms it, and all who wait poll; or the connection breaks
//	confirmed     set   set      set         deliver: messages reach their places; the connection breaks, or reconnect closes it:
//	                                         unconnected; the server ends it, since its slot has moved: it is forgotten
//
// In every state but the first a topic that nobody has waited on for a while is forgotten, by sort,
// and after each connection one whose key is on another server now goes to the subscription there,
// by move. A topic that is forgotten is sought anew by the next poll of a waiter.
//
// The connection is a PubSub of go-redis. Calls of it run in goroutines of their own, since they
// run hooks of the user's: those that dial, those that greet the server, a credentials provider.
// One that panics there may leave the mutex of the PubSub locked for good, so a PubSub in which
// that has happened is not touched again.
type subscription struct {
	n    *notifier
	node *redis.Client // nil: the client as a whole

	// Guarded by the notifier's mutex.
	pubsub     *redis.PubSub // nil: there is none
	wanted     bool          // the end of the connection is wanted: it is to be made anew
	reconnects int           // since the last message
	next       time.Time     // not before then again
}

// run keeps the subscription until nobody has waited for a while. After each end of a connection it
// asks which server has a key now, and goes on with the channels whose keys are still on its own.
//
// Between two connections it pauses: shortly at first, and longer with each failure in a row; for
// long if the server has refused the subscription, or seems to have. A connection that has lived
// for a while was no failure.
func (s *subscription) run() {
	n := s.n
	for failures, unheard := 0, 0; ; failures++ {
		if needed, _ := s.sort(); len(needed) == 0 {
			return
		}
		begun, ignored := time.Now(), true
		err := n.apart(func() (err error) {
			ignored, err = s.attempt()
			return err
		})
		if err == nil || time.Since(begun) >= quiet {
			failures = 0
		}
		if unheard++; !ignored {
			unheard = 0
		}
		pause := fault.Backoff(failures)
		if unheard >= maxUnheard || fault.Has[redis.Error](err) && !fault.Transient(err) {
			pause = refused
		}
		_ = n.apart(func() error { n.topology.Refresh(); return nil })
		n.sleep(pause)
		if n.topology.Many() {
			_ = n.apart(func() error { s.move(); return nil })
		}
	}
}

// sleep pauses a subscription, no longer than until close.
func (n *notifier) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-n.ctx.Done():
	case <-timer.C:
	}
}

// attempt subscribes to the channels that are needed and delivers their messages until the
// connection breaks, is to be made anew or is not needed; the last two are no error. It is ignored
// if it could ask for the subscription and heard nothing, not even a refusal.
func (s *subscription) attempt() (ignored bool, err error) {
	n := s.n
	pubsub := s.open()
	n.mu.Lock()
	s.pubsub, s.wanted = pubsub, false // from here on a new topic subscribes itself
	n.mu.Unlock()
	receiving := false
	defer func() {
		if s.end() {
			err = nil
		}
		if !receiving { // otherwise it has panicked there
			_ = pubsub.Close()
		}
	}()
	needed, _ := s.sort()
	if err := s.add(pubsub, needed...); err != nil {
		return false, err
	}
	asked := false
	ignored = true
	for sorted := time.Now(); len(needed) > 0; {
		receiving = true
		msg, err := pubsub.ReceiveTimeout(n.ctx, quiet)
		receiving = false
		slow, isNetwork := errors.AsType[net.Error](err)
		switch {
		case err == nil:
			asked, ignored = false, false
			s.deliver(msg)
		case isNetwork && slow.Timeout() && !asked:
			asked = true
			_ = pubsub.Ping(n.ctx)
		default:
			return ignored && !fault.Has[redis.Error](err), err
		}
		if time.Since(sorted) >= quiet {
			sorted = time.Now()
			var dropped []string
			needed, dropped = s.sort()
			s.remove(pubsub, dropped...)
		}
	}
	return false, nil
}

// deliver passes on what the connection has received: that a channel is subscribed, that its
// subscription has ended, or a message.
func (s *subscription) deliver(received any) {
	s.n.mu.Lock()
	defer s.n.mu.Unlock()
	switch r := received.(type) {
	case *redis.Subscription:
		switch t := s.n.topics[r.Channel]; {
		case t == nil || t.sub != s:
		case strings.HasSuffix(r.Kind, "unsubscribe"):
			delete(s.n.topics, r.Channel) // its slot has moved: they poll, and listen anew
			t.pollAll()
		default:
			t.confirmed = time.Now()
			t.pollAll() // a message may have been missed before
		}
	case *redis.Message:
		t := s.n.topics[r.Channel]
		if t == nil {
			return
		}
		t.missed, s.reconnects, s.next = 0, 0, time.Time{}
		id, m := parseMessage(r.Payload)
		if p := t.places[id]; p != nil {
			p.notify(m)
		}
	}
}

// open makes a PubSub. It sends nothing, but for a client of an unknown kind: there a ring may be
// behind it, which wants to be told a channel at once.
func (s *subscription) open() *redis.PubSub {
	n := s.n
	switch {
	case n.topology.Kind == roundtrip.Unknown:
		return n.client.Subscribe(n.ctx, n.channel)
	case s.node == nil:
		return n.client.Subscribe(n.ctx)
	}
	return s.node.Subscribe(n.ctx)
}

// isSharded reports whether the channels belong to the slots of a cluster, which passes on no
// message to its other nodes.
func (s *subscription) isSharded() bool { return s.n.topology.Kind == roundtrip.Cluster }

// add subscribes to channels one by one: those of a cluster need not be in one slot.
func (s *subscription) add(pubsub *redis.PubSub, channels ...string) error {
	subscribe := pubsub.Subscribe
	if s.isSharded() {
		subscribe = pubsub.SSubscribe
	}
	for _, channel := range channels {
		if err := subscribe(s.n.ctx, channel); err != nil {
			return err
		}
	}
	return nil
}

// remove ends what add began.
func (s *subscription) remove(pubsub *redis.PubSub, channels ...string) {
	unsubscribe := pubsub.Unsubscribe
	if s.isSharded() {
		unsubscribe = pubsub.SUnsubscribe
	}
	for _, channel := range channels {
		_ = unsubscribe(s.n.ctx, channel) // receive meets the error
	}
}

// sort forgets the channels that nobody has waited on for a while, and the subscription if no other
// is left. Both happen under one hold of the mutex, so a topic that comes later finds either a
// subscription that will serve it or none, and then makes one.
func (s *subscription) sort() (needed, dropped []string) {
	s.n.mu.Lock()
	defer s.n.mu.Unlock()
	for channel, t := range s.n.topics {
		switch {
		case t.sub != s:
		case s.n.closed, len(t.places) == 0 && time.Since(t.left) >= unused:
			delete(s.n.topics, channel)
			dropped = append(dropped, channel)
		default:
			needed = append(needed, channel)
		}
	}
	if len(needed) == 0 && s.n.subs[s.node] == s {
		delete(s.n.subs, s.node)
	}
	return needed, dropped
}

// end notes that the connection has ended, and with it the subscription of its topics. It reports
// whether that was wanted.
func (s *subscription) end() bool {
	s.n.mu.Lock()
	defer s.n.mu.Unlock()
	s.pubsub = nil
	for _, t := range s.n.topics {
		if t.sub == s {
			t.confirmed, t.missed = time.Time{}, 0
		}
	}
	return s.wanted
}

// move gives the channels whose keys are on another server now to the subscription there.
func (s *subscription) move() {
	s.n.mu.Lock()
	mine := map[string]*topic{}
	for channel, t := range s.n.topics {
		if t.sub == s {
			mine[channel] = t
		}
	}
	s.n.mu.Unlock()
	for channel, t := range mine {
		s.n.assign(channel, t)
	}
}

// reconnect has the connection made anew, if that has not just been done in vain. The notifier's
// mutex is held.
func (s *subscription) reconnect() {
	if now := time.Now(); !now.Before(s.next) {
		s.next = now.Add(min(time.Second<<min(s.reconnects, 5), refused))
		s.reconnects++
		s.wanted = true
		s.hangUp()
	}
}

// hangUp closes the connection, which ends a read that is under way. It waits for nothing. The
// notifier's mutex is held.
func (s *subscription) hangUp() {
	if pubsub := s.pubsub; pubsub != nil {
		s.n.start(func() { _ = pubsub.Close() })
	}
}
