package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestATableShowsTheMedianOfTheRounds(t *testing.T) {
	w := workload{name: "w", metrics: []metric{
		{"a", "typical", "%.0f", median},
		{"b", "worst", "%.1f", highest},
		{"c", "never measured", "%.0f", median},
	}}
	records := []record{
		{Workload: "w", Case: "x", Column: "leasehold", Values: map[string]float64{"a": 1, "b": 1}},
		{Workload: "w", Case: "x", Column: "raw", Values: map[string]float64{"a": 5}},
		{Workload: "w", Case: "x", Column: "leasehold", Values: map[string]float64{"a": 2, "b": 7.25}},
		{Workload: "w", Case: "x", Column: "leasehold", Values: map[string]float64{"a": 9, "b": 3}},
		{Workload: "other", Case: "x", Column: "leasehold", Values: map[string]float64{"a": 100}},
	}
	var out strings.Builder
	require.NoError(t, writeTables(&out, w, records))
	require.Equal(t, `| x | typical | worst |
| --- | ---: | ---: |
| raw | 5 | – |
| leasehold | 2 | 7.2 |
`, out.String())
}

func TestARecordSurvivesTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "r.json")
	want := record{Workload: "w", Case: "x", N: 8, Column: "raw", Round: 2, Values: map[string]float64{"a": 1.5}}
	require.NoError(t, appendRecord(file, want))
	require.NoError(t, appendRecord(file, record{Values: map[string]float64{"none": math.NaN()}}))
	got, err := readRecordFile(file)
	require.NoError(t, err)
	require.Len(t, got, 2)
	require.Equal(t, want, got[0])
	require.Empty(t, got[1].Values, "what was not measured is left out")
}

func TestReportFillsThePageBetweenItsMarkers(t *testing.T) {
	dir := t.TempDir()
	page, file := filepath.Join(dir, "page.md"), filepath.Join(dir, "r.json")
	text := "# Page\n<!-- begin idle -->\nold\n<!-- end idle -->\nmiddle\n<!-- begin crash -->\nkept\n<!-- end crash -->\n"
	require.NoError(t, os.WriteFile(page, []byte(text), 0o644))
	require.NoError(t, appendRecord(file, record{Workload: "idle", Case: "c", Column: "raw", Values: map[string]float64{"rate": 1}}))
	require.NoError(t, report([]string{"-json", file, "-into", page}, io.Discard, io.Discard))
	got, err := os.ReadFile(page)
	require.NoError(t, err)
	require.NotContains(t, string(got), "old")
	require.Contains(t, string(got), "| raw | 1.00 |\n\n<!-- end idle -->\nmiddle\n<!-- begin crash -->\nkept\n")

	require.NoError(t, appendRecord(file, record{Workload: "renew", Case: "c", Column: "raw", Values: map[string]float64{"rate": 1}}))
	require.ErrorContains(t, report([]string{"-json", file, "-into", page}, io.Discard, io.Discard), "begin renew")
}

func TestTheReadmeHasAPlaceForEveryTable(t *testing.T) {
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	for _, w := range workloads() {
		_, err := fillIn(page, w.name, nil)
		require.NoError(t, err)
	}
	_, err = fillIn(page, "machine", nil)
	require.NoError(t, err)
}

// chartRecords are made up: they only have to be drawn.
func chartRecords() []record {
	var records []record
	for i, name := range barColumns {
		pinned, free := setting{1, 1}, setting{2, 2}
		records = append(records,
			record{Workload: "uncontended", Case: "one goroutine", Column: name, setting: pinned, Values: map[string]float64{"us": 30 + float64(i)}},
			record{Workload: "uncontended", Case: "one goroutine", Column: name, setting: free, Values: map[string]float64{"us": 999}},
			record{Workload: "parallel", Case: "64 goroutines", Column: name, setting: free, Values: map[string]float64{"cycles": 30000 / float64(i+1)}},
			record{Workload: "parallel", Case: "8 goroutines", Column: name, setting: free, Values: map[string]float64{"cycles": 888}})
	}
	for i, name := range waiting {
		for _, n := range []int{2, 8, 32, 128} {
			records = append(records, record{Workload: "contended", N: n, Column: name, Values: map[string]float64{
				"wait99": float64(n * (i + 1)), "sent": float64(i), "rate": 300 + float64(n),
			}})
		}
	}
	return records
}

func TestTheChartIsWellFormedAndDrawsInsideItself(t *testing.T) {
	svg, err := drawChart(chartRecords())
	require.NoError(t, err)
	circles, bars := 0, 0
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		e, _ := token.(xml.StartElement)
		if slices.Contains(e.Attr, xml.Attr{Name: xml.Name{Local: "class"}, Value: "bar"}) {
			var x, y, length float64
			_, err := fmt.Sscanf(e.Attr[len(e.Attr)-1].Value, "M%f %fh%f", &x, &y, &length)
			require.NoError(t, err)
			require.True(t, x > 0 && length > 0 && x+length < chartWidth-40, "the figure needs room behind the bar")
			require.True(t, y > barsTop && y < plotTop-20, "y %v", y)
			bars++
		}
		if e.Name.Local == "circle" {
			circles++
			for _, a := range e.Attr {
				v, err := strconv.ParseFloat(a.Value, 64)
				switch a.Name.Local {
				case "cx":
					require.NoError(t, err)
					require.True(t, v > 0 && v < chartWidth, "x %v", v)
				case "cy":
					require.NoError(t, err)
					require.True(t, v >= plotTop && v <= plotTop+plotHeight, "y %v", v)
				case "fill":
					require.NotEmpty(t, a.Value)
				}
			}
		}
	}
	require.Equal(t, len(panels)*len(waiting)*4, circles)
	require.Equal(t, len(barPanels)*len(barColumns), bars)
	for _, text := range []string{
		"one caller: acquire and release, µs", "1 CPU, GOMAXPROCS 1 · shorter is better", "34", // leasehold, of the first setting
		"64 goroutines: acquires and releases per second", "2 CPUs, GOMAXPROCS 2 · longer is better", "6000",
	} {
		require.Contains(t, svg, ">"+text+"</text>")
	}
	require.NotContains(t, svg, "999")
	require.NotContains(t, svg, "888")
	for _, name := range barColumns {
		require.Contains(t, lineStyle, name)
	}
	for _, name := range waiting {
		require.Contains(t, svg, ">"+name+"</text>")
		require.Contains(t, lineStyle, name)
	}
}

// The picture that the page of the repository shows must not lag behind the program that draws it.
func TestTheChartOfTheRepositoryHasEveryPanel(t *testing.T) {
	svg, err := os.ReadFile("chart.svg")
	require.NoError(t, err)
	for _, p := range barPanels {
		_, fixed, _ := strings.Cut(p.title, ": ")
		require.Contains(t, string(svg), fixed)
	}
	for _, p := range panels {
		require.Contains(t, string(svg), ">"+p.title+"</text>")
	}
	for _, name := range append(slices.Clone(barColumns), waiting...) {
		require.Contains(t, string(svg), ">"+name+"</text>")
	}
}

func TestTheChartRefusesAFileThatLacksAWorkload(t *testing.T) {
	for _, name := range []string{"uncontended", "parallel", "contended"} {
		_, err := drawChart(slices.DeleteFunc(chartRecords(), func(r record) bool { return r.Workload == name }))
		require.ErrorIs(t, err, errNotMeasured)
		require.ErrorContains(t, err, name)
	}
	_, err := drawChart(append(slices.DeleteFunc(chartRecords(), func(r record) bool { return r.Workload == "contended" }),
		record{Workload: "contended", Column: "leasehold"}))
	require.ErrorContains(t, err, "separate clients")
}

func TestATableSaysWhatTheProcessAndTheMachineWereLike(t *testing.T) {
	w := workload{name: "w", metrics: []metric{{"a", "typical", "%.0f", median}}}
	values := map[string]float64{"a": 1}
	var out strings.Builder
	require.NoError(t, writeTables(&out, w, []record{
		{Workload: "w", Case: "x", Column: "raw", setting: setting{1, 1}, Load: 0.91, Values: values},
		{Workload: "w", Case: "x", Column: "raw", setting: setting{1, 2}, Load: 1.5, Values: values},
		{Workload: "w", Case: "x", Column: "raw", setting: setting{1, 1}, Load: 0.2, Values: values},
	}))
	require.Contains(t, out.String(), "| x (1 CPU, GOMAXPROCS 1, load 0.2 to 0.9) |")
	require.Contains(t, out.String(), "| x (1 CPU, GOMAXPROCS 2, load 1.5 to 1.5) |")
}

func TestTheBestPeerOfARoundIsTheOneWithTheMostSections(t *testing.T) {
	var turns []turn
	var measured []map[string]float64
	for name, rate := range map[string]float64{"redsync": 300, "redislock": 400, "leasehold": 380, "leasehold by hand": 500} {
		turns = append(turns, turn{as: record{Column: name}})
		measured = append(measured, map[string]float64{"rate": rate})
	}
	perBestPeer(turns, measured)
	for i, turn := range turns {
		want := map[string]float64{"redsync": 0.75, "redislock": 1, "leasehold": 0.95, "leasehold by hand": 1.25}[turn.as.Column]
		require.InDelta(t, want, measured[i]["perPeer"], 1e-9, turn.as.Column)
	}
	alone := []map[string]float64{{"rate": 380}}
	perBestPeer([]turn{{as: record{Column: "leasehold"}}}, alone)
	require.True(t, math.IsNaN(alone[0]["perPeer"]))
}

func TestTicksCoverTheValues(t *testing.T) {
	for _, values := range [][]float64{{1}, {2, 41.2}, {2, 2.2}, {0, 30}, {90, 10500}, {372, 219}, {1e-6}, {99, 100}} {
		for name, ticks := range map[string][]float64{"log": logTicks(values), "linear": linearTicks(values)} {
			require.GreaterOrEqual(t, len(ticks), 2, "%s %v", name, values)
			require.LessOrEqual(t, len(ticks), 12, "%s %v: %v", name, values, ticks)
			require.GreaterOrEqual(t, ticks[len(ticks)-1], highest(values), "%s %v: %v", name, values, ticks)
			for _, v := range values {
				require.LessOrEqual(t, ticks[0], max(v, 1e-3), "%s %v: %v", name, values, ticks)
			}
		}
	}
}
