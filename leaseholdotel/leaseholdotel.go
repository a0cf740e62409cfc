// Package leaseholdotel reports what leasehold does to OpenTelemetry: metrics, and spans for each acquire and each
// hold.
//
//	hooks, err := leaseholdotel.Hooks()
//	locker := leasehold.New(client, leasehold.WithHooks(hooks))
//	registration, err := leaseholdotel.Observe(locker)
//
// [Hooks] counts and measures what happens to single leases, [Observe] reads what a Locker counts itself; neither
// includes what the other reports. README.md lists the metrics, alerts.yml has rules for them, and dashboard.json
// shows them in Grafana.
//
// # Spans
//
// A span leasehold.acquire goes from the call of an acquire to its end, the wait included. Its status is an error if
// the acquire failed, but not if the lock was held by another when TryAcquire asked, or if the caller cancelled. If the
// client is instrumented too, the commands of the acquire are its children. Commands that share a round trip with those
// of other callers cannot be the children of all of them: [ClientHook] makes a span of such a round trip, with a link
// to the span of each caller.
//
// A span leasehold.hold follows it in the same trace, until the lease ends. It has an event when renewals begin to
// fail, and one for a loss, which is an error. [WithHoldSpan] turns it off.
//
// # What is kept out
//
// The token of a lease, which proves ownership, is in no span and no metric. The key is in the spans unless
// [WithSpanKey] says otherwise, and in no metric unless [WithMetricKey] says so; [WithMetricName] has locks counted by
// their kind. The fencing token is no secret, and is in the spans.
package leaseholdotel

import (
	"context"
	"errors"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/go-leasehold/leasehold"
)

const scope = "github.com/go-leasehold/leasehold/leaseholdotel"

// The names of the attributes; db.system.name and error.type are OpenTelemetry's own.
const (
	keyKey      = attribute.Key("leasehold.key")
	ownerKey    = attribute.Key("leasehold.owner")
	fencingKey  = attribute.Key("leasehold.fencing_token")
	attemptsKey = attribute.Key("leasehold.attempts")
	outcomeKey  = attribute.Key("leasehold.outcome")
	nameKey     = attribute.Key("leasehold.name")
	wokenKey    = attribute.Key("leasehold.woken")
	reasonKey   = attribute.Key("leasehold.reason")
)

// Hooks returns hooks for [leasehold.WithHooks]. They are safe for concurrent use and may serve several Lockers. Hooks
// of your own go into another WithHooks; given after these, its Start gets the context with the span.
//
// An error is the meter's, who could not make an instrument; the hooks are then empty. Renewed is always nil: renewals
// are the most frequent event by far, and Observe reports them at no cost to each. So is Retrying, which is told
// rarely: Observe reports each time.
func Hooks(opts ...Option) (leasehold.Hooks, error) {
	r, err := newRecorder(newConfig(opts))
	if err != nil {
		return leasehold.Hooks{}, err
	}
	return leasehold.Hooks{
		Start:    r.start,
		Acquired: r.acquireEnded,
		GaveUp:   r.acquireEnded,
		Jeopardy: r.jeopardy,
		Lost:     r.lost,
		Released: r.released,
		Detached: r.detached,
	}, nil
}

// recorder is what the hooks write to.
type recorder struct {
	config
	tracer trace.Tracer
	names  names
	holds  holds

	acquires, jeopardies, losses, releases metric.Int64Counter
	waits, held                            metric.Float64Histogram
}

// Bounds of the histograms, in seconds. An acquire takes from a round trip to as long as its context lets it wait, a
// lease from a few commands to the hours of a job; the bounds that OpenTelemetry takes by itself are for milliseconds.
var (
	waitBounds = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	holdBounds = []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 900, 3600, 14400}
)

func newRecorder(c config) (*recorder, error) {
	r := &recorder{config: c, tracer: c.tracers.Tracer(scope)}
	r.names.init(c.metricName)
	m := c.meters.Meter(scope)
	var errs [6]error
	r.acquires, errs[0] = m.Int64Counter("leasehold.acquires", metric.WithUnit("{acquire}"),
		metric.WithDescription("Acquires that ended, by outcome and, if they won, by what ended the wait."))
	r.waits, errs[1] = m.Float64Histogram("leasehold.acquire.duration", metric.WithUnit("s"),
		metric.WithDescription("Time from the call of an acquire to its end, by outcome."),
		metric.WithExplicitBucketBoundaries(waitBounds...))
	r.held, errs[2] = m.Float64Histogram("leasehold.hold.duration", metric.WithUnit("s"),
		metric.WithDescription("Time from the acquire of a lease to its end, by how it ended."),
		metric.WithExplicitBucketBoundaries(holdBounds...))
	r.jeopardies, errs[3] = m.Int64Counter("leasehold.jeopardies", metric.WithUnit("{lease}"),
		metric.WithDescription("Leases whose renewals began to fail, by the first failure."))
	r.losses, errs[4] = m.Int64Counter("leasehold.losses", metric.WithUnit("{lease}"),
		metric.WithDescription("Leases that ended without being released, or were gone at their release, by reason."))
	r.releases, errs[5] = m.Int64Counter("leasehold.releases", metric.WithUnit("{release}"),
		metric.WithDescription("Leases that were released, by what is known of the release."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	if c.metricName == nil {
		r.zero()
	} else {
		r.zero(nameKey.String(otherName))
	}
	return r, nil
}

// zero makes the counters known before they count: to Prometheus a counter that appears with a 1 has not increased, so
// an alert would miss the first loss. Where each key has counters of its own, nobody knows them in advance. A name is
// known when its first acquire begins, and a loss comes later than that.
func (r *recorder) zero(of ...attribute.KeyValue) {
	if r.metricKey {
		return
	}
	ctx := context.Background()
	for _, w := range []leasehold.Wake{leasehold.WokenAtOnce, leasehold.WokenByMessage, leasehold.WokenByExpiry, leasehold.WokenByPoll} {
		r.acquires.Add(ctx, 0, r.labels(of, outcomeKey.String(acquired), wokenKey.String(snake(w))))
	}
	for _, o := range failures {
		r.acquires.Add(ctx, 0, r.labels(of, outcomeKey.String(o)))
	}
	for _, class := range troubles {
		r.jeopardies.Add(ctx, 0, r.labels(of, semconv.ErrorTypeKey.String(class)))
	}
	for _, loss := range []leasehold.Loss{
		leasehold.LossExpired, leasehold.LossRenewals, leasehold.LossMaxHold, leasehold.LossGone,
		leasehold.LossAdopted, leasehold.LossForced, leasehold.LossClosed,
	} {
		r.losses.Add(ctx, 0, r.labels(of, reasonKey.String(snake(loss))))
	}
	for _, o := range []string{clean, unconfirmed, failed} {
		r.releases.Add(ctx, 0, r.labels(of, outcomeKey.String(o)))
	}
}

// labels are the attributes of a metric: those of the key, and more.
func (c *config) labels(of []attribute.KeyValue, attrs ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributes(slices.Concat(attrs, of, c.attrs)...)
}

// of returns the attributes that the metrics of a key have.
func (r *recorder) of(key string) (attrs []attribute.KeyValue) {
	if r.metricName != nil {
		name, isNew := r.names.name(key)
		attrs = append(attrs, nameKey.String(name))
		if isNew {
			r.zero(attrs...)
		}
	}
	if r.metricKey {
		attrs = append(attrs, keyKey.String(key))
	}
	return attrs
}

// acquire is what the context of an acquire has under the key ours. trace.SpanFromContext would not do for the span: it
// is the caller's, not to be ended here, if Start was not called.
type acquire struct {
	span   trace.Span
	caller context.Context
}

type ours struct{}

// start begins the span of an acquire. Its kind is internal: it is not one call to Redis but has calls inside.
func (r *recorder) start(caller context.Context, e leasehold.Event) context.Context {
	r.of(e.Key) // so that a name that is new has counters from now on
	ctx, span := r.tracer.Start(caller, "leasehold.acquire", trace.WithAttributes(r.spanAttributes(e)...))
	return context.WithValue(ctx, ours{}, acquire{span, caller})
}

// spanAttributes are what every span of an event has.
func (r *recorder) spanAttributes(e leasehold.Event) []attribute.KeyValue {
	attrs := append([]attribute.KeyValue{semconv.DBSystemNameRedis}, r.attrs...)
	if r.spanKey {
		attrs = append(attrs, keyKey.String(e.Key))
	}
	if e.Owner != "" {
		attrs = append(attrs, ownerKey.String(e.Owner))
	}
	return attrs
}

// acquireEnded measures before it ends the span, so that an exemplar can point to it.
func (r *recorder) acquireEnded(ctx context.Context, e leasehold.Event) {
	o, of := outcome(ctx, e.Err), r.of(e.Key)
	r.waits.Record(ctx, e.Waited.Seconds(), r.labels(of, outcomeKey.String(o)))
	attrs := []attribute.KeyValue{outcomeKey.String(o)}
	if o == acquired {
		attrs = append(attrs, wokenKey.String(snake(e.Woken)))
	}
	r.acquires.Add(ctx, 1, r.labels(of, attrs...))

	a, started := ctx.Value(ours{}).(acquire)
	if !started {
		return
	}
	span := a.span
	defer span.End()
	attrs = append(attrs, attemptsKey.Int(e.Attempts))
	switch o {
	case acquired:
		attrs = append(attrs, fencingKey.Int64(e.FencingToken))
		r.hold(ctx, a, e)
	case held, canceled:
	default:
		attrs = append(attrs, semconv.ErrorTypeKey.String(o))
		span.SetStatus(codes.Error, r.text(e, o))
	}
	span.SetAttributes(attrs...)
}

func (r *recorder) jeopardy(e leasehold.Event) {
	r.jeopardies.Add(context.Background(), 1, r.labels(r.of(e.Key), semconv.ErrorTypeKey.String(trouble(e.Err))))
	r.endanger(e)
}

func (r *recorder) lost(e leasehold.Event) {
	r.losses.Add(context.Background(), 1, r.labels(r.of(e.Key), reasonKey.String(snake(e.Loss))))
	r.ended(e, lost, lost)
}

func (r *recorder) released(e leasehold.Event) {
	r.releases.Add(context.Background(), 1, r.labels(r.of(e.Key), outcomeKey.String(release(e))))
	r.ended(e, "released", release(e))
}

func (r *recorder) detached(e leasehold.Event) { r.ended(e, "detached", "detached") }

// ended measures a hold that is over and ends its span, which says more of how it ended.
func (r *recorder) ended(e leasehold.Event, how, more string) {
	r.held.Record(context.Background(), e.Held.Seconds(), r.labels(r.of(e.Key), outcomeKey.String(how)))
	r.letGo(e, more)
}
