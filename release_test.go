package leasehold_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/inside"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReleaseIsNotStoppedByACancelledContext(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, x.Release(ctx))
		assert.Empty(t, w.Owner("k"))

		// Its own bound then is no longer than what is left of the lease.
		x, err = p.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		p.Wire.BlackHole()
		begun := time.Now()
		require.Error(t, x.Release(ctx))
		assert.Equal(t, 990*time.Millisecond, time.Since(begun))
	})
}

func TestAReleaseThatIsCutShortGoesOnByItself(t *testing.T) {
	for name, hold := range map[string]func(p *locktest.Party) interface{ Release() }{
		"before it is sent":   func(p *locktest.Party) interface{ Release() } { return p.Fault.Next(1, nil).Hold() },
		"before it is heard":  func(p *locktest.Party) interface{ Release() } { return p.Fault.Next(1, nil).HoldReply() },
		"and sent once again": func(p *locktest.Party) interface{ Release() } { return p.Fault.Next(2, nil).HoldReply() },
	} {
		locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
			p := w.Party()
			x, err := p.TryAcquire(t.Context(), "k", time.Minute)
			require.NoError(t, err)
			held := hold(p)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			err = x.Release(ctx)
			require.ErrorIs(t, err, context.DeadlineExceeded, name)
			require.NotErrorIs(t, err, leasehold.ErrLost)
			assert.ErrorContains(t, err, "the key may live until its ttl has passed")
			assert.False(t, x.Valid(), "not trusted any more")
			require.ErrorIs(t, x.Renew(t.Context()), leasehold.ErrReleased, "nor renewed")

			time.Sleep(5 * time.Second)
			assert.Empty(t, w.Owner("k"), name)
			require.ErrorIs(t, x.Err(), leasehold.ErrReleased)
			require.NoError(t, x.Release(t.Context()))
			held.Release()
			synctest.Wait()
			assert.Empty(t, p.Heard("lost"))
		})
	}
}

// The holder has let go when it calls Release, whatever becomes of the call.
func TestFromTheCallOfReleaseOnTheLeaseHasEnded(t *testing.T) {
	nothing := func() {}
	for name, release := range map[string]func(w *locktest.World, p *locktest.Party) (done func()){
		"while it is under way": func(_ *locktest.World, p *locktest.Party) func() {
			return p.Fault.Next(1, locktest.RunOf(locktest.ReleaseScript)).Hold().Release
		},
		"when it was refused": func(_ *locktest.World, p *locktest.Party) func() {
			p.Fault.Every(locktest.RunOf(locktest.ReleaseScript)).Fail(locktest.ServerSays("NOPERM no"))
			return nothing
		},
		"when Redis is away":          func(_ *locktest.World, p *locktest.Party) func() { p.Wire.Refuse(); return p.Wire.Pass },
		"when nothing is answered":    func(_ *locktest.World, p *locktest.Party) func() { p.Wire.BlackHole(); return p.Wire.Pass },
		"when it was done":            func(*locktest.World, *locktest.Party) func() { return nothing },
		"when the key had been taken": func(w *locktest.World, _ *locktest.Party) func() { w.Take("k", time.Minute); return nothing },
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
				p := w.Party()
				x := p.Keeps("k", 10*time.Second)
				inner, cancel := x.Context(t.Context())
				defer cancel()
				var renewals atomic.Int32
				p.Fault.Every(func(cmd redis.Cmder) bool {
					if locktest.RunOf(locktest.RenewScript)(cmd) {
						renewals.Add(1)
					}
					return false
				}).Delay(0)
				goOn := release(w, p)
				done := make(chan error, 1)
				go func() { done <- x.Release(t.Context()) }()
				synctest.Wait()

				<-x.Done()
				require.ErrorIs(t, x.Err(), leasehold.ErrReleased)
				require.ErrorIs(t, context.Cause(inner), leasehold.ErrReleased)
				later, cancel := x.Context(t.Context())
				defer cancel()
				require.ErrorIs(t, context.Cause(later), leasehold.ErrReleased)
				assert.False(t, x.Valid())
				require.ErrorIs(t, x.Renew(t.Context()), leasehold.ErrReleased)
				require.ErrorIs(t, x.EnsureFor(t.Context(), time.Second), leasehold.ErrReleased)
				assert.Zero(t, p.Stats().Held)

				time.Sleep(5 * time.Second)
				goOn()
				<-done
				time.Sleep(20 * time.Second) // its deadline passes, and is no loss
				require.ErrorIs(t, x.Err(), leasehold.ErrReleased)
				assert.Zero(t, renewals.Load())
				assert.Equal(t, 1, len(p.Heard("lost"))+len(p.Heard("released")), "an end is told once")
			})
		})
	}
}

func TestAReleaseThatIsCalledAgainAndAgainIsRepeatedByOne(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		p.Fault.Every(nil).Fail(locktest.ErrNetwork)
		for range 10 {
			require.ErrorIs(t, x.Release(t.Context()), locktest.ErrNetwork)
		}
		assert.Equal(t, 1, inside.Of(p.Locker).Life.Len())
		assert.Len(t, p.Heard("released"), 1)
		assert.EqualValues(t, 1, p.Stats().ReleasesUnconfirmed)
	})
}

func TestAFailedReleaseCanBeCalledAgain(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		done := x.Done()
		w.M.SetError("NOPERM not now") // nothing repeats it by itself
		err = x.Release(t.Context())
		var server redis.Error
		require.ErrorAs(t, err, &server)
		time.Sleep(time.Second)
		assert.Equal(t, x.Token(), w.Owner("k"))
		<-done
		require.ErrorIs(t, x.Err(), leasehold.ErrReleased, "its holder has let go")
		w.M.SetError("")
		sent := len(p.Fault.Sent())
		require.NoError(t, x.Release(t.Context()))
		assert.Empty(t, w.Owner("k"))
		assert.Len(t, p.Fault.Sent(), sent+1)
	})
}

func TestAFailedReleaseIsRepeatedUntilRedisIsBack(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		p.Fault.Every(nil).Fail(&net.OpError{Op: "dial", Err: locktest.ErrNetwork})
		require.ErrorIs(t, x.Release(t.Context()), locktest.ErrNetwork)
		time.Sleep(3 * time.Second)
		p.Fault.Clear()
		time.Sleep(1100 * time.Millisecond)
		assert.Empty(t, w.Owner("k"))
		require.ErrorIs(t, x.Err(), leasehold.ErrReleased)
		released := p.Heard("released")
		require.Len(t, released, 1, "that it failed")
		assert.False(t, released[0].Clean)
		require.ErrorIs(t, released[0].Err, locktest.ErrNetwork)
	})
}

func TestAReleaseIsRepeatedForAsLongAsTheKeyCanBeThere(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "k", 10*time.Minute)
		require.NoError(t, err)
		p.Wire.Refuse()
		require.Error(t, x.Release(t.Context()))
		time.Sleep(time.Minute)
		p.Wire.Pass()
		time.Sleep(10 * time.Second)
		assert.Empty(t, w.Owner("k"))
		require.ErrorIs(t, x.Err(), leasehold.ErrReleased)
	})
}

func TestReleaseMayBeRepeated(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		for range 3 {
			require.NoError(t, x.Release(t.Context()))
			require.ErrorIs(t, x.Err(), leasehold.ErrReleased)
			assert.False(t, x.Valid())
		}
		assert.Len(t, p.Fault.Sent(), 2)
		require.ErrorIs(t, x.Renew(t.Context()), leasehold.ErrReleased)
		require.ErrorIs(t, x.EnsureFor(t.Context(), time.Second), leasehold.ErrReleased)
		assert.Len(t, p.Heard("released"), 1)

		// Not even by what comes later to the key.
		w.Take("k", time.Minute)
		require.NoError(t, x.Release(t.Context()))
	})
}

func TestConcurrentReleasesAreOne(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		hold := p.Fault.Next(5, nil).Hold()
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() { assert.NoError(t, x.Release(t.Context())) })
		}
		<-hold.Arrived()
		synctest.Wait()
		hold.Release()
		all.Wait()
		assert.Len(t, p.Heard("released"), 1)
		require.ErrorIs(t, x.Err(), leasehold.ErrReleased)
	})
}

// Sent twice by go-redis, the first having done the work: no loss.
func TestOfConcurrentReleasesTheOneThatDidItIsTold(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		did := p.Fault.Next(1, locktest.RunOf(locktest.ReleaseScript)).HoldReply()
		first := make(chan error, 1)
		go func() { first <- x.Release(t.Context()) }()
		<-did.Arrived()
		require.NoError(t, x.Release(t.Context()))
		assert.Empty(t, p.Heard("released"))
		require.ErrorIs(t, x.Err(), leasehold.ErrReleased)
		did.Release()
		require.NoError(t, <-first)
		require.Len(t, p.Heard("released"), 1)
		assert.True(t, p.Heard("released")[0].Clean)
		assert.EqualValues(t, 1, p.Stats().Released)
		require.NoError(t, x.Release(t.Context()))
		assert.Len(t, p.Heard("released"), 1)
	})
}

func TestAReleaseThatIsCutShortWhenAnotherHasDoneItIsASuccess(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		stuck := p.Fault.Next(1, locktest.RunOf(locktest.ReleaseScript)).Hold()
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan error, 1)
		go func() { first <- x.Release(ctx) }()
		<-stuck.Arrived()
		require.NoError(t, x.Release(t.Context()))
		cancel()
		require.NoError(t, <-first, "it is known what became of the key")
		stuck.Release()
		assert.True(t, p.Heard("released")[0].Clean)
	})
}

func TestAReleaseThatGoRedisSentTwiceIsAReleaseThatIsNotClean(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		p.Wire.DropReplies(1, "evalsha")
		require.NoError(t, x.Release(t.Context()))
		require.ErrorIs(t, x.Err(), leasehold.ErrReleased)
		assert.False(t, p.Heard("released")[0].Clean)
		assert.EqualValues(t, 1, p.Stats().ReleasesUnconfirmed)

		// Sent once, "not ours" is a loss.
		x, err = p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		w.M.Del("k")
		require.ErrorIs(t, x.Release(t.Context()), leasehold.ErrLost)
		require.ErrorIs(t, x.Release(t.Context()), leasehold.ErrLost)
		require.ErrorIs(t, x.Err(), leasehold.ErrReleased, "that it was gone is the release's answer")
		assert.Equal(t, leasehold.LossGone, p.Heard("lost")[0].Loss)

		// Also when Redis had forgotten the script, which makes two sends of one release.
		x, err = p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		w.M.Del("k")
		require.NoError(t, w.Raw.ScriptFlush(t.Context()).Err())
		require.ErrorIs(t, x.Release(t.Context()), leasehold.ErrLost)
	})
}

func TestALostLeaseIsReleasedAllTheSame(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute, leasehold.WithMaxHold(time.Second))
		require.NoError(t, err)
		locktest.AwaitEnd(x)
		assert.NotEmpty(t, w.Owner("k"))
		require.ErrorIs(t, x.Release(t.Context()), leasehold.ErrLost)
		assert.Empty(t, w.Owner("k"), "others need not wait for its ttl")
		assert.Len(t, p.Heard("lost"), 1)
	})
}

func TestALeaseMayBePassedToAnotherGoroutine(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		leases := make(chan *leasehold.Lease)
		go func() {
			x, err := p.TryAcquire(t.Context(), "k", time.Minute)
			assert.NoError(t, err)
			leases <- x
		}()
		x := <-leases
		require.NoError(t, x.Renew(t.Context()))
		require.NoError(t, x.Release(t.Context()))
	})
}
