package leaseholdotel_test

import (
	"cmp"
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/leaseholdotel"
)

const ttl = 9 * time.Second

// telemetry is the hooks and what they have reported.
type telemetry struct {
	t       *testing.T
	opts    []leaseholdotel.Option
	reader  *sdkmetric.ManualReader
	meters  *sdkmetric.MeterProvider
	spans   *tracetest.SpanRecorder
	tracers *sdktrace.TracerProvider
	hooks   leasehold.Hooks
}

func report(t *testing.T, opts ...leaseholdotel.Option) *telemetry {
	t.Helper()
	o := &telemetry{t: t, opts: opts, reader: sdkmetric.NewManualReader(), spans: tracetest.NewSpanRecorder()}
	o.meters = sdkmetric.NewMeterProvider(sdkmetric.WithReader(o.reader))
	o.tracers = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(o.spans))
	var err error
	o.hooks, err = leaseholdotel.Hooks(o.here(opts...)...)
	require.NoError(t, err)
	return o
}

// here is options that report to o.
func (o *telemetry) here(opts ...leaseholdotel.Option) []leaseholdotel.Option {
	return append(opts, leaseholdotel.WithMeterProvider(o.meters), leaseholdotel.WithTracerProvider(o.tracers))
}

// locker makes a Locker that reports to o and ends before its client.
func (o *telemetry) locker(client redis.UniversalClient) *leasehold.Locker {
	l := leasehold.New(client, leasehold.WithHooks(o.hooks))
	o.t.Cleanup(func() { _ = l.Close() })
	return l
}

func (o *telemetry) metrics() map[string]metricdata.Aggregation {
	o.t.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(o.t, o.reader.Collect(context.Background(), &rm))
	all := map[string]metricdata.Aggregation{}
	for _, s := range rm.ScopeMetrics {
		for _, m := range s.Metrics {
			all[m.Name] = m.Data
		}
	}
	return all
}

// counts returns the values of a counter or gauge that are not zero, by their attributes.
func (o *telemetry) counts(name string) map[string]int {
	o.t.Helper()
	sum, ok := o.metrics()[name].(metricdata.Sum[int64])
	require.True(o.t, ok, "%s is not there, or no sum", name)
	counts := map[string]int{}
	for _, p := range sum.DataPoints {
		if p.Value != 0 {
			counts[values(p.Attributes)] = int(p.Value)
		}
	}
	return counts
}

// times returns the sums of a histogram by their attributes.
func (o *telemetry) times(name string) map[string]time.Duration {
	o.t.Helper()
	h, ok := o.metrics()[name].(metricdata.Histogram[float64])
	require.True(o.t, ok, "%s is not there, or no histogram", name)
	times := map[string]time.Duration{}
	for _, p := range h.DataPoints {
		assert.EqualValues(o.t, 1, p.Count, "the test wants one measurement of %s %s", name, values(p.Attributes))
		times[values(p.Attributes)] = time.Duration(p.Sum * float64(time.Second)).Round(time.Millisecond)
	}
	return times
}

// values is the values of the attributes in one line.
func values(set attribute.Set) string {
	line := ""
	for _, kv := range set.ToSlice() {
		if line != "" {
			line += ", "
		}
		line += cmp.Or(kv.Value.String(), "(empty)")
	}
	return line
}

// only returns the one span that has ended.
func (o *telemetry) only() sdktrace.ReadOnlySpan {
	o.t.Helper()
	require.Len(o.t, o.spans.Ended(), 1)
	return o.spans.Ended()[0]
}
