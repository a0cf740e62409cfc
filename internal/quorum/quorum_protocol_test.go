package quorum_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestQuorumTriesAgainWithAnotherToken(t *testing.T) {
	locktest.QuorumBubble(t, 3, func(t *testing.T, nodes []*locktest.FakeNode, join locktest.JoinFunc) {
		q := join()
		// The first try gets one node only; its clean-up there is held back until the second has won.
		for _, i := range []int{1, 2} {
			require.NoError(t, nodes[i].Set("k", "somebody"))
			nodes[i].SetTTL("k", 4*time.Millisecond)
			q.Wires[i].Delay(time.Millisecond)
		}
		cleanup := q.Hooks[0].Next(1, locktest.Runs("release")).Hold()
		x, err := q.Acquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		require.NotEmpty(t, q.Holders("k")[0])
		require.NotEqual(t, q.Holders("k")[0], x.Token())
		cleanup.Release()
		synctest.Wait()
		require.Equal(t, []string{x.Token(), x.Token()}, q.Holders("k")[1:], "the first try's release frees the first try's keys only")
		require.True(t, x.Valid())
	})
}

func TestQuorumDeadlineIsTTLLessElapsedLessMargin(t *testing.T) {
	for _, c := range []struct{ ttl, oneWay, left time.Duration }{
		{time.Second, 50 * time.Millisecond, 890 * time.Millisecond},
		{time.Second, 0, 990 * time.Millisecond},
		{100 * time.Millisecond, 8 * time.Millisecond, 82 * time.Millisecond},
		{10 * time.Second, 300 * time.Millisecond, 9300 * time.Millisecond},
		{50 * time.Second, 350 * time.Millisecond, 48800 * time.Millisecond},
	} {
		locktest.QuorumBubble(t, 3, func(t *testing.T, _ []*locktest.FakeNode, join locktest.JoinFunc) {
			q := join()
			warm, err := q.TryAcquire(t.Context(), "warm", time.Second)
			require.NoError(t, err)
			require.NoError(t, warm.Release(t.Context()))
			for _, w := range q.Wires {
				w.Delay(c.oneWay)
			}
			begun := time.Now()
			x, err := q.TryAcquire(t.Context(), "k", c.ttl)
			require.NoError(t, err)
			require.Equal(t, 2*c.oneWay, time.Since(begun))
			require.Equal(t, c.left, time.Until(x.ValidUntil()))

			time.Sleep(c.ttl / 5)
			begun = time.Now()
			require.NoError(t, x.Renew(t.Context()))
			require.Equal(t, c.ttl-clock.Margin(c.ttl)-time.Since(begun), time.Until(x.ValidUntil()))
		})
	}
}

// nodesIn returns the indexes of the nodes that an error names.
func nodesIn(err error) (nodes []int) {
	switch e := err.(type) {
	case *leasehold.NodeError:
		return []int{e.Node}
	case interface{ Unwrap() error }:
		return nodesIn(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			nodes = append(nodes, nodesIn(err)...)
		}
	}
	return nodes
}

func TestQuorumNodeErrorsAreMissingVotes(t *testing.T) {
	locktest.QuorumBubble(t, 3, func(t *testing.T, nodes []*locktest.FakeNode, join locktest.JoinFunc) {
		for name, breakIt := range map[string]func(q *locktest.FakeQuorum, i int){
			"refused":      func(q *locktest.FakeQuorum, i int) { q.Wires[i].Refuse() },
			"silent":       func(q *locktest.FakeQuorum, i int) { q.Wires[i].BlackHole() },
			"noauth":       func(_ *locktest.FakeQuorum, i int) { nodes[i].SetError("NOAUTH Authentication required.") },
			"loading":      func(_ *locktest.FakeQuorum, i int) { nodes[i].SetError("LOADING Redis is loading") },
			"foreign type": func(_ *locktest.FakeQuorum, i int) { _, _ = nodes[i].Lpush("k foreign type", "x") },
			"bad counter":  func(_ *locktest.FakeQuorum, i int) { _ = nodes[i].Set("leasehold:counter:{k bad counter}", "many") },
			"huge counter": func(_ *locktest.FakeQuorum, i int) {
				_ = nodes[i].Set("leasehold:counter:{k huge counter}", "9007199254740993")
			},
			"strange reply": func(q *locktest.FakeQuorum, i int) { q.Hooks[i].Every(nil).Fail(redis.Nil) },
		} {
			mend := func(q *locktest.FakeQuorum) {
				for i, n := range nodes {
					q.Wires[i].Pass()
					q.Hooks[i].Clear()
					n.SetError("")
					n.Server().SetPreHook(n.Answer)
				}
			}
			q, key := join(), "k "+name // a key of its own: some go on trying
			breakIt(q, 1)
			x, err := q.TryAcquire(t.Context(), key, time.Second)
			require.NoError(t, err, "one node %s", name)
			require.NoError(t, x.Release(t.Context()))

			breakIt(q, 2)
			_, err = q.TryAcquire(t.Context(), key, time.Second)
			require.ErrorIs(t, err, leasehold.ErrNoQuorum, name)
			require.NotErrorIs(t, err, leasehold.ErrHeld, name)
			require.NotErrorIs(t, err, redis.Nil, name)
			require.ErrorContains(t, err, "node 1: ", name)
			require.ErrorContains(t, err, "node 2: ", name)
			require.Subset(t, nodesIn(err), []int{1, 2})

			// Trouble that waiting can cure is waited out, other trouble is told at once.
			begun := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			_, err = q.Acquire(ctx, key, time.Second)
			cancel()
			require.ErrorIs(t, err, leasehold.ErrNoQuorum)
			waited := time.Since(begun) >= 3*time.Second
			require.Equal(t, waited, errors.Is(err, context.DeadlineExceeded))
			require.Equal(t, name == "refused" || name == "silent" || name == "loading", waited, name)
			mend(q)
		}
	})
}

func TestQuorumTokensRiseAcrossClientsWithSkewedNodes(t *testing.T) {
	locktest.QuorumBubble(t, 3, func(t *testing.T, nodes []*locktest.FakeNode, join locktest.JoinFunc) {
		nodes[0].SetOffset(time.Minute)
		nodes[2].SetOffset(-time.Minute)
		a, b := join(), join()
		last := int64(0)
		for i := range 12 {
			q := []*locktest.FakeQuorum{a, b}[i%2]
			fault := q.Hooks[i%3].Every(nil) // one node after the other is missing
			fault.Fail(locktest.ErrBroken)
			x, err := q.TryAcquire(t.Context(), "k", time.Second)
			require.NoError(t, err)
			require.Greater(t, x.FencingToken(), last)
			last = x.FencingToken()
			require.NoError(t, x.Release(t.Context()))
			q.Hooks[i%3].Clear()
			synctest.Wait()
		}
	})
}
