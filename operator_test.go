package leasehold

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestInspectTellsWhoHoldsALockAndWhoWaits(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		// What a Locker does with its leases is no matter of Inspect's.
		p := w.party(WithOwner("worker 7"), WithKeyPrefix("app:"), WithRenewEvery(time.Second))
		s, err := p.Inspect(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, LockState{Key: "app:k"}, s)

		x, err := p.TryAcquire(t.Context(), "k", 10*time.Second, WithLockDelay(time.Second))
		require.NoError(t, err)
		q := w.party(WithKeyPrefix("app:"))
		waiting := beside(func() (*Lease, error) { return q.Acquire(t.Context(), "k", time.Minute) })
		time.Sleep(3100 * time.Millisecond)
		before := w.m.Dump()
		s, err = p.Inspect(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, LockState{"app:k", true, "worker 7", 7900 * time.Millisecond, x.FencingToken(), 1}, s)
		assert.Equal(t, before, w.m.Dump(), "it changed something")

		require.NoError(t, x.Release(t.Context()))
		y := (<-waiting).lease
		s, err = p.Inspect(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, LockState{"app:k", true, "", time.Minute, y.FencingToken(), 0}, s)
		require.NoError(t, y.Release(t.Context()))
		s, err = p.Inspect(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, LockState{Key: "app:k", FencingToken: y.FencingToken()}, s)
	})
}

func TestInspectTellsOfKeysThatAreNotOurs(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		for _, value := range []string{"", "x", "0123456789abcdef.0123456789abcdef0123456789", "somebody.else.altogether.with.a.label"} {
			require.NoError(t, w.m.Set("k", value))
			s, err := p.Inspect(t.Context(), "k")
			require.NoError(t, err)
			assert.Equal(t, LockState{Key: "k", Held: true, TTL: -1}, s)
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

func TestForceReleaseFreesAKeyThatIsNoLock(t *testing.T) {
	for kind, put := range map[string]func(m *miniredis.Miniredis){
		"a value without a ttl": func(m *miniredis.Miniredis) { _ = m.Set("k", "left behind, without a ttl") },
		"an empty value":        func(m *miniredis.Miniredis) { _ = m.Set("k", "") },
		"a hash":                func(m *miniredis.Miniredis) { m.HSet("k", "f", "v") },
		"a list":                func(m *miniredis.Miniredis) { _, _ = m.Push("k", "v") },
		"a set":                 func(m *miniredis.Miniredis) { _, _ = m.SAdd("k", "v") },
	} {
		t.Run(kind, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				put(w.m)
				p := w.party()
				require.NoError(t, p.ForceRelease(t.Context(), "k"))
				assert.False(t, w.m.Exists("k"))
				_, err := p.TryAcquire(t.Context(), "k", time.Second)
				require.NoError(t, err)
			})
			quorumBubble(t, 3, func(t *testing.T, nodes []*fakeNode, join joinFunc) {
				for _, n := range nodes {
					put(n.Miniredis)
				}
				p := join()
				require.NoError(t, p.ForceRelease(t.Context(), "k"))
				synctest.Wait()
				_, err := p.TryAcquire(t.Context(), "k", time.Second)
				require.NoError(t, err)
			})
		})
	}
}

// A hash has taken the place of the lock while somebody waits: the waiter is served as by any release.
func TestForceReleaseOfAKeyThatIsNoLockServesTheFirstWaiter(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b := w.party(), w.party()
		a.keeps("k", 30*time.Second)
		waiting := beside(func() (*Lease, error) { return b.Acquire(t.Context(), "k", time.Minute) })
		await(t, time.Second, func() bool { return len(w.line("k")) == 1 })
		w.m.Del("k")
		w.m.HSet("k", "f", "v")
		require.NoError(t, w.party().ForceRelease(t.Context(), "k"))
		r := <-waiting
		require.NoError(t, r.err)
		assert.Equal(t, r.lease.Token(), w.owner("k"))
	})
}

func TestForceReleaseTellsALeaseOfTheSameLockerAtOnce(t *testing.T) {
	eachKind(t, func(t *testing.T, l, other *Locker, owner func() string) {
		for _, by := range []*Locker{l, other} {
			x, err := l.TryAcquire(t.Context(), "k", 30*time.Second, WithAutoRenew(true))
			require.NoError(t, err)
			y, err := l.TryAcquire(t.Context(), "another key", 30*time.Second)
			require.NoError(t, err)
			synctest.Wait()
			ctx, cancel := x.Context(t.Context())
			defer cancel()
			require.NoError(t, by.ForceRelease(t.Context(), "k"))
			require.True(t, y.Valid())
			require.NoError(t, y.Release(t.Context()))
			if by == other {
				require.True(t, x.Valid(), "nobody can have told it")
				time.Sleep(10 * time.Second)
				require.ErrorContains(t, x.Err(), "the key is gone")
				continue
			}
			require.ErrorIs(t, x.Err(), ErrLost)
			require.ErrorContains(t, x.Err(), "released by force")
			require.ErrorIs(t, context.Cause(ctx), ErrLost)
			require.ErrorIs(t, x.Release(t.Context()), ErrLost)
			synctest.Wait()
			require.Empty(t, owner())
		}
	})
}

// What this Locker has got since, by waiting for what it released by force itself, is no lease that was lost.
func TestForceReleaseTellsNoLeaseThatCameAfterIt(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x := p.keeps("k", 30*time.Second)
		waiting := beside(func() (*Lease, error) { return p.Acquire(t.Context(), "k", time.Minute, WithAutoRenew(true)) })
		await(t, time.Second, func() bool { return len(w.line("k")) == 1 })
		reply := p.fault.Next(1, runOf(releaseScript, "force")).HoldReply()
		done := make(chan error, 1)
		go func() { done <- p.ForceRelease(t.Context(), "k") }()
		r := <-waiting
		require.NoError(t, r.err)
		reply.Release()
		require.NoError(t, <-done)
		synctest.Wait()
		require.ErrorContains(t, x.Err(), "released by force")
		require.True(t, r.lease.Valid())
		require.Equal(t, LossForced, p.heard("lost")[0].Loss)
	})
}

func TestALossSaysWhatBecameOfTheKey(t *testing.T) {
	for what, c := range map[string]struct {
		to   func(w *world)
		says string
	}{
		"deleted": {func(w *world) { w.m.Del("k") }, "the key is gone"},
		"taken":   {func(w *world) { w.take("k", time.Minute) }, "the key is now held by another"},
		"a hash":  {func(w *world) { w.m.Del("k"); w.m.HSet("k", "f", "v"); w.m.SetTTL("k", time.Minute) }, "the key is no lock any more"},
		"a list":  {func(w *world) { w.m.Del("k"); w.m.Push("k", "v"); w.m.SetTTL("k", time.Minute) }, "the key is no lock any more"},
	} {
		for by, hears := range map[string]func(t *testing.T, x *Lease) error{
			"Renew":   func(t *testing.T, x *Lease) error { return x.Renew(t.Context()) },
			"Release": func(t *testing.T, x *Lease) error { return x.Release(t.Context()) },
			"a renewal": func(t *testing.T, x *Lease) error {
				time.Sleep(10 * time.Second) // not at the deadline only
				return x.Err()
			},
		} {
			t.Run(what+", by "+by, func(t *testing.T) {
				inBubble(t, func(t *testing.T, w *world) {
					p := w.party()
					x, err := p.TryAcquire(t.Context(), "k", 30*time.Second, WithAutoRenew(by == "a renewal"))
					require.NoError(t, err)
					c.to(w)
					err = hears(t, x)
					require.ErrorIs(t, err, ErrLost)
					require.ErrorContains(t, err, c.says)
					require.Empty(t, p.heard("jeopardy"))
					require.Len(t, p.heard("lost"), 1)
					assert.Equal(t, LossGone, p.heard("lost")[0].Loss)
				})
			})
		}
	}
}
