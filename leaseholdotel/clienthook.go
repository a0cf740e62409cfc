package leaseholdotel

import (
	"context"

	"github.com/redis/go-redis/v9"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/go-leasehold/leasehold"
)

// ClientHook returns a hook for the client of a Locker. It makes a span leasehold.round_trip of each round trip that
// several callers share, with a link to the span of each, because such a round trip can be the child of none of them.
// It does nothing about any other command. It is safe for concurrent use and may serve several clients.
//
//	client.AddHook(leaseholdotel.ClientHook())
//	err := redisotel.InstrumentTracing(client)
//
// Add it before the client is instrumented: the spans of the instrumented client are then its children. A client that
// is not instrumented can have it as well.
func ClientHook(opts ...Option) redis.Hook {
	c := newConfig(opts)
	return &clientHook{c, c.tracers.Tracer(scope)}
}

type clientHook struct {
	config
	tracer trace.Tracer
}

// DialHook changes nothing.
func (h *clientHook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook is for one command of several callers, such as a script that takes many locks.
func (h *clientHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		ctx, end := h.start(ctx)
		defer end()
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook is for a pipeline of several callers' commands.
func (h *clientHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		ctx, end := h.start(ctx)
		defer end()
		return next(ctx, cmds)
	}
}

// linked marks what is sent within a span of a shared round trip, such as the commands that open a connection for it.
type linked struct{}

// start begins the span of a shared round trip. One of renewals in the background has no callers, and gets none. The
// links are there from the start, so that a sampler sees them. The span has no status: what an error means for a caller
// is in the caller's own span, and a server that does not know a script yet is no trouble at all.
func (h *clientHook) start(ctx context.Context) (_ context.Context, end func(...trace.SpanEndOption)) {
	nothing := func(...trace.SpanEndOption) {}
	callers := leasehold.Callers(ctx)
	if callers == nil || ctx.Value(linked{}) != nil {
		return ctx, nothing
	}
	var links []trace.Link
	seen := map[trace.SpanID]bool{}
	for _, caller := range callers {
		if sc := trace.SpanContextFromContext(caller); sc.IsValid() && !seen[sc.SpanID()] {
			seen[sc.SpanID()] = true
			links = append(links, trace.Link{SpanContext: sc})
		}
	}
	if links == nil {
		return ctx, nothing
	}
	ctx, span := h.tracer.Start(ctx, "leasehold.round_trip", trace.WithLinks(links...),
		trace.WithAttributes(semconv.DBSystemNameRedis), trace.WithAttributes(h.attrs...))
	return context.WithValue(ctx, linked{}, true), span.End
}
