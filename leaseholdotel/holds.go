package leaseholdotel

import (
	"context"
	"slices"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/go-leasehold/leasehold"
)

// holds are the spans of the leases that are held. The hooks that end a lease have no context, so a span is found by
// what the lease is: no two leases of a key have the same fencing token. If hooks serve Lockers of several Redis
// servers, two leases can be alike by chance; then one of the two spans does not end, and is not exported.
type holds struct {
	mu    sync.Mutex // guards what follows
	spans map[lease]trace.Span
	// A lease can end before its Acquired is called, for example by a ForceRelease. Its span would then stay for ever,
	// so the last leases that ended without a span are remembered. Few are enough: Acquired is called at once.
	early [64]lease
	next  int // in early
}

type lease struct {
	key   string
	fence int64
}

func leaseOf(e leasehold.Event) lease { return lease{e.Key, e.FencingToken} }

func (h *holds) keep(l lease, span trace.Span) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if slices.Contains(h.early[:], l) {
		return // it is over, and a span that does not end is not exported
	}
	if h.spans == nil {
		h.spans = map[lease]trace.Span{}
	}
	h.spans[l] = span
}

// find returns the span of a lease that is held; nil if there is none.
func (h *holds) find(l lease) trace.Span {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.spans[l]
}

// take is find for a lease that has ended.
func (h *holds) take(l lease) trace.Span {
	h.mu.Lock()
	defer h.mu.Unlock()
	span := h.spans[l]
	if span == nil {
		h.early[h.next] = l
		h.next = (h.next + 1) % len(h.early)
	}
	delete(h.spans, l)
	return span
}

// hold begins the span of a lease that was won. It follows the span of the acquire in the span of the caller, or is its
// child if there is no span of a caller. If the acquire is not recorded, the hold is not either, since both are in one
// trace.
func (r *recorder) hold(ctx context.Context, a acquire, e leasehold.Event) {
	if !r.holdSpan || !a.span.IsRecording() {
		return
	}
	if trace.SpanContextFromContext(a.caller).IsValid() {
		ctx = a.caller
	}
	attrs := append(r.spanAttributes(e), fencingKey.Int64(e.FencingToken))
	if _, span := r.tracer.Start(ctx, "leasehold.hold", trace.WithAttributes(attrs...)); span.IsRecording() {
		r.holds.keep(leaseOf(e), span)
	}
}

// endanger tells the span of a lease that its renewals fail.
func (r *recorder) endanger(e leasehold.Event) {
	if span := r.holds.find(leaseOf(e)); span != nil {
		span.AddEvent("leasehold.jeopardy", r.why(e, semconv.ErrorTypeKey.String(trouble(e.Err))))
	}
}

// letGo ends the span of a lease, by how the lease ended. Only a loss is an error.
func (r *recorder) letGo(e leasehold.Event, how string) {
	span := r.holds.take(leaseOf(e))
	if span == nil {
		return
	}
	defer span.End()
	span.SetAttributes(outcomeKey.String(how))
	if how == lost {
		reason := snake(e.Loss)
		span.AddEvent("leasehold.lost", r.why(e, reasonKey.String(reason)))
		span.SetStatus(codes.Error, r.text(e, reason))
	}
}

// why are the attributes of an event with a reason.
func (r *recorder) why(e leasehold.Event, attrs ...attribute.KeyValue) trace.SpanStartEventOption {
	if r.spanKey && e.Err != nil {
		attrs = append(attrs, semconv.ExceptionMessage(e.Err.Error()))
	}
	return trace.WithAttributes(attrs...)
}

// text is the reason in words, or only its class if the words would name a key that the spans must not have.
func (r *recorder) text(e leasehold.Event, class string) string {
	if r.spanKey && e.Err != nil {
		return e.Err.Error()
	}
	return class
}
