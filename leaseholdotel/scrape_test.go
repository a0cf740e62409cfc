package leaseholdotel_test

import (
	"context"
	"io"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	promexporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/redistest"
	"github.com/go-leasehold/leasehold/leaseholdotel"
)

// sample is a line of a scrape.
type sample struct {
	name   string
	labels map[string]string
	value  string
}

var (
	sampleLine  = regexp.MustCompile(`(?m)^(\w+)(?:\{(.*)\})? (\S+)$`)
	typeLine    = regexp.MustCompile(`(?m)^# TYPE (leasehold_\w+) `)
	labelOrTest = regexp.MustCompile(`(\w+)(=~|!~|!=|=)"([^"]*)"`)
)

// scrape has a Locker do something of everything, and returns what Prometheus then gets.
func scrape(t *testing.T, opts ...leaseholdotel.Option) (text string, samples []sample) {
	t.Helper()
	m, client := redistest.Mini(t)
	registry := prometheus.NewRegistry()
	exporter, err := promexporter.New(promexporter.WithRegisterer(registry))
	require.NoError(t, err)
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))
	o := report(t)
	hooks, err := leaseholdotel.Hooks(append(o.here(opts...), leaseholdotel.WithMeterProvider(provider))...)
	require.NoError(t, err)
	l := leasehold.New(client, leasehold.WithHooks(hooks))
	t.Cleanup(func() { _ = l.Close() })
	_, err = leaseholdotel.Observe(l, leaseholdotel.WithMeterProvider(provider))
	require.NoError(t, err)

	released, err := l.Acquire(t.Context(), "released", ttl)
	require.NoError(t, err)
	require.NoError(t, released.Renew(t.Context()))
	require.NoError(t, released.Release(t.Context()))
	lost, err := l.Acquire(t.Context(), "lost", ttl)
	require.NoError(t, err)
	m.Del("lost")
	require.ErrorIs(t, lost.Renew(t.Context()), leasehold.ErrLost)
	_, err = l.Acquire(t.Context(), "held", ttl)
	require.NoError(t, err)
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = l.Acquire(short, "held", ttl)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	defer server.Close()
	response, err := server.Client().Get(server.URL)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	for _, line := range sampleLine.FindAllStringSubmatch(string(body), -1) {
		s := sample{line[1], map[string]string{}, line[3]}
		for _, label := range labelOrTest.FindAllStringSubmatch(line[2], -1) {
			s.labels[label[1]] = label[3]
		}
		samples = append(samples, s)
	}
	return string(body), samples
}

func TestTheScrapeSaysWhatHappened(t *testing.T) {
	_, samples := scrape(t)
	got := map[string]string{}
	for _, s := range samples {
		if strings.HasPrefix(s.name, "leasehold_") && s.value != "0" && !strings.HasSuffix(s.name, "_bucket") && !strings.HasSuffix(s.name, "_sum") {
			line := s.name
			for _, label := range []string{"leasehold_outcome", "leasehold_woken", "leasehold_reason"} {
				if v, ok := s.labels[label]; ok {
					line += " " + v
				}
			}
			got[line] = s.value
		}
		assert.NotContains(t, s.labels, "leasehold_key")
	}
	assert.Equal(t, map[string]string{
		"leasehold_acquires_total acquired at_once":         "3",
		"leasehold_acquires_total timeout":                  "1",
		"leasehold_acquire_duration_seconds_count acquired": "3",
		"leasehold_acquire_duration_seconds_count timeout":  "1",
		"leasehold_hold_duration_seconds_count released":    "1",
		"leasehold_hold_duration_seconds_count lost":        "1",
		"leasehold_losses_total gone":                       "1",
		"leasehold_releases_total clean":                    "1",
		"leasehold_renewals_total renewed":                  "1",
		"leasehold_held":                                    "1",
	}, got)
}

func TestTheReadmeListsTheMetrics(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	listed := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `leasehold\\.[a-z.]+` \\| `(leasehold_\\w+)` \\|").FindAllSubmatch(readme, -1) {
		listed[string(row[1])] = true
	}
	body, _ := scrape(t)
	scraped := map[string]bool{}
	for _, line := range typeLine.FindAllStringSubmatch(body, -1) {
		scraped[line[1]] = true
	}
	assert.Equal(t, scraped, listed)
}
