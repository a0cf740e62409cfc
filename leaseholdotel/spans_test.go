package leaseholdotel_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/go-leasehold/leasehold/leaseholdotel"
)

func attributes(span sdktrace.ReadOnlySpan) map[attribute.Key]any {
	all := map[attribute.Key]any{}
	for _, kv := range span.Attributes() {
		all[kv.Key] = kv.Value.AsInterface()
	}
	return all
}

// instrumented makes a span of each command, as an instrumented client does.
type instrumented struct{ trace.Tracer }

func (i instrumented) DialHook(next redis.DialHook) redis.DialHook { return next }

func (i instrumented) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		ctx, span := i.Start(ctx, cmd.Name())
		defer span.End()
		return next(ctx, cmd)
	}
}

func (i instrumented) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestAnAcquireIsASpanAroundItsCommands(t *testing.T) {
	_, client := redistest.Mini(t)
	o := report(t)
	l := o.locker(client)
	lease, err := l.TryAcquire(t.Context(), "before", ttl) // loads the script
	require.NoError(t, err)
	require.NoError(t, lease.Release(t.Context()))
	client.AddHook(instrumented{o.tracers.Tracer("redis")})
	o.spans.Reset()

	ctx, request := o.tracers.Tracer("caller").Start(t.Context(), "request")
	lease, err = l.Acquire(ctx, "k", ttl, leasehold.WithOwner("worker-3"))
	require.NoError(t, err)

	require.Len(t, o.spans.Ended(), 2)
	command, acquire := o.spans.Ended()[0], o.spans.Ended()[1]
	assert.Equal(t, "evalsha", command.Name())
	assert.Equal(t, acquire.SpanContext().SpanID(), command.Parent().SpanID())
	assert.Equal(t, "leasehold.acquire", acquire.Name())
	assert.Equal(t, request.SpanContext().SpanID(), acquire.Parent().SpanID())
	assert.Equal(t, codes.Unset, acquire.Status().Code)
	assert.Equal(t, map[attribute.Key]any{
		"db.system.name":          "redis",
		"leasehold.key":           "k",
		"leasehold.owner":         "worker-3",
		"leasehold.outcome":       "acquired",
		"leasehold.woken":         "at_once",
		"leasehold.attempts":      int64(1),
		"leasehold.fencing_token": lease.FencingToken(),
	}, attributes(acquire))
}

func TestTheSpanSaysHowAnAcquireEnded(t *testing.T) {
	for _, test := range []struct {
		outcome string
		status  codes.Code
		acquire func(t *testing.T, m *miniredis.Miniredis, client *redis.Client, l *leasehold.Locker) error
	}{
		{"held", codes.Unset, func(t *testing.T, m *miniredis.Miniredis, _ *redis.Client, l *leasehold.Locker) error {
			require.NoError(t, m.Set("secret", "somebody"))
			_, err := l.TryAcquire(t.Context(), "secret", ttl)
			return err
		}},
		{"held", codes.Unset, func(t *testing.T, m *miniredis.Miniredis, _ *redis.Client, l *leasehold.Locker) error {
			require.NoError(t, m.Set("secret", "somebody"))
			_, err := l.Acquire(t.Context(), "secret", ttl, leasehold.WithWait(time.Second))
			return err
		}},
		{"timeout", codes.Error, func(t *testing.T, m *miniredis.Miniredis, _ *redis.Client, l *leasehold.Locker) error {
			require.NoError(t, m.Set("secret", "somebody"))
			return soon(t, l)
		}},
		{"canceled", codes.Unset, func(t *testing.T, m *miniredis.Miniredis, _ *redis.Client, l *leasehold.Locker) error {
			require.NoError(t, m.Set("secret", "somebody"))
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(errors.New("the user went away")) })
			_, err := l.Acquire(ctx, "secret", ttl)
			return err
		}},
		{"closed", codes.Error, func(t *testing.T, m *miniredis.Miniredis, _ *redis.Client, l *leasehold.Locker) error {
			require.NoError(t, m.Set("secret", "somebody"))
			time.AfterFunc(time.Second, func() { _ = l.Close() })
			return soon(t, l)
		}},
		{"lost", codes.Error, func(t *testing.T, _ *miniredis.Miniredis, _ *redis.Client, l *leasehold.Locker) error {
			_, err := l.Adopt(t.Context(), "secret", "an old token", ttl)
			return err
		}},
		{"invalid", codes.Error, func(t *testing.T, _ *miniredis.Miniredis, _ *redis.Client, l *leasehold.Locker) error {
			_, err := l.Adopt(t.Context(), "secret", "", ttl)
			return err
		}},
		{"unavailable", codes.Error, func(t *testing.T, _ *miniredis.Miniredis, client *redis.Client, l *leasehold.Locker) error {
			redistest.Faulty(client).Next(1, scripts).Delay(time.Minute)
			_, err := l.TryAcquire(t.Context(), "secret", ttl)
			return err
		}},
		{"redis_error", codes.Error, func(t *testing.T, m *miniredis.Miniredis, _ *redis.Client, l *leasehold.Locker) error {
			_, err := m.Lpush("secret", "no lock")
			require.NoError(t, err)
			return soon(t, l)
		}},
		{"unavailable", codes.Error, func(t *testing.T, _ *miniredis.Miniredis, client *redis.Client, l *leasehold.Locker) error {
			redistest.Faulty(client).Every(scripts).Fail(errDown)
			return soon(t, l) // its deadline is not what went wrong
		}},
		{"timeout", codes.Error, func(t *testing.T, _ *miniredis.Miniredis, _ *redis.Client, l *leasehold.Locker) error {
			ctx, cancel := context.WithDeadline(t.Context(), time.Now())
			defer cancel()
			_, err := l.Acquire(ctx, "secret", ttl)
			return err
		}},
		{"unavailable", codes.Error, func(t *testing.T, m *miniredis.Miniredis, _ *redis.Client, l *leasehold.Locker) error {
			m.SetError("LOADING Redis is loading the dataset in memory")
			defer m.SetError("")
			return soon(t, l)
		}},
	} {
		for _, key := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, WithSpanKey(%v)", test.outcome, key), func(t *testing.T) {
				redistest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, dial dialFunc) {
					o := report(t, leaseholdotel.WithSpanKey(key))
					client := dial()
					l := o.locker(client)
					err := test.acquire(t, m, client, l)
					require.Error(t, err)

					span := o.only()
					assert.Equal(t, test.outcome, attributes(span)["leasehold.outcome"], "%v", err)
					assert.Equal(t, map[string]int{test.outcome: 1}, o.counts("leasehold.acquires"))
					assert.Equal(t, test.status, span.Status().Code)
					assert.Equal(t, key, attributes(span)["leasehold.key"] == "secret")
					switch {
					case test.status == codes.Unset:
						assert.NotContains(t, attributes(span), attribute.Key("error.type"))
					case key:
						assert.Equal(t, err.Error(), span.Status().Description)
					default:
						assert.Equal(t, test.outcome, span.Status().Description)
					}
					if !key {
						assert.NotContains(t, fmt.Sprint(attributes(span), span.Status(), span.Events()), "secret")
					}
				})
			})
		}
	}
}

// soon waits for the lock for three seconds.
func soon(t *testing.T, l *leasehold.Locker) error {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err := l.Acquire(ctx, "secret", ttl)
	return err
}

func TestAQuorumThatDoesNotAgreeIsAnOutcome(t *testing.T) {
	var nodes []redis.UniversalClient
	for range 3 {
		m, client := redistest.Mini(t)
		m.SetError("LOADING Redis is loading the dataset in memory")
		nodes = append(nodes, client)
	}
	o := report(t)
	l, err := leasehold.NewQuorum(nodes, leasehold.WithHooks(o.hooks))
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	_, err = l.TryAcquire(t.Context(), "k", ttl)
	require.ErrorIs(t, err, leasehold.ErrNoQuorum)
	assert.Equal(t, "no_quorum", attributes(o.only())["leasehold.outcome"])
}

func TestTheTokenIsNowhere(t *testing.T) {
	m, client := redistest.Mini(t)
	o := report(t, leaseholdotel.WithMetricKey(true))
	l := o.locker(client)
	lease, err := l.Acquire(t.Context(), "k", ttl)
	require.NoError(t, err)
	m.Del("k")
	require.Error(t, lease.Release(t.Context()))
	_, err = l.Adopt(t.Context(), "k", lease.Token(), ttl)
	require.Error(t, err)

	require.Len(t, o.spans.Ended(), 3, "two acquires, and a hold")
	told := fmt.Sprint(o.metrics())
	for _, span := range o.spans.Ended() {
		told += fmt.Sprint(attributes(span), span.Status(), span.Events())
	}
	assert.Contains(t, told, fmt.Sprint(lease.FencingToken()))
	assert.NotContains(t, told, lease.Token())
}

func TestASpanOfTheCallersIsNotEnded(t *testing.T) {
	o := report(t)
	ctx, request := o.tracers.Tracer("caller").Start(t.Context(), "request")
	o.hooks.Acquired(ctx, leasehold.Event{}) // as when Start was replaced
	assert.True(t, request.IsRecording())
}
