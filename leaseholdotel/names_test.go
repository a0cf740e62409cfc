package leaseholdotel_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/go-leasehold/leasehold/leaseholdotel"
)

// kind is the part of a key before the colon; empty if there is none.
func kind(key string) string {
	name, _, ok := strings.Cut(key, ":")
	if !ok {
		return ""
	}
	return name
}

func TestLocksAreCountedByTheNameOfTheirKind(t *testing.T) {
	_, client := redistest.Mini(t)
	o := report(t, leaseholdotel.WithMetricName(kind))
	l := o.locker(client)
	_, err := leaseholdotel.Observe(l, o.here(leaseholdotel.WithMetricName(kind))...)
	require.NoError(t, err)
	for _, key := range []string{"invoice:7", "invoice:8", "report:1", "nameless"} {
		lease, err := l.TryAcquire(t.Context(), key, ttl)
		require.NoError(t, err)
		require.NoError(t, lease.Release(t.Context()))
	}
	_, err = l.TryAcquire(t.Context(), "report:1", ttl)
	require.NoError(t, err)
	assert.Equal(t, map[string]int{
		"invoice, acquired, at_once": 2, "report, acquired, at_once": 2, "other, acquired, at_once": 1,
	}, o.counts("leasehold.acquires"))
	assert.Equal(t, map[string]int{
		"invoice, clean": 2, "report, clean": 1, "other, clean": 1,
	}, o.counts("leasehold.releases"))
	assert.Equal(t, map[string]int{"": 1}, o.counts("leasehold.held"), "what a Locker counts itself has no name")
	holds := o.metrics()["leasehold.hold.duration"].(metricdata.Histogram[float64])
	for _, p := range holds.DataPoints {
		assert.True(t, p.Attributes.HasValue("leasehold.name"))
	}
}

// Whoever chooses the keys must not choose how much memory the metrics take.
func TestNamesBeyondTheFirstHundredAreCountedAsOther(t *testing.T) {
	o := report(t, leaseholdotel.WithMetricName(func(key string) string { return key }))
	var all sync.WaitGroup
	for i := range 300 {
		all.Go(func() { o.hooks.Released(leasehold.Event{Key: fmt.Sprint(i), Clean: true}) })
	}
	all.Wait()
	counts := o.counts("leasehold.releases")
	assert.Len(t, counts, 101)
	assert.Equal(t, 200, counts["other, clean"])

	for name := range counts { // one that is known stays known
		name, _, _ = strings.Cut(name, ",")
		o.hooks.Released(leasehold.Event{Key: name, Clean: true})
	}
	again := o.counts("leasehold.releases")
	assert.Len(t, again, 101)
	assert.Equal(t, 201, again["other, clean"])
}

// The SDK merges series beyond a limit of its own, and takes their labels away.
func TestTheSeriesOfAHundredNamesAreWithinTheLimitOfTheSDK(t *testing.T) {
	o := report(t, leaseholdotel.WithMetricName(func(key string) string { return key }))
	for i := range 200 {
		o.hooks.Start(t.Context(), leasehold.Event{Key: fmt.Sprint(i)})
	}
	acquires := o.metrics()["leasehold.acquires"].(metricdata.Sum[int64])
	assert.Len(t, acquires.DataPoints, 101*13)
	for _, p := range acquires.DataPoints {
		assert.False(t, p.Attributes.HasValue("otel.metric.overflow"))
	}
}

func TestTheCountersOfANameBeginAtZeroWithItsFirstAcquire(t *testing.T) {
	o := report(t, leaseholdotel.WithMetricName(kind))
	losses := func() (names []string) {
		sum, _ := o.metrics()["leasehold.losses"].(metricdata.Sum[int64])
		for _, p := range sum.DataPoints {
			assert.Zero(t, p.Value)
			if v, _ := p.Attributes.Value("leasehold.reason"); v.AsString() == "gone" {
				name, _ := p.Attributes.Value(attribute.Key("leasehold.name"))
				names = append(names, name.AsString())
			}
		}
		return names
	}
	assert.Equal(t, []string{"other"}, losses())
	o.hooks.Start(t.Context(), leasehold.Event{Key: "invoice:7"})
	assert.ElementsMatch(t, []string{"other", "invoice"}, losses())
}
