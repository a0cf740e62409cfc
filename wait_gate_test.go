package leasehold

import (
	"context"
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
