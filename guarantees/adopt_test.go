package guarantees_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/backend"
	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/fault"
	"github.com/go-leasehold/leasehold/internal/inside"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAdoptTakesOverALiveLeaseWithATokenAndAFencingTokenOfItsOwn(t *testing.T) {
	locktest.EachKind(t, func(t *testing.T, former, other *leasehold.Locker, owner func() string) {
		x, err := former.TryAcquire(t.Context(), "k", 10*time.Second)
		require.NoError(t, err)
		time.Sleep(5 * time.Second)
		y, err := other.Adopt(t.Context(), "k", x.Token(), 20*time.Second, leasehold.WithAutoRenew(true))
		require.NoError(t, err)
		synctest.Wait()
		assert.Greater(t, y.FencingToken(), x.FencingToken())
		assert.NotEqual(t, x.Token(), y.Token())
		assert.Equal(t, y.Token(), owner())
		assert.Equal(t, 19800*time.Millisecond, time.Until(y.ValidUntil()))
		time.Sleep(time.Minute)
		assert.True(t, y.Valid())
		require.NoError(t, y.Release(t.Context()))
		synctest.Wait()
		assert.Empty(t, owner())

		z, err := other.TryAcquire(t.Context(), "k", time.Second)
		require.NoError(t, err)
		assert.Greater(t, z.FencingToken(), y.FencingToken())
		synctest.Wait()
		require.ErrorIs(t, x.Release(t.Context()), leasehold.ErrLost)
		assert.Equal(t, z.Token(), owner())
	})
}

func TestTheFormerHolderCannotTouchTheLeaseThatWasAdopted(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, former *leasehold.Locker, x *leasehold.Lease){
		"Close": func(t *testing.T, former *leasehold.Locker, _ *leasehold.Lease) { require.NoError(t, former.Close()) },
		"Release": func(t *testing.T, _ *leasehold.Locker, x *leasehold.Lease) {
			require.ErrorIs(t, x.Release(t.Context()), leasehold.ErrLost)
		},
		"Renew": func(t *testing.T, _ *leasehold.Locker, x *leasehold.Lease) {
			require.ErrorIs(t, x.Renew(t.Context()), leasehold.ErrLost)
		},
		"a renewal": func(t *testing.T, _ *leasehold.Locker, x *leasehold.Lease) {
			time.Sleep(4 * time.Second) // not at its deadline only
			require.ErrorIs(t, x.Err(), leasehold.ErrLost)
		},
	} {
		for _, auto := range []bool{false, true} {
			if name == "a renewal" && !auto {
				continue
			}
			t.Run(name+map[bool]string{true: ", renewed"}[auto], func(t *testing.T) {
				locktest.EachKind(t, func(t *testing.T, former, other *leasehold.Locker, owner func() string) {
					x, err := former.TryAcquire(t.Context(), "k", 10*time.Second, leasehold.WithAutoRenew(auto))
					require.NoError(t, err)
					synctest.Wait() // all nodes have it
					y, err := other.Adopt(t.Context(), "k", x.Token(), 10*time.Second, leasehold.WithAutoRenew(true))
					require.NoError(t, err)
					synctest.Wait()
					end(t, former, x)
					assert.Equal(t, y.Token(), owner(), "the former holder released it")
					time.Sleep(time.Minute)
					assert.Equal(t, y.Token(), owner())
					require.NoError(t, y.Err())
					require.NoError(t, y.Renew(t.Context()))
					require.NoError(t, y.Release(t.Context()))
				})
			})
		}
	}
}

func TestTheFormerHoldersLateWriteIsRefused(t *testing.T) {
	locktest.EachKind(t, func(t *testing.T, former, other *leasehold.Locker, _ func() string) {
		x, err := former.TryAcquire(t.Context(), "k", 10*time.Second)
		require.NoError(t, err)
		y, err := other.Adopt(t.Context(), "k", x.Token(), 10*time.Second)
		require.NoError(t, err)
		var g leasehold.Guard
		require.NoError(t, g.Admit("", x.FencingToken()))
		require.NoError(t, g.Admit("", y.FencingToken()))
		require.ErrorIs(t, g.Admit("", x.FencingToken()), leasehold.ErrStale)
	})
}

// What the former holder is told, and how it is counted.
func TestTheFormerHolderHearsThatItsLeaseWasAdopted(t *testing.T) {
	for name, hears := range map[string]func(t *testing.T, x *leasehold.Lease) error{
		"by Renew":     func(t *testing.T, x *leasehold.Lease) error { return x.Renew(t.Context()) },
		"by Release":   func(t *testing.T, x *leasehold.Lease) error { return x.Release(t.Context()) },
		"by a renewal": func(_ *testing.T, x *leasehold.Lease) error { locktest.AwaitEnd(x); return x.Err() },
		"when it is over again": func(t *testing.T, x *leasehold.Lease) error {
			time.Sleep(30 * time.Second)
			return x.Release(t.Context())
		},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
				p, q := w.Party(), w.Party()
				x, err := p.TryAcquire(t.Context(), "k", 40*time.Second, leasehold.WithAutoRenew(name == "by a renewal"))
				require.NoError(t, err)
				y, err := q.Adopt(t.Context(), "k", x.Token(), 10*time.Second)
				require.NoError(t, err)
				if name == "when it is over again" {
					require.NoError(t, y.Release(t.Context()))
				}
				err = hears(t, x)
				require.ErrorIs(t, err, leasehold.ErrLost)
				require.ErrorContains(t, err, "another has adopted the lease")
				require.Len(t, p.Heard("lost"), 1)
				assert.Equal(t, leasehold.LossAdopted, p.Heard("lost")[0].Loss)
				assert.Empty(t, p.Heard("released"))
			})
		})
	}
}

func TestAFormerHolderThatWasNotDetachedTrustsItsLeaseUntilItHears(t *testing.T) {
	locktest.EachKind(t, func(t *testing.T, former, other *leasehold.Locker, _ func() string) {
		x, err := former.TryAcquire(t.Context(), "k", 9*time.Second, leasehold.WithAutoRenew(true), leasehold.WithRenewEvery(3*time.Second))
		require.NoError(t, err)
		y, err := other.Adopt(t.Context(), "k", x.Token(), 9*time.Second)
		require.NoError(t, err)
		assert.True(t, x.Valid() && y.Valid(), "both are trusted")
		assert.Greater(t, y.FencingToken(), x.FencingToken())
		time.Sleep(3 * time.Second)
		assert.False(t, x.Valid())
		assert.True(t, y.Valid())
	})
}

func TestAnAdoptionInTheSameLockerIsToldAtOnce(t *testing.T) {
	locktest.EachKind(t, func(t *testing.T, l, _ *leasehold.Locker, owner func() string) {
		x, err := l.TryAcquire(t.Context(), "k", time.Minute, leasehold.WithAutoRenew(true))
		require.NoError(t, err)
		synctest.Wait()
		ctx, cancel := x.Context(t.Context())
		defer cancel()
		y, err := l.Adopt(t.Context(), "k", x.Token(), time.Minute)
		require.NoError(t, err)
		require.ErrorContains(t, x.Err(), "another has adopted the lease")
		require.ErrorIs(t, context.Cause(ctx), leasehold.ErrLost)
		require.ErrorIs(t, x.Release(t.Context()), leasehold.ErrLost)
		require.True(t, y.Valid())
		synctest.Wait()
		require.Equal(t, y.Token(), owner())
	})
}

func TestAdoptNeverCreatesALease(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "other", time.Minute)
		require.NoError(t, err)
		w.Take("held", time.Minute)
		w.M.HSet("hash", "f", "v")
		w.M.SetTTL("hash", time.Minute)
		before := w.M.Dump()
		for key, why := range map[string]string{
			"free": "the key is gone", "held": "the key is now held by another", "hash": "the key is no lock any more",
		} {
			_, err := p.Adopt(t.Context(), key, x.Token(), time.Second)
			require.ErrorIs(t, err, leasehold.ErrLost, key)
			require.ErrorContains(t, err, "leasehold: adopt ")
			require.ErrorContains(t, err, why)
		}
		for _, like := range []string{x.Token() + "1", x.Token()[:len(x.Token())-1], "*"} {
			_, err := p.Adopt(t.Context(), "other", like, time.Second)
			require.ErrorIs(t, err, leasehold.ErrLost, "a token is compared whole")
		}
		_, err = p.Adopt(t.Context(), "other", "", time.Second)
		require.ErrorIs(t, err, leasehold.ErrInvalid)
		synctest.Wait()
		assert.Equal(t, before, w.M.Dump())
		require.NoError(t, x.Renew(t.Context()))
	})
}

// The key is not given less time, since an adoption may be undone; the first renewal sets it.
func TestAdoptTrustsItsOwnTTLAndLeavesTheKeyTheLongerOne(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		x, err := w.Party().TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		y, err := w.Party().Adopt(t.Context(), "k", x.Token(), time.Second)
		require.NoError(t, err)
		assert.Equal(t, time.Minute, w.M.TTL("k"))
		assert.Equal(t, 990*time.Millisecond, time.Until(y.ValidUntil()))
		require.NoError(t, y.Renew(t.Context()))
		assert.Equal(t, time.Minute, w.M.TTL("k"), "no renewal takes time from a key")
		require.NoError(t, y.Extend(t.Context(), time.Second))
		assert.Equal(t, time.Second, w.M.TTL("k"))
	})
}

func TestAnAdoptionThatFailedLeavesTheLeaseAsItWas(t *testing.T) {
	for name, fail := range map[string]func(t *testing.T, p *locktest.Party, adopt func(context.Context) error){
		"the answer is lost": func(t *testing.T, p *locktest.Party, adopt func(context.Context) error) {
			p.Fault.Next(1, nil).Lose(locktest.ErrNetwork)
			require.ErrorIs(t, adopt(t.Context()), locktest.ErrNetwork)
		},
		"the answer is lost and so is the first undoing": func(t *testing.T, p *locktest.Party, adopt func(context.Context) error) {
			p.Fault.Next(1, locktest.RunOf(locktest.AdoptScript, "cancel")).Fail(locktest.ErrNetwork)
			p.Fault.Next(1, nil).Lose(locktest.ErrNetwork)
			require.ErrorIs(t, adopt(t.Context()), locktest.ErrNetwork)
		},
		"it was not sent": func(t *testing.T, p *locktest.Party, adopt func(context.Context) error) {
			p.Fault.Next(1, nil).Fail(locktest.ErrNetwork)
			require.ErrorIs(t, adopt(t.Context()), locktest.ErrNetwork)
		},
		"the answer comes too late": func(t *testing.T, p *locktest.Party, adopt func(context.Context) error) {
			late := p.Fault.Next(1, nil).HoldReply()
			var slow *fault.NoAnswer
			require.ErrorAs(t, adopt(t.Context()), &slow)
			late.Release()
		},
		"it comes when it is given up": func(t *testing.T, p *locktest.Party, adopt func(context.Context) error) {
			late := p.Fault.Next(1, locktest.RunOf(locktest.AdoptScript)).Hold()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			require.ErrorIs(t, adopt(ctx), context.DeadlineExceeded)
			synctest.Wait() // it is undone
			late.Release()
		},
		"too few replicas have it": func(t *testing.T, p *locktest.Party, adopt func(context.Context) error) {
			p.Fault.Next(1, redistest.Cmd("wait")).Fail(locktest.ErrNetwork)
			require.ErrorIs(t, adopt(t.Context()), locktest.ErrNetwork)
		},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
				x, err := w.Party().TryAcquire(t.Context(), "k", time.Minute)
				require.NoError(t, err)
				var opts []leasehold.Option
				if name == "too few replicas have it" {
					opts = append(opts, leasehold.WithReplicas(1, 100*time.Millisecond))
				}
				p := w.Party()
				adopt := func(ctx context.Context) error {
					_, err := p.Adopt(ctx, "k", x.Token(), 10*time.Second, opts...)
					require.NotErrorIs(t, err, leasehold.ErrLost)
					return err
				}
				fail(t, p, adopt)
				// Called again at once, it waits for what the first may have done.
				y, err := p.Adopt(t.Context(), "k", x.Token(), 10*time.Second)
				require.NoError(t, err)
				require.NoError(t, y.Release(t.Context()))

				x, err = w.Party().TryAcquire(t.Context(), "k", time.Minute)
				require.NoError(t, err)
				fail(t, p, adopt)
				time.Sleep(50 * time.Millisecond)
				assert.Equal(t, x.Token(), w.Owner("k"))
				assert.Equal(t, x.ValidUntil().Add(clock.Margin(time.Minute)).Round(time.Millisecond), time.Now().Add(w.M.TTL("k")).Round(time.Millisecond))
				require.NoError(t, x.Renew(t.Context()))
				require.NoError(t, x.Release(t.Context()))
			})
		})
	}
}

// What the former holder still has on its way would take the lock, for nobody, when the adopter has released it.
func TestALateAcquireOfTheFormerHolderTakesNothing(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		p.Wire.Duplicate()
		x, err := p.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		y, err := w.Party().Adopt(t.Context(), "k", x.Detach(), time.Minute)
		require.NoError(t, err)
		require.NoError(t, y.Release(t.Context()))
		d := inside.Of(p.Locker).Backend
		for _, mode := range []backend.Mode{backend.Try, backend.Join, backend.Poll} {
			ans, _, err := d.Tenure(backend.Request{Key: "k", Token: inside.State(x).Token, PX: 60_000}).Acquire(t.Context(), mode, backend.CallBound)
			require.NoError(t, err)
			require.Equal(t, backend.Gone, ans.State)
		}
		ans, _, err := d.Tenure(backend.Request{Key: "k", Token: "another", Former: inside.State(x).Token, PX: 60_000}).Acquire(t.Context(), backend.Adopt, backend.CallBound)
		require.NoError(t, err)
		require.Equal(t, backend.Answer{State: backend.Gone, Why: backend.TokenSpent}, ans)
		require.Empty(t, w.Owner("k"))
	})
}

func TestOfTwoThatAdoptOneLeaseOneGetsIt(t *testing.T) {
	locktest.EachKind(t, func(t *testing.T, former, other *leasehold.Locker, owner func() string) {
		x, err := former.TryAcquire(t.Context(), "k", time.Minute)
		require.NoError(t, err)
		synctest.Wait()
		token := x.Detach()
		both := []<-chan locktest.Result{
			locktest.Beside(func() (*leasehold.Lease, error) { return former.Adopt(t.Context(), "k", token, 10*time.Second) }),
			locktest.Beside(func() (*leasehold.Lease, error) { return other.Adopt(t.Context(), "k", token, 10*time.Second) }),
		}
		var won []*leasehold.Lease
		for _, c := range both {
			if r := <-c; r.Err == nil {
				won = append(won, r.Lease)
			}
		}
		require.LessOrEqual(t, len(won), 1)
		if len(won) == 0 { // on a quorum each may have got a part: it has gone back
			synctest.Wait()
			require.Equal(t, token, owner())
			return
		}
		require.True(t, won[0].Valid())
		_, err = other.Adopt(t.Context(), "k", token, time.Second)
		require.ErrorIs(t, err, leasehold.ErrLost)
		require.NoError(t, won[0].Renew(t.Context()))
	})
}
