package leasehold

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAdoptTakesOverALiveLeaseWithItsFencingToken(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b := w.party(), w.party()
		x, err := a.TryAcquire(t.Context(), "k", 10*time.Second)
		require.NoError(t, err)
		time.Sleep(5 * time.Second)
		y, err := b.Adopt(t.Context(), "k", x.Token(), 20*time.Second, WithAutoRenew(true))
		require.NoError(t, err)
		assert.Equal(t, x.FencingToken(), y.FencingToken())
		assert.Equal(t, x.Token(), y.Token())
		assert.Equal(t, 20*time.Second, w.m.TTL("k"))
		time.Sleep(time.Minute)
		assert.True(t, y.Valid())
		require.NoError(t, y.Release(t.Context()))
		assert.Empty(t, w.owner("k"))

		z, err := b.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		assert.Greater(t, z.FencingToken(), y.FencingToken())
		require.ErrorIs(t, x.Release(t.Context()), ErrLost)
		assert.Equal(t, z.Token(), w.owner("k"))
	})
}

func TestAdoptNeverShortensTheLeaseThatItAdopts(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		x, err := w.party().TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		y, err := w.party().Adopt(t.Context(), "k", x.Token(), time.Second)
		require.NoError(t, err)
		assert.Equal(t, time.Minute, w.m.TTL("k"))
		assert.Equal(t, 990*time.Millisecond, time.Until(y.ValidUntil()))
	})
}

func TestAdoptNeverCreatesALease(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x, err := p.TryAcquire(t.Context(), "other", time.Minute)
		require.NoError(t, err)
		w.take("held", time.Minute)
		before := w.m.Dump()
		for _, key := range []string{"free", "held"} {
			_, err := p.Adopt(t.Context(), key, x.Token(), time.Second)
			require.ErrorIs(t, err, ErrLost, key)
			require.ErrorContains(t, err, "leasehold: adopt ")
		}
		for _, like := range []string{x.Token() + "1", x.Token()[:len(x.Token())-1], "*"} {
			_, err := p.Adopt(t.Context(), "other", like, time.Second)
			require.ErrorIs(t, err, ErrLost, "a token is compared whole")
		}
		_, err = p.Adopt(t.Context(), "other", "", time.Second)
		require.ErrorIs(t, err, ErrInvalid)
		synctest.Wait()
		assert.Equal(t, before, w.m.Dump())
	})
}

func TestAFailedAdoptionLeavesTheLeaseAsItWas(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		x, err := w.party().TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		p := w.party()
		p.fault.Next(1, nil).Lose(errNetwork)
		_, err = p.Adopt(t.Context(), "k", x.Token(), time.Minute)
		require.ErrorIs(t, err, errNetwork)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		held := p.fault.Next(1, nil).HoldReply()
		_, err = p.Adopt(ctx, "k", x.Token(), time.Minute)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		held.Release()
		synctest.Wait()
		assert.Equal(t, x.Token(), w.owner("k"), "what it undid was not its own")
		require.NoError(t, x.Renew(t.Context()))
	})
}

func TestInspectTellsWhoHoldsALockAndWhoWaits(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		// What a Locker does with its leases is no matter of Inspect's.
		p := w.party(WithOwner("worker 7"), WithKeyPrefix("app:"), WithRenewEvery(time.Second))
		s, err := p.Inspect(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, State{Key: "app:k"}, s)

		x, err := p.TryAcquire(t.Context(), "k", 10*time.Second, WithLockDelay(time.Second))
		require.NoError(t, err)
		q := w.party(WithKeyPrefix("app:"))
		waiting := beside(func() (*Lease, error) { return q.Acquire(t.Context(), "k", time.Minute) })
		time.Sleep(3100 * time.Millisecond)
		before := w.m.Dump()
		s, err = p.Inspect(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, State{"app:k", true, "worker 7", 7900 * time.Millisecond, x.FencingToken(), 1}, s)
		assert.Equal(t, before, w.m.Dump(), "it changed something")

		require.NoError(t, x.Release(t.Context()))
		y := (<-waiting).lease
		s, err = p.Inspect(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, State{"app:k", true, "", time.Minute, y.FencingToken(), 0}, s)
		require.NoError(t, y.Release(t.Context()))
		s, err = p.Inspect(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, State{Key: "app:k", FencingToken: y.FencingToken()}, s)
	})
}

func TestInspectTellsOfKeysThatAreNotOurs(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		for _, value := range []string{"", "x", "0123456789abcdef.0123456789abcdef0123456789", "somebody.else.altogether.with.a.label"} {
			require.NoError(t, w.m.Set("k", value))
			s, err := p.Inspect(t.Context(), "k")
			require.NoError(t, err)
			assert.Equal(t, State{Key: "k", Held: true, TTL: -1}, s)
		}
		w.m.Del("k")
		w.m.HSet("hash", "f", "v")
		_, err := p.Inspect(t.Context(), "hash")
		require.ErrorContains(t, err, "WRONGTYPE")
		w.m.Del("hash")
	})
}

func TestForceReleaseGivesTheLockToTheFirstWaiter(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b := w.party(), w.party()
		op := w.party(WithRenewEvery(time.Second)) // which is no matter of this call
		require.NoError(t, op.ForceRelease(t.Context(), "k"), "nobody holds it")
		x := a.keeps("k", 3*time.Second)
		waiting := beside(func() (*Lease, error) { return b.Acquire(t.Context(), "k", time.Minute) })
		await(t, time.Second, func() bool { return len(w.line("k")) == 1 })
		time.Sleep(100 * time.Millisecond)

		begun := time.Now()
		require.NoError(t, op.ForceRelease(t.Context(), "k"))
		r := <-waiting
		require.NoError(t, r.err)
		assert.Zero(t, time.Since(begun), "by a message")
		assert.Greater(t, r.lease.FencingToken(), x.FencingToken())
		assert.Contains(t, op.logged(), "released by force")
		awaitEnd(x)
		assert.LessOrEqual(t, time.Since(begun), time.Second, "its next renewal tells the holder")
		require.ErrorIs(t, x.Err(), ErrLost)
		assert.Equal(t, r.lease.Token(), w.owner("k"))
	})
}

func TestForceReleaseFreesAKeyThatIsNotOurs(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		require.NoError(t, w.m.Set("k", "left behind, without a ttl"))
		p := w.party()
		require.NoError(t, p.ForceRelease(t.Context(), "k"))
		assert.False(t, w.m.Exists("k"))
		_, err := p.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
	})
}
