package locktest

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/inside"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// EachKind runs a test with two processes on one server, and on a quorum. There is no line that the test waits in.
func EachKind(t *testing.T, test func(t *testing.T, former, other *leasehold.Locker, owner func() string)) {
	t.Run("one server", func(t *testing.T) {
		InBubble(t, func(t *testing.T, w *World) {
			test(t, w.Party().Locker, w.Party().Locker, func() string { return w.Owner("k") })
		})
	})
	t.Run("quorum", func(t *testing.T) {
		QuorumBubble(t, 3, func(t *testing.T, _ []*FakeNode, join JoinFunc) {
			former, other := join(), join()
			test(t, former.Locker, other.Locker, func() string {
				all := other.Holders("k")
				require.Equal(t, []string{all[0], all[0], all[0]}, all)
				return all[0]
			})
		})
	})
}

// Process is a Locker of a process of its own.
func Process(t *testing.T, client redis.UniversalClient, opts ...leasehold.Option) *leasehold.Locker {
	l := leasehold.New(client, opts...)
	t.Cleanup(func() {
		for _, c := range inside.Of(l).Keeper.Live() {
			_ = c.(interface{ Lease() *leasehold.Lease }).Lease().Detach() // the server may be gone, and Close would look for it
		}
		_ = l.Close()
	})
	return l
}

func Take(t *testing.T, l *leasehold.Locker, ttl time.Duration, opts ...leasehold.Option) *leasehold.Lease {
	t.Helper()
	x, err := l.TryAcquire(t.Context(), "k", ttl, opts...)
	require.NoError(t, err)
	return x
}

// RequireTwoHolders takes the lock of x as well. Only their fencing tokens tell the two apart.
func RequireTwoHolders(t *testing.T, x *leasehold.Lease, l *leasehold.Locker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	y, err := l.Acquire(ctx, x.Key(), time.Minute)
	require.NoError(t, err)
	require.True(t, x.Valid(), "the first lease")
	require.True(t, y.Valid(), "the second lease")
	require.Greater(t, y.FencingToken(), x.FencingToken())
}

func RequireHeld(t *testing.T, l *leasehold.Locker, key string) {
	t.Helper()
	_, err := l.TryAcquire(t.Context(), key, time.Minute)
	require.ErrorIs(t, err, leasehold.ErrHeld)
}

// Cut ends the links of all replicas of a primary, and this one's for good: it comes back with a password that is refused.
func Cut(t *testing.T, primary, replica *redis.Client) {
	t.Helper()
	require.NoError(t, replica.ConfigSet(t.Context(), "masterauth", "wrong").Err())
	require.NoError(t, primary.ClientKillByFilter(t.Context(), "TYPE", "replica").Err())
	Link(t, replica, "down")
}

func Promote(t *testing.T, replica *redis.Client) {
	t.Helper()
	require.NoError(t, replica.ReplicaOf(t.Context(), "NO", "ONE").Err())
}

// Taken is a lease that all nodes have.
func Taken(t *testing.T, q *FakeQuorum, ttl time.Duration) *leasehold.Lease {
	t.Helper()
	x, err := q.TryAcquire(t.Context(), "k", ttl)
	require.NoError(t, err)
	synctest.Wait()
	return x
}

// Turns is a few Lockers, each of a process of its own, that take turns at one key.
type Turns struct {
	T       *testing.T
	Lockers []*leasehold.Locker
}

// TakeTurns lets one Locker on each client take turns until the test ends.
func TakeTurns(t *testing.T, clients ...redis.UniversalClient) *Turns {
	x := &Turns{T: t}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for _, c := range clients {
		l := Process(t, c, leasehold.WithAutoRenew(true))
		x.Lockers = append(x.Lockers, l)
		all.Go(func() {
			work := time.NewTicker(10 * time.Millisecond)
			defer work.Stop()
			for ctx.Err() == nil {
				if lease, err := l.Acquire(ctx, "k", time.Second); err == nil {
					<-work.C
					_ = lease.Release(ctx)
				}
			}
		})
	}
	t.Cleanup(func() { cancel(); all.Wait() })
	return x
}

// Count is how often the lock was had after a wait, and how often a message ended it.
func (x *Turns) Count() (all, byMessage int64) {
	for _, l := range x.Lockers {
		s := l.Stats()
		all += s.Acquired - s.AcquiredAtOnce
		byMessage += s.AcquiredByMessage
	}
	return all, byMessage
}

// ComeByMessage requires that, within the bound, the lock goes from hand to hand by messages. It counts half a second at a time.
func (x *Turns) ComeByMessage(when string, bound time.Duration) {
	x.T.Helper()
	begun := time.Now()
	all, byMessage := x.Count()
	for now := range time.Tick(500 * time.Millisecond) {
		n, m := x.Count()
		n, all = n-all, n
		m, byMessage = m-byMessage, m
		x.T.Logf("%s, %4.1f s: %4d hand-overs a second, %d of %d by message", when, now.Sub(begun).Seconds(), n*2, m, n)
		if n >= 20 && m*100 >= n*90 {
			return
		}
		require.Less(x.T, now.Sub(begun), bound, "%s: the messages do not come", when)
	}
}

// Soon is how long it may take until messages come as before, from when there is a server that can send them.
const Soon = 10 * time.Second

// Link waits until a replica's link to its primary is up, or down.
func Link(t *testing.T, replica *redis.Client, status string) {
	t.Helper()
	require.Eventually(t, func() bool {
		return strings.Contains(replica.Info(t.Context(), "replication").Val(), "master_link_status:"+status)
	}, 10*time.Second, 5*time.Millisecond, "the link is not %s", status)
}

// Mend gives a replica that was cut off its link back.
func Mend(t *testing.T, replica *redis.Client) {
	t.Helper()
	require.NoError(t, replica.ConfigSet(t.Context(), "masterauth", "").Err())
	Link(t, replica, "up")
}
