package line_test

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/go-leasehold/leasehold/internal/roundtrip"
)

// ErrUnavailable is one class for all that means that Redis cannot be had now. That nothing else matches it, all tests show that ask
// for kindsOf an error.

func TestEveryCallSaysThatRedisIsUnavailable(t *testing.T) {
	for name, trouble := range locktest.Trouble {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
				p := w.Party()
				x, err := p.TryAcquire(t.Context(), "held", time.Hour)
				require.NoError(t, err)
				trouble.Begin(w, p)
				defer trouble.End(w, p)
				for name, call := range map[string]func(ctx context.Context) error{
					"TryAcquire":   func(ctx context.Context) error { _, err := p.TryAcquire(ctx, "a", time.Minute); return err },
					"TryWithLock":  func(ctx context.Context) error { return p.TryWithLock(ctx, "a", time.Minute, locktest.Idle) },
					"Adopt":        func(ctx context.Context) error { _, err := p.Adopt(ctx, "c", "t", time.Minute); return err },
					"Inspect":      func(ctx context.Context) error { _, err := p.Inspect(ctx, "e"); return err },
					"ForceRelease": func(ctx context.Context) error { return p.ForceRelease(ctx, "f") },
					"Renew":        x.Renew,
				} {
					err := call(t.Context())
					assert.Equal(t, []string{"unavailable"}, locktest.KindsOf(err), "%s: %v", name, err)
				}
				for name, wait := range map[string]func(ctx context.Context) error{
					"Acquire":  func(ctx context.Context) error { _, err := p.Acquire(ctx, "b", time.Minute); return err },
					"WithLock": func(ctx context.Context) error { return p.WithLock(ctx, "b", time.Minute, locktest.Idle) },
				} {
					for _, patience := range []time.Duration{50 * time.Millisecond, 5 * time.Second} {
						ctx, cancel := context.WithTimeout(t.Context(), patience)
						err := wait(ctx)
						cancel()
						assert.Equal(t, []string{"unavailable", "deadline"}, locktest.KindsOf(err), "%s, after %v: %v", name, patience, err)
					}
				}
				jeopardy := p.Heard("jeopardy")
				require.Len(t, jeopardy, 1)
				assert.Equal(t, []string{"unavailable"}, locktest.KindsOf(jeopardy[0].Err), "a hook is told as well")
				err = x.Release(t.Context())
				assert.Equal(t, []string{"unavailable"}, locktest.KindsOf(err), "%v", err)
			})
		})
	}
}

func TestALostLeaseAndAHeldLockAreNotUnavailable(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		x, err := p.TryAcquire(t.Context(), "mine", 10*time.Second, leasehold.WithAutoRenew(true))
		require.NoError(t, err)
		w.Take("other's", time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		_, err = p.Acquire(ctx, "other's", time.Minute)
		require.Equal(t, []string{"held", "deadline"}, locktest.KindsOf(err))
		p.Wire.Refuse()
		p.Wire.Cut()
		locktest.AwaitEnd(x)
		require.Equal(t, []string{"lost"}, locktest.KindsOf(x.Err()), "the renewals failed, but the lease is lost whatever becomes of Redis")
		require.ErrorContains(t, x.Err(), "refused")
		require.Equal(t, []string{"lost"}, locktest.KindsOf(p.Heard("lost")[0].Err))
	})
}

// A caller who gives up proves nothing about Redis, a deadline that passes without an answer does.
func TestACancelledCallSaysNothingAboutRedis(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		_, err := p.Inspect(t.Context(), "k")
		require.NoError(t, err)
		p.Wire.BlackHole()
		for _, cancels := range []bool{false, true} {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			inside := locktest.Beside(func() (*leasehold.Lease, error) { return p.Acquire(ctx, "k", time.Minute) })
			synctest.Wait()
			behind := locktest.Beside(func() (*leasehold.Lease, error) { return p.Acquire(ctx, "k", time.Minute) })
			want, says := []string{"unavailable", "deadline"}, `leasehold: acquire "k": no answer from redis: context deadline exceeded`
			if cancels {
				time.Sleep(50 * time.Millisecond)
				cancel()
				want, says = []string{"canceled"}, `leasehold: acquire "k": context canceled`
			}
			for _, waiting := range []<-chan locktest.Result{inside, behind} {
				err := (<-waiting).Err
				assert.Equal(t, want, locktest.KindsOf(err))
				assert.EqualError(t, err, says)
			}
			cancel()
		}
		// Not even by a client that has no connection yet.
		fresh := w.Party()
		fresh.Wire.BlackHole()
		ctx, cancel := context.WithCancel(t.Context())
		r := locktest.Beside(func() (*leasehold.Lease, error) { return fresh.TryAcquire(ctx, "k", time.Minute) })
		synctest.Wait()
		cancel()
		assert.Equal(t, []string{"canceled"}, locktest.KindsOf((<-r).Err))
	})
}

// go-redis dials up to twenty times before it says why it could not.
func TestTheFirstCallOfAFreshClientSaysWhyItCouldNotConnect(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := listener.Addr().String()
	require.NoError(t, listener.Close()) // nobody listens there now
	nowhere := func(context.Context, string, string) (net.Conn, error) { return nil, syscall.ENETUNREACH }
	dns := &net.Dialer{Resolver: &net.Resolver{PreferGo: true, Dial: nowhere}}
	client := func(o redis.UniversalOptions) redis.UniversalClient {
		if o.Addrs == nil {
			o.Addrs = []string{addr}
		}
		c := redis.NewUniversalClient(&o)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	quorum, err := leasehold.NewQuorum([]redis.UniversalClient{client(redis.UniversalOptions{}), client(redis.UniversalOptions{}), client(redis.UniversalOptions{})}, leasehold.WithRestartQuarantine(0))
	require.NoError(t, err)
	for name, l := range map[string]*leasehold.Locker{
		"a server":    leasehold.New(client(redis.UniversalOptions{})),
		"a cluster":   leasehold.New(client(redis.UniversalOptions{IsClusterMode: true})),
		"a quorum":    quorum,
		"a name":      leasehold.New(client(redis.UniversalOptions{Addrs: []string{"redis.invalid:6379"}, Dialer: dns.DialContext})),
		"a long wait": leasehold.New(client(redis.UniversalOptions{DialerRetries: 1000})),
	} {

		t.Run(name, func(t *testing.T) {
			t.Parallel()
			says := "connection refused"
			switch name {
			case "a name":
				says = "redis.invalid"
			case "a long wait":
				says = "no connection was made to " + addr // go-redis is still at it
			}
			begun := time.Now()
			_, err := l.TryAcquire(t.Context(), "k", 200*time.Millisecond)
			assert.Less(t, time.Since(begun), roundtrip.FirstBound+2*time.Second)
			require.ErrorIs(t, err, leasehold.ErrUnavailable)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, says)
			if says == "connection refused" {
				require.ErrorIs(t, err, syscall.ECONNREFUSED)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
			defer cancel()
			_, err = l.Acquire(ctx, "k", time.Minute)
			require.ErrorIs(t, err, leasehold.ErrUnavailable)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, says)
			t.Cleanup(func() { _ = l.Close() })
		})
	}
}

// A dial that took too long matches context.DeadlineExceeded, whoever's deadline it was.
func TestADialThatTookTooLongIsNotTheCallersDeadline(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		c := w.Dial(func(o *redis.Options) {
			o.DialTimeout, o.DialerRetries, o.MaxRetries = 100*time.Millisecond, 1, -1
			o.Dialer = func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: ctx.Err()}
			}
		})
		l := leasehold.New(c)
		defer l.Close()
		_, err := l.TryAcquire(t.Context(), "k", time.Minute)
		assert.Equal(t, []string{"unavailable"}, locktest.KindsOf(err), "%v", err)
		var dial *net.OpError
		require.ErrorAs(t, err, &dial)
		assert.Equal(t, "dial", dial.Op)
	})
}

func TestAQuorumIsUnavailableWithoutAMajorityThatAnswers(t *testing.T) {
	for _, tt := range []struct {
		name        string
		prepare     func(nodes []*locktest.FakeNode, q *locktest.FakeQuorum)
		unavailable bool
	}{
		{"two refuse", func(_ []*locktest.FakeNode, q *locktest.FakeQuorum) { q.Wires[0].Refuse(); q.Wires[1].Refuse() }, true},
		{"two do not answer", func(_ []*locktest.FakeNode, q *locktest.FakeQuorum) { q.Wires[0].BlackHole(); q.Wires[1].BlackHole() }, true},
		{"two start", func(nodes []*locktest.FakeNode, _ *locktest.FakeQuorum) {
			nodes[0].SetError("LOADING")
			nodes[1].SetError("LOADING")
		}, true},
		{"one refuses, one has restarted", func(nodes []*locktest.FakeNode, q *locktest.FakeQuorum) { q.Wires[0].Refuse(); nodes[1].Forget() }, true},
		{"one refuses, one is held", func(nodes []*locktest.FakeNode, q *locktest.FakeQuorum) {
			q.Wires[0].Refuse()
			_ = nodes[1].Set("k", "other")
			nodes[1].SetTTL("k", time.Hour)
		}, false},
		{"the votes are split", func(nodes []*locktest.FakeNode, _ *locktest.FakeQuorum) {
			for i, n := range nodes[:2] {
				_ = n.Set("k", []string{"other", "third"}[i])
				n.SetTTL("k", time.Hour)
			}
		}, false},
		{"one refuses, one denies", func(nodes []*locktest.FakeNode, q *locktest.FakeQuorum) {
			q.Wires[0].Refuse()
			nodes[1].SetError("NOPERM no")
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			locktest.QuorumBubble(t, 3, func(t *testing.T, nodes []*locktest.FakeNode, join locktest.JoinFunc) {
				q := join(leasehold.WithRestartQuarantine(time.Minute))
				tt.prepare(nodes, q)
				_, err := q.TryAcquire(t.Context(), "k", 10*time.Second)
				require.Error(t, err)
				assert.Equal(t, tt.unavailable, errors.Is(err, leasehold.ErrUnavailable), "%v", err)
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				_, err = q.Acquire(ctx, "k", 10*time.Second)
				require.Error(t, err)
				assert.Equal(t, tt.unavailable, errors.Is(err, leasehold.ErrUnavailable), "%v", err)
				if tt.unavailable {
					require.ErrorIs(t, err, leasehold.ErrNoQuorum)
					require.ErrorIs(t, err, context.DeadlineExceeded)
					brief, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
					defer cancel()
					_, err = q.Acquire(brief, "k", 10*time.Second)
					assert.ErrorIs(t, err, leasehold.ErrUnavailable, "%v", err)
				}
				for i, n := range nodes {
					q.Wires[i].Pass()
					n.SetError("")
				}
			})
		})
	}
}

func TestAFencedScriptSaysThatRedisIsUnavailable(t *testing.T) {
	redisAway := redis.NewClient(&redis.Options{
		MaxRetries: -1, DialerRetries: 1,
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		},
	})
	defer redisAway.Close()
	_, err := locktest.FencedSet.Run(t.Context(), redisAway, "r", 1, nil)
	require.Equal(t, []string{"unavailable"}, locktest.KindsOf(err), "%v", err)

	m, c := redistest.Mini(t)
	_, err = locktest.FencedSet.Run(t.Context(), c, "r", 1, nil, struct{}{})
	require.Error(t, err)
	require.Empty(t, locktest.KindsOf(err), "an argument that cannot be sent: %v", err)
	m.SetError("LOADING Redis is loading the dataset in memory")
	_, err = locktest.FencedSet.Run(t.Context(), c, "r", 1, nil)
	require.Equal(t, []string{"unavailable"}, locktest.KindsOf(err), "%v", err)
	m.SetError("NOPERM no")
	_, err = locktest.FencedSet.Run(t.Context(), c, "r", 1, nil)
	require.Empty(t, locktest.KindsOf(err), "%v", err)
}

// What was met on the way is the cause while it is news: it happened just now, and nothing has gone well since.
func TestACauseIsForgottenWhenItIsNoLongerTheCause(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, w *locktest.World) {
		p := w.Party()
		within := func(d time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			_, err := p.Inspect(ctx, "k")
			return err
		}
		inspect := func() error { return within(time.Minute) }
		away := func() {
			p.Wire.Refuse()
			p.Wire.Cut()
			require.ErrorContains(t, inspect(), "connection refused")
		}
		require.NoError(t, inspect())
		away()
		p.Wire.Pass()
		time.Sleep(2 * time.Second) // go-redis dials once a second
		require.NoError(t, inspect())
		p.Wire.BlackHole()
		require.EqualError(t, within(100*time.Millisecond), `leasehold: inspect "k": no answer from redis: context deadline exceeded`)

		p.Wire.Pass()
		time.Sleep(time.Minute)
		require.NoError(t, inspect())
		away()
		p.Wire.BlackHole()
		require.ErrorContains(t, inspect(), "connection refused", "it has just been so")
		time.Sleep(5 * time.Second)
		require.NotContains(t, inspect().Error(), "refused")
	})
}
