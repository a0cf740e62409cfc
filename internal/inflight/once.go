package inflight

import "sync/atomic"

// Once does something one time, for all who ask. It is what sync.OnceValue is, but those who wait for the first do so on a
// channel: a goroutine that waits for a mutex keeps the clock of a test's bubble from moving. Make one with [NewOnce].
type Once struct {
	begun atomic.Bool
	done  chan struct{}
	err   error
}

// NewOnce returns a Once that has done nothing.
func NewOnce() *Once { return &Once{done: make(chan struct{})} }

// Do calls f if nobody has called Do before, and else waits for the f of the first. All return the same.
func (o *Once) Do(f func() error) error {
	if o.begun.CompareAndSwap(false, true) {
		o.err = f()
		close(o.done)
	}
	<-o.done
	return o.err
}
