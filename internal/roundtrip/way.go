package roundtrip

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/redis/go-redis/v9"
)

// way is what a sender knows of its way to the server: what has gone wrong there last. A command
// that has no answer when its bound is over says so, whichever command has met it.
//
// go-redis keeps to itself why it cannot connect until it has given up, with its own defaults after
// twenty dials in two seconds. Rejected: a hook (the client is the caller's), a trace in the
// context (go-redis dials in a goroutine with a context of its own), a dial of our own (one more
// connection to a server in trouble), and fewer retries (they are the caller's as well).
type way struct {
	client redis.UniversalClient
	heard  atomic.Bool // the server has answered
	last   atomic.Pointer[mishap]
}

// mishap is an error on the way to the server, and when it was met.
type mishap struct {
	err error
	at  time.Time
}

// recent is how long a mishap is the news, if nothing has gone well since.
const recent = 5 * time.Second

// note takes in how a round trip went: nil, or what kept it from the server.
func (w *way) note(err error) {
	switch {
	case err != nil:
		w.last.Store(&mishap{err, time.Now()})
	case !w.heard.Load() || w.last.Load() != nil: // the common case writes nothing
		w.heard.Store(true)
		w.last.Store(nil)
	}
}

// trouble returns what is wrong; nil if nothing is known. Unsent is for a command that was not
// written yet.
func (w *way) trouble(unsent bool) error {
	if last := w.last.Load(); last != nil && time.Since(last.at) < recent {
		return last.err
	}
	if unsent {
		return w.unconnected()
	}
	return nil
}

// unknown reports whether nothing was ever heard on the way, neither an answer nor an error, and
// there is no connection.
func (w *way) unknown() bool {
	return !w.heard.Load() && w.last.Load() == nil && w.unconnected() != nil
}

// unconnected reports that there is no connection at all.
func (w *way) unconnected() (err error) {
	defer func() { _ = recover() }() // it is the client's code: then nothing is known
	if w.client.PoolStats().TotalConns > 0 {
		return nil
	}
	if one, ok := w.client.(interface{ Options() *redis.Options }); ok {
		return fmt.Errorf("%w to %s", fault.ErrUnconnected, one.Options().Addr)
	}
	return fault.ErrUnconnected
}
