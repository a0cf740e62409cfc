package line

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/stretchr/testify/assert"
)

func TestWhichMessagesAreTrusted(t *testing.T) {
	const ttl, life = time.Minute, backend.WaiterTTL
	type asks struct {
		fence     int64         // the server would have given 7 at the anchor
		after     time.Duration // since the anchor
		ttl       time.Duration
		autoRenew bool
		with      func(*Waiter)
		want      time.Duration // the life from the anchor; 0: the waiter polls
	}
	for name, tt := range map[string]asks{
		"a new one":                   {7, 0, ttl, true, nil, life},
		"an old one":                  {6, 0, ttl, true, nil, 0},
		"none":                        {0, 0, ttl, true, nil, 0},
		"a negative one":              {math.MinInt64, 0, ttl, true, nil, 0},
		"a TTL below the waiter's":    {7, 0, time.Second, true, nil, time.Second},
		"in time to be confirmed":     {8, time.Second, ttl, true, nil, life},
		"too late to be confirmed":    {8, 2 * time.Second, ttl, true, nil, 0},
		"too late":                    {8, life, ttl, true, nil, 0},
		"renewed by hand":             {8, 0, ttl, false, nil, 0},
		"with a lock delay":           {8, 0, ttl, true, func(w *Waiter) { w.LockDelay = time.Second }, 0},
		"with replicas":               {8, 0, ttl, true, func(w *Waiter) { w.Replicas = 1 }, 0},
		"with a longest hold":         {8, 0, ttl, true, func(w *Waiter) { w.MaxHold = time.Hour }, 0},
		"too late for its short TTL":  {8, 990 * time.Millisecond, time.Second, true, nil, 0},
		"as high as can be":           {7 + 1_010_000, time.Second, ttl, true, nil, life},
		"too high":                    {7 + 1_010_001, time.Second, ttl, true, nil, 0},
		"as high as can be, at once":  {7 + 2_000, 0, ttl, true, nil, life},
		"too high, at once":           {7 + 2_001, 0, ttl, true, nil, 0},
		"the largest number there is": {math.MaxInt64, time.Second, ttl, true, nil, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := lineOn(nil, nil)
			w, _ := newWaiter()
			w.Token, w.TTL, w.AutoRenew = "token", tt.ttl, tt.autoRenew
			if tt.with != nil {
				tt.with(w)
			}
			for _, next := range []int64{0, 7} { // 0: no poll was answered
				p := newPlace(l, w)
				p.next, p.anchor, p.woken, p.resent = next, l.clock.Now().Plus(-tt.after), ByMessage, true
				g, trusted := p.trust(message{fence: tt.fence})
				if tt.want == 0 || next == 0 {
					assert.False(t, trusted, name)
					continue
				}
				assert.True(t, trusted, name)
				want := Grant{Token: "token", Anchor: p.anchor, Life: tt.want, Fence: tt.fence, Resent: true, Woken: ByMessage}
				assert.Equal(t, want, g, name)
			}
		})
	}
}

// A lease counts from before its attempt by both clocks, and with a longest hold for no longer than that.
func TestWhichGrantsComeTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := lineOn(nil, nil)
		ahead := time.Duration(0) // of the wall clock
		l.clock.Wall = func(t time.Time) int64 { return t.UnixNano() + int64(ahead) }
		w, _ := newWaiter()
		w.TTL = time.Second
		begun := l.clock.Now()
		time.Sleep(990*time.Millisecond - 1)
		assert.False(t, l.isLate(w, begun))
		ahead = 1
		assert.True(t, l.isLate(w, begun), "the machine was suspended")
		ahead = 0
		w.MaxHold = 500 * time.Millisecond
		assert.True(t, l.isLate(w, begun))
		assert.False(t, l.isLate(w, l.clock.Now()))
		w.MaxHold = time.Hour
		assert.False(t, l.isLate(w, begun))
		time.Sleep(time.Nanosecond)
		assert.True(t, l.isLate(w, begun))
	})
}

func TestWhenAWaiterPollsNext(t *testing.T) {
	for name, tt := range map[string]struct {
		ans      backend.Answer
		min, max time.Duration
		woken    Woken
	}{
		"behind a holder of ours":         {backend.Answer{Left: time.Minute}, PollInterval / 2, PollInterval*3/2 - 1, ByPoll},
		"the holder's time runs out":      {backend.Answer{Left: 9 * time.Millisecond}, 10 * time.Millisecond, 10 * time.Millisecond, ByExpiry},
		"the same, for the third":         {backend.Answer{Left: 9 * time.Millisecond, Rank: 2}, 16 * time.Millisecond, 16 * time.Millisecond, ByExpiry},
		"a key that never expires":        {backend.Answer{Forever: true}, PollInterval / 2, PollInterval*3/2 - 1, ByPoll},
		"the first behind a foreigner":    {backend.Answer{Left: time.Minute, Foreign: true}, 25*time.Millisecond + 1, 50 * time.Millisecond, ByPoll},
		"the second behind a foreigner":   {backend.Answer{Left: time.Minute, Foreign: true, Rank: 1}, PollInterval / 2, PollInterval*3/2 - 1, ByPoll},
		"only dead places were cleared":   {backend.Answer{Left: time.Minute, Uncleared: true}, 0, 0, ByPoll},
		"a foreigner's time has run out":  {backend.Answer{Foreign: true}, time.Millisecond, time.Millisecond, ByExpiry},
		"a foreigner's key never expires": {backend.Answer{Foreign: true, Forever: true}, 25*time.Millisecond + 1, 50 * time.Millisecond, ByPoll},
	} {
		t.Run(name, func(t *testing.T) {
			for range 1000 {
				p := newPlace(lineOn(nil, nil), &Waiter{})
				pause, woken := p.nextPoll(p.l.clock.Now(), tt.ans)
				assert.GreaterOrEqual(t, pause, tt.min)
				assert.LessOrEqual(t, pause, tt.max)
				assert.Equal(t, tt.woken, woken)
			}
		})
	}
}

// Each has an instant in every interval, which stays the same. Those of one process share few of them, and those of two share none.
func TestAWaiterPollsAtItsOwnInstantOfTheInterval(t *testing.T) {
	of := func() map[time.Duration]bool {
		l := lineOn(nil, nil)
		start := l.clock.Now()
		instants := map[time.Duration]bool{}
		for range 500 {
			p := newPlace(l, &Waiter{})
			at := func(begun clock.Moment) time.Duration {
				pause, _ := p.nextPoll(begun, backend.Answer{Left: time.Minute})
				return time.Duration(begun.Add(pause).UnixNano()) % PollInterval
			}
			first := at(start)
			instants[first] = true
			for i := range 100 {
				later := at(start.Plus(time.Duration(i) * 37 * time.Millisecond))
				assert.Contains(t, []time.Duration{first, (first + PollInterval/2) % PollInterval}, later)
			}
		}
		assert.Greater(t, len(instants), 20)
		assert.LessOrEqual(t, len(instants), 50)
		return instants
	}
	one, other := of(), of()
	for instant := range one {
		assert.NotContains(t, other, instant)
	}
}
