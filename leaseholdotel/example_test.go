package leaseholdotel_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	promexporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/leaseholdotel"
)

// Metrics for Prometheus. A program would make its MeterProvider the global one, and serve the handler at /metrics.
func Example() {
	server, err := miniredis.Run()
	check(err)
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()

	registry := prometheus.NewRegistry()
	exporter, err := promexporter.New(promexporter.WithRegisterer(registry), promexporter.WithoutScopeInfo())
	check(err)
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))
	defer provider.Shutdown(context.Background())

	hooks, err := leaseholdotel.Hooks(leaseholdotel.WithMeterProvider(provider))
	check(err)
	locker := leasehold.New(client, leasehold.WithHooks(hooks))
	defer locker.Close()
	registration, err := leaseholdotel.Observe(locker, leaseholdotel.WithMeterProvider(provider))
	check(err)
	defer registration.Unregister()

	err = locker.WithLock(context.Background(), "invoice:7", 10*time.Second, func(context.Context, *leasehold.Lease) error {
		scrape := httptest.NewRecorder()
		promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(scrape, httptest.NewRequest("GET", "/metrics", nil))
		for lines := bufio.NewScanner(scrape.Body); lines.Scan(); {
			line := lines.Text()
			if strings.HasPrefix(line, "leasehold_held") || strings.HasPrefix(line, "leasehold_acquires_total") && !strings.HasSuffix(line, " 0") {
				fmt.Println(line)
			}
		}
		return nil
	})
	check(err)
	// Output:
	// leasehold_acquires_total{leasehold_outcome="acquired",leasehold_woken="at_once"} 1
	// leasehold_held 1
}

// Metrics by kind of lock, where keys are like "invoice:7".
func ExampleWithMetricName() {
	server, err := miniredis.Run()
	check(err)
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()

	reader := sdkmetric.NewManualReader() // a program would have an exporter
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	defer provider.Shutdown(context.Background())

	kind := func(key string) string {
		name, _, _ := strings.Cut(key, ":")
		return name
	}
	hooks, err := leaseholdotel.Hooks(leaseholdotel.WithMetricName(kind), leaseholdotel.WithMeterProvider(provider))
	check(err)
	locker := leasehold.New(client, leasehold.WithHooks(hooks))
	defer locker.Close()
	for _, key := range []string{"invoice:7", "invoice:8", "report:2026-11"} {
		lease, err := locker.TryAcquire(context.Background(), key, 10*time.Second)
		check(err)
		check(lease.Release(context.Background()))
	}

	var all metricdata.ResourceMetrics
	check(reader.Collect(context.Background(), &all))
	for _, m := range all.ScopeMetrics[0].Metrics {
		if m.Name != "leasehold.releases" {
			continue
		}
		for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
			if name, _ := p.Attributes.Value("leasehold.name"); p.Value > 0 {
				fmt.Println(p.Value, name.AsString())
			}
		}
	}
	// Unordered output:
	// 2 invoice
	// 1 report
}

// The spans of one lease. A loss would be an event of the hold.
func ExampleHooks() {
	server, err := miniredis.Run()
	check(err)
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()

	spans := tracetest.NewSpanRecorder() // a program would have an exporter
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	defer provider.Shutdown(context.Background())

	hooks, err := leaseholdotel.Hooks(leaseholdotel.WithTracerProvider(provider))
	check(err)
	locker := leasehold.New(client, leasehold.WithHooks(hooks))
	defer locker.Close()

	ctx, request := provider.Tracer("example").Start(context.Background(), "POST /invoices/7/pay")
	err = locker.WithLock(ctx, "invoice:7", 10*time.Second, func(context.Context, *leasehold.Lease) error { return nil })
	check(err)
	request.End()
	for _, span := range spans.Ended() {
		fmt.Println(span.Name(), span.Parent().SpanID() == request.SpanContext().SpanID())
	}
	// Output:
	// leasehold.acquire true
	// leasehold.hold true
	// POST /invoices/7/pay false
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
