package leaseholdotel_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/go-leasehold/leasehold/leaseholdotel"
)

// exported is what Prometheus has of the metrics.
type exported struct {
	series, labels, pairs map[string]bool // pairs: series/label/value
}

func exports(t *testing.T, opts ...leaseholdotel.Option) exported {
	x := exported{map[string]bool{}, map[string]bool{"job": true}, map[string]bool{}} // Prometheus adds job
	_, samples := scrape(t, opts...)
	for _, s := range samples {
		x.series[s.name] = true
		for label, value := range s.labels {
			x.labels[label] = true
			x.pairs[s.name+"/"+label] = true
			x.pairs[s.name+"/"+label+"/"+value] = true
		}
	}
	return x
}

var (
	selector = regexp.MustCompile(`\b(leasehold_\w+)(?:\{([^}]*)\})?`)
	grouping = regexp.MustCompile(`\bby \(([^)]*)\)`)
)

// check requires that an expression asks for what is exported, and returns the series that it asks for and the labels that
// its result has. Prometheus takes a rule about a metric or a label that is not there for one whose time has not come.
func (x exported) check(t *testing.T, what, expr string) (asked []string, by map[string]bool) {
	t.Helper()
	by = map[string]bool{}
	for _, list := range grouping.FindAllStringSubmatch(expr, -1) {
		for _, label := range strings.Split(list[1], ", ") {
			by[label] = true
			assert.True(t, x.labels[label], "%s groups by %s, which is no label", what, label)
		}
	}
	selectors := selector.FindAllStringSubmatch(grouping.ReplaceAllString(expr, ""), -1)
	assert.NotEmpty(t, selectors, what)
	for _, sel := range selectors {
		asked = append(asked, sel[1])
		assert.True(t, x.series[sel[1]], "%s asks for %s, which is not in the scrape", what, sel[1])
		for _, test := range labelOrTest.FindAllStringSubmatch(sel[2], -1) {
			label, values := test[1], strings.Split(test[3], "|")
			if strings.HasPrefix(test[3], "$") { // a variable of the dashboard
				assert.True(t, label == "job" || x.pairs[sel[1]+"/"+label], "%s: %s has no label %s", what, sel[1], label)
				continue
			}
			for _, value := range values {
				want := sel[1] + "/" + label + "/" + value
				assert.True(t, x.pairs[want], "%s asks for %s, which is not in the scrape", what, want)
			}
		}
	}
	return asked, by
}

func TestTheAlertsAskForWhatIsThere(t *testing.T) {
	text, err := os.ReadFile("alerts.yml")
	require.NoError(t, err)
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert       string
				Expr        string
				Annotations map[string]string
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &file))
	require.NotEmpty(t, file.Groups)
	x := exports(t)
	template := regexp.MustCompile(`\$labels\.(\w+)`)
	for _, rule := range file.Groups[0].Rules {
		_, by := x.check(t, rule.Alert, rule.Expr)
		for _, text := range rule.Annotations {
			for _, label := range template.FindAllStringSubmatch(text, -1) {
				assert.True(t, by[label[1]], "%s has lost %s where its annotation says it", rule.Alert, label[1])
			}
		}
	}
}

// dashboard is what the test reads of a dashboard of Grafana's.
type dashboard struct {
	Templating struct {
		List []struct{ Name, Type, Query string }
	}
	Panels []struct {
		ID          int
		Title       string
		Description string
		GridPos     struct{ X, Y, W, H int }
		Targets     []struct{ RefID, Expr, LegendFormat string }
	}
}

func TestTheDashboardShowsWhatIsThere(t *testing.T) {
	text, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	var d dashboard
	require.NoError(t, json.Unmarshal(text, &d))
	require.NotEmpty(t, d.Panels)
	x := exports(t, leaseholdotel.WithMetricName(kind))

	variables := map[string]bool{"__range": true, "__rate_interval": true} // Grafana's own
	for _, v := range d.Templating.List {
		variables[v.Name] = true
		if v.Type == "query" {
			args := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(v.Query)
			require.NotNil(t, args, v.Query)
			x.check(t, "variable "+v.Name, args[1])
			assert.True(t, x.labels[args[2]], "variable %s takes the values of %s, which is no label", v.Name, args[2])
		}
	}
	for _, use := range regexp.MustCompile(`\$\{?(\w+)`).FindAllSubmatch(text, -1) {
		name := string(use[1])
		assert.True(t, variables[name] || name == "__all", "the dashboard has no variable %s", name)
	}

	shown, ids, cells := map[string]bool{}, map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		assert.False(t, ids[p.ID], "%s has the number of another panel", p.Title)
		ids[p.ID] = true
		assert.NotEmpty(t, p.Description, p.Title)
		assert.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		for i := range p.GridPos.W * p.GridPos.H {
			cell := [2]int{p.GridPos.X + i%p.GridPos.W, p.GridPos.Y + i/p.GridPos.W}
			assert.Empty(t, cells[cell], "%s lies on another panel", p.Title)
			cells[cell] = p.Title
		}
		for _, target := range p.Targets {
			asked, by := x.check(t, p.Title, target.Expr)
			for _, series := range asked {
				shown[series] = true
			}
			for _, label := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				assert.True(t, by[label[1]], "%s: its legend says %s, which its result does not have", p.Title, label[1])
			}
		}
	}
	for series := range x.series {
		if strings.HasPrefix(series, "leasehold_") {
			metric := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(series, "")
			isShown := shown[metric] || shown[metric+"_bucket"]
			assert.True(t, isShown, "the dashboard does not show %s", metric)
		}
	}
}
