package leasehold

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-leasehold/leasehold/internal/line"
	"github.com/go-leasehold/leasehold/internal/rediskey"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/go-leasehold/leasehold/internal/script"
	"github.com/go-leasehold/leasehold/internal/token"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func init() { logging.Disable() } // go-redis writes to stderr about every connection that a test breaks

// world is a synctest bubble with a miniredis in it. What must hold after every test is checked when it ends: see
// party.audit and world.audit.
type world struct {
	t    *testing.T
	m    *miniredis.Miniredis
	dial func(opts ...func(*redis.Options)) *redis.Client
	raw  *redis.Client // without faults
}

func inBubble(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	redistest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, dial func(opts ...func(*redis.Options)) *redis.Client) {
		w := &world{t, m, dial, dial()}
		for _, sc := range []*script.Script{acquireScript, adoptScript, renewScript, releaseScript, inspectScript} {
			require.NoError(t, w.raw.ScriptLoad(t.Context(), sc.Src).Err()) // or each one's first call would be two commands
		}
		t.Cleanup(w.audit)
		test(t, w)
	})
}

// audit: nothing is left in Redis without a TTL.
func (w *world) audit() {
	for _, key := range w.m.Keys() {
		assert.Positive(w.t, w.m.TTL(key), "the key %q has no TTL", key)
	}
}

// owner is the value of the key, "" if there is none.
func (w *world) owner(key string) string {
	if !w.m.Exists(key) {
		return ""
	}
	value, err := w.m.Get(key)
	require.NoError(w.t, err)
	return value
}

// take gives the key to another client of ours, by force.
func (w *world) take(key string, ttl time.Duration) { w.put(key, otherToken, ttl) }

// plain gives the key to a client of another library, by force.
func (w *world) plain(key string, ttl time.Duration) {
	w.put(key, "f47ac10b-58cc-4372-a567-0e02b2c3d479", ttl)
}

func (w *world) put(key, value string, ttl time.Duration) {
	require.NoError(w.t, w.m.Set(key, value))
	w.m.SetTTL(key, ttl)
}

var otherToken = token.New(token.NewID(), "")

// line is who waits for the key, in order.
func (w *world) line(key string) []string {
	line := string(rediskey.Derive(nil, "", "line", key))
	if !w.m.Exists(line) {
		return nil
	}
	tokens, err := w.m.ZMembers(line)
	require.NoError(w.t, err)
	return tokens
}

// party is one Locker with a client of its own, the faults of both, and all that it said.
type party struct {
	*Locker
	t     *testing.T
	fault *redistest.Fault     // of its calls
	wire  *redistest.DialFault // of its connections
	skew  atomic.Int64         // what its wall clock shows too much, in ns
	real  bool                 // it is not in a bubble

	mu   sync.Mutex
	said []heard
	text bytes.Buffer // of its logger
}

// heard is what a hook was told.
type heard struct {
	hook string
	Event
	at time.Time
}

func (w *world) party(opts ...Option) *party {
	p := &party{t: w.t}
	client := w.dial(func(o *redis.Options) {
		p.wire = redistest.FaultyDialer(o.Dialer)
		o.Dialer = p.wire.Dial
	})
	p.start(client, opts)
	p.clock.Wall = func(t time.Time) int64 { return t.UnixNano() + p.skew.Load() }
	return p
}

// start makes the Locker; it is closed and audited when the test ends.
func (p *party) start(client redis.UniversalClient, opts []Option) {
	p.fault = redistest.Faulty(client)
	log := slog.New(slog.NewTextHandler(p, nil))
	p.Locker = New(client, append([]Option{WithHooks(p.hooks()), WithLogger(log)}, opts...)...)
	p.t.Cleanup(p.audit)
}

// Write is its logger's.
func (p *party) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

// logged is all that it logged.
func (p *party) logged() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

func (p *party) hooks() Hooks {
	note := func(hook string) func(Event) {
		return func(e Event) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.said = append(p.said, heard{hook, e, time.Now()})
		}
	}
	with := func(hook string) func(context.Context, Event) {
		return func(_ context.Context, e Event) { note(hook)(e) }
	}
	return Hooks{
		Start:    func(ctx context.Context, e Event) context.Context { note("start")(e); return ctx },
		Acquired: with("acquired"),
		GaveUp:   with("gave up"),
		Retrying: note("retrying"),
		Renewed:  note("renewed"),
		Jeopardy: note("jeopardy"),
		Lost:     note("lost"),
		Released: note("released"),
		Detached: note("detached"),
	}
}

// heard is what the hooks were told, of one kind.
func (p *party) heard(hook string) (events []heard) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.said {
		if h.hook == hook {
			events = append(events, h)
		}
	}
	return events
}

// story is the order in which the hooks were called.
func (p *party) story() (hooks []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.said {
		hooks = append(hooks, h.hook)
	}
	return hooks
}

// audit closes the Locker and checks what holds for every one: what it said adds up, it never said a token, and it
// keeps nothing.
func (p *party) audit() {
	t := p.t
	p.fault.Clear()
	if p.wire != nil {
		p.wire.Pass()
	}
	_ = p.Close()
	if !p.real {
		synctest.Wait()
	}

	n := map[string]int{}
	type lease struct {
		key   string
		fence int64
	}
	lost, released := map[lease]bool{}, map[lease]bool{}
	for _, h := range p.said {
		n[h.hook]++
		if h.Err != nil {
			assert.NotContains(t, h.Err.Error(), p.id, "a token in an error")
		}
		switch x := (lease{h.Key, h.FencingToken}); {
		case h.hook == "lost":
			assert.False(t, lost[x], "lost twice: %v", h.Err)
			lost[x] = true
		case h.hook == "released" && h.Clean:
			assert.False(t, released[x], "released twice")
			released[x] = true
		}
	}
	assert.NotContains(t, p.logged(), p.id, "a token in the log")
	assert.Equal(t, n["start"], n["acquired"]+n["gave up"], "every start has its end")

	s := p.Stats()
	assert.EqualValues(t, n["acquired"], s.Acquired)
	assert.EqualValues(t, n["gave up"], s.GaveUp)
	assert.LessOrEqual(t, int64(n["retrying"]), s.Retried)
	assert.EqualValues(t, n["renewed"], s.Renewed)
	assert.EqualValues(t, n["lost"], s.Lost)
	assert.EqualValues(t, n["released"], s.Released+s.ReleasesUnconfirmed)
	assert.EqualValues(t, n["detached"], s.Detached)
	assert.Equal(t, n["acquired"], n["lost"]+n["released"]+n["detached"], "every lease has one end")
	assert.Zero(t, s.Waiting)
	p.requireEmpty()
}

// requireEmpty checks that the Locker keeps nothing for any key.
func (p *party) requireEmpty() {
	p.t.Helper()
	leases, _ := kept(p.Locker)
	assert.Zero(p.t, leases, "the keeper's heap")
	assert.Zero(p.t, p.line.Load(), "the line")
	assert.Zero(p.t, p.life.Len(), "calls")
}

// kept is what the keeper has in hand.
func kept(l *Locker) (leases, renewing int) {
	leases, _, renewing = l.keeper.Load()
	return leases, renewing
}

// goroutines are those of this bubble that the library has started and that have not ended.
func goroutines() (stacks []string) {
	all := make([]byte, 4<<20)
	all = all[:runtime.Stack(all, true)]
	bubble := bubbleOf.FindString(string(all)) // the caller's stack is the first
	for stack := range strings.SplitSeq(string(all), "\n\n") {
		head, _, _ := strings.Cut(stack, "\n")
		i := strings.LastIndex(stack, "created by ") // tests begin elsewhere
		if strings.Contains(head, bubble) && i >= 0 && ours.MatchString(stack[i:]) {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}

var bubbleOf = regexp.MustCompile(`synctest bubble \d+\]`)

var ours = regexp.MustCompile(`^created by github\.com/go-leasehold/leasehold(/internal/\w+)?\.\(\*(Locker|Lease|Group|sender|notifier|subscription|Keeper)\)`)

// How many round trips a client has under way before calls share one, and at most: as package roundtrip has it.
const freeFlights, maxFlights = 2, 16

// How waiters poll and how subscriptions are kept: as package line has it.
const (
	tick        = line.PollInterval
	foreignTick = 50 * time.Millisecond
	quiet       = 5 * time.Second
	unused      = 15 * time.Second
	refused     = 30 * time.Second
	maxUnheard  = 3
	maxMissed   = 2
	cancelBound = 10 * time.Second
)

// The places in a token: as package token has them.
const idLength, wakeIDAt, secretAt, secretLength = 16, 17, 31, 26

// channel is the channel of the messages to the Locker's waiters.
func (p *party) channel() string { return rediskey.WakeChannel + p.id }

// runOf matches the runs of a script, in one mode if any is given.
func runOf(sc *script.Script, modes ...string) func(redis.Cmder) bool {
	return func(cmd redis.Cmder) bool {
		args := cmd.Args()
		if len(args) < 4 || args[1] != sc.Hash && args[1] != sc.Src {
			return false
		}
		return len(modes) == 0 || slices.ContainsFunc(args, func(arg any) bool {
			mode, ok := arg.(string)
			return ok && slices.Contains(modes, mode)
		})
	}
}

// await lets everybody go on until nothing moves, and then the time until ok or a second more than the bound has passed.
func await(t *testing.T, bound time.Duration, ok func() bool) {
	t.Helper()
	for begun := time.Now(); !ok(); time.Sleep(time.Millisecond) {
		if time.Since(begun) > bound {
			require.Fail(t, "it did not come about", "within %v", bound)
		}
		synctest.Wait()
	}
}

// awaitEnd waits until the lease has ended and everybody has been told.
func awaitEnd(x *Lease) {
	select {
	case <-x.Done():
	case <-time.After(time.Hour):
		panic("the lease does not end")
	}
	synctest.Wait()
}

// result is what a call in a goroutine of its own came to.
type result struct {
	lease *Lease
	err   error
	took  time.Duration
}

// beside runs the call in a goroutine of its own.
func beside(call func() (*Lease, error)) <-chan result {
	done := make(chan result, 1)
	begun := time.Now()
	go func() {
		x, err := call()
		done <- result{x, err, time.Since(begun)}
	}()
	return done
}

var errNetwork = errors.New("the network is gone")

// idle is a function for WithLock.
func idle(context.Context, *Lease) error { return nil }
