// Package inflight counts what is under way, so that a caller can wait until nothing is.
package inflight

import (
	"context"
	"sync"
)

// Group counts the calls of users and the goroutines that they leave behind. Unlike a [sync.WaitGroup] it may grow while
// somebody waits, and a wait ends with a context. The zero value is ready to use; a Group is safe for concurrent use.
type Group struct {
	mu   sync.Mutex // guards what follows
	n    int
	idle chan struct{} // made by Wait, closed by the last that leaves
}

// Enter counts one more. Whoever enters must leave.
func (g *Group) Enter() {
	g.mu.Lock()
	g.n++
	g.mu.Unlock()
}

// Leave counts one less, and ends the waits when none is left.
func (g *Group) Leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.n--; g.n == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
}

// Go runs f in a goroutine that counts.
func (g *Group) Go(f func()) {
	g.Enter()
	go func() {
		defer g.Leave()
		f()
	}()
}

// Len returns how many are under way.
func (g *Group) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.n
}

// Wait returns when nothing is under way, or when ctx ends.
func (g *Group) Wait(ctx context.Context) {
	g.mu.Lock()
	if g.n == 0 {
		g.mu.Unlock()
		return
	}
	if g.idle == nil {
		g.idle = make(chan struct{})
	}
	idle := g.idle
	g.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	}
}
