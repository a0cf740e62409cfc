package clock

import (
	"sync"
	"time"
)

// Rarely says when to tell something that happens often. The zero value has told nothing yet; it is safe for concurrent
// use.
type Rarely struct {
	mu   sync.Mutex // guards last
	last time.Time
}

// Due reports whether it was told the last time long enough ago, and notes that it is told now.
func (r *Rarely) Due(every time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if !r.last.IsZero() && now.Sub(r.last) < every {
		return false
	}
	r.last = now
	return true
}
