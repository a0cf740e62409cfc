package line

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAMessageIsRead(t *testing.T) {
	for payload, want := range map[string]struct {
		id string
		message
	}{
		"t 7":   {"t", message{fence: 7}},
		"t -7":  {"t", message{fence: -7}},
		"t 7 2": {"t", pollNow},
		"t 7/2": {"t", message{7, 2, true}},
		"t 7/0": {"t", message{7, 0, true}},
		"t 7/":  {"t", pollNow},
		"t 7/x": {"t", pollNow},
		"t x":   {"t", pollNow},
		"t":     {"t", pollNow},
		" 7":    {"", message{fence: 7}},
		"":      {"", pollNow},
	} {
		id, m := parseMessage(payload)
		assert.Equal(t, want.id, id, payload)
		assert.Equal(t, want.message, m, payload)
	}
}

// Anybody may publish anything.
func FuzzMessages(f *testing.F) {
	for _, seed := range []string{"t 7", "t -7", "t 7 2", "t x", "t", " 7", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		if id, m := parseMessage(payload); m != pollNow {
			require.True(t, strings.HasPrefix(payload, id+" "))
		}
	})
}

func TestAGrantOutlastsAPollAndTheNewestIsKept(t *testing.T) {
	p := &place{messages: make(chan message, 1)}
	p.notify(pollNow)
	p.notify(message{fence: 1})
	p.notify(pollNow)
	assert.Equal(t, message{fence: 1}, <-p.messages)
	p.notify(message{fence: 2})
	p.notify(message{fence: 3})
	p.notify(pollNow)
	assert.Equal(t, message{fence: 3}, <-p.messages)
	assert.Empty(t, p.messages)
}

func TestWhichGrantsAreAMessageMissed(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*place, *backend.Answer)
		want   int
	}{
		"one that a poll finds":                {func(*place, *backend.Answer) {}, 1},
		"one that this poll has made":          {func(_ *place, a *backend.Answer) { a.Found = false }, 0},
		"one that the join finds":              {func(p *place, _ *backend.Answer) { p.mode = backend.Join }, 0},
		"one after a message":                  {func(p *place, _ *backend.Answer) { p.woken = ByMessage }, 0},
		"one that an attempt unheard has made": {func(p *place, _ *backend.Answer) { p.resent = true }, 0},
		"one that was had before, and late":    {func(p *place, _ *backend.Answer) { p.late = 1 }, 0},
		"one before the subscription stood":    {func(p *place, _ *backend.Answer) { p.anchor = p.anchor.Plus(-time.Second) }, 0},
		"one of a place that does not listen":  {func(p *place, _ *backend.Answer) { p.l.notifier.remove(p) }, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := lineOn(&stage{}, mute)
			w, _ := newWaiter()
			l.newTenure(w)
			p := newPlace(l, w)
			p.mode = backend.Poll
			of := &topic{places: map[string]*place{p.id: p}, confirmed: time.Now(), sub: &subscription{n: l.notifier}}
			l.notifier.topics[l.notifier.channelOf(p)] = of
			a := backend.Answer{State: backend.Granted, Found: true}
			tt.change(p, &a)
			p.noteMissed(a)
			assert.Equal(t, tt.want, of.missed, name)
		})
	}
}

// A client that panics when it is asked which server has a key does so in a goroutine of the Line's, and in no caller's.
func TestAServerThatCannotBeFoundLeavesTheWaitersToTheirPolls(t *testing.T) {
	for how, find := range map[string]func() (*redis.Client, error){
		"fails":  func() (*redis.Client, error) { return nil, errors.New("no slots") },
		"panics": func() (*redis.Client, error) { panic("no") },
		"exits":  func() (*redis.Client, error) { runtime.Goexit(); return nil, nil },
	} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked, free := 0, time.Now().Add(10*time.Second)
				s := &stage{answer: func(int, backend.Mode) (backend.Answer, error) {
					if left := time.Until(free); left > 0 {
						return backend.Answer{State: backend.Waiting, Left: left}, nil
					}
					return backend.Answer{State: backend.Granted, Fence: 7}, nil
				}}
				l := lineOn(s, lostRing{nil, func() (*redis.Client, error) { asked++; return find() }})
				w, _ := newWaiter()
				g, err := l.Wait(t.Context(), w)
				require.NoError(t, err)
				assert.Equal(t, ByExpiry, g.Woken)
				assert.LessOrEqual(t, time.Since(free), 5*time.Millisecond)
				assert.InDelta(t, 10, asked, 3, "once for each poll")
				assert.Equal(t, w.Attempts, asked+1)
				end(t, l)
			})
		})
	}
}
