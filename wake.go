package leasehold

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// quiet is how long the subscription may be silent before it is asked whether it lives; silent once more as
	// long, it is made anew.
	quiet = 5 * time.Second
	// unused is how long the subscription outlives the last waiter.
	unused = 15 * time.Second
	// refused is the pause after the server has refused the subscription. The tick serves everyone meanwhile.
	refused = 30 * time.Second
)

// listener is the one subscription of a Locker, shared by all its waits and begun by the first. A message tells a waiter
// that the lock was handed to it. Messages may be lost, late or impossible: they only spare a waiter the time
// until its next look.
type listener struct {
	client  redis.UniversalClient
	channel string

	mu     sync.Mutex // guards what follows; sends under it do not block
	stays  map[string]*stay
	left   time.Time // when the last one left
	pubsub *redis.PubSub
	stop   context.CancelFunc // of the goroutine; nil: there is none
	done   chan struct{}      // closed when it has ended
	closed bool
}

func newListener(client redis.UniversalClient, channel string) *listener {
	return &listener{client: client, channel: channel, stays: map[string]*stay{}}
}

// enter has messages for the stay delivered if there is a subscription, and reports whether there is: a stay that was
// entered before its join was sent misses no message but one that is lost.
func (w *listener) enter(s *stay) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stop == nil {
		return false
	}
	w.stays[s.a.token] = s
	return true
}

// listen is enter for the first who waits: it begins the subscription, and when that is confirmed everyone is
// woken to look, since a message may have gone by before.
func (w *listener) listen(s *stay) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	w.stays[s.a.token] = s
	if w.stop != nil {
		s.wake(grant{}) // begun by another meanwhile
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.stop, w.done = cancel, make(chan struct{})
	go w.run(ctx, w.done)
}

func (w *listener) leave(s *stay) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.stays, s.a.token)
	if len(w.stays) == 0 {
		w.left = time.Now()
	}
}

// close ends the subscription and waits for its goroutine.
func (w *listener) close() {
	w.mu.Lock()
	w.closed = true
	stop, done, pubsub := w.stop, w.done, w.pubsub
	w.mu.Unlock()
	if stop == nil {
		return
	}
	stop()
	if pubsub != nil {
		_ = pubsub.Close() // ends a read that is under way
	}
	<-done
}

// run keeps the subscription until nobody has waited for a while.
func (w *listener) run(ctx context.Context, done chan struct{}) {
	defer close(done)
	for failures := 0; w.begin(ctx); failures++ {
		pause := w.receive(ctx, &failures)
		_ = w.pubsub.Close()
		if pause == 0 {
			pause = backoff(failures)
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// begin subscribes, unless the subscription is not needed any more.
func (w *listener) begin(ctx context.Context) bool {
	w.mu.Lock()
	if w.closed || w.idle() {
		w.stop()
		w.stop = nil
		w.mu.Unlock()
		return false
	}
	w.mu.Unlock()
	pubsub := w.client.Subscribe(ctx, w.channel)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pubsub = pubsub
	if w.closed {
		_ = pubsub.Close() // close may not have seen it
	}
	return true
}

// idle reports whether nobody has waited for a while. w.mu is held.
func (w *listener) idle() bool {
	return len(w.stays) == 0 && time.Since(w.left) >= unused
}

// receive delivers messages until the subscription ends, is refused or not needed. It answers the pause that is due before the
// next one, 0 for the usual. go-redis restores a connection that broke by itself, and then confirms the subscription again.
func (w *listener) receive(ctx context.Context, failures *int) time.Duration {
	asked := false
	for ctx.Err() == nil {
		msg, err := w.pubsub.ReceiveTimeout(ctx, quiet)
		var slow net.Error
		var server redis.Error
		switch {
		case err == nil:
			asked, *failures = false, 0
			w.deliver(msg)
		case errors.As(err, &slow) && slow.Timeout() && !asked:
			asked = true
			_ = w.pubsub.Ping(ctx)
		case errors.As(err, &server):
			return refused
		default:
			return 0
		}
		w.mu.Lock()
		over := w.idle()
		w.mu.Unlock()
		if over {
			return 1
		}
	}
	return 1
}

// deliver passes a message on.
func (w *listener) deliver(msg any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch msg := msg.(type) {
	case *redis.Subscription:
		for _, s := range w.stays {
			s.wake(grant{}) // confirmed, or restored: a message may have been missed
		}
	case *redis.Message:
		token, g := parseGrant(msg.Payload)
		if s := w.stays[token]; s != nil {
			s.wake(g)
		}
	}
}

// parseGrant reads "token fence waiters"; the token's label may hold blanks. What cannot be read is a hint to look.
func parseGrant(payload string) (token string, g grant) {
	i := strings.LastIndexByte(payload, ' ')
	if i < 0 {
		return "", grant{}
	}
	j := strings.LastIndexByte(payload[:i], ' ')
	if j < 0 {
		return "", grant{}
	}
	fence, err1 := strconv.ParseInt(payload[j+1:i], 10, 64)
	waiters, err2 := strconv.Atoi(payload[i+1:])
	if err1 != nil || err2 != nil {
		return payload[:j], grant{}
	}
	return payload[:j], grant{fence, waiters}
}

// wake leaves a message with the stay. The newest is kept, but for a hint, which a grant outlasts. Only called under
// listener.mu, so there is one sender.
func (s *stay) wake(g grant) {
	select {
	case s.grants <- g:
		return
	default:
	}
	if g.fence == 0 {
		return
	}
	select {
	case <-s.grants:
	default:
	}
	s.grants <- g
}
