package leaseholdotel_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/go-leasehold/leasehold/leaseholdotel"
)

// hold returns the one span of a hold that has ended.
func (o *telemetry) hold() sdktrace.ReadOnlySpan {
	o.t.Helper()
	spans := o.ended("leasehold.hold")
	require.Len(o.t, spans, 1)
	return spans[0]
}

func eventOf(e sdktrace.Event) (name string, attrs map[attribute.Key]any) {
	attrs = map[attribute.Key]any{}
	for _, kv := range e.Attributes {
		attrs[kv.Key] = kv.Value.AsInterface()
	}
	return e.Name, attrs
}

func TestAHoldIsASpanBesideItsAcquire(t *testing.T) {
	redistest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, dial dialFunc) {
		o := report(t, leaseholdotel.WithAttributes(attribute.String("locker", "orders")))
		l := o.locker(dial())
		ctx, request := o.tracers.Tracer("caller").Start(t.Context(), "request")
		lease, err := l.Acquire(ctx, "k", ttl, leasehold.WithOwner("worker-3"))
		require.NoError(t, err)
		time.Sleep(3 * time.Second)
		assert.Empty(t, o.ended("leasehold.hold"))
		require.NoError(t, lease.Release(t.Context()))

		hold := o.hold()
		assert.Equal(t, request.SpanContext().SpanID(), hold.Parent().SpanID())
		assert.InDelta(t, 3, hold.EndTime().Sub(hold.StartTime()).Seconds(), 0.01)
		assert.Equal(t, codes.Unset, hold.Status().Code)
		assert.Empty(t, hold.Events())
		assert.Equal(t, map[attribute.Key]any{
			"db.system.name":          "redis",
			"locker":                  "orders",
			"leasehold.key":           "k",
			"leasehold.owner":         "worker-3",
			"leasehold.outcome":       "clean",
			"leasehold.fencing_token": lease.FencingToken(),
		}, attributes(hold))
	})
}

func TestAHoldWithoutACallersSpanIsAChildOfItsAcquire(t *testing.T) {
	_, client := redistest.Mini(t)
	o := report(t)
	lease, err := o.locker(client).TryAcquire(t.Context(), "k", ttl)
	require.NoError(t, err)
	require.NoError(t, lease.Release(t.Context()))
	assert.Equal(t, o.ended("leasehold.acquire")[0].SpanContext().SpanID(), o.hold().Parent().SpanID())
}

func TestALossIsAnEventInTheTraceOfTheHolder(t *testing.T) {
	for _, key := range []bool{true, false} {
		redistest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, dial dialFunc) {
			o := report(t, leaseholdotel.WithSpanKey(key))
			client := dial()
			l := o.locker(client)
			ctx, request := o.tracers.Tracer("caller").Start(t.Context(), "request")
			lease, err := l.Acquire(ctx, "secret", ttl, leasehold.WithAutoRenew(true))
			require.NoError(t, err)
			fault := redistest.Faulty(client)
			fault.Every(scripts).Fail(errDown)
			<-lease.Done()
			synctest.Wait()
			fault.Clear()

			hold := o.hold()
			assert.Equal(t, request.SpanContext().TraceID(), hold.SpanContext().TraceID())
			assert.Equal(t, codes.Error, hold.Status().Code)
			assert.Equal(t, "lost", attributes(hold)["leasehold.outcome"])
			require.Len(t, hold.Events(), 2)
			name, jeopardy := eventOf(hold.Events()[0])
			assert.Equal(t, "leasehold.jeopardy", name)
			assert.Equal(t, "unavailable", jeopardy["error.type"])
			name, loss := eventOf(hold.Events()[1])
			assert.Equal(t, "leasehold.lost", name)
			assert.Equal(t, "renewals_failed", loss["leasehold.reason"])
			if key {
				assert.Contains(t, lease.Err().Error(), hold.Status().Description)
				assert.Contains(t, hold.Status().Description, "connection reset by peer")
				assert.Equal(t, hold.Status().Description, loss["exception.message"])
			} else {
				assert.Equal(t, "renewals_failed", hold.Status().Description)
				assert.NotContains(t, fmt.Sprint(attributes(hold), hold.Status(), hold.Events()), "secret")
			}
		})
	}
}

func TestAHoldSaysHowItEnded(t *testing.T) {
	for want, end := range map[string]func(o *telemetry, e leasehold.Event){
		"clean":       func(o *telemetry, e leasehold.Event) { e.Clean = true; o.hooks.Released(e) },
		"failed":      func(o *telemetry, e leasehold.Event) { e.Err = errDown; o.hooks.Released(e) },
		"unconfirmed": func(o *telemetry, e leasehold.Event) { e.Err = leasehold.ErrReleased; o.hooks.Released(e) },
		"detached":    func(o *telemetry, e leasehold.Event) { o.hooks.Detached(e) },
		"lost": func(o *telemetry, e leasehold.Event) {
			e.Loss, e.Err = leasehold.LossGone, leasehold.ErrLost
			o.hooks.Lost(e)
		},
	} {
		o := report(t)
		// Two leases of one key, and one of another.
		first, second := leasehold.Event{Key: "k", FencingToken: 1}, leasehold.Event{Key: "k", FencingToken: 2}
		other := leasehold.Event{Key: "other", FencingToken: 1}
		for _, e := range []leasehold.Event{first, second, other} {
			o.hooks.Acquired(o.hooks.Start(t.Context(), leasehold.Event{Key: e.Key}), e)
		}
		end(o, second)
		assert.Equal(t, want, attributes(o.hold())["leasehold.outcome"])
		assert.EqualValues(t, 2, attributes(o.hold())["leasehold.fencing_token"])
		assert.Equal(t, want == "lost", o.hold().Status().Code == codes.Error)
	}
}

func TestALeaseThatEndsBeforeItsAcquireIsToldHasNoSpan(t *testing.T) {
	o := report(t)
	e := leasehold.Event{Key: "k", FencingToken: 1}
	ctx := o.hooks.Start(t.Context(), leasehold.Event{Key: "k"})
	e.Loss, e.Err = leasehold.LossForced, errors.New("forced")
	o.hooks.Lost(e)
	o.hooks.Acquired(ctx, leasehold.Event{Key: "k", FencingToken: 1})
	o.hooks.Lost(e) // would find a span that had stayed
	assert.Empty(t, o.ended("leasehold.hold"))
	assert.Len(t, o.ended("leasehold.acquire"), 1)
}

func TestHoldsHaveNoSpanIfNotAskedOrNotRecorded(t *testing.T) {
	hold := func(ctx context.Context, o *telemetry) {
		o.hooks.Acquired(o.hooks.Start(ctx, leasehold.Event{Key: "k"}), leasehold.Event{Key: "k", FencingToken: 1})
		o.hooks.Released(leasehold.Event{Key: "k", FencingToken: 1, Clean: true})
	}
	o := report(t, leaseholdotel.WithHoldSpan(false))
	hold(t.Context(), o)
	assert.Equal(t, "leasehold.acquire", o.only().Name())

	o = report(t)
	sampler := sdktrace.ParentBased(sdktrace.NeverSample())
	never := sdktrace.NewTracerProvider(sdktrace.WithSampler(sampler), sdktrace.WithSpanProcessor(o.spans))
	hooks, err := leaseholdotel.Hooks(append(o.here(), leaseholdotel.WithTracerProvider(never))...)
	require.NoError(t, err)
	o.hooks = hooks
	hold(t.Context(), o)
	assert.Empty(t, o.spans.Started())
	assert.Equal(t, map[string]int{"clean": 1}, o.counts("leasehold.releases"))
}
