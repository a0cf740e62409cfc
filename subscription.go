package leasehold

import (
	"errors"
	"net"
	"time"

	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/roundtrip"
	"github.com/redis/go-redis/v9"
)

const (
	// quiet is how long a subscription may be silent before it is asked whether it lives; silent once more as long, it
	// is made anew.
	quiet = 5 * time.Second
	// unused is how long a subscription outlives the last waiter.
	unused = 15 * time.Second
	// refused is the pause after the server has refused a subscription, and the longest before one that brings no messages is
	// made anew. The tick serves everyone meanwhile.
	refused = 30 * time.Second
	// maxStrikes is how many subscriptions in a row may be asked for and end unheard before that is taken for a refusal. Some
	// proxies know no other.
	maxStrikes = 3
	// deaf is how many messages in a row a subscription may miss before it is made anew.
	deaf = 2
)

// subscription is one connection that receives messages, and the goroutine that sees to it.
//
// The connection is a PubSub of go-redis. Calls of it run in goroutines of their own, since they run hooks of the user's: those that
// dial, those that greet the server, a credentials provider. One that panics there may leave the mutex of the PubSub locked for good,
// so a PubSub in which that has happened is not touched again.
type subscription struct {
	w    *wakes
	node *redis.Client // nil: the client as a whole

	// Guarded by wakes.mu.
	pubsub  *redis.PubSub // nil: there is none
	anew    bool          // it is being closed to be made anew
	renewed int           // how often it was made anew since the last message
	next    time.Time     // not before then again
}

// run keeps the subscription until nobody has waited for a while. After each end of a connection it asks which server has a key
// now, and goes on with the channels whose keys are still on its own.
func (u *subscription) run() {
	w := u.w
	for failures, strikes := 0, 0; ; failures++ {
		needed, _ := u.sort()
		if len(needed) == 0 {
			return
		}
		begun, struck := time.Now(), true
		err := w.apart(func() (err error) {
			struck, err = u.attempt()
			return err
		})
		if err == nil || time.Since(begun) >= quiet {
			failures = 0
		}
		if strikes++; !struck {
			strikes = 0
		}
		pause := fault.Backoff(failures)
		if strikes >= maxStrikes || fault.Has[redis.Error](err) && !fault.Transient(err) {
			pause = refused
		}
		_ = w.apart(func() error { w.topology.Refresh(); return nil })
		timer := time.NewTimer(pause)
		select {
		case <-w.ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		if w.topology.Many() {
			_ = w.apart(func() error { u.move(); return nil })
		}
	}
}

// attempt subscribes to the channels that are needed and delivers their messages until the connection breaks, is to be made anew
// or is not needed; the last two are no error. It is struck if it could ask for the subscription and heard nothing, not even a refusal.
func (u *subscription) attempt() (struck bool, err error) {
	w := u.w
	pubsub := u.open()
	w.mu.Lock()
	u.pubsub, u.anew = pubsub, false // from here on a new topic subscribes itself
	w.mu.Unlock()
	receiving := false
	defer func() {
		if u.end() {
			err = nil
		}
		if !receiving { // otherwise it has panicked there
			_ = pubsub.Close()
		}
	}()
	needed, _ := u.sort()
	if err := u.add(pubsub, needed...); err != nil {
		return false, err
	}
	asked := false
	struck = true
	for sorted := time.Now(); len(needed) > 0; {
		receiving = true
		msg, err := pubsub.ReceiveTimeout(w.ctx, quiet)
		receiving = false
		slow, isNetwork := errors.AsType[net.Error](err)
		switch {
		case err == nil:
			asked, struck = false, false
			u.deliver(msg)
		case isNetwork && slow.Timeout() && !asked:
			asked = true
			_ = pubsub.Ping(w.ctx)
		default:
			return struck && !fault.Has[redis.Error](err), err
		}
		if time.Since(sorted) >= quiet {
			sorted = time.Now()
			var dropped []string
			needed, dropped = u.sort()
			u.remove(pubsub, dropped...)
		}
	}
	return false, nil
}

// open makes a PubSub. It sends nothing, but for a client of an unknown kind: there a ring may be behind it, which wants to be told
// a channel at once.
func (u *subscription) open() *redis.PubSub {
	w := u.w
	switch {
	case w.topology.Kind == roundtrip.Unknown:
		return w.client.Subscribe(w.ctx, w.channel)
	case u.node == nil:
		return w.client.Subscribe(w.ctx)
	}
	return u.node.Subscribe(w.ctx)
}

// isSharded reports whether the channels belong to the slots of a cluster, which passes on no message to its other nodes.
func (u *subscription) isSharded() bool { return u.w.topology.Kind == roundtrip.Cluster }

// add subscribes to channels one by one: those of a cluster need not be in one slot.
func (u *subscription) add(pubsub *redis.PubSub, channels ...string) error {
	subscribe := pubsub.Subscribe
	if u.isSharded() {
		subscribe = pubsub.SSubscribe
	}
	for _, channel := range channels {
		if err := subscribe(u.w.ctx, channel); err != nil {
			return err
		}
	}
	return nil
}

// remove ends what add began.
func (u *subscription) remove(pubsub *redis.PubSub, channels ...string) {
	unsubscribe := pubsub.Unsubscribe
	if u.isSharded() {
		unsubscribe = pubsub.SUnsubscribe
	}
	for _, channel := range channels {
		_ = unsubscribe(u.w.ctx, channel) // receive meets the error
	}
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

// end is the end of a connection. It reports whether that was wanted.
func (u *subscription) end() bool {
	u.w.mu.Lock()
	defer u.w.mu.Unlock()
	u.pubsub = nil
	for _, t := range u.w.topics {
		if t.line == u {
			t.since, t.missed = time.Time{}, 0
		}
	}
	return u.anew
}

// move gives the channels whose keys are on another server now to the subscription there.
func (u *subscription) move() {
	u.w.mu.Lock()
	mine := map[string]*topic{}
	for channel, t := range u.w.topics {
		if t.line == u {
			mine[channel] = t
		}
	}
	u.w.mu.Unlock()
	for channel, t := range mine {
		u.w.place(channel, t)
	}
}

// renew has the connection made anew, if that has not just been done in vain. w.mu is held.
func (u *subscription) renew() {
	if now := time.Now(); !now.Before(u.next) {
		u.next = now.Add(min(time.Second<<min(u.renewed, 5), refused))
		u.renewed++
		u.anew = true
		u.hangUp()
	}
}

// hangUp closes the connection, which ends a read that is under way. It waits for nothing. w.mu is held.
func (u *subscription) hangUp() {
	if pubsub := u.pubsub; pubsub != nil {
		u.w.start(func() { _ = pubsub.Close() })
	}
}
