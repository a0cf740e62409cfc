package leasehold

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReleaseIsNotStoppedByACancelledContext(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, x.Release(ctx))
		assert.Empty(t, w.owner("k"))

		// Its own bound then is no longer than what is left of the lease.
		x, err = p.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		p.wire.BlackHole()
		begun := time.Now()
		require.Error(t, x.Release(ctx))
		assert.Equal(t, 990*time.Millisecond, time.Since(begun))
	})
}

func TestAReleaseThatIsCutShortGoesOnByItself(t *testing.T) {
	for name, hold := range map[string]func(p *party) interface{ Release() }{
		"before it is sent":   func(p *party) interface{ Release() } { return p.fault.Next(1, nil).Hold() },
		"before it is heard":  func(p *party) interface{ Release() } { return p.fault.Next(1, nil).HoldReply() },
		"and sent once again": func(p *party) interface{ Release() } { return p.fault.Next(2, nil).HoldReply() },
	} {
		inBubble(t, func(t *testing.T, w *world) {
			p := w.party()
			x, err := p.TryAcquire(t.Context(), "k", time.Minute)
			require.NoError(t, err)
			held := hold(p)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			err = x.Release(ctx)
			require.ErrorIs(t, err, context.DeadlineExceeded, name)
			require.NotErrorIs(t, err, ErrLost)
			assert.ErrorContains(t, err, "the key may live until its ttl has passed")
			assert.False(t, x.Valid(), "not trusted any more")
			require.ErrorIs(t, x.Renew(t.Context()), ErrReleased, "nor renewed")

			time.Sleep(5 * time.Second)
			assert.Empty(t, w.owner("k"), name)
			require.ErrorIs(t, x.Err(), ErrReleased)
			require.NoError(t, x.Release(t.Context()))
			held.Release()
			synctest.Wait()
			assert.Empty(t, p.heard("lost"))
		})
	}
}

// The holder has let go when it calls Release, whatever becomes of the call.
func TestFromTheCallOfReleaseOnTheLeaseHasEnded(t *testing.T) {
	nothing := func() {}
	for name, release := range map[string]func(w *world, p *party) (done func()){
		"while it is under way": func(_ *world, p *party) func() { return p.fault.Next(1, runOf(releaseScript)).Hold().Release },
		"when it was refused": func(_ *world, p *party) func() {
			p.fault.Every(runOf(releaseScript)).Fail(serverSays("NOPERM no"))
			return nothing
		},
		"when Redis is away":          func(_ *world, p *party) func() { p.wire.Refuse(); return p.wire.Pass },
		"when nothing is answered":    func(_ *world, p *party) func() { p.wire.BlackHole(); return p.wire.Pass },
		"when it was done":            func(*world, *party) func() { return nothing },
		"when the key had been taken": func(w *world, _ *party) func() { w.take("k", time.Minute); return nothing },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				p := w.party()
				x := p.keeps("k", 10*time.Second)
				inner, cancel := x.Context(t.Context())
				defer cancel()
				var renewals atomic.Int32
				p.fault.Every(func(cmd redis.Cmder) bool {
					if runOf(renewScript)(cmd) {
						renewals.Add(1)
					}
					return false
				}).Delay(0)
				goOn := release(w, p)
				done := make(chan error, 1)
				go func() { done <- x.Release(t.Context()) }()
				synctest.Wait()

				<-x.Done()
				require.ErrorIs(t, x.Err(), ErrReleased)
				require.ErrorIs(t, context.Cause(inner), ErrReleased)
				later, cancel := x.Context(t.Context())
				defer cancel()
				require.ErrorIs(t, context.Cause(later), ErrReleased)
				assert.False(t, x.Valid())
				require.ErrorIs(t, x.Renew(t.Context()), ErrReleased)
				require.ErrorIs(t, x.EnsureFor(t.Context(), time.Second), ErrReleased)
				assert.Zero(t, p.Stats().Held)

				time.Sleep(5 * time.Second)
				goOn()
				<-done
				time.Sleep(20 * time.Second) // its deadline passes, and is no loss
				require.ErrorIs(t, x.Err(), ErrReleased)
				assert.Zero(t, renewals.Load())
				assert.Equal(t, 1, len(p.heard("lost"))+len(p.heard("released")), "an end is told once")
			})
		})
	}
}

func TestAReleaseThatIsCalledAgainAndAgainIsRepeatedByOne(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		p.fault.Every(nil).Fail(errNetwork)
		for range 10 {
			require.ErrorIs(t, x.Release(t.Context()), errNetwork)
		}
		assert.Equal(t, 1, p.life.Len())
		assert.Len(t, p.heard("released"), 1)
		assert.EqualValues(t, 1, p.Stats().ReleasesUnconfirmed)
	})
}

func TestAFailedReleaseCanBeCalledAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		done := x.Done()
		w.m.SetError("NOPERM not now") // nothing repeats it by itself
		err = x.Release(t.Context())
		var server redis.Error
		require.ErrorAs(t, err, &server)
		time.Sleep(time.Second)
		assert.Equal(t, x.Token(), w.owner("k"))
		<-done
		require.ErrorIs(t, x.Err(), ErrReleased, "its holder has let go")
		w.m.SetError("")
		require.NoError(t, x.Release(t.Context()))
		assert.Empty(t, w.owner("k"))
		assert.Len(t, p.fault.Sent(), 3)
	})
}

func TestAFailedReleaseIsRepeatedUntilRedisIsBack(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		p.fault.Every(nil).Fail(&net.OpError{Op: "dial", Err: errNetwork})
		require.ErrorIs(t, x.Release(t.Context()), errNetwork)
		time.Sleep(3 * time.Second)
		p.fault.Clear()
		time.Sleep(1100 * time.Millisecond)
		assert.Empty(t, w.owner("k"))
		require.ErrorIs(t, x.Err(), ErrReleased)
		released := p.heard("released")
		require.Len(t, released, 1, "that it failed")
		assert.False(t, released[0].Clean)
		require.ErrorIs(t, released[0].Err, errNetwork)
	})
}

func TestAReleaseIsRepeatedForAsLongAsTheKeyCanBeThere(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x, err := p.TryAcquire(t.Context(), "k", 10*time.Minute)
		require.NoError(t, err)
		p.wire.Refuse()
		require.Error(t, x.Release(t.Context()))
		time.Sleep(time.Minute)
		p.wire.Pass()
		time.Sleep(10 * time.Second)
		assert.Empty(t, w.owner("k"))
		require.ErrorIs(t, x.Err(), ErrReleased)
	})
}

func TestReleaseMayBeRepeated(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		for range 3 {
			require.NoError(t, x.Release(t.Context()))
			require.ErrorIs(t, x.Err(), ErrReleased)
			assert.False(t, x.Valid())
		}
		assert.Len(t, p.fault.Sent(), 2)
		require.ErrorIs(t, x.Renew(t.Context()), ErrReleased)
		require.ErrorIs(t, x.EnsureFor(t.Context(), time.Second), ErrReleased)
		assert.Len(t, p.heard("released"), 1)

		// Not even by what comes later to the key.
		w.take("k", time.Minute)
		require.NoError(t, x.Release(t.Context()))
	})
}

func TestConcurrentReleasesAreOne(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		hold := p.fault.Next(5, nil).Hold()
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() { assert.NoError(t, x.Release(t.Context())) })
		}
		<-hold.Arrived()
		synctest.Wait()
		hold.Release()
		all.Wait()
		assert.Len(t, p.heard("released"), 1)
		require.ErrorIs(t, x.Err(), ErrReleased)
	})
}

// Sent twice by go-redis, the first having done the work: no loss.
func TestOfConcurrentReleasesTheOneThatDidItIsTold(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		did := p.fault.Next(1, runOf(releaseScript)).HoldReply()
		first := make(chan error, 1)
		go func() { first <- x.Release(t.Context()) }()
		<-did.Arrived()
		require.NoError(t, x.Release(t.Context()))
		assert.Empty(t, p.heard("released"))
		require.ErrorIs(t, x.Err(), ErrReleased)
		did.Release()
		require.NoError(t, <-first)
		require.Len(t, p.heard("released"), 1)
		assert.True(t, p.heard("released")[0].Clean)
		assert.EqualValues(t, 1, p.Stats().Released)
		require.NoError(t, x.Release(t.Context()))
		assert.Len(t, p.heard("released"), 1)
	})
}

func TestAReleaseThatIsCutShortWhenAnotherHasDoneItIsASuccess(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		stuck := p.fault.Next(1, runOf(releaseScript)).Hold()
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan error, 1)
		go func() { first <- x.Release(ctx) }()
		<-stuck.Arrived()
		require.NoError(t, x.Release(t.Context()))
		cancel()
		require.NoError(t, <-first, "it is known what became of the key")
		stuck.Release()
		assert.True(t, p.heard("released")[0].Clean)
	})
}

func TestAReleaseThatGoRedisSentTwiceIsAReleaseThatIsNotClean(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		p.wire.DropReplies(1, "evalsha")
		require.NoError(t, x.Release(t.Context()))
		require.ErrorIs(t, x.Err(), ErrReleased)
		assert.False(t, p.heard("released")[0].Clean)
		assert.EqualValues(t, 1, p.Stats().ReleasesUnconfirmed)

		// Sent once, "not ours" is a loss.
		x, err = p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		w.m.Del("k")
		require.ErrorIs(t, x.Release(t.Context()), ErrLost)
		require.ErrorIs(t, x.Release(t.Context()), ErrLost)
		require.ErrorIs(t, x.Err(), ErrReleased, "that it was gone is the release's answer")
		assert.Equal(t, LossGone, p.heard("lost")[0].Loss)

		// Also when Redis had forgotten the script, which makes two sends of one release.
		x, err = p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		w.m.Del("k")
		require.NoError(t, w.raw.ScriptFlush(t.Context()).Err())
		require.ErrorIs(t, x.Release(t.Context()), ErrLost)
	})
}

func TestALostLeaseIsReleasedAllTheSame(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute, WithMaxHold(time.Second))
		require.NoError(t, err)
		awaitEnd(x)
		assert.NotEmpty(t, w.owner("k"))
		require.ErrorIs(t, x.Release(t.Context()), ErrLost)
		assert.Empty(t, w.owner("k"), "others need not wait for its ttl")
		assert.Len(t, p.heard("lost"), 1)
	})
}

func TestALeaseMayBePassedToAnotherGoroutine(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		p := w.party()
		leases := make(chan *Lease)
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
