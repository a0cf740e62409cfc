package line

import (
	"container/list"
	"context"
	"sync"

	"github.com/go-leasehold/leasehold/internal/fault"
)

// gates has the gate of every key that somebody waits for or is about to have. There is one for
// each key, not one for a stripe of keys, so no key waits for another. An entry goes with its last
// user.
//
// A gate goes from hand to hand: whoever leaves it lets the next one in, under the mutex. So nobody
// that comes meanwhile can get in between, as one could where those who wait are only woken and
// then compete. Rejected: a sync.Mutex for each key, since a wait for it does not end with a
// context.
type gates struct {
	mu   sync.Mutex       // guards keys and what is in them; never held while waiting, and no other is taken under it
	keys map[string]*gate // nil: one caller is in, and nobody waits
}

// gate is where goroutines queue behind the one that is in.
type gate struct {
	queue  list.List // of chan struct{}, first come first; each is closed when its turn comes, and has left the list by then
	reason error     // what the one that is in waits for
}

// enter waits for the caller's turn at the key, and tells what the one before waited for. Without
// an error the caller is in, and must leave, from whichever goroutine. After an error it is not,
// and has lost its turn if that had come.
func (g *gates) enter(ctx context.Context, closing <-chan struct{}, key string) (reason, err error) {
	turn := g.queue(key)
	if turn == nil {
		return nil, nil
	}
	select {
	case <-turn.Value.(chan struct{}):
		return g.reason(key), nil
	case <-ctx.Done():
	case <-closing:
	}
	reason = g.giveUp(key, turn)
	if ctx.Err() != nil {
		if reason == nil {
			reason = fault.NoWord(ctx) // of the one that is in, too
		}
		return nil, fault.Ended(ctx, reason)
	}
	return nil, &fault.Wait{Reason: reason, Ended: fault.ErrClosed}
}

// queue puts the caller at the end of the key's queue. It returns nil if nobody was in: then the
// caller is.
func (g *gates) queue(key string) *list.Element {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, taken := g.keys[key]; !taken {
		if g.keys == nil {
			g.keys = map[string]*gate{}
		}
		g.keys[key] = nil
		return nil
	}
	return g.of(key).queue.PushBack(make(chan struct{}))
}

// of is the gate of a key that somebody is in. g.mu is held.
func (g *gates) of(key string) *gate {
	at := g.keys[key]
	if at == nil {
		at = new(gate)
		g.keys[key] = at
	}
	return at
}

// giveUp ends a wait, in the same time wherever in the queue it is: thousands may end at once. A
// turn that has come meanwhile goes to the next.
func (g *gates) giveUp(key string, turn *list.Element) (reason error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := g.of(key)
	reason = at.reason
	select {
	case <-turn.Value.(chan struct{}):
		g.next(key)
	default:
		at.queue.Remove(turn)
	}
	return reason
}

// reason is what the one that is in waits for.
func (g *gates) reason(key string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.of(key).reason
}

// blame notes what the one that is in waits for, for those behind.
func (g *gates) blame(key string, reason error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.of(key).reason = reason
}

// leave lets the next one in, or forgets the key if nobody waits.
func (g *gates) leave(key string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next(key)
}

// next is leave. g.mu is held.
func (g *gates) next(key string) {
	at := g.keys[key]
	if at == nil || at.queue.Len() == 0 {
		delete(g.keys, key)
		return
	}
	close(at.queue.Remove(at.queue.Front()).(chan struct{}))
}

// len is the number of keys whose gate is taken.
func (g *gates) len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.keys)
}
