package leaseholdotel

import (
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// An Option changes what [Hooks] and [Observe] report, or where to. The zero Option changes nothing.
type Option struct{ set func(*config) }

type config struct {
	meters    metric.MeterProvider
	tracers   trace.TracerProvider
	attrs     []attribute.KeyValue
	metricKey bool
	spanKey   bool
	holdSpan  bool

	metricName func(key string) string // nil: metrics have no name
}

func newConfig(opts []Option) config {
	c := config{
		meters:  otel.GetMeterProvider(),
		tracers: otel.GetTracerProvider(),
		spanKey: true, holdSpan: true,
	}
	for _, o := range opts {
		if o.set != nil {
			o.set(&c)
		}
	}
	return c
}

// WithMeterProvider has the metrics made by p instead of by the global provider.
func WithMeterProvider(p metric.MeterProvider) Option {
	return Option{func(c *config) { c.meters = p }}
}

// WithTracerProvider has the spans made by p instead of by the global provider. One from OpenTelemetry's package
// trace/noop makes none.
func WithTracerProvider(p trace.TracerProvider) Option {
	return Option{func(c *config) { c.tracers = p }}
}

// WithAttributes puts attributes on every metric and span, for example one that tells a Locker from the others of the
// process.
func WithAttributes(attrs ...attribute.KeyValue) Option {
	return Option{func(c *config) { c.attrs = append(c.attrs, attrs...) }}
}

// WithMetricKey puts the Redis key on the metrics of [Hooks], as leasehold.key. It is off by default, and for a few
// keys that are known in advance: every key becomes some sixty series of its own, which are kept in memory for the life
// of the process, in a number that whoever chooses the keys controls. [Observe], whose numbers are of all keys
// together, is not changed.
func WithMetricKey(on bool) Option {
	return Option{func(c *config) { c.metricKey = on }}
}

// WithMetricName puts a name on the metrics of [Hooks], as leasehold.name: what name returns for the Redis key, such as
// "invoice" for "invoice:7". So the locks of one kind are counted together, and apart from others. The first 100 names
// are kept for the life of the process, since each has some sixty series. A key with any other name, or with an empty
// one, is counted as "other". By default, and with nil, metrics have no name. [Observe] is not changed, as it is not by
// [WithMetricKey].
//
// The function is called several times for each lease, in the goroutine of its caller, and must be quick and safe for
// concurrent use.
func WithMetricName(name func(key string) string) Option {
	return Option{func(c *config) { c.metricName = name }}
}

// WithHoldSpan says whether [Hooks] make a span of each lease that is held, beside that of its acquire. It is on by
// default; off is for leases that are held for days, as a leader's: tracing keeps a span in memory until it ends, and
// shows it only then.
func WithHoldSpan(on bool) Option {
	return Option{func(c *config) { c.holdSpan = on }}
}

// WithSpanKey says whether the spans have the Redis key, as leasehold.key and in the text of an error. It is on by
// default; off is for keys that name people. The spans of an instrumented Redis client have it all the same.
func WithSpanKey(on bool) Option {
	return Option{func(c *config) { c.spanKey = on }}
}
