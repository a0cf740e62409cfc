package leasehold

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDetachEndsTheLeaseHereAndNotInRedis(t *testing.T) {
	eachKind(t, func(t *testing.T, l, other *Locker, owner func() string) {
		x, err := l.TryAcquire(t.Context(), "k", 10*time.Second, WithAutoRenew(true))
		require.NoError(t, err)
		synctest.Wait()
		ctx, cancel := x.Context(t.Context())
		defer cancel()
		done := x.Done()
		token := x.Detach()
		require.Equal(t, owner(), token)

		require.ErrorIs(t, x.Err(), ErrReleased)
		require.NotErrorIs(t, x.Err(), ErrLost)
		require.ErrorContains(t, x.Err(), "detached")
		require.False(t, x.Valid())
		<-done
		require.ErrorIs(t, context.Cause(ctx), ErrReleased)
		require.ErrorIs(t, x.Renew(t.Context()), ErrReleased)
		require.ErrorIs(t, x.EnsureFor(t.Context(), time.Second), ErrReleased)
		require.NoError(t, x.Release(t.Context()), "as after a release")
		require.Empty(t, x.Detach(), "it is given away once")
		stats := l.Stats()
		require.Zero(t, stats.Held)
		require.Zero(t, stats.Lost)
		require.Zero(t, stats.Released)
		require.Zero(t, stats.ReleasesUnconfirmed)
		require.EqualValues(t, 1, stats.Detached)

		require.NoError(t, l.Close())
		require.Equal(t, token, owner(), "Close has released it")
		time.Sleep(9 * time.Second)
		require.Equal(t, token, owner())
		y, err := other.Adopt(t.Context(), "k", token, 10*time.Second)
		require.NoError(t, err)
		require.NoError(t, y.Release(t.Context()))
	})
}

func TestADetachedLeaseIsRenewedNoMore(t *testing.T) {
	eachKind(t, func(t *testing.T, l, _ *Locker, owner func() string) {
		x, err := l.TryAcquire(t.Context(), "k", 10*time.Second, WithAutoRenew(true))
		require.NoError(t, err)
		time.Sleep(time.Minute)
		token := x.Detach()
		require.NotEmpty(t, token)
		time.Sleep(10*time.Second + time.Millisecond)
		require.Empty(t, owner())
		require.ErrorIs(t, x.Err(), ErrReleased, "and it stays what it was")
	})
}

// The answer of a renewal that was on its way comes when somebody else has the lease.
func TestDetachDuringARenewalIsNoLoss(t *testing.T) {
	for _, adopted := range []bool{false, true} {
		inBubble(t, func(t *testing.T, w *world) {
			p, q := w.party(), w.party()
			x := p.keeps("k", 3*time.Second)
			renewal := p.fault.Next(1, runOf(renewScript)).Hold()
			<-renewal.Arrived()
			token := x.Detach()
			if adopted {
				_, err := q.Adopt(t.Context(), "k", token, 10*time.Second)
				require.NoError(t, err)
			}
			renewal.Release()
			synctest.Wait()
			require.ErrorIs(t, x.Err(), ErrReleased)
			require.Zero(t, p.Stats().Lost)
			want := 3 * time.Second
			if adopted {
				want = 10 * time.Second
			}
			require.Equal(t, want, w.m.TTL("k"))
		})
	}
}

func TestDetachOfALeaseThatHasEndedGivesNothing(t *testing.T) {
	require.Empty(t, (*Lease)(nil).Detach())
	for name, end := range map[string]func(t *testing.T, w *world, x *Lease){
		"released": func(t *testing.T, _ *world, x *Lease) { require.NoError(t, x.Release(t.Context())) },
		"expired":  func(_ *testing.T, _ *world, _ *Lease) { time.Sleep(time.Minute) },
		"lost": func(t *testing.T, w *world, x *Lease) {
			w.m.Del("k")
			require.ErrorIs(t, x.Renew(t.Context()), ErrLost)
		},
	} {
		inBubble(t, func(t *testing.T, w *world) {
			x, err := w.party().TryAcquire(t.Context(), "k", 10*time.Second)
			require.NoError(t, err)
			end(t, w, x)
			before := x.Err()
			require.Empty(t, x.Detach(), name)
			require.Equal(t, before, x.Err(), name)
		})
	}
}

// Of Detach, Release and a loss that meet, one comes first: a token that was given away is not released.
func TestDetachAndReleaseOfOneLeaseAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		for range 50 {
			x, err := p.TryAcquire(t.Context(), "k", 10*time.Second)
			require.NoError(t, err)
			var all sync.WaitGroup
			tokens := make([]string, 3)
			for i := range tokens {
				all.Go(func() { tokens[i] = x.Detach() })
			}
			all.Go(func() { assert.NoError(t, x.Release(t.Context())) })
			all.Wait()
			given := 0
			for _, token := range tokens {
				if token != "" {
					given++
				}
			}
			require.LessOrEqual(t, given, 1)
			require.Equal(t, given == 1, w.owner("k") != "")
			w.m.Del("k")
		}
	})
}

func TestWithLockLeavesADetachedLeaseAlone(t *testing.T) {
	eachKind(t, func(t *testing.T, l, other *Locker, owner func() string) {
		mine := errors.New("the work goes on elsewhere")
		var token string
		err := l.WithLock(t.Context(), "k", 10*time.Second, func(ctx context.Context, x *Lease) error {
			synctest.Wait()
			token = x.Detach()
			require.ErrorIs(t, context.Cause(ctx), ErrReleased)
			return mine
		})
		require.Equal(t, mine, err)
		synctest.Wait()
		require.Equal(t, token, owner())
		_, err = other.Adopt(t.Context(), "k", token, 10*time.Second)
		require.NoError(t, err)
	})
}

func TestQuorumSendsNoRefillForADetachedLease(t *testing.T) {
	quorumBubble(t, 3, func(t *testing.T, nodes []*fakeNode, join joinFunc) {
		q := join()
		x := taken(t, q, 10*time.Second)
		nodes[2].Del("k")
		slow := q.Hooks[2].Next(1, runs("renew")).HoldReply()
		require.NoError(t, x.Renew(t.Context()))
		token := x.Detach()
		slow.Release() // "absent", behind a round that a majority confirmed
		synctest.Wait()
		require.NotContains(t, q.Spies[2].Took(), "refill")
		require.Equal(t, []string{token, token, ""}, q.Holders("k"))
	})
}
