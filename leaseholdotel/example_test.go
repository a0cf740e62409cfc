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

func check(err error) {
	if err != nil {
		panic(err)
	}
}
