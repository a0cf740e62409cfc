package keep_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/keep"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// client is a lease that asks for a renewal at each of its turns.
type client struct {
	k      *keep.Keeper
	entry  keep.Entry
	every  time.Duration
	server string
	deaf   bool // its server does not answer

	mu    sync.Mutex
	turns []time.Duration // since the bubble began
	sent  []time.Duration
}

var began = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // of every bubble

func (c *client) plan(now time.Time) keep.Plan { return keep.Plan{Next: now.Add(c.every), Early: true} }

func (c *client) Turn(now clock.Moment) (keep.Plan, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turns = append(c.turns, now.Sub(began))
	p := c.plan(now.Time)
	p.Queue, p.Until = c.server, now.Add(2*c.every)
	return p, true
}

func (c *client) Send(now clock.Moment, in *keep.Lane) (keep.Plan, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = append(c.sent, now.Sub(began))
	if !c.deaf {
		time.AfterFunc(time.Millisecond, func() {
			c.k.Leave(in, keep.Answered)
			c.k.Deliver(&c.entry, keep.Answer{Begun: now})
		})
	}
	return c.plan(now.Time), true
}

func (c *client) Answered(a keep.Answer, _ clock.Moment) (keep.Plan, bool) {
	return c.plan(a.Begun.Time), true
}

// seen returns the turns and the sends so far.
func (c *client) seen() (turns, sent []time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.turns), slices.Clone(c.sent)
}

func add(t *testing.T, k *keep.Keeper, c *client, first time.Duration) *client {
	t.Helper()
	c.k = k
	require.True(t, k.Add(&c.entry, c, keep.Terms{Every: c.every, TTL: 3 * c.every}, keep.Plan{Next: time.Now().Add(first), Early: true}))
	return c
}

func TestARenewalThatIsNearlyDueSharesTheFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var flushes atomic.Int32
		k := keep.New(&clock.Clock{}, func() { flushes.Add(1) })
		first := add(t, k, &client{every: time.Second, server: "a"}, time.Second)
		second := add(t, k, &client{every: time.Second, server: "a"}, time.Second+keep.Coalesce-1)
		late := add(t, k, &client{every: time.Second, server: "a"}, time.Second+keep.Coalesce)
		time.Sleep(time.Second + keep.Coalesce/2)
		for c, want := range map[*client][]time.Duration{first: {time.Second}, second: {time.Second}, late: nil} {
			_, sent := c.seen()
			assert.Equal(t, want, sent)
		}
		assert.EqualValues(t, 1, flushes.Load())
		k.Close(t.Context())
	})
}

func TestAClientThatIsRemovedHasNoMoreTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := keep.New(&clock.Clock{}, func() {})
		gone := add(t, k, &client{every: time.Second, server: "a"}, time.Second)
		stays := add(t, k, &client{every: time.Second, server: "a"}, time.Second)
		time.Sleep(1500 * time.Millisecond)
		k.Remove(&gone.entry)
		k.Deliver(&gone.entry, keep.Answer{}) // a late answer puts it back nowhere
		time.Sleep(10 * time.Second)
		turns, _ := gone.seen()
		assert.Len(t, turns, 1)
		turns, _ = stays.seen()
		assert.Len(t, turns, 11)
		assert.Equal(t, 1, k.Len())
		k.Close(t.Context())
	})
}

func TestAServerThatDoesNotAnswerFillsItsOwnLaneOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := keep.New(&clock.Clock{}, func() {})
		var deaf []*client
		for range 2000 {
			deaf = append(deaf, add(t, k, &client{every: 10 * time.Second, server: "deaf", deaf: true}, time.Second))
		}
		well := add(t, k, &client{every: time.Second, server: "well"}, time.Second)
		time.Sleep(9500 * time.Millisecond)
		_, sent := well.seen()
		assert.Len(t, sent, 9)
		tried := 0
		for _, c := range deaf {
			_, sent := c.seen()
			tried += len(sent)
		}
		assert.Less(t, tried, len(deaf))
		_, queued, underWay := k.Load()
		assert.Equal(t, len(deaf), queued+underWay)
		k.Close(t.Context())
	})
}

func TestNothingIsAddedAfterSealAndNothingHappensAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := keep.New(&clock.Clock{}, func() {})
		c := add(t, k, &client{every: time.Second, server: "a"}, time.Second)
		assert.Equal(t, []keep.Client{c}, k.Seal())
		assert.False(t, k.Add(new(keep.Entry), &client{}, keep.Terms{}, keep.Plan{}))
		assert.Equal(t, []keep.Client{c}, k.Close(context.Background()))
		time.Sleep(time.Hour)
		turns, _ := c.seen()
		assert.Empty(t, turns)
	})
}

// The monotonic clock of a machine that was suspended has stood still, so no timer has fired when it wakes up.
func TestEveryClientHasATurnOnceTheWallClockHasJumped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var jump atomic.Int64
		k := keep.New(&clock.Clock{Wall: func(t time.Time) int64 { return t.UnixNano() + jump.Load() }}, func() {})
		add(t, k, &client{every: time.Second, server: "a"}, time.Second)
		far := add(t, k, &client{every: time.Hour, server: "a"}, time.Hour)
		time.Sleep(1500 * time.Millisecond)
		turns, _ := far.seen()
		assert.Empty(t, turns)
		jump.Store(int64(2 * time.Second))
		time.Sleep(time.Second)
		turns, _ = far.seen()
		assert.Equal(t, []time.Duration{2 * time.Second}, turns)
		k.Close(t.Context())
	})
}

func TestRetimeGivesATurnAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := keep.New(&clock.Clock{}, func() {})
		c := add(t, k, &client{every: time.Hour, server: "a"}, time.Hour)
		time.Sleep(time.Minute)
		k.Retime(&c.entry, keep.Terms{Every: time.Second, TTL: 3 * time.Second})
		synctest.Wait()
		turns, _ := c.seen()
		assert.Equal(t, []time.Duration{time.Minute}, turns)
		k.Remove(&c.entry)
		k.Retime(&c.entry, keep.Terms{Every: time.Second})
		time.Sleep(24 * time.Hour)
		turns, _ = c.seen()
		assert.Len(t, turns, 1, "a client that has ended gets no turn")
		k.Close(t.Context())
	})
}

// slow is a client whose turns take a second, and plan another turn in an hour.
type slow struct{ client }

func (c *slow) Turn(now clock.Moment) (keep.Plan, bool) {
	c.mu.Lock()
	c.turns = append(c.turns, now.Sub(began))
	c.mu.Unlock()
	time.Sleep(time.Second)
	return keep.Plan{Next: now.Add(time.Hour)}, true
}

// The plan of a turn that was under way was made by the terms of before, and may be too late by the new ones.
func TestAPlanFromBeforeRetimeIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := keep.New(&clock.Clock{}, func() {})
		c := &slow{}
		require.True(t, k.Add(&c.entry, c, keep.Terms{Every: time.Hour}, keep.Plan{Next: time.Now().Add(time.Minute)}))
		time.Sleep(time.Minute + time.Second/2)
		k.Retime(&c.entry, keep.Terms{Every: time.Second})
		time.Sleep(10 * time.Second)
		turns, _ := c.seen()
		assert.Equal(t, []time.Duration{time.Minute, time.Minute + time.Second}, turns)
		k.Close(t.Context())
	})
}
