package leaseholdotel_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/go-leasehold/leasehold/leaseholdotel"
)

type dialFunc = func(...func(*redis.Options)) *redis.Client

var (
	errDown = &net.OpError{Op: "read", Err: errors.New("connection reset by peer")}
	scripts = redistest.Cmd("evalsha", "eval")
)

func TestWaitAndHoldTimesAreInSeconds(t *testing.T) {
	redistest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, dial dialFunc) {
		o := report(t)
		l := o.locker(dial())
		require.NoError(t, m.Set("k", "somebody"))
		m.SetTTL("k", 700*time.Millisecond)
		require.NoError(t, l.WithLock(t.Context(), "k", ttl, func(context.Context, *leasehold.Lease) error {
			time.Sleep(40 * time.Second)
			return nil
		}))
		assert.InDelta(t, 0.7, o.times("leasehold.acquire.duration")["acquired"].Seconds(), 0.01)
		assert.InDelta(t, 40, o.times("leasehold.hold.duration")["released"].Seconds(), 0.01)
	})
}

func TestAnAcquireIsCountedByWhatEndedItsWait(t *testing.T) {
	redistest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, dial dialFunc) {
		o := report(t)
		l, other := o.locker(dial()), o.locker(dial())
		acquire := func(l *leasehold.Locker) *leasehold.Lease {
			lease, err := l.Acquire(t.Context(), "k", ttl, leasehold.WithAutoRenew(true))
			require.NoError(t, err)
			return lease
		}
		lease := acquire(l)
		time.AfterFunc(time.Second/2, func() { assert.NoError(t, lease.Release(context.Background())) })
		require.NoError(t, acquire(other).Release(t.Context()))

		require.NoError(t, m.Set("k", "somebody"))
		m.SetTTL("k", 300*time.Millisecond)
		require.NoError(t, acquire(l).Release(t.Context()))

		require.NoError(t, m.Set("k", "somebody"))
		time.AfterFunc(300*time.Millisecond, func() { m.Del("k") }) // and nobody is told
		require.NoError(t, acquire(l).Release(t.Context()))

		assert.Equal(t, map[string]int{
			"acquired, at_once": 1, "acquired, message": 1, "acquired, expiry": 1, "acquired, poll": 1,
		}, o.counts("leasehold.acquires"))
		assert.Equal(t, map[string]int{"clean": 4}, o.counts("leasehold.releases"))
	})
}

func TestALossIsCountedOnceByItsReason(t *testing.T) {
	for _, test := range []struct {
		name, reason string
		options      []leasehold.Option
		lose         func(t *testing.T, m *miniredis.Miniredis, fault *redistest.Fault, lease *leasehold.Lease, l *leasehold.Locker)
	}{
		{"not renewed", "expired", nil,
			func(_ *testing.T, _ *miniredis.Miniredis, _ *redistest.Fault, lease *leasehold.Lease, _ *leasehold.Locker) {
				<-lease.Done()
			}},
		{"Redis away", "renewals_failed", []leasehold.Option{leasehold.WithAutoRenew(true)},
			func(_ *testing.T, _ *miniredis.Miniredis, fault *redistest.Fault, lease *leasehold.Lease, _ *leasehold.Locker) {
				fault.Every(scripts).Fail(errDown)
				<-lease.Done()
				fault.Clear()
			}},
		{"held too long", "max_hold", []leasehold.Option{leasehold.WithMaxHold(ttl / 2)},
			func(_ *testing.T, _ *miniredis.Miniredis, _ *redistest.Fault, lease *leasehold.Lease, _ *leasehold.Locker) {
				<-lease.Done()
			}},
		{"found at a renewal", "gone", nil,
			func(t *testing.T, m *miniredis.Miniredis, _ *redistest.Fault, lease *leasehold.Lease, _ *leasehold.Locker) {
				m.Del("k")
				require.ErrorIs(t, lease.Renew(t.Context()), leasehold.ErrLost)
			}},
		{"adopted", "adopted", nil,
			func(t *testing.T, _ *miniredis.Miniredis, _ *redistest.Fault, lease *leasehold.Lease, l *leasehold.Locker) {
				_, err := l.Adopt(t.Context(), "k", lease.Token(), ttl)
				require.NoError(t, err)
			}},
		{"released by force", "forced", nil,
			func(t *testing.T, _ *miniredis.Miniredis, _ *redistest.Fault, _ *leasehold.Lease, l *leasehold.Locker) {
				require.NoError(t, l.ForceRelease(t.Context(), "k"))
			}},
		{"found at the release", "gone", nil,
			func(_ *testing.T, m *miniredis.Miniredis, _ *redistest.Fault, _ *leasehold.Lease, _ *leasehold.Locker) {
				m.Del("k")
			}},
	} {
		t.Run(test.name, func(t *testing.T) {
			redistest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, dial dialFunc) {
				o := report(t)
				client := dial()
				l := o.locker(client)
				lease, err := l.Acquire(t.Context(), "k", ttl, test.options...)
				require.NoError(t, err)
				test.lose(t, m, redistest.Faulty(client), lease, l)
				require.ErrorIs(t, lease.Release(t.Context()), leasehold.ErrLost)
				synctest.Wait() // Done is closed before the hook is called

				assert.Equal(t, map[string]int{test.reason: 1}, o.counts("leasehold.losses"))
				assert.Empty(t, o.counts("leasehold.releases"))
				assert.Contains(t, o.times("leasehold.hold.duration"), "lost")
			})
		})
	}
}

func TestALeaseWhoseFunctionOutlivesCloseIsCountedAsClosed(t *testing.T) {
	redistest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, dial dialFunc) {
		o := report(t)
		l := o.locker(dial())
		running, result := make(chan struct{}), make(chan error)
		go func() {
			result <- l.WithLock(t.Context(), "k", ttl, func(context.Context, *leasehold.Lease) error {
				close(running)
				time.Sleep(time.Minute)
				return nil
			})
		}()
		<-running
		require.Error(t, l.Close())
		assert.Equal(t, map[string]int{"closed": 1}, o.counts("leasehold.losses"))
		require.ErrorIs(t, <-result, leasehold.ErrLost)
		assert.Empty(t, o.counts("leasehold.releases"))
	})
}

// errDenied is a server's answer that time does not change.
type errDenied struct{}

func (errDenied) Error() string {
	return "NOPERM User app has no permissions to run the 'evalsha' command"
}
func (errDenied) RedisError() {}

func TestJeopardyIsCountedOnceByTheFirstFailure(t *testing.T) {
	for class, disturb := range map[string]func(fault *redistest.Fault){
		"unavailable":  func(fault *redistest.Fault) { fault.Next(2, scripts).Fail(errDown) },
		"unavailable ": func(fault *redistest.Fault) { fault.Next(1, scripts).Delay(ttl / 2) },
		"redis_error":  func(fault *redistest.Fault) { fault.Next(2, scripts).Fail(errDenied{}) },
	} {
		t.Run(class, func(t *testing.T) {
			class := strings.TrimSpace(class)
			redistest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, dial dialFunc) {
				o := report(t)
				client := dial()
				lease, err := o.locker(client).Acquire(t.Context(), "k", ttl, leasehold.WithAutoRenew(true))
				require.NoError(t, err)
				disturb(redistest.Faulty(client))
				time.Sleep(ttl)
				assert.True(t, lease.Valid())
				assert.Equal(t, map[string]int{class: 1}, o.counts("leasehold.jeopardies"))
			})
		})
	}
}

func TestAReleaseThatFailedIsCountedOnceAndEndsTheHold(t *testing.T) {
	redistest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, dial dialFunc) {
		o := report(t)
		client := dial()
		lease, err := o.locker(client).Acquire(t.Context(), "k", ttl)
		require.NoError(t, err)
		fault := redistest.Faulty(client)
		fault.Every(scripts).Fail(errDown)
		time.Sleep(time.Second)
		require.Error(t, lease.Release(t.Context()))
		time.Sleep(time.Second)
		fault.Clear()
		time.Sleep(time.Second) // released in the background
		require.NoError(t, lease.Release(t.Context()))
		assert.Equal(t, map[string]int{"failed": 1}, o.counts("leasehold.releases"))
		assert.Equal(t, map[string]time.Duration{"released": time.Second}, o.times("leasehold.hold.duration"))
	})
}

// The hook is called by hand: that go-redis sends a release twice is for the core's tests.
func TestAnUnconfirmedReleaseEndsTheHold(t *testing.T) {
	o := report(t)
	o.hooks.Released(leasehold.Event{Held: time.Second, Err: fmt.Errorf("%w, but who knows", leasehold.ErrReleased)})
	assert.Equal(t, map[string]int{"unconfirmed": 1}, o.counts("leasehold.releases"))
	assert.Equal(t, map[string]time.Duration{"released": time.Second}, o.times("leasehold.hold.duration"))
}

func TestHeldAndWaitingAreTheLockers(t *testing.T) {
	redistest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, dial dialFunc) {
		o := report(t)
		client := dial()
		l := o.locker(client)
		registration, err := leaseholdotel.Observe(l, o.here()...)
		require.NoError(t, err)
		assert.Empty(t, o.counts("leasehold.held"))

		lease, err := l.Acquire(t.Context(), "k", ttl, leasehold.WithAutoRenew(true))
		require.NoError(t, err)
		waiting, cancel := context.WithCancel(t.Context())
		gaveUp := make(chan error)
		go func() {
			_, err := l.Acquire(waiting, "k", ttl)
			gaveUp <- err
		}()
		time.Sleep(ttl) // three renewals, a little early each
		assert.Equal(t, map[string]int{"": 1}, o.counts("leasehold.held"))
		assert.Equal(t, map[string]int{"": 1}, o.counts("leasehold.waiting"))
		assert.Equal(t, map[string]int{"renewed": 3}, o.counts("leasehold.renewals"))

		cancel()
		require.ErrorIs(t, <-gaveUp, context.Canceled)
		redistest.Faulty(client).Every(scripts).Fail(errDown)
		require.Error(t, lease.Renew(t.Context()))
		assert.Equal(t, map[string]int{"renewed": 3, "failed": 1}, o.counts("leasehold.renewals"))

		assert.Empty(t, o.counts("leasehold.retries"))
		waiting, cancel = context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err = l.Acquire(waiting, "other", ttl)
		require.ErrorIs(t, err, leasehold.ErrUnavailable)
		assert.Equal(t, map[string]int{"": int(l.Stats().Retried)}, o.counts("leasehold.retries"))

		require.Error(t, lease.Release(t.Context()))
		assert.Empty(t, o.counts("leasehold.held"))
		assert.Empty(t, o.counts("leasehold.waiting"))

		require.NoError(t, registration.Unregister())
		assert.NotContains(t, o.metrics(), "leasehold.held")
	})
}

func TestAttributesTellLockersApart(t *testing.T) {
	_, client := redistest.Mini(t)
	o := report(t)
	for _, name := range []string{"orders", "invoices"} {
		named := leaseholdotel.WithAttributes(attribute.String("locker", name))
		hooks, err := leaseholdotel.Hooks(o.here(named)...)
		require.NoError(t, err)
		l := leasehold.New(client, leasehold.WithHooks(hooks))
		t.Cleanup(func() { _ = l.Close() })
		_, err = leaseholdotel.Observe(l, o.here(named)...)
		require.NoError(t, err)
		_, err = l.TryAcquire(t.Context(), name, ttl)
		require.NoError(t, err)
	}
	assert.Equal(t, map[string]int{"orders": 1, "invoices": 1}, o.counts("leasehold.held"))
	assert.Equal(t, map[string]int{"acquired, at_once, orders": 1, "acquired, at_once, invoices": 1}, o.counts("leasehold.acquires"))
	for _, span := range o.spans.Ended() {
		assert.Contains(t, attributes(span), attribute.Key("locker"))
	}
}

func TestMetricsHaveTheKeyOnlyIfAsked(t *testing.T) {
	for on, want := range map[bool]string{false: "acquired, at_once", true: "k, acquired, at_once"} {
		_, client := redistest.Mini(t)
		o := report(t, leaseholdotel.WithMetricKey(on))
		l := o.locker(client)
		_, err := leaseholdotel.Observe(l, o.here(leaseholdotel.WithMetricKey(on))...)
		require.NoError(t, err)
		_, err = l.TryAcquire(t.Context(), "k", ttl)
		require.NoError(t, err)
		assert.Equal(t, map[string]int{want: 1}, o.counts("leasehold.acquires"))
		assert.Equal(t, map[string]int{"": 1}, o.counts("leasehold.held"))
	}
}

func TestCountersBeginAtZero(t *testing.T) {
	for on, want := range map[bool]int{false: 7, true: 0} {
		o := report(t, leaseholdotel.WithMetricKey(on))
		losses, _ := o.metrics()["leasehold.losses"].(metricdata.Sum[int64])
		assert.Len(t, losses.DataPoints, want, "WithMetricKey(%v)", on)
	}
}

// refusing makes no instruments.
type refusing struct{ noop.MeterProvider }

func (refusing) Meter(string, ...metric.MeterOption) metric.Meter { return refusingMeter{} }

type refusingMeter struct{ noop.Meter }

var errRefused = errors.New("refused")

func (refusingMeter) Int64Counter(string, ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return nil, errRefused
}

func (refusingMeter) Int64ObservableCounter(string, ...metric.Int64ObservableCounterOption) (metric.Int64ObservableCounter, error) {
	return nil, errRefused
}

func TestWhatTheMeterRefusesIsAnError(t *testing.T) {
	_, client := redistest.Mini(t)
	hooks, err := leaseholdotel.Hooks(leaseholdotel.WithMeterProvider(refusing{}))
	require.ErrorIs(t, err, errRefused)
	l := leasehold.New(client, leasehold.WithHooks(hooks))
	defer l.Close()
	_, err = l.TryAcquire(t.Context(), "k", ttl)
	require.NoError(t, err, "empty hooks are hooks")
	_, err = leaseholdotel.Observe(l, leaseholdotel.WithMeterProvider(refusing{}))
	require.ErrorIs(t, err, errRefused)
}

func TestALeaseThatIsDetachedIsNoLossAndNoRelease(t *testing.T) {
	redistest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, dial dialFunc) {
		o := report(t)
		lease, err := o.locker(dial()).Acquire(t.Context(), "k", ttl)
		require.NoError(t, err)
		require.NotEmpty(t, lease.Detach())
		assert.Empty(t, o.counts("leasehold.losses"))
		assert.Empty(t, o.counts("leasehold.releases"))
		assert.Contains(t, o.times("leasehold.hold.duration"), "detached")
	})
}
