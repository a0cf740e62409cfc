package inflight

import (
	"context"
	"time"
)

// Life is how far a Locker is from its end, and what it has under way. It goes through four states:
// open, draining, closing and ended.
//
// While it is draining nothing new is begun and every wait ends, but what is under way goes on. While
// it is closing, what is under way is given time to end. When it has ended, that time is over. Make
// one with [NewLife]; it is safe for concurrent use.
type Life struct {
	Group // the calls of users and the goroutines that they leave behind

	draining context.Context // ends with Drain
	drain    context.CancelFunc
	closing  context.Context // ends with Close
	close    context.CancelFunc
	ended    context.Context // ends with End
	end      context.CancelFunc
}

// NewLife returns a Life that is open.
func NewLife() *Life {
	l := &Life{}
	l.draining, l.drain = context.WithCancel(context.Background())
	l.closing, l.close = context.WithCancel(context.Background())
	l.ended, l.end = context.WithCancel(context.Background())
	return l
}

// Drain begins the draining. It waits for nothing.
func (l *Life) Drain() { l.drain() }

// Draining returns a channel that is closed when the draining begins.
func (l *Life) Draining() <-chan struct{} { return l.draining.Done() }

// IsDraining reports whether the draining has begun.
func (l *Life) IsDraining() bool { return l.draining.Err() != nil }

// Close begins the closing, and so the draining if that has not begun. It waits for nothing.
func (l *Life) Close() {
	l.drain()
	l.close()
}

// Closing returns a channel that is closed when the closing begins.
func (l *Life) Closing() <-chan struct{} { return l.closing.Done() }

// IsClosing reports whether the closing has begun.
func (l *Life) IsClosing() bool { return l.closing.Err() != nil }

// End ends every Retry, with the context of the call that it is making.
func (l *Life) End() { l.end() }

// Retry calls f until it reports that it is done, until d has passed, or until End. It pauses after
// each failure, for as long as backoff says of the nth in a row.
func (l *Life) Retry(d time.Duration, backoff func(n int) time.Duration, f func(context.Context) bool) {
	ctx, cancel := context.WithTimeout(l.ended, d)
	defer cancel()
	for n := 0; !f(ctx); n++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(backoff(n)):
		}
	}
}
