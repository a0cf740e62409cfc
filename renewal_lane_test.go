package leasehold

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// twoServers keeps the keys with an odd last digit on another server than the rest.
type twoServers struct {
	backend.Backend
	odd backend.Backend
}

func (s *twoServers) Tenure(r backend.Request) backend.Tenure {
	if strings.ContainsAny(r.Key[len(r.Key)-1:], "13579") {
		return s.odd.Tenure(r)
	}
	return s.Backend.Tenure(r)
}

func (s *twoServers) Flush() {
	s.Backend.Flush()
	s.odd.Flush()
}

func TestASilentServerDelaysNoRenewalOnAnother(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		even, odd := &paper{latency: time.Millisecond}, &paper{latency: time.Millisecond}
		client, other := w.dial(), w.dial()
		client.AddHook(even)
		other.AddHook(odd)
		l := newLocker(&twoServers{newStore(client, ""), newStore(other, "")}, nil, options{})
		defer func() { assert.NoError(t, l.Close()) }()
		leases := make([]*Lease, 2*many)
		for i := range leases {
			var err error
			leases[i], err = l.TryAcquire(t.Context(), fmt.Sprint(i), 9*time.Second, WithAutoRenew(true))
			require.NoError(t, err)
		}
		time.Sleep(10 * time.Second)
		again := odd.stop()
		time.Sleep(12 * time.Second)
		again()
		for i, x := range leases {
			assert.Equal(t, i%2 == 0, x.Valid(), "%d: %v", i, x.Err())
		}
		for i := 1; i < len(leases); i += 2 {
			_ = leases[i].Release(t.Context())
		}
	})
}

// outage stops the server for a time and returns the renewals of each second before and after, and who was in jeopardy.
func (w *world) outage(n int, ttl, d time.Duration) (before, after []int, jeopardy map[string]bool) {
	var mu sync.Mutex
	jeopardy = map[string]bool{}
	l, s, leases := w.onPaper(n, ttl, WithHooks(Hooks{Jeopardy: func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		jeopardy[e.Key] = true
	}}))
	seconds := func(n int) (counts []int) {
		for range n {
			s.take()
			time.Sleep(time.Second)
			renewals, _ := s.take()
			counts = append(counts, len(renewals))
		}
		return counts
	}
	time.Sleep(10 * time.Second)
	before = seconds(10)
	again := s.stop()
	time.Sleep(d)
	again()
	after = seconds(18)
	for _, x := range leases {
		assert.True(w.t, x.Valid())
	}
	assert.Zero(w.t, l.Stats().Lost)
	return before, after, jeopardy
}

func TestAnOutageIsFollowedByNoStorm(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		before, after, _ := w.outage(many, 9*time.Second, 4500*time.Millisecond)
		usual := 0
		for _, renewals := range before {
			usual += renewals
		}
		usual /= len(before)
		assert.LessOrEqual(t, slices.Max(after), 2*usual, "before %v, after %v", before, after)
		assert.LessOrEqual(t, slices.Max(after[12:]), usual*5/4, "the herd stays together: %v", after)
	})
}

// What waits in a lane goes with its lease, although nobody is left who would earn it a turn.
func TestALeaseThatIsReleasedLeavesItsLane(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		l, _, leases := w.onPaper(many, time.Hour)
		time.Sleep(20 * time.Minute)
		_, queued, _ := l.keeper.Load()
		require.Greater(t, queued, many/8)
		for _, x := range leases {
			require.NoError(t, x.Release(t.Context()))
		}
		time.Sleep(time.Second)
		_, queued, underWay := l.keeper.Load()
		assert.Zero(t, queued+underWay)
	})
}

// Most of those that fall due in an outage are never sent, as few are under way at a time. They are in no less danger.
func TestALeaseWhoseRenewalIsNotSentInTimeIsInJeopardy(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		_, _, jeopardy := w.outage(many, 9*time.Second, 5*time.Second)
		assert.Greater(t, len(jeopardy), many*9/10)
	})
}
