package line_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/token"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What a waiter believes of what is published on its channel, and what a listener learns there.

// Anybody may publish anything.
func TestWhatElseIsPublishedOnTheChannelIsOnlyAHint(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		w.Take("k", 10*time.Second)
		waiting := locktest.Beside(func() (*leasehold.Lease, error) {
			return p.Acquire(t.Context(), "k", time.Minute, leasehold.WithAutoRenew(true))
		})
		time.Sleep(100 * time.Millisecond)
		waits := w.Line("k")[0]
		id := token.WakeID(waits)
		for _, text := range []string{
			"", " ", "  ", "x", id, id + " ", id + " 1", id + " x 1", id + " 0", id + " -1", id + " 1 0", waits + " 1",
			id + " 99999999999999999999", id + "x 9223372036854775807", "another 9223372036854775807", strings.Repeat("x", 1<<16),
		} {
			assert.Equal(t, 1, w.M.Publish(p.Channel(), text))
			synctest.Wait()
			assert.Empty(t, waiting, "%q", text)
		}
		r := <-waiting
		require.NoError(t, r.Err)
		assert.Greater(t, r.Took, 9*time.Second)
	})
}

// Who can read the line can forge a message. No fencing token that is far from the server's own comes of it: the number would
// lock all later holders out of a resource that checks it.
func TestAForgedMessageBringsNoFencingTokenThatTheServerDoesNotReach(t *testing.T) {
	for name, tt := range map[string]struct {
		ahead time.Duration // of the server's clock
		want  bool          // a lease, which is too much to be had, but no more
	}{
		"the largest number":             {math.MaxInt64, false},
		"a number of a minute later":     {time.Minute, false},
		"just above what can be":         {5*time.Millisecond + time.Microsecond, false},
		"the largest that can be":        {5 * time.Millisecond, true},
		"a number from before the look":  {-500*time.Millisecond - time.Microsecond, false},
		"the number of the holder's own": {-time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
				h, p := w.Party(), w.Party()
				x, err := h.TryAcquire(t.Context(), "k", 10*time.Second)
				require.NoError(t, err)
				time.Sleep(500 * time.Millisecond)
				waiting := locktest.Beside(func() (*leasehold.Lease, error) {
					return p.Acquire(t.Context(), "k", time.Minute, leasehold.WithAutoRenew(true))
				})
				time.Sleep(500 * time.Millisecond) // since its last look
				fence := x.FencingToken()
				if tt.ahead != -time.Second {
					fence = time.Now().Add(tt.ahead).UnixMicro()
				}
				if tt.ahead == math.MaxInt64 {
					fence = math.MaxInt64
				}
				w.M.Publish(p.Channel(), fmt.Sprint(token.WakeID(w.Line("k")[0]), " ", fence))
				synctest.Wait()
				require.Len(t, waiting, map[bool]int{true: 1}[tt.want])
				if !tt.want {
					require.NoError(t, x.Release(t.Context()))
				}
				y := (<-waiting).Lease
				assert.LessOrEqual(t, y.FencingToken(), time.Now().Add(5*time.Millisecond).UnixMicro())
				time.Sleep(backend.WaiterTTL)
				assert.NotEqual(t, tt.want, y.Valid(), "the first renewal finds the forgery")
				_ = y.Release(t.Context())
			})
		})
	}
}

// Who only listens has nothing to forge a message with before the grant, and nothing to gain by it afterwards.
func TestAMessageThatIsPublishedAgainIsBelievedByNobody(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p, q := w.Party(), w.Party()
		listener := w.Raw.Subscribe(t.Context(), q.Channel())
		defer listener.Close()
		hears := listener.Channel()
		synctest.Wait()
		var heard []string
		for range 3 {
			x, err := p.TryAcquire(t.Context(), "k", time.Minute)
			require.NoError(t, err)
			waiting := locktest.Beside(func() (*leasehold.Lease, error) {
				return q.Acquire(t.Context(), "k", time.Minute, leasehold.WithAutoRenew(true))
			})
			time.Sleep(500 * time.Millisecond)
			for _, text := range heard {
				id, _, _ := strings.Cut(text, " ")
				for _, again := range []string{text, fmt.Sprint(id, " ", time.Now().UnixMicro())} {
					assert.Equal(t, 2, w.M.Publish(q.Channel(), again))
				}
			}
			synctest.Wait()
			require.Empty(t, waiting)
			waits := w.Line("k")[0]
			require.NoError(t, x.Release(t.Context()))
			y := (<-waiting).Lease
			text := fmt.Sprint(token.WakeID(waits), " ", y.FencingToken())
			for said := ""; said != text; { // it hears itself too
				said = (<-hears).Payload
				assert.NotContains(t, said, waits[locktest.SecretAt:])
			}
			heard = append(heard, text)
			require.NoError(t, y.Release(t.Context()))
		}
	})
}
