package locktest

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
	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/inside"
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

// World is a synctest bubble with a miniredis in it. What must hold after every test is checked when it ends: see
// party.audit and world.audit.
type World struct {
	T    *testing.T
	M    *miniredis.Miniredis
	Dial func(opts ...func(*redis.Options)) *redis.Client
	Raw  *redis.Client // without faults
}

func InBubble(t *testing.T, test func(t *testing.T, w *World)) {
	t.Helper()
	redistest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, dial func(opts ...func(*redis.Options)) *redis.Client) {
		w := &World{t, m, dial, dial()}
		for _, sc := range Scripts() {
			require.NoError(t, w.Raw.ScriptLoad(t.Context(), sc.Src).Err()) // or each one's first call would be two commands
		}
		t.Cleanup(w.Audit)
		test(t, w)
	})
}

// Audit: nothing is left in Redis without a TTL.
func (w *World) Audit() {
	for _, key := range w.M.Keys() {
		assert.Positive(w.T, w.M.TTL(key), "the key %q has no TTL", key)
	}
}

// Owner is the value of the key, "" if there is none.
func (w *World) Owner(key string) string {
	if !w.M.Exists(key) {
		return ""
	}
	value, err := w.M.Get(key)
	require.NoError(w.T, err)
	return value
}

// Take gives the key to another client of ours, by force.
func (w *World) Take(key string, ttl time.Duration) { w.Put(key, OtherToken, ttl) }

// Plain gives the key to a client of another library, by force.
func (w *World) Plain(key string, ttl time.Duration) {
	w.Put(key, "f47ac10b-58cc-4372-a567-0e02b2c3d479", ttl)
}

func (w *World) Put(key, value string, ttl time.Duration) {
	require.NoError(w.T, w.M.Set(key, value))
	w.M.SetTTL(key, ttl)
}

var OtherToken = token.New(token.NewID(), token.Exclusive, "")

// Line is who waits for the key, in order.
func (w *World) Line(key string) []string {
	line := string(rediskey.Derive(nil, "", "line", key))
	if !w.M.Exists(line) {
		return nil
	}
	tokens, err := w.M.ZMembers(line)
	require.NoError(w.T, err)
	return tokens
}

// Party is one Locker with a client of its own, the faults of both, and all that it said.
type Party struct {
	*leasehold.Locker
	T     *testing.T
	Fault *redistest.Fault     // of its calls
	Wire  *redistest.DialFault // of its connections
	Skew  atomic.Int64         // what its wall clock shows too much, in ns
	Real  bool                 // it is not in a bubble

	Mu   sync.Mutex
	Said []Heard
	Text bytes.Buffer // of its logger
}

// Heard is what a hook was told.
type Heard struct {
	Hook string
	leasehold.Event
	At time.Time
}

func (w *World) Party(opts ...leasehold.Option) *Party {
	p := &Party{T: w.T}
	client := w.Dial(func(o *redis.Options) {
		p.Wire = redistest.FaultyDialer(o.Dialer)
		o.Dialer = p.Wire.Dial
	})
	p.Start(client, opts)
	inside.Of(p.Locker).Clock.Wall = func(t time.Time) int64 { return t.UnixNano() + p.Skew.Load() }
	return p
}

// Start makes the Locker; it is closed and audited when the test ends.
func (p *Party) Start(client redis.UniversalClient, opts []leasehold.Option) {
	p.Fault = redistest.Faulty(client)
	log := slog.New(slog.NewTextHandler(p, nil))
	p.Locker = leasehold.New(client, append([]leasehold.Option{leasehold.WithHooks(p.Hooks()), leasehold.WithLogger(log)}, opts...)...)
	p.T.Cleanup(p.Audit)
}

// Write is its logger's.
func (p *Party) Write(b []byte) (int, error) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	return p.Text.Write(b)
}

// Logged is all that it logged.
func (p *Party) Logged() string {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	return p.Text.String()
}

func (p *Party) Hooks() leasehold.Hooks {
	note := func(hook string) func(leasehold.Event) {
		return func(e leasehold.Event) {
			p.Mu.Lock()
			defer p.Mu.Unlock()
			p.Said = append(p.Said, Heard{hook, e, time.Now()})
		}
	}
	with := func(hook string) func(context.Context, leasehold.Event) {
		return func(_ context.Context, e leasehold.Event) { note(hook)(e) }
	}
	return leasehold.Hooks{
		Start:    func(ctx context.Context, e leasehold.Event) context.Context { note("start")(e); return ctx },
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

// Heard is what the hooks were told, of one kind.
func (p *Party) Heard(hook string) (events []Heard) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	for _, h := range p.Said {
		if h.Hook == hook {
			events = append(events, h)
		}
	}
	return events
}

// Story is the order in which the hooks were called.
func (p *Party) Story() (hooks []string) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	for _, h := range p.Said {
		hooks = append(hooks, h.Hook)
	}
	return hooks
}

// Audit closes the Locker and checks what holds for every one: what it said adds up, it never said a token, and it
// keeps nothing.
func (p *Party) Audit() {
	t := p.T
	p.Fault.Clear()
	if p.Wire != nil {
		p.Wire.Pass()
	}
	_ = p.Close()
	if !p.Real {
		synctest.Wait()
	}

	n := map[string]int{}
	type lease struct {
		Key   string
		Fence int64
	}
	lost, released := map[lease]bool{}, map[lease]bool{}
	for _, h := range p.Said {
		n[h.Hook]++
		if h.Err != nil {
			assert.NotContains(t, h.Err.Error(), p.Id(), "a token in an error")
		}
		switch x := (lease{h.Key, h.FencingToken}); {
		case h.Hook == "lost":
			assert.False(t, lost[x], "lost twice: %v", h.Err)
			lost[x] = true
		case h.Hook == "released" && h.Clean:
			assert.False(t, released[x], "released twice")
			released[x] = true
		}
	}
	assert.NotContains(t, p.Logged(), p.Id(), "a token in the log")
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
	p.RequireEmpty()
}

// RequireEmpty checks that the Locker keeps nothing for any key.
func (p *Party) RequireEmpty() {
	p.T.Helper()
	leases, _ := Kept(p.Locker)
	assert.Zero(p.T, leases, "the keeper's heap")
	assert.Zero(p.T, inside.Of(p.Locker).Line.Load(), "the line")
	assert.Zero(p.T, inside.Of(p.Locker).Life.Len(), "calls")
}

// Kept is what the keeper has in hand.
func Kept(l *leasehold.Locker) (leases, renewing int) {
	leases, _, renewing = inside.Of(l).Keeper.Load()
	return leases, renewing
}

// Goroutines are those of this bubble that the library has started and that have not ended.
func Goroutines() (stacks []string) {
	all := make([]byte, 4<<20)
	all = all[:runtime.Stack(all, true)]
	bubble := BubbleOf.FindString(string(all)) // the caller's stack is the first
	for stack := range strings.SplitSeq(string(all), "\n\n") {
		head, _, _ := strings.Cut(stack, "\n")
		i := strings.LastIndex(stack, "created by ") // tests begin elsewhere
		if strings.Contains(head, bubble) && i >= 0 && Ours.MatchString(stack[i:]) {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}

var BubbleOf = regexp.MustCompile(`synctest bubble \d+\]`)

var Ours = regexp.MustCompile(`^created by github\.com/go-leasehold/leasehold(/internal/\w+)?\.\(\*(Locker|Lease|Group|sender|notifier|subscription|Keeper)\)`)

// The bounds of a Locker, as the root package has them.
const (
	CloseBound = 5 * time.Second
	MinRelease = 100 * time.Millisecond
	MinTTL     = 10 * time.Millisecond
	MaxTTL     = 10 * 365 * 24 * time.Hour
)

// How many round trips a client has under way before calls share one, and at most: as package roundtrip has it.
const FreeFlights, MaxFlights = 2, 16

// How waiters poll and how subscriptions are kept: as package line has it.
const (
	PollInterval        = line.PollInterval
	ForeignPollInterval = 50 * time.Millisecond
	Quiet               = 5 * time.Second
	Unused              = 15 * time.Second
	Refused             = 30 * time.Second
	MaxUnheard          = 3
	MaxMissed           = 2
	CancelBound         = 10 * time.Second
)

// The places in a token: as package token has them.
const IdLength, WakeIDAt, SecretAt, SecretLength = 16, 17, 31, 26

// Id is the first part of the Locker's tokens.
func (p *Party) Id() string { return inside.Of(p.Locker).ID }

// Channel is the channel of the messages to the Locker's waiters.
func (p *Party) Channel() string { return rediskey.WakeChannel + p.Id() }

// RunOf matches the runs of a script, in one mode if any is given.
func RunOf(sc *script.Script, modes ...string) func(redis.Cmder) bool {
	return func(cmd redis.Cmder) bool {
		args := cmd.Args()
		if len(args) < 4 {
			return false
		}
		is := func(sc *script.Script) bool { return args[1] == sc.Hash || args[1] == sc.Src }
		if slices.ContainsFunc(ShortScripts[sc], is) {
			return len(modes) == 0 || slices.Contains([]string{"try", "join", "release"}, modes[0])
		}
		if !is(sc) {
			return false
		}
		return len(modes) == 0 || slices.ContainsFunc(args, func(arg any) bool {
			mode, ok := arg.(string)
			return ok && slices.Contains(modes, mode)
		})
	}
}

// Await lets everybody go on until nothing moves, and then the time until ok or a second more than the bound has passed.
func Await(t *testing.T, bound time.Duration, ok func() bool) {
	t.Helper()
	for begun := time.Now(); !ok(); time.Sleep(time.Millisecond) {
		if time.Since(begun) > bound {
			require.Fail(t, "it did not come about", "within %v", bound)
		}
		synctest.Wait()
	}
}

// AwaitEnd waits until the lease has ended and everybody has been told.
func AwaitEnd(x *leasehold.Lease) {
	select {
	case <-x.Done():
	case <-time.After(time.Hour):
		panic("the lease does not end")
	}
	synctest.Wait()
}

// Result is what a call in a goroutine of its own came to.
type Result struct {
	Lease *leasehold.Lease
	Err   error
	Took  time.Duration
}

// Beside runs the call in a goroutine of its own.
func Beside(call func() (*leasehold.Lease, error)) <-chan Result {
	done := make(chan Result, 1)
	begun := time.Now()
	go func() {
		x, err := call()
		done <- Result{x, err, time.Since(begun)}
	}()
	return done
}

var ErrNetwork = errors.New("the network is gone")

// Idle is a function for WithLock.
func Idle(context.Context, *leasehold.Lease) error { return nil }
