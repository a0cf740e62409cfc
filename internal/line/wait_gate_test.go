package line_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestGoroutinesOfAProcessGetInInTheOrderOfArrival(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		in := locktest.Waits(t, 20, 5*time.Millisecond, func(int) (*leasehold.Lease, error) { return p.Acquire(t.Context(), "k", time.Minute) })
		assert.Len(t, w.Line("k"), 1, "one contender for a process and key")
		assert.Equal(t, 20, p.Stats().Waiting)
		sent := len(p.Fault.Sent())
		time.Sleep(10 * time.Second)
		assert.LessOrEqual(t, len(p.Fault.Sent())-sent, 11, "a look a second, whatever the number of waiters")
		begun := time.Now()
		require.NoError(t, x.Release(t.Context()))
		for i := range 20 {
			assert.Equal(t, i, <-in)
		}
		assert.LessOrEqual(t, time.Since(begun), 19*5*time.Millisecond+time.Millisecond, "no pause between them")
	})
}

func TestTheGateOpensWhenTheFormerOnesOutcomeIsKnown(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		reply := p.Fault.Next(1, locktest.RunOf(locktest.AcquireScript)).HoldReply()
		undo := p.Fault.Next(1, locktest.RunOf(locktest.ReleaseScript, "cancel")).Hold()
		ctx, cancel := context.WithCancel(t.Context())
		first := locktest.Beside(func() (*leasehold.Lease, error) { return p.Acquire(ctx, "k", time.Minute) })
		<-reply.Arrived()
		second := locktest.Beside(func() (*leasehold.Lease, error) { return p.Acquire(t.Context(), "k", time.Minute) })
		synctest.Wait()
		cancel()
		require.ErrorIs(t, (<-first).Err, context.Canceled)
		<-undo.Arrived()
		time.Sleep(100 * time.Millisecond)
		assert.Empty(t, second)
		assert.Len(t, p.Fault.Sent(), 1, "the next one was let in")
		undo.Release()
		r := <-second
		require.NoError(t, r.Err)
		assert.Equal(t, 100*time.Millisecond, r.Took)
		reply.Release()
	})
}

// What they wait for is what the one before them waits for.
func TestThoseBehindTheGateAreToldOfTroubleToo(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		p.Fault.Every(nil).Fail(locktest.ErrNetwork)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		first := locktest.Beside(func() (*leasehold.Lease, error) { return p.Acquire(t.Context(), "k", time.Minute) })
		synctest.Wait()
		_, err := p.Acquire(ctx, "k", time.Minute)
		require.ErrorIs(t, err, locktest.ErrNetwork)
		require.NotErrorIs(t, err, leasehold.ErrHeld)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		p.Fault.Clear()
		require.NoError(t, (<-first).Err)
	})
}
