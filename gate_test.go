package leasehold

import (
	"container/list"
	"context"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestGoroutinesOfAProcessGetInInTheOrderOfArrival(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		in := waits(t, 20, 5*time.Millisecond, func(int) (*Lease, error) { return p.Acquire(t.Context(), "k", time.Minute) })
		assert.Len(t, w.line("k"), 1, "one contender for a process and key")
		assert.Equal(t, 20, p.Stats().Waiting)
		sent := len(p.fault.Sent())
		time.Sleep(10 * time.Second)
		assert.LessOrEqual(t, len(p.fault.Sent())-sent, 11, "a look a second, whatever the number of waiters")
		begun := time.Now()
		require.NoError(t, x.Release(t.Context()))
		for i := range 20 {
			assert.Equal(t, i, <-in)
		}
		assert.LessOrEqual(t, time.Since(begun), 19*5*time.Millisecond+time.Millisecond, "no pause between them")
	})
}

// The turn comes and the context ends at the same instant: the turn is not lost.
func TestATurnThatMeetsACancelGoesToTheNext(t *testing.T) {
	for range 30 {
		inBubble(t, func(t *testing.T, w *world) {
			var g gates
			none := make(chan struct{})
			enter := func(ctx context.Context) error { _, err := g.enter(ctx, none, "k"); return err }
			require.NoError(t, enter(t.Context()))
			ctx, cancel := context.WithCancel(t.Context())
			first, second := make(chan error, 1), make(chan error, 1)
			go func() { first <- enter(ctx) }()
			synctest.Wait()
			go func() { second <- enter(t.Context()) }()
			synctest.Wait()
			cancel()
			g.leave("k") // most often before the first has got to leave the line
			if <-first == nil {
				g.leave("k")
			}
			require.NoError(t, <-second)
			g.leave("k")
			assert.Empty(t, g.keys)
		})
	}
}

// Four times as many waiters that give up at once take four times as long, not sixteen. Those behind give up first, which takes
// longest where each is searched for from the front. A busy machine is given several chances.
func TestGivingUpAtAGateTakesNoLongerForTheManyBehindIt(t *testing.T) {
	took := func(n int) time.Duration {
		var g gates
		require.Nil(t, g.queue("k"))
		turns := make([]*list.Element, n)
		for i := range turns {
			turns[i] = g.queue("k")
		}
		begun := time.Now()
		for _, turn := range slices.Backward(turns) {
			_ = g.giveUp("k", turn)
		}
		defer func() { g.leave("k"); require.Empty(t, g.keys) }()
		return time.Since(begun)
	}
	var few, many []time.Duration
	for begun := time.Now(); time.Since(begun) < 5*time.Second; {
		few, many = append(few, took(10_000)), append(many, took(40_000))
		if slices.Min(many) < 8*slices.Min(few) {
			return
		}
	}
	t.Errorf("10,000 take %v, 40,000 take %v", slices.Min(few), slices.Min(many))
}

func TestTheGateKeepsNothingOfAKeyThatNobodyWaitsFor(t *testing.T) {
	var g gates
	for i := range 100_000 {
		key := strconv.Itoa(i)
		_, err := g.enter(t.Context(), nil, key)
		require.NoError(t, err)
		g.leave(key)
	}
	assert.Empty(t, g.keys)
}

func TestTheGateOpensWhenTheFormerOnesOutcomeIsKnown(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		reply := p.fault.Next(1, runOf(acquireScript)).HoldReply()
		undo := p.fault.Next(1, runOf(releaseScript, "cancel")).Hold()
		ctx, cancel := context.WithCancel(t.Context())
		first := beside(func() (*Lease, error) { return p.Acquire(ctx, "k", time.Minute) })
		<-reply.Arrived()
		second := beside(func() (*Lease, error) { return p.Acquire(t.Context(), "k", time.Minute) })
		synctest.Wait()
		cancel()
		require.ErrorIs(t, (<-first).err, context.Canceled)
		<-undo.Arrived()
		time.Sleep(100 * time.Millisecond)
		assert.Empty(t, second)
		assert.Len(t, p.fault.Sent(), 1, "the next one was let in")
		undo.Release()
		r := <-second
		require.NoError(t, r.err)
		assert.Equal(t, 100*time.Millisecond, r.took)
		reply.Release()
	})
}

// What they wait for is what the one before them waits for.
func TestThoseBehindTheGateAreToldOfTroubleToo(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		p.fault.Every(nil).Fail(errNetwork)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		first := beside(func() (*Lease, error) { return p.Acquire(t.Context(), "k", time.Minute) })
		synctest.Wait()
		_, err := p.Acquire(ctx, "k", time.Minute)
		require.ErrorIs(t, err, errNetwork)
		require.NotErrorIs(t, err, ErrHeld)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		p.fault.Clear()
		require.NoError(t, (<-first).err)
	})
}
