package line_test

import (
	"context"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/rediskey"
)

// When waiters look.

// A client of another library tells nobody that it has let go. The first of the line looks often, the others do not; nor does
// anybody for the sake of a holder of ours.
func TestOnlyTheFirstOfTheLinePollsOftenAndOnlyBehindAPlainClient(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		w.Plain("k", time.Hour)
		var parties []*locktest.Party
		var waiting []<-chan locktest.Result
		for range 3 {
			p := w.Party()
			parties = append(parties, p)
			waiting = append(waiting, locktest.Beside(func() (*leasehold.Lease, error) { return p.Acquire(t.Context(), "k", time.Minute) }))
			time.Sleep(10 * time.Millisecond)
		}
		looks := func() (n []int) {
			time.Sleep(2 * time.Second) // until everybody has found out
			for _, p := range parties {
				n = append(n, -len(p.Fault.Sent()))
			}
			time.Sleep(10 * time.Second)
			for i, p := range parties {
				n[i] += len(p.Fault.Sent())
			}
			return n
		}
		n := looks()
		assert.InDelta(t, 10/locktest.ForeignPollInterval.Seconds()*4/3, n[0], 20, "every 25 to 50 ms")
		assert.LessOrEqual(t, n[1], 12)
		assert.LessOrEqual(t, n[2], 12)

		w.M.Del("k")
		x := (<-waiting[0]).Lease
		require.NotNil(t, x)
		n = looks()
		assert.LessOrEqual(t, n[1], 12, "the holder is one of ours")
		assert.LessOrEqual(t, n[2], 12)

		w.Plain("k", time.Hour)
		n = looks()
		assert.Greater(t, n[1], 200)
		assert.LessOrEqual(t, n[2], 12)
		for _, c := range waiting[1:] {
			w.M.Del("k")
			require.NoError(t, (<-c).Err)
		}
	})
}

// Waiters that have looked at one instant, as after an outage or an expiry, do not go on doing so. But a process has few instants,
// so that those who look share round trips.
func TestThePollsOfWaitersThatJoinedAtOnceSpreadOut(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		var mu sync.Mutex
		var at []time.Time
		w.M.Server().SetPreHook(func(_ *server.Peer, cmd string, _ ...string) bool {
			if strings.EqualFold(cmd, "EVALSHA") {
				mu.Lock()
				at = append(at, time.Now())
				mu.Unlock()
			}
			return false
		})
		defer w.M.Server().SetPreHook(nil)
		ctx, cancel := context.WithCancel(t.Context())
		p := w.Party()
		var waiting []<-chan locktest.Result
		for i := range 100 {
			key := strconv.Itoa(i)
			w.Take(key, time.Hour)
			waiting = append(waiting, locktest.Beside(func() (*leasehold.Lease, error) { return p.Acquire(ctx, key, time.Minute) }))
		}
		for _, s := range []time.Duration{time.Second / 2, 10 * time.Second} {
			time.Sleep(s)
			mu.Lock()
			at = nil
			mu.Unlock()
			begun := time.Now()
			time.Sleep(locktest.PollInterval)
			mu.Lock()
			windows, instants := map[time.Duration]int{}, map[time.Time]bool{}
			for _, when := range at {
				instants[when] = true
				windows[when.Sub(begun).Truncate(50*time.Millisecond)]++
			}
			mu.Unlock()
			assert.LessOrEqual(t, slices.Max(slices.Collect(maps.Values(windows))), 30, "looks within 50 ms")
			assert.LessOrEqual(t, len(instants), 51, "instants at which all of them look")
		}
		cancel()
		for _, c := range waiting {
			require.Error(t, (<-c).Err)
		}
	})
}

// What the runbook has a client of another library send.
func TestAPlainClientThatKeepsTheRunbooksRuleWaitsForTheLineToEnd(t *testing.T) {
	runbook, err := os.ReadFile("../../docs/runbook.md")
	require.NoError(t, err)
	_, rule, _ := strings.Cut(string(runbook), "```lua\n")
	rule, _, _ = strings.Cut(rule, "```")
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		line := string(rediskey.Derive(nil, "", rediskey.Line, "k"))
		plain := func() bool {
			got, err := w.Raw.Eval(t.Context(), rule, []string{"k", line}, "a value", 50).Result()
			return err == nil && got == "OK"
		}
		p, q := w.Party(), w.Party()
		require.True(t, plain())
		require.False(t, plain())
		time.Sleep(50 * time.Millisecond)

		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		waiting := locktest.Beside(func() (*leasehold.Lease, error) { return q.Acquire(t.Context(), "k", time.Minute) })
		time.Sleep(time.Second)
		w.M.Del("k") // free, and nobody of ours knows
		require.False(t, plain(), "past a waiter")
		require.NoError(t, (<-waiting).Lease.Release(t.Context()))
		require.ErrorIs(t, x.Release(t.Context()), leasehold.ErrLost)
		require.True(t, plain())
	})
}
