package keep_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

// trusted is for how long the lease is trusted from now.
func trusted(x *leasehold.Lease) time.Duration { return time.Until(x.ValidUntil()) }

// less is a TTL less its margin.
func less(ttl time.Duration) time.Duration { return ttl - max(2*time.Millisecond, ttl/100) }

func TestExtendGoesOnWithAnotherTTLInRedisAndHere(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		x := locktest.Take(t, w.Party(leasehold.WithLockDelay(time.Second)).Locker, 10*time.Second)
		for _, ttl := range []time.Duration{time.Minute, 20 * time.Second, 5 * time.Second, 30 * time.Second} {
			require.NoError(t, x.Extend(t.Context(), ttl))
			assert.Equal(t, less(ttl), trusted(x))
			assert.Equal(t, ttl+time.Second, w.M.TTL("k"), "with the lock delay")
			time.Sleep(time.Second)
			require.NoError(t, x.Renew(t.Context()))
			assert.Equal(t, less(ttl), trusted(x), "a renewal keeps to it")
			assert.Equal(t, ttl+time.Second, w.M.TTL("k"))
			assert.ErrorIs(t, x.EnsureFor(t.Context(), ttl), leasehold.ErrInvalid)
			assert.NoError(t, x.EnsureFor(t.Context(), less(ttl)))
		}
	})
}

func TestExtendChangesHowOftenALeaseIsRenewed(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x := p.Keeps("k", time.Hour)
		time.Sleep(time.Minute)
		for _, ttl := range []time.Duration{3 * time.Second, 30 * time.Second, 300 * time.Millisecond} {
			require.NoError(t, x.Extend(t.Context(), ttl))
			before := len(p.Heard("renewed"))
			time.Sleep(20 * ttl)
			n := len(p.Heard("renewed")) - before
			assert.GreaterOrEqual(t, n, 58)
			assert.LessOrEqual(t, n, 70)
			assert.True(t, x.Valid())
			assert.LessOrEqual(t, w.M.TTL("k"), ttl)
		}
		assert.Empty(t, p.Heard("jeopardy"))
	})
}

func TestAShorterTTLEndsALeaseThatIsNotRenewedByItsTimer(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		x := locktest.Take(t, w.Party().Locker, time.Hour)
		require.NoError(t, x.Extend(t.Context(), time.Second))
		begun := time.Now()
		locktest.AwaitEnd(x)
		assert.Equal(t, less(time.Second), time.Since(begun))
		require.ErrorIs(t, x.Err(), leasehold.ErrLost)
	})
}

func TestExtendOfAnInvalidTTLSendsNothing(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x := locktest.Take(t, p.Locker, 10*time.Second, leasehold.WithRenewEvery(time.Second), leasehold.WithLockDelay(time.Hour))
		sent := len(p.Fault.Sent())
		for ttl, says := range map[time.Duration]string{
			0: "ttl 0s", -1: "ttl -1ns", locktest.MinTTL - 1: "ttl 9.999999ms", locktest.MaxTTL + 1: "ttl 87600h0m0.000000001s",
			locktest.MaxTTL:         "WithLockDelay(1h0m0s)",
			1900 * time.Millisecond: "WithRenewEvery(1s)",
		} {
			err := x.Extend(t.Context(), ttl)
			require.ErrorIs(t, err, leasehold.ErrInvalid)
			require.ErrorContains(t, err, says)
			require.ErrorContains(t, err, `leasehold: extend "k": `)
		}
		assert.Len(t, p.Fault.Sent(), sent)
		assert.Equal(t, less(10*time.Second), trusted(x))
	})
	locktest.QuorumBubble(t, 3, func(t *testing.T, _ []*locktest.FakeNode, join locktest.JoinFunc) {
		x := locktest.Taken(t, join(leasehold.WithRestartQuarantine(time.Minute)), 30*time.Second)
		require.ErrorContains(t, x.Extend(t.Context(), 2*time.Minute), "WithRestartQuarantine's 1m0s")
		require.NoError(t, x.Extend(t.Context(), time.Minute))
	})
}

func TestExtendAfterTheEndSaysWhatRenewSays(t *testing.T) {
	locktest.EachKind(t, func(t *testing.T, former, other *leasehold.Locker, owner func() string) {
		x := locktest.Take(t, former, 10*time.Second)
		synctest.Wait() // a quorum's last node
		require.NoError(t, other.ForceRelease(t.Context(), "k"))
		require.ErrorIs(t, x.Extend(t.Context(), time.Minute), leasehold.ErrLost)
		require.ErrorIs(t, x.Err(), leasehold.ErrLost)
		synctest.Wait()
		assert.Empty(t, owner(), "it creates no lock")

		y := locktest.Take(t, former, 10*time.Second)
		require.NoError(t, y.Release(t.Context()))
		require.ErrorIs(t, y.Extend(t.Context(), time.Minute), leasehold.ErrReleased)
		var none *leasehold.Lease
		require.ErrorIs(t, none.Extend(t.Context(), time.Minute), leasehold.ErrInvalid)
	})
}

func TestWithMaxHoldEndsALeaseThatIsExtended(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		x := locktest.Take(t, w.Party().Locker, time.Second, leasehold.WithMaxHold(10*time.Second))
		require.NoError(t, x.Extend(t.Context(), time.Minute))
		assert.Equal(t, 10*time.Second, trusted(x))
	})
}

// wires are what can become of the command of an Extend.
var wires = map[string]func(p *locktest.Party){
	"it arrives": func(*locktest.Party) {},
	"its reply is lost": func(p *locktest.Party) {
		p.Fault.Next(1, locktest.RunOf(locktest.RenewScript)).Lose(locktest.ErrNetwork)
	},
	"it is never sent": func(p *locktest.Party) {
		p.Fault.Next(1, locktest.RunOf(locktest.RenewScript)).Fail(locktest.ErrNetwork)
	},
	"it is sent twice":         func(p *locktest.Party) { p.Wire.DropReplies(1, "evalsha") },
	"the server refuses it":    func(p *locktest.Party) { p.Fault.Next(1, nil).Answer(locktest.ServerSays("OOM no memory")) },
	"it is delayed on its way": func(p *locktest.Party) { p.Fault.Next(1, locktest.RunOf(locktest.RenewScript)).Delay(4 * time.Second) },
	"its reply is late": func(p *locktest.Party) {
		p.Fault.Next(1, locktest.RunOf(locktest.RenewScript)).DelayReply(4 * time.Second)
	},
	"its caller does not wait":   nil,
	"the connection is cut then": func(p *locktest.Party) { p.Wire.CutReply(1) },
}

// Whatever becomes of an Extend and of the renewals around it, and in whatever order they arrive, the holder never trusts the
// lease for longer than the key is there.
func TestALeaseIsNeverTrustedForLongerThanItsKeyLasts(t *testing.T) {
	ttls := []time.Duration{30 * time.Second, 8 * time.Second, 2 * time.Minute}
	for name, wire := range wires {
		t.Run(name, func(t *testing.T) {
			for i := range 27 {
				locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
					p, auto := w.Party(), i%2 == 0
					x := locktest.Take(t, p.Locker, ttls[i%3], leasehold.WithAutoRenew(auto), leasehold.WithRenewEvery(3*time.Second))
					stop := watch(t, w, x)
					defer stop()
					for step, ttl := range []time.Duration{ttls[i/3%3], ttls[i/9]} {
						time.Sleep(500 * time.Millisecond)
						ctx, cancel := context.WithCancel(t.Context())
						if step == 0 && wire != nil {
							wire(p)
						} else if step == 0 {
							p.Fault.Next(1, locktest.RunOf(locktest.RenewScript)).Delay(4 * time.Second)
							time.AfterFunc(100*time.Millisecond, cancel)
						}
						err := x.Extend(ctx, ttl)
						cancel()
						if step == 1 {
							require.NoError(t, err)
							assert.LessOrEqual(t, trusted(x), less(ttl))
						}
						require.NoError(t, x.Renew(t.Context()))
					}
					time.Sleep(7 * time.Second) // what is late arrives
					require.True(t, !auto || x.Valid())
				})
			}
		})
	}
}

// watch compares every 50 ms until it is stopped.
func watch(t *testing.T, w *locktest.World, x *leasehold.Lease) (stop func()) {
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for tick := time.NewTicker(50 * time.Millisecond); ; {
			if x.Err() == nil && !assert.LessOrEqual(t, trusted(x), w.M.TTL("k")) {
				return
			}
			select {
			case <-done:
				tick.Stop()
				return
			case <-tick.C:
			}
		}
	}()
	return func() { close(done); <-stopped }
}

// A renewal that was sent before an Extend and arrives after it takes no time from the key. A poll that does so, of the acquire,
// is in the table of the script.
func TestARenewalThatArrivesAfterAnExtendShortensNothing(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x := locktest.Take(t, p.Locker, 2*time.Second)
		late := p.Fault.Next(1, locktest.RunOf(locktest.RenewScript)).Hold()
		renewal := make(chan error, 1)
		go func() { renewal <- x.Renew(t.Context()) }()
		<-late.Arrived()
		require.NoError(t, x.Extend(t.Context(), time.Minute))
		late.Release()
		require.NoError(t, <-renewal)
		assert.Equal(t, time.Minute, w.M.TTL("k"))
		assert.Equal(t, less(time.Minute), trusted(x))
	})
}

// A yes counts from the sending of its renewal. One to a renewal that was sent during an Extend may be about the former TTL.
func TestARenewalThatWasSentDuringAnExtendMovesNoDeadline(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x := locktest.Take(t, p.Locker, 10*time.Second)
		extend := p.Fault.Next(1, locktest.RunOf(locktest.RenewScript)).HoldReply() // it has run, and its reply is on its way
		extension := make(chan error, 1)
		go func() { extension <- x.Extend(t.Context(), time.Minute) }()
		<-extend.Arrived()
		begun := time.Now()
		time.Sleep(500 * time.Millisecond)
		renew := p.Fault.Next(1, locktest.RunOf(locktest.RenewScript)).HoldReply()
		renewal := make(chan error, 1)
		go func() { renewal <- x.Renew(t.Context()) }()
		<-renew.Arrived()
		extend.Release()
		require.NoError(t, <-extension)
		renew.Release()
		require.NoError(t, <-renewal)
		assert.Equal(t, less(time.Minute), x.ValidUntil().Sub(begun))
		assert.LessOrEqual(t, trusted(x), w.M.TTL("k"))
	})
}

func TestAShorterTTLOfUnknownOutcomeStaysInForce(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x := locktest.Take(t, p.Locker, 10*time.Second)
		lost := p.Fault.Next(1, locktest.RunOf(locktest.RenewScript)).Hold() // on its way for a long time
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, x.Extend(ctx, 4*time.Second), context.DeadlineExceeded)
		assert.Equal(t, less(4*time.Second)-100*time.Millisecond, trusted(x), "it may have come about")
		require.NoError(t, x.Extend(t.Context(), time.Hour))
		assert.Equal(t, less(4*time.Second), trusted(x), "it may still come about")
		lost.Release()
		synctest.Wait()
		assert.Equal(t, 4*time.Second, w.M.TTL("k"))
		require.NoError(t, x.Renew(t.Context()))
		assert.Equal(t, time.Hour, w.M.TTL("k"), "the last TTL is what Redis is asked for")
	})
}

func TestExtendsOfOneLeaseTakeTurns(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x := locktest.Take(t, p.Locker, 20*time.Second)
		first := p.Fault.Next(1, locktest.RunOf(locktest.RenewScript)).HoldReply()
		errs := make(chan error, 2)
		go func() { errs <- x.Extend(t.Context(), 5*time.Second) }()
		<-first.Arrived()
		go func() { errs <- x.Extend(t.Context(), time.Minute) }()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, x.Extend(ctx, time.Hour), context.DeadlineExceeded, "the wait for a turn ends with the context")
		first.Release()
		require.NoError(t, <-errs)
		require.NoError(t, <-errs)
		assert.Equal(t, time.Minute, w.M.TTL("k"))
		assert.Equal(t, less(time.Minute), trusted(x))
	})
}

func TestExtendOnAQuorum(t *testing.T) {
	locktest.QuorumBubble(t, 3, func(t *testing.T, nodes []*locktest.FakeNode, join locktest.JoinFunc) {
		q := join()
		x := locktest.Taken(t, q, 10*time.Second)
		for _, ttl := range []time.Duration{time.Minute, 5 * time.Second, 30 * time.Second} {
			require.NoError(t, x.Extend(t.Context(), ttl))
			synctest.Wait()
			assert.Equal(t, less(ttl), trusted(x))
			for _, n := range nodes {
				assert.Equal(t, ttl, n.TTL("k"))
			}
		}
		// One node does not answer: what it was sent may take effect at any time, so the shorter TTL stays.
		q.Wires[2].BlackHole()
		require.NoError(t, x.Extend(t.Context(), 4*time.Second))
		require.NoError(t, x.Extend(t.Context(), time.Minute))
		assert.Equal(t, less(4*time.Second), trusted(x))
	})
}

// A node that was slow has answered, and then the shorter TTL is over.
func TestASlowNodeDelaysALongerTTL(t *testing.T) {
	locktest.QuorumBubble(t, 3, func(t *testing.T, _ []*locktest.FakeNode, join locktest.JoinFunc) {
		q := join()
		x := locktest.Taken(t, q, 10*time.Second)
		q.Wires[2].Delay(time.Second)
		require.NoError(t, x.Extend(t.Context(), 4*time.Second))
		require.NoError(t, x.Extend(t.Context(), time.Minute))
		assert.Equal(t, less(4*time.Second), trusted(x))
		time.Sleep(3 * time.Second)
		require.NoError(t, x.Renew(t.Context()))
		assert.Equal(t, less(time.Minute), trusted(x))
	})
}

func TestExtendBesideRenewalsAndARelease(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		for i := range 5 {
			x := p.Keeps(fmt.Sprint("k", i), 90*time.Millisecond)
			var all sync.WaitGroup
			for _, ttl := range []time.Duration{60 * time.Millisecond, time.Second, 200 * time.Millisecond} {
				all.Go(func() {
					for x.Err() == nil {
						_ = x.Extend(t.Context(), ttl)
						_ = x.EnsureFor(t.Context(), 50*time.Millisecond)
						time.Sleep(7 * time.Millisecond)
					}
				})
			}
			time.Sleep(time.Second)
			require.NoError(t, x.Release(t.Context()))
			all.Wait()
		}
	})
}

func TestExtendOnARealServer(t *testing.T) {
	t.Parallel()
	client := redistest.Server(t).Client(func(o *redis.Options) { o.MaxRetries = -1 })
	p := &locktest.Party{T: t, Real: true}
	p.Start(client, nil)
	x := p.Keeps("k", 10*time.Second)
	for _, ttl := range []time.Duration{time.Minute, 2 * time.Second, 500 * time.Millisecond, 20 * time.Second} {
		require.NoError(t, x.Extend(t.Context(), ttl))
		left := client.PTTL(t.Context(), "k").Val()
		assert.LessOrEqual(t, left, ttl)
		assert.Greater(t, left, ttl-400*time.Millisecond)
		assert.LessOrEqual(t, trusted(x), left)
	}
	require.NoError(t, x.Extend(t.Context(), 500*time.Millisecond))
	time.Sleep(1500 * time.Millisecond)
	assert.True(t, x.Valid(), "the renewals keep to it")
	require.NoError(t, x.Release(t.Context()))
}
