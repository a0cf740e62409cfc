package line_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/inside"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A wait on a Redis that is not there is told: at once, with the cause, and then rarely.

func TestAWaitOnABrokenRedisIsToldAtOnceAndThenRarely(t *testing.T) {
	for name, trouble := range locktest.Trouble {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
				p := w.Party(leasehold.WithOwner("worker 7"))
				_, err := p.Inspect(t.Context(), "k")
				require.NoError(t, err)
				trouble.Begin(w, p)
				begun := time.Now()
				got := locktest.Beside(func() (*leasehold.Lease, error) { return p.Acquire(t.Context(), "k", time.Minute) })
				time.Sleep(65 * time.Second)
				told := p.Heard("retrying")
				trouble.End(w, p)
				r := <-got
				require.NoError(t, r.Err)

				require.Contains(t, []int{6, 7}, len(told), "at a look, once in 10 s at most")
				assert.LessOrEqual(t, told[0].At.Sub(begun), backend.CallBound)
				for i, e := range told {
					if i > 0 {
						assert.GreaterOrEqual(t, e.At.Sub(told[i-1].At), 10*time.Second)
						assert.LessOrEqual(t, e.At.Sub(told[i-1].At), 13*time.Second)
					}
					assert.Equal(t, []string{"unavailable"}, locktest.KindsOf(e.Err))
					assert.Equal(t, "k", e.Key)
					assert.Equal(t, "worker 7", e.Owner)
					assert.Equal(t, e.At.Sub(begun), e.Waited)
					assert.Positive(t, e.Attempts)
				}
				lines := strings.Count(p.Logged(), `level=WARN msg="leasehold: waiting for redis" key=k fencing_token=0 owner="worker 7" reason=`)
				assert.Equal(t, len(p.Heard("retrying")), lines)
				assert.Contains(t, p.Logged(), fmt.Sprintf("%q", told[1].Err.Error()))
				assert.GreaterOrEqual(t, p.Stats().Retried, int64(20), "each look counts")
				assert.Less(t, p.Stats().Retried, int64(120))
			})
		})
	}
}

func TestManyWaitsAreToldOfAsOne(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		p.Fault.Every(nil).Fail(locktest.ErrNetwork)
		ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
		defer cancel()
		for i := range 300 {
			go func() { _, _ = p.Acquire(ctx, fmt.Sprint(i%3), time.Minute) }() // a hundred at each of three gates
		}
		time.Sleep(24 * time.Second)
		assert.Len(t, p.Heard("retrying"), 3)
		assert.Less(t, p.Stats().Retried, int64(300), "those at a gate do not look")
		<-ctx.Done()
		synctest.Wait()
		assert.Len(t, p.Heard("gave up"), 300)
	})
}

func TestNothingIsToldOfAWaitForAHolder(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		w.Take("k", 20*time.Second)
		_, err := p.Acquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		w.M.SetError("NOPERM no")
		_, err = p.Acquire(t.Context(), "other", time.Minute)
		w.M.SetError("")
		require.Error(t, err, "which says it")
		w.M.SetError("LOADING")
		_, err = p.TryAcquire(t.Context(), "other", time.Minute)
		w.M.SetError("")
		require.Error(t, err, "which says it")
		assert.Empty(t, p.Heard("retrying"))
		assert.Zero(t, p.Stats().Retried)
	})
}

// Nobody may use up the telling of another who listens.
func TestAWaitThatNobodyListensToIsNotTheOneThatIsTold(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		p.Fault.Every(nil).Fail(locktest.ErrNetwork)
		deaf := leasehold.New(inside.Of(p.Locker).Backend.(interface{ Redis() redis.UniversalClient }).Redis())
		t.Cleanup(func() { _ = deaf.Close() })
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		go func() { _, _ = deaf.Acquire(ctx, "a", time.Minute) }()
		time.Sleep(time.Second)
		var log bytes.Buffer
		_, err := deaf.Acquire(ctx, "b", time.Minute, leasehold.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		require.ErrorIs(t, err, leasehold.ErrUnavailable)
		assert.Equal(t, 1, strings.Count(log.String(), "waiting for redis"))
	})
}

// A server that answers, but never in time for the lease to be of use, is as good as none.
func TestAWaitWhoseAnswersComeTooLateIsTold(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		_, err := p.Inspect(t.Context(), "k")
		require.NoError(t, err)
		p.Fault.Every(nil).Delay(50 * time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = p.Acquire(ctx, "k", 20*time.Millisecond)
		require.Equal(t, []string{"unavailable", "deadline"}, locktest.KindsOf(err))
		require.Len(t, p.Heard("retrying"), 1)
		assert.ErrorContains(t, p.Heard("retrying")[0].Err, "no answer from redis within 18ms")
		p.Fault.Clear()
		time.Sleep(time.Minute)
	})
}

func TestAWaitOnAQuorumThatIsNotThereIsTold(t *testing.T) {
	for name, tt := range map[string]struct {
		prepare func(nodes []*locktest.FakeNode, q *locktest.FakeQuorum)
		says    string // nothing is told if it is ""
	}{
		"in quarantine": {func(nodes []*locktest.FakeNode, _ *locktest.FakeQuorum) {
			for _, n := range nodes {
				n.Forget()
			}
		}, ": restarted, and in quarantine for another 1m1s"},
		"away": {func(_ []*locktest.FakeNode, q *locktest.FakeQuorum) { q.Wires[0].Refuse(); q.Wires[1].Refuse() }, "; node 0: "},
		"one away, and held": {func(nodes []*locktest.FakeNode, q *locktest.FakeQuorum) {
			q.Wires[0].Refuse()
			_ = nodes[1].Set("k", "other")
			_ = nodes[2].Set("k", "other")
		}, ""},
		"the votes were split": {func(nodes []*locktest.FakeNode, _ *locktest.FakeQuorum) {
			_ = nodes[1].Set("k", "other")
			_ = nodes[2].Set("k", "third")
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.QuorumBubble(t, 3, func(t *testing.T, nodes []*locktest.FakeNode, join locktest.JoinFunc) {
				var told []leasehold.Event
				q := join(leasehold.WithRestartQuarantine(time.Minute), leasehold.WithHooks(leasehold.Hooks{Retrying: func(e leasehold.Event) { told = append(told, e) }}))
				tt.prepare(nodes, q)
				ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
				defer cancel()
				_, err := q.Acquire(ctx, "k", 10*time.Second)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				q.Wires[0].Pass()
				q.Wires[1].Pass()
				if tt.says == "" {
					assert.Empty(t, told)
					assert.Zero(t, q.Stats().Retried)
					return
				}
				require.Len(t, told, 3)
				assert.ErrorContains(t, told[0].Err, tt.says)
				assert.ErrorIs(t, told[0].Err, leasehold.ErrUnavailable)
				assert.Greater(t, q.Stats().Retried, int64(3))
			})
		})
	}
}
