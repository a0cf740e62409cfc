package quorum

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/quorum/quorumtest"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

func TestRenewsByAMajorityAndRefillsOnlyThen(t *testing.T) {
	bubble(t, 3, func(t *testing.T, nodes []*quorumtest.Node, join func() *process) {
		q := join()
		x, err := q.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		synctest.Wait()
		for i := range nodes { // one after the other forgets, and gets it back
			nodes[i].Del("k")
			require.NoError(t, x.Renew(t.Context()))
			synctest.Wait()
			require.Equal(t, x.Token(), q.Holders("k")[i])
		}

		// Mine on one node, nothing from another, absent on the third: no majority, no refill.
		for _, s := range q.Spies {
			s.Took()
		}
		until := x.ValidUntil()
		time.Sleep(time.Millisecond)
		nodes[0].Del("k")
		q.Hooks[1].Next(1, nil).Fail(errBroken)
		require.ErrorIs(t, x.Renew(t.Context()), fault.ErrNoQuorum)
		synctest.Wait()
		require.Empty(t, q.Holders("k")[0])
		require.Equal(t, []string{"renew"}, q.Spies[0].Took())
		require.Equal(t, until, x.ValidUntil())
		require.True(t, x.Valid(), "in jeopardy")

		// The refill of a round does not count in it.
		require.NoError(t, x.Renew(t.Context()))
		synctest.Wait()
		require.Equal(t, x.Token(), q.Holders("k")[0])

		// A majority that says no is the end.
		nodes[0].Del("k")
		require.NoError(t, nodes[1].Set("k", "somebody"))
		require.ErrorIs(t, x.Renew(t.Context()), errLost)
		synctest.Wait()
		require.Equal(t, []string{"", "somebody"}, q.Holders("k")[:2], "it neither releases nor refills")
	})
}

func TestRenewalsThatComeTogetherShareARunOnEachNode(t *testing.T) {
	bubble(t, 3, func(t *testing.T, nodes []*quorumtest.Node, join func() *process) {
		q := join()
		var all []*lease
		for i := range 20 {
			x, err := q.TryAcquire(t.Context(), fmt.Sprint("k", i), time.Second)
			require.NoError(t, err)
			all = append(all, x)
		}
		// together renews all leases, behind commands that hold up each node's sender, and returns what the nodes were sent.
		together := func() (took [][]string) {
			synctest.Wait()
			var held []*redistest.Held
			for i, s := range q.Spies {
				s.Took()
				for range 2 { // a sender makes two round trips at a time
					held = append(held, q.Hooks[i].Next(1, runs("inspect")).Hold())
				}
			}
			var done sync.WaitGroup
			for range 2 {
				done.Go(func() { _, _ = q.Inspect(t.Context(), "k", time.Second) })
				synctest.Wait()
			}
			for _, x := range all {
				done.Go(func() { assert.NoError(t, x.Renew(t.Context())) })
			}
			synctest.Wait()
			for _, h := range held {
				h.Release()
			}
			done.Wait()
			synctest.Wait()
			for _, s := range q.Spies {
				took = append(took, slices.DeleteFunc(s.Took(), func(name string) bool { return name == "inspect" }))
			}
			return took
		}
		for range 3 {
			time.Sleep(300 * time.Millisecond) // without renewals the leases would be over at the end
			for i, took := range together() {
				require.Subset(t, []string{"renewals", "renew"}, took, "node %d", i)
				require.LessOrEqual(t, len(took), 3, "node %d", i)
				require.Contains(t, took, "renewals", "node %d", i)
			}
		}

		// What a node has lost it is given again.
		x := all[7]
		nodes[0].Del("k7")
		lower := nodes[1].SetCounter("k7", -time.Hour)
		together()
		require.Equal(t, []string{x.token, x.token, x.token}, q.Holders("k7"), "refilled")
		require.Equal(t, lower, nodes[1].Counter("k7"))
		together()
		require.Equal(t, x.fence, nodes[1].Counter("k7"), "raised by the renewal after the one that has told")
	})
}

func TestSendsNoRefillForALeaseThatIsOver(t *testing.T) {
	bubble(t, 3, func(t *testing.T, nodes []*quorumtest.Node, join func() *process) {
		q := join()
		x, err := q.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		synctest.Wait()
		nodes[2].Del("k")
		time.Sleep(500 * time.Millisecond)
		slow := q.Hooks[1].Next(1, runs("renew")).HoldReply() // says yes, after the deadline
		require.ErrorIs(t, x.Renew(t.Context()), fault.ErrNoQuorum)
		time.Sleep(time.Until(x.ValidUntil()))
		slow.Release()
		synctest.Wait()
		require.False(t, x.Valid())
		require.Equal(t, []string{"acquire", "renew"}, q.Spies[2].Took())

		// The majority was in time, and the node that has no key is late.
		time.Sleep(2 * time.Second) // the keys of the first lease are gone
		x, err = q.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		synctest.Wait()
		q.Spies[2].Took()
		nodes[2].Del("k")
		slow = q.Hooks[2].Next(1, runs("renew")).HoldReply()
		require.NoError(t, x.Renew(t.Context()))
		time.Sleep(time.Until(x.ValidUntil()))
		slow.Release()
		synctest.Wait()
		require.Equal(t, []string{"renew"}, q.Spies[2].Took())
	})
}

func TestSendsNoRefillAfterRelease(t *testing.T) {
	bubble(t, 3, func(t *testing.T, nodes []*quorumtest.Node, join func() *process) {
		q := join()
		x, err := q.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		synctest.Wait()
		nodes[2].Del("k")
		slow := q.Hooks[2].Next(1, runs("renew")).HoldReply()
		require.NoError(t, x.Renew(t.Context()))
		require.NoError(t, x.Release(t.Context()))
		slow.Release() // "absent", behind a round that a majority confirmed
		synctest.Wait()
		require.NotContains(t, q.Spies[2].Took(), "refill")
		require.Equal(t, []string{"", "", ""}, q.Holders("k"))

		// One that is under way is followed by the release of its node.
		x, err = q.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		synctest.Wait()
		nodes[2].Del("k")
		refill := q.Hooks[2].Next(1, runs("refill")).Hold()
		require.NoError(t, x.Renew(t.Context()))
		<-refill.Arrived()
		require.NoError(t, x.Release(t.Context()))
		refill.Release()
		synctest.Wait()
		require.Equal(t, []string{"", "", ""}, q.Holders("k"))
	})
}

// A grant in quarantine has been released, and nobody knows yet that it is: a refill would take the node before the reply, which
// would then count for the refill.
func TestSendsNoRefillToANodeWhileAReleaseIsOpen(t *testing.T) {
	bubble(t, 3, func(t *testing.T, nodes []*quorumtest.Node, _ func() *process) {
		q := newProcess(t, nodes, Config{Quarantine: 10 * time.Second})
		x, err := q.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		synctest.Wait()
		require.NoError(t, x.Release(t.Context()))
		synctest.Wait()
		nodes[2].Rerun()
		slow := q.Hooks[2].Next(1, runs("release")).HoldReply()
		x, err = q.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		<-slow.Arrived()
		time.Sleep(11 * time.Second)
		q.Spies[2].Took()
		require.NoError(t, x.Renew(t.Context()))
		time.Sleep(time.Second) // nothing was heard of the node for long: its command has a round trip of its own
		require.Equal(t, []string{"renew"}, q.Spies[2].Took())
		slow.Release()
		synctest.Wait()
		require.NoError(t, x.Renew(t.Context()))
		synctest.Wait()
		require.Equal(t, x.Token(), q.Holders("k")[2])
		require.NoError(t, x.Release(t.Context()))
		synctest.Wait()
		require.Equal(t, []string{"", "", ""}, q.Holders("k"))
	})
}

// The node has the key until the release arrives, and a lease that counts it would be short of a node then.
func TestDoesNotCountANodeWithAnOpenRelease(t *testing.T) {
	bubble(t, 3, func(t *testing.T, nodes []*quorumtest.Node, _ func() *process) {
		q := newProcess(t, nodes, Config{Quarantine: 10 * time.Second})
		x, err := q.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		synctest.Wait()
		require.NoError(t, x.Release(t.Context()))
		synctest.Wait()
		nodes[2].Rerun()
		slow := q.Hooks[2].Next(1, runs("release")).Hold()
		x, err = q.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		<-slow.Arrived()
		require.Equal(t, x.Token(), q.Holders("k")[2])
		nodes[1].Del("k")
		err = x.Renew(t.Context())
		slow.Release()
		require.ErrorIs(t, err, fault.ErrNoQuorum)
		require.ErrorIs(t, err, errReleasing)
	})
}
