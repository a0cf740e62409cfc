package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/clock"
	"github.com/go-leasehold/leasehold/internal/inside"
	"github.com/go-leasehold/leasehold/internal/locktest"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/go-leasehold/leasehold/internal/token"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const tenYears = 10 * 365 * 24 * time.Hour

func TestTTLsOutOfBoundsAreRefusedBeforeAnythingIsSent(t *testing.T) {
	redistest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, dial func(...func(*redis.Options)) *redis.Client) {
		c := dial()
		fault := redistest.Faulty(c)
		l := leasehold.New(c)
		defer l.Close()
		for _, ttl := range []time.Duration{
			0, -1, -time.Minute, math.MinInt64, 1, 999 * time.Microsecond, time.Millisecond, 9999 * time.Microsecond, locktest.MinTTL - 1,
			tenYears + 1, 150 * 365 * 24 * time.Hour, math.MaxInt64,
		} {
			for _, e := range locktest.EntryPoints(t) {
				if !e.Ttl {
					continue
				}
				err := e.Call(l, "k", ttl)
				require.ErrorIs(t, err, leasehold.ErrInvalid, "%s(%v)", e.Name, ttl)
				assert.Contains(t, err.Error(), fmt.Sprintf("ttl %v", ttl))
			}
		}
		assert.Empty(t, fault.Sent())
	})
}

// leasedBy are the ways to a lease, as functions that answer the time that Redis gives it.
func leasedBy(t *testing.T, l *leasehold.Locker, m *miniredis.Miniredis, ttl time.Duration, opts ...leasehold.Option) map[string]time.Duration {
	ctx := t.Context()
	left := map[string]time.Duration{}
	taken := func(how string, lease *leasehold.Lease, err error) {
		require.NoError(t, err, "%s(%v)", how, ttl)
		left[how] = m.TTL(lease.Key())
		assert.True(t, lease.Valid())
		assert.Equal(t, ttl-clock.Margin(ttl), time.Until(lease.ValidUntil()), "%s(%v)", how, ttl)
	}
	lease, err := l.TryAcquire(ctx, "k", ttl, opts...)
	taken("TryAcquire", lease, err)
	adopted, err := l.Adopt(ctx, "k", lease.Token(), ttl, opts...)
	taken("Adopt", adopted, err)
	require.NoError(t, adopted.Renew(ctx))
	taken("Renew", adopted, nil)
	require.NoError(t, adopted.Release(ctx))

	lease, err = l.Acquire(ctx, "k", ttl, opts...)
	taken("Acquire", lease, err)
	require.NoError(t, lease.Release(ctx))
	fn := func(how string) func(context.Context, *leasehold.Lease) error {
		return func(_ context.Context, lease *leasehold.Lease) error { taken(how, lease, nil); return nil }
	}
	require.NoError(t, l.WithLock(ctx, "k", ttl, fn("WithLock"), opts...))
	require.NoError(t, l.TryWithLock(ctx, "k", ttl, fn("TryWithLock"), opts...))
	return left
}

func TestTTLIsTheSameThroughEveryEntryPointAndRoundedUp(t *testing.T) {
	for _, tt := range []struct{ ttl, delay, left time.Duration }{
		{10 * time.Millisecond, 0, 10 * time.Millisecond},
		{10400 * time.Microsecond, 0, 11 * time.Millisecond},
		{10*time.Millisecond + 1, 0, 11 * time.Millisecond},
		{11*time.Millisecond - 1, 0, 11 * time.Millisecond},
		{time.Minute, 0, time.Minute},
		{tenYears, 0, tenYears},
		{tenYears - 1, 0, tenYears},
		{time.Minute, time.Second, time.Minute + time.Second},
		{10400 * time.Microsecond, 400 * time.Microsecond, 11 * time.Millisecond},
		{10400 * time.Microsecond, 700 * time.Microsecond, 12 * time.Millisecond},
		{time.Minute, tenYears - time.Minute, tenYears},
	} {
		redistest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, dial func(...func(*redis.Options)) *redis.Client) {
			l := leasehold.New(dial())
			defer l.Close()
			left := leasedBy(t, l, m, tt.ttl, leasehold.WithLockDelay(tt.delay))
			assert.Len(t, left, 6)
			for how, left := range left {
				assert.Equal(t, tt.left, left, "%s(%v, WithLockDelay(%v))", how, tt.ttl, tt.delay)
			}
		})
	}
}

func TestTTLOnARealServer(t *testing.T) {
	c := redistest.Server(t).Client()
	l := leasehold.New(c)
	defer l.Close()
	for ttl, want := range map[time.Duration]time.Duration{
		tenYears:                         tenYears,
		time.Minute + 1:                  time.Minute + time.Millisecond,
		locktest.MinTTL + 10*time.Minute: locktest.MinTTL + 10*time.Minute,
	} {
		lease, err := l.TryAcquire(t.Context(), "k", ttl)
		require.NoError(t, err)
		assert.InDelta(t, want.Milliseconds(), c.PTTL(t.Context(), "k").Val().Milliseconds(), 1000)
		require.NoError(t, lease.Release(t.Context()))
	}
}

func TestOptionsOutOfBoundsAreRefusedByNameAndValue(t *testing.T) {
	const ttl = time.Minute
	for _, tt := range []struct {
		opt  leasehold.Option
		says string
	}{
		{leasehold.WithWait(-1), "WithWait(-1ns)"},
		{leasehold.WithWait(math.MinInt64), "WithWait(-2562047h47m16.854775808s)"},
		{leasehold.WithRenewEvery(-1), "WithRenewEvery(-1ns)"},
		{leasehold.WithRenewEvery(1), "WithRenewEvery(1ns)"},
		{leasehold.WithRenewEvery(time.Millisecond - 1), "WithRenewEvery(999.999µs)"},
		{leasehold.WithMaxHold(-1), "WithMaxHold(-1ns)"},
		{leasehold.WithMaxHold(1), "WithMaxHold(1ns)"},
		{leasehold.WithMaxHold(locktest.MinTTL - 1), "WithMaxHold(9.999999ms)"},
		{leasehold.WithMaxHold(math.MinInt64), "WithMaxHold(-2562047h47m16.854775808s)"},
		{leasehold.WithMinHold(-1), "WithMinHold(-1ns)"},
		{leasehold.WithMinHold(tenYears + 1), "WithMinHold(87600h0m0.000000001s)"},
		{leasehold.WithCounterLife(-1), "WithCounterLife(-1ns)"},
		{leasehold.WithCounterLife(time.Minute - 1), "WithCounterLife(59.999999999s)"},
		{leasehold.WithCounterLife(7*24*time.Hour + 1), "WithCounterLife(168h0m0.000000001s)"},
		{leasehold.WithLockDelay(-1), "WithLockDelay(-1ns)"},
		{leasehold.WithLockDelay(tenYears - ttl + 1), "WithLockDelay(87599h59m0.000000001s)"},
		{leasehold.WithLockDelay(math.MaxInt64), "WithLockDelay(2562047h47m16.854775807s)"},
		{leasehold.WithReplicas(-1, time.Second), "WithReplicas(-1, 1s)"},
		{leasehold.WithReplicas(1, 0), "WithReplicas(1, 0s)"},
		{leasehold.WithReplicas(1, -time.Second), "WithReplicas(1, -1s)"},
		{leasehold.WithReplicas(1, time.Millisecond-1), "WithReplicas(1, 999.999µs)"},
		{leasehold.WithReplicas(1, ttl), "WithReplicas(1, 1m0s)"},
		{leasehold.WithOwner(strings.Repeat("o", 65)), "WithOwner("},
		{leasehold.WithOwner("a\nb"), `WithOwner("a\nb")`},
		{leasehold.WithOwner("\x7f"), `WithOwner("\x7f")`},
		{leasehold.WithOwner("é"), `WithOwner("é")`},
		{leasehold.WithOwner("\xff"), `WithOwner("\xff")`},
	} {
		redistest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, dial func(...func(*redis.Options)) *redis.Client) {
			c := dial()
			fault := redistest.Faulty(c)
			byDefault, byCall := leasehold.New(c, tt.opt), leasehold.New(c)
			defer byDefault.Close()
			defer byCall.Close()
			for _, e := range locktest.EntryPoints(t) {
				if !e.Ttl {
					continue
				}
				for _, err := range []error{e.Call(byDefault, "k", ttl), e.Call(byCall, "k", ttl, tt.opt)} {
					require.ErrorIs(t, err, leasehold.ErrInvalid, e.Name)
					assert.ErrorContains(t, err, tt.says, e.Name)
					var whole *leasehold.Error
					require.ErrorAs(t, err, &whole)
				}
				// A call may set right what New was told.
				require.ErrorIs(t, e.Call(byCall, "k", 0, tt.opt), leasehold.ErrInvalid)
			}
			assert.Empty(t, fault.Sent())
		})
	}
}

func TestOptionsWithinBoundsAreTaken(t *testing.T) {
	const ttl = time.Minute
	for name, opts := range map[string][]leasehold.Option{
		"the zero Option":              {{}},
		"no wait":                      {leasehold.WithWait(0)},
		"longest wait":                 {leasehold.WithWait(math.MaxInt64)},
		"renewals off":                 {leasehold.WithAutoRenew(false)},
		"renewals at half the ttl":     {leasehold.WithRenewEvery(ttl / 2)},
		"renewals every ms":            {leasehold.WithRenewEvery(time.Millisecond)},
		"no interval":                  {leasehold.WithRenewEvery(0)},
		"shortest hold":                {leasehold.WithMaxHold(ttl)},
		"longest hold":                 {leasehold.WithMaxHold(math.MaxInt64)},
		"no hold":                      {leasehold.WithMaxHold(0)},
		"longest life of a counter":    {leasehold.WithCounterLife(7 * 24 * time.Hour)},
		"no least hold":                {leasehold.WithMinHold(0)},
		"longest delay":                {leasehold.WithLockDelay(tenYears - ttl)},
		"no replicas":                  {leasehold.WithReplicas(0, 0)},
		"longest label":                {leasehold.WithOwner(strings.Repeat("~", 64))},
		"label with blanks and points": {leasehold.WithOwner(" a.b: {c} ")},
		"no label":                     {leasehold.WithOwner("")},
		"no logger":                    {leasehold.WithLogger(nil)},
		"no hooks":                     {leasehold.WithHooks(leasehold.Hooks{})},
		"the last counts":              {leasehold.WithRenewEvery(-1), leasehold.WithRenewEvery(time.Second)},
		"all":                          {leasehold.WithAutoRenew(true), leasehold.WithOwner("o"), leasehold.WithLogger(slog.New(slog.DiscardHandler))},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, dial func(...func(*redis.Options)) *redis.Client) {
				for _, l := range []*leasehold.Locker{leasehold.New(dial(), opts...), leasehold.New(dial())} {
					leasedBy(t, l, m, ttl, opts...)
					require.NoError(t, l.Close())
				}
			})
		})
	}
}

func TestCallsOptionsStandBeforeNews(t *testing.T) {
	redistest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, dial func(...func(*redis.Options)) *redis.Client) {
		opts := []leasehold.Option{leasehold.WithKeyPrefix("new:"), leasehold.WithOwner("new"), leasehold.WithLockDelay(time.Second), leasehold.WithRenewEvery(-1)}
		l := leasehold.New(dial(), opts...)
		defer l.Close()
		opts[0] = leasehold.WithKeyPrefix("changed:") // what New was told never changes
		lease, err := l.TryAcquire(t.Context(), "k", time.Minute, leasehold.WithRenewEvery(0), leasehold.WithOwner("call"), leasehold.WithOwner("last"))
		require.NoError(t, err)
		assert.Equal(t, "new:k", lease.Key())
		assert.Equal(t, "last", token.Owner(lease.Token()))
		assert.Equal(t, time.Minute+time.Second, m.TTL("new:k"))

		other, err := l.TryAcquire(t.Context(), "other", time.Minute, leasehold.WithRenewEvery(0), leasehold.WithLockDelay(0))
		require.NoError(t, err)
		assert.Equal(t, "new", token.Owner(other.Token()), "one call's options have reached another's")
		assert.Equal(t, time.Minute, m.TTL("new:other"))
	})
}

// A call that locked a key which Inspect and ForceRelease cannot name would get no messages either.
func TestAnOptionInTheWrongPlaceIsRefused(t *testing.T) {
	redistest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, dial func(...func(*redis.Options)) *redis.Client) {
		c := dial()
		fault := redistest.Faulty(c)
		refused := func(l *leasehold.Locker, says string, opts ...leasehold.Option) {
			t.Helper()
			for _, e := range locktest.EntryPoints(t) {
				if !e.Ttl {
					continue
				}
				err := e.Call(l, "k", time.Second, opts...)
				require.ErrorIs(t, err, leasehold.ErrInvalid, e.Name)
				assert.ErrorContains(t, err, says, e.Name)
				var whole *leasehold.Error
				require.ErrorAs(t, err, &whole)
				assert.Equal(t, "p:k", whole.Key, "the key that the Locker would take")
			}
		}
		single := leasehold.New(c, leasehold.WithKeyPrefix("p:"))
		defer single.Close()
		quorum, err := leasehold.NewQuorum([]redis.UniversalClient{c, dial(), dial()}, leasehold.WithKeyPrefix("p:"), leasehold.WithRestartQuarantine(time.Minute))
		require.NoError(t, err)
		defer quorum.Close()
		for _, l := range []*leasehold.Locker{single, quorum} {
			refused(l, `WithKeyPrefix("p:"): it is for New and NewQuorum`, leasehold.WithKeyPrefix("p:"))
			refused(l, `WithKeyPrefix("q:"): it is for New and NewQuorum`, leasehold.WithKeyPrefix("q:"), leasehold.WithOwner("o"))
			refused(l, `WithKeyPrefix(""): it is for New and NewQuorum`, leasehold.WithKeyPrefix(""))
			refused(l, `WithRestartQuarantine(1m0s): it is for NewQuorum`, leasehold.WithRestartQuarantine(time.Minute))
		}
		wrong := leasehold.New(c, leasehold.WithKeyPrefix("p:"), leasehold.WithRestartQuarantine(time.Minute))
		defer wrong.Close()
		refused(wrong, `WithRestartQuarantine(1m0s): it is for NewQuorum`)
		refused(wrong, `WithRestartQuarantine(1m0s): it is for NewQuorum`, leasehold.WithOwner("o"))
		assert.Empty(t, fault.Sent())
	})
}

// Given to New it must suit leases of any TTL; given to a call it is for one.
func TestWithRenewEveryIsAWishToNewAndAnOrderToACall(t *testing.T) {
	redistest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, dial func(...func(*redis.Options)) *redis.Client) {
		const ttl = 3 * time.Second
		for _, tt := range []struct {
			wish, order, every time.Duration // order below zero: none
		}{
			{0, -1, time.Second},
			{500 * time.Millisecond, -1, 500 * time.Millisecond},
			{time.Second, -1, time.Second},
			{1500 * time.Millisecond, -1, time.Second},
			{math.MaxInt64, -1, time.Second},
			{math.MaxInt64, 1500 * time.Millisecond, 1500 * time.Millisecond},
			{500 * time.Millisecond, 1200 * time.Millisecond, 1200 * time.Millisecond},
			{500 * time.Millisecond, 0, time.Second},
		} {
			l := leasehold.New(dial(), leasehold.WithRenewEvery(tt.wish), leasehold.WithAutoRenew(true))
			var opts []leasehold.Option
			if tt.order >= 0 {
				opts = append(opts, leasehold.WithRenewEvery(tt.order))
			}
			x, err := l.TryAcquire(t.Context(), "k", ttl, opts...)
			require.NoError(t, err, tt)
			assert.Equal(t, tt.every, inside.State(x).Schedule.Every, tt)
			time.Sleep(20 * time.Second)
			assert.True(t, x.Valid(), tt)
			for _, d := range []time.Duration{ttl/2 + 1, math.MaxInt64} {
				_, err = l.TryAcquire(t.Context(), "other", ttl, leasehold.WithRenewEvery(d))
				require.ErrorIs(t, err, leasehold.ErrInvalid)
				assert.ErrorContains(t, err, fmt.Sprintf("WithRenewEvery(%v)", d))
			}
			require.NoError(t, l.Close())
		}
	})
}

func TestAFunctionThatIsNilIsRefusedBeforeAnythingIsSent(t *testing.T) {
	redistest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, dial func(...func(*redis.Options)) *redis.Client) {
		c := dial()
		fault := redistest.Faulty(c)
		l := leasehold.New(c, leasehold.WithKeyPrefix("p:"))
		defer l.Close()
		for _, err := range []error{
			l.WithLock(t.Context(), "k", time.Second, nil),
			l.TryWithLock(t.Context(), "k", time.Second, nil),
		} {
			require.ErrorIs(t, err, leasehold.ErrInvalid)
			require.EqualError(t, err, `leasehold: acquire "p:k": invalid argument: the function is nil`)
		}
		assert.Empty(t, fault.Sent())
	})
}

// Inspect and ForceRelease need a key and nothing else.
func TestDefaultsForLeasesDoNotStopInspectAndForceRelease(t *testing.T) {
	redistest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, dial func(...func(*redis.Options)) *redis.Client) {
		l := leasehold.New(dial(), leasehold.WithRenewEvery(time.Second), leasehold.WithLockDelay(tenYears-time.Minute), leasehold.WithMaxHold(time.Hour), leasehold.WithReplicas(1, time.Second))
		defer l.Close()
		require.NoError(t, m.Set("k", "someone"))
		state, err := l.Inspect(t.Context(), "k")
		require.NoError(t, err)
		assert.True(t, state.Held)
		require.NoError(t, l.ForceRelease(t.Context(), "k"))
		assert.False(t, m.Exists("k"))
	})
}

// Three hold at once, each with a slot of its own.
func ExampleWithSlots() {
	ctx := context.Background()
	client, _, stop := exampleRedis()
	defer stop()
	locker := leasehold.New(client)
	defer locker.Close()

	for range 4 {
		lease, err := locker.TryAcquire(ctx, "licences", 10*time.Second, leasehold.WithSlots(3))
		if errors.Is(err, leasehold.ErrHeld) {
			fmt.Println("all three are taken")
			continue
		} else if err != nil {
			panic(err)
		}
		defer lease.Release(ctx)
		fmt.Println("slot", lease.Slot())
	}
	// Output:
	// slot 0
	// slot 1
	// slot 2
	// all three are taken
}

// Readers hold together, and a writer waits until they are gone.
func ExampleWithShared() {
	ctx := context.Background()
	client, _, stop := exampleRedis()
	defer stop()
	locker := leasehold.New(client)
	defer locker.Close()

	for range 2 {
		lease, err := locker.TryAcquire(ctx, "catalogue", 10*time.Second, leasehold.WithShared())
		if err != nil {
			panic(err)
		}
		defer lease.Release(ctx)
	}
	_, err := locker.TryAcquire(ctx, "catalogue", 10*time.Second)
	fmt.Println("a writer:", err)
	// Output:
	// a writer: leasehold: acquire "catalogue": held by another
}
