package locktest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/go-leasehold/leasehold"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Closes runs Close beside the test.
func (p *Party) Closes() <-chan error {
	done := make(chan error, 1)
	go func() { done <- p.Close() }()
	return done
}

// RefusesNested checks that no call with that context takes the key, and that none waits for it.
func (p *Party) RefusesNested(ctx context.Context, prefix, key string) {
	p.T.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Hour) // or a wait would go on for ever
	defer cancel()
	begun, sent, told := time.Now(), len(p.Fault.Sent()), len(p.Story())
	for _, e := range EntryPointsOf(ctx) {
		if !e.Ttl {
			continue
		}
		err := e.Call(p.Locker, key, time.Second)
		require.ErrorIs(p.T, err, leasehold.ErrInvalid, e.Name)
		require.ErrorContains(p.T, err, fmt.Sprintf("%q: invalid argument: held by the lease of this context: pass it", prefix+key))
	}
	assert.Zero(p.T, time.Since(begun))
	assert.Len(p.T, p.Fault.Sent(), sent)
	assert.Len(p.T, p.Story(), told, "what is refused before anything is sent is no attempt")
}

// Crowd puts so many dead waiters in front of the line.
func (w *World) Crowd(key string, n int) {
	names := ScriptKeys(key)
	for i := range n {
		_, err := w.M.ZAdd(names["Q"], float64(i), fmt.Sprint("dead", i))
		require.NoError(w.T, err)
	}
	w.M.SetTTL(names["Q"], time.Minute)
}

// Keeps is an acquire with automatic renewal.
func (p *Party) Keeps(key string, ttl time.Duration, opts ...leasehold.Option) *leasehold.Lease {
	p.T.Helper()
	x, err := p.TryAcquire(context.Background(), key, ttl, append([]leasehold.Option{leasehold.WithAutoRenew(true)}, opts...)...)
	require.NoError(p.T, err)
	return x
}

// OnSubscribe answers SUBSCRIBE in the server's place while it reports that it has; it returns how often it was asked.
func (w *World) OnSubscribe(answer func(c *server.Peer, channel string) bool) *atomic.Int32 {
	var asked atomic.Int32
	w.M.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
		if !strings.EqualFold(cmd, "SUBSCRIBE") {
			return false
		}
		asked.Add(1)
		return answer(c, args[0])
	})
	w.T.Cleanup(func() { w.M.Server().SetPreHook(nil) })
	return &asked
}

// Blocked are the ways in which a server does not answer.
var Blocked = map[string]func(p *Party){
	"it accepts and never answers": func(p *Party) { p.Wire.BlackHole() },
	"it refuses":                   func(p *Party) { p.Wire.Refuse() },
	"it is slow":                   func(p *Party) { p.Wire.Delay(20 * time.Second) },
}

// Trouble is what Redis may answer, or not, for a while.
var Trouble = map[string]struct{ Begin, End func(w *World, p *Party) }{
	"refused":     {func(_ *World, p *Party) { p.Wire.Refuse() }, func(_ *World, p *Party) { p.Wire.Pass() }},
	"black hole":  {func(_ *World, p *Party) { p.Wire.BlackHole() }, func(_ *World, p *Party) { p.Wire.Pass() }},
	"failed":      {func(_ *World, p *Party) { p.Fault.Every(nil).Fail(ErrNetwork) }, func(_ *World, p *Party) { p.Fault.Clear() }},
	"LOADING":     answers("LOADING Redis is loading the dataset in memory"),
	"READONLY":    answers("READONLY You can't write against a read only replica."),
	"TRYAGAIN":    answers("TRYAGAIN Multiple keys request during rehashing of slot"),
	"CLUSTERDOWN": answers("CLUSTERDOWN Hash slot not served"),
	"MASTERDOWN":  answers("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."),
	"OOM":         answers("OOM command not allowed when used memory > 'maxmemory'."),
	"MISCONF":     answers("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk."),
	"in a script": answers("ERR Error running script (call to f_0): @user_script:7: READONLY You can't write against a read only replica."),
	"max clients": answers("ERR max number of clients reached"),
}

// Waits has n goroutines wait for the key, one after the other, and reports the order in which they get in. Each holds the
// lock for the time given.
func Waits(t *testing.T, n int, hold time.Duration, acquire func(i int) (*leasehold.Lease, error)) <-chan int {
	in := make(chan int, n)
	for i := range n {
		go func() {
			x, err := acquire(i)
			if err != nil {
				in <- -1
				return
			}
			in <- i
			time.Sleep(hold)
			assert.NoError(t, x.Release(context.Background()))
		}()
		time.Sleep(time.Millisecond)
	}
	return in
}

// Subscribers is how many connections listen.
func (w *World) Subscribers() (n int) {
	for _, channel := range w.M.PubSubChannels("*") {
		n += w.M.PubSubNumSub(channel)[channel]
	}
	return n
}

var ErrWork = errors.New("the work failed")

// NobodyGetsIn tries for the key every 20 ms, with a Locker of its own, until stop is called.
func (w *World) NobodyGetsIn(key string) (stop func()) {
	p := w.Party()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if x, err := p.TryAcquire(context.Background(), key, 10*time.Millisecond); err == nil {
				assert.Fail(w.T, "somebody got in", "with %d", x.FencingToken())
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	return func() { cancel(); <-done }
}

func answers(msg string) struct{ Begin, End func(w *World, p *Party) } {
	return struct{ Begin, End func(w *World, p *Party) }{
		func(w *World, _ *Party) { w.M.SetError(msg) },
		func(w *World, _ *Party) { w.M.SetError("") },
	}
}
