package leaseholdotel_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/extra/redisotel/v9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/go-leasehold/leasehold/leaseholdotel"
)

// traced is a Locker whose client redisotel instruments, after the scripts have been loaded.
func (o *telemetry) traced(client *redis.Client) *leasehold.Locker {
	o.t.Helper()
	l := o.locker(client)
	lease, err := l.TryAcquire(context.Background(), "before", ttl)
	require.NoError(o.t, err)
	require.NoError(o.t, lease.Release(context.Background()))
	client.AddHook(leaseholdotel.ClientHook(o.here(o.opts...)...))
	err = redisotel.InstrumentTracing(client, redisotel.WithTracerProvider(o.tracers), redisotel.WithDialFilter(true))
	require.NoError(o.t, err)
	o.spans.Reset()
	return l
}

// ended returns the spans of that name, in the order in which they ended.
func (o *telemetry) ended(name string) (spans []sdktrace.ReadOnlySpan) {
	for _, span := range o.spans.Ended() {
		if span.Name() == name {
			spans = append(spans, span)
		}
	}
	return spans
}

// children returns the spans whose parent that span is.
func (o *telemetry) children(of trace.SpanContext) (spans []sdktrace.ReadOnlySpan) {
	for _, span := range o.spans.Ended() {
		if span.Parent().SpanID() == of.SpanID() {
			spans = append(spans, span)
		}
	}
	return spans
}

// acquireTogether has callers acquire a key each, which is their name. The round trips of the first two are held back
// until the others wait for one that they share.
func acquireTogether(
	o *telemetry, l *leasehold.Locker, trips *redistest.Trips, callers map[string]context.Context, names ...string,
) {
	release := trips.Hold(2)
	ended := make(chan error, len(names))
	for _, name := range names {
		go func() {
			_, err := l.TryAcquire(callers[name], name, ttl)
			ended <- err
		}()
		synctest.Wait()
	}
	release()
	for range names {
		assert.NoError(o.t, <-ended)
	}
}

func TestACommandOfOneCallerIsAChildOfTheCallersSpan(t *testing.T) {
	_, client := redistest.Mini(t)
	o := report(t)
	l := o.traced(client)
	ctx, request := o.tracers.Tracer("caller").Start(t.Context(), "request")
	_, err := l.TryAcquire(ctx, "k", ttl)
	require.NoError(t, err)

	assert.Empty(t, o.ended("leasehold.round_trip"))
	acquire := o.ended("leasehold.acquire")[0]
	assert.Equal(t, request.SpanContext().SpanID(), acquire.Parent().SpanID())
	commands := o.children(acquire.SpanContext())
	require.NotEmpty(t, commands)
	assert.Contains(t, fmt.Sprint(attributes(commands[0])), "evalsha")
}

func TestASharedRoundTripHasALinkToTheSpanOfEachCaller(t *testing.T) {
	redistest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, dial dialFunc) {
		o := report(t, leaseholdotel.WithAttributes(attribute.String("locker", "orders")))
		client := dial()
		l := o.traced(client)
		trips := &redistest.Trips{}
		client.AddHook(trips)
		callers, requests := map[string]context.Context{}, map[string]trace.Span{}
		names := []string{"ann", "bob", "cid", "dee", "eve"}
		for _, name := range names {
			callers[name], requests[name] = o.tracers.Tracer("caller").Start(t.Context(), name)
		}
		acquireTogether(o, l, trips, callers, names...)

		acquires := map[trace.SpanID]string{} // by their span
		for _, span := range o.ended("leasehold.acquire") {
			acquires[span.SpanContext().SpanID()] = attributes(span)["leasehold.key"].(string)
		}
		require.Len(t, o.ended("leasehold.round_trip"), 1)
		shared := o.ended("leasehold.round_trip")[0]
		assert.False(t, shared.Parent().IsValid(), "it is nobody's child")
		var linked []string
		for _, link := range shared.Links() {
			name := acquires[link.SpanContext.SpanID()]
			linked = append(linked, name)
			assert.Equal(t, requests[name].SpanContext().TraceID(), link.SpanContext.TraceID())
		}
		assert.ElementsMatch(t, []string{"cid", "dee", "eve"}, linked)
		assert.NotEmpty(t, o.children(shared.SpanContext()), "redisotel's span is its child")
		assert.Equal(t, map[attribute.Key]any{"db.system.name": "redis", "locker": "orders"}, attributes(shared))
	})
}

func TestARoundTripWithoutSpansOfCallersHasNoSpan(t *testing.T) {
	redistest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, dial dialFunc) {
		o := report(t)
		client := dial()
		client.AddHook(leaseholdotel.ClientHook(o.here()...))
		trips := &redistest.Trips{}
		client.AddHook(trips)
		l := leasehold.New(client) // without the hooks that make spans
		defer l.Close()
		ctx, request := o.tracers.Tracer("caller").Start(t.Context(), "request")
		callers := map[string]context.Context{"ann": ctx, "bob": ctx, "cid": t.Context(), "dee": t.Context()}
		acquireTogether(o, l, trips, callers, "ann", "bob", "cid", "dee")
		assert.Empty(t, o.ended("leasehold.round_trip"))

		callers = map[string]context.Context{"a": ctx, "b": ctx, "c": ctx, "d": ctx, "e": t.Context()}
		acquireTogether(o, l, trips, callers, "a", "b", "c", "d", "e")
		require.Len(t, o.ended("leasehold.round_trip"), 1)
		links := o.ended("leasehold.round_trip")[0].Links()
		require.Len(t, links, 1, "a caller that is there twice has one link")
		assert.Equal(t, request.SpanContext().SpanID(), links[0].SpanContext.SpanID())
	})
}

// A trace is read by more people than may take a lock away.
func TestNoSpanOfTheClientHasTheToken(t *testing.T) {
	redistest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, dial dialFunc) {
		o := report(t)
		client := dial()
		l := o.traced(client)
		trips := &redistest.Trips{}
		client.AddHook(trips)
		callers := map[string]context.Context{}
		names := []string{"ann", "bob", "cid", "dee"}
		for _, name := range names {
			callers[name], _ = o.tracers.Tracer("caller").Start(t.Context(), name)
		}
		acquireTogether(o, l, trips, callers, names...)
		var secrets []string
		use := func(lease *leasehold.Lease, err error) *leasehold.Lease {
			require.NoError(t, err)
			secrets = append(secrets, lease.Token())
			return lease
		}
		lease := use(l.Acquire(t.Context(), "k", ttl))
		require.NoError(t, lease.Renew(t.Context()))
		other := o.locker(client)
		waited := make(chan *leasehold.Lease)
		go func() { waited <- use(other.Acquire(t.Context(), "k", ttl)) }()
		synctest.Wait()
		require.NoError(t, lease.Release(t.Context()))
		adopted := use(l.Adopt(t.Context(), "k", (<-waited).Detach(), ttl))
		require.NoError(t, adopted.Release(t.Context()))
		require.NoError(t, l.Close())

		told := ""
		for _, span := range o.spans.Ended() {
			told += fmt.Sprint(span.Name(), attributes(span), span.Status(), span.Events())
		}
		assert.Contains(t, told, "evalsha", "the spans have the commands")
		for _, secret := range secrets {
			require.NotEmpty(t, secret)
			assert.NotContains(t, told, secret)
		}
	})
}
