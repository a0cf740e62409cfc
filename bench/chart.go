package main

import (
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
)

// chart draws what users ask for first, from a -json file: the time of a lone acquire and release, the throughput of many
// callers, and how one lock fares among many clients.
func chart(args []string, stderr io.Writer) error {
	fs := flag.NewFlagSet("chart", flag.ContinueOnError)
	fs.SetOutput(stderr)
	file := fs.String("json", "", "the `file` that uncontended, parallel and contended have appended to")
	out := fs.String("o", "chart.svg", "the `file` to write")
	if err := fs.Parse(args); err != nil {
		return err
	}
	records, err := readRecordFile(*file)
	if err != nil {
		return err
	}
	svg, err := drawChart(records)
	if err != nil {
		return err
	}
	return os.WriteFile(*out, []byte(svg), 0o644)
}

// panel is one of the plots of the lower row: a metric of contended over the number of clients.
type panel struct {
	key, title string
	logarithm  bool
}

var panels = []panel{
	{"wait99", "wait, 99th percentile, ms", true},
	{"sent", "commands sent per section", true},
	{"rate", "sections per second", false},
}

// series is one line: a column of the program in one panel.
type series struct {
	name   string
	points []point
}

type point struct{ x, y float64 }

// lineStyle tells the columns apart by colour and dash, so that neither
// alone has to. The colours have enough contrast on white and on near-black.
var lineStyle = map[string]struct{ colour, dash string }{
	"raw":               {"#8a929c", ""},
	"redsync":           {"#d55e00", ""},
	"redsync 5ms":       {"#d55e00", "5 4"},
	"redislock":         {"#2e9b57", ""},
	"redislock 5ms":     {"#2e9b57", "5 4"},
	"rueidislock":       {"#cc5fa0", ""},
	"leasehold":         {"#1f83c9", ""},
	"leasehold by hand": {"#1f83c9", "5 4"},
}

const (
	plotWidth, plotHeight = 250.0, 220.0
	plotLeft, plotTop     = 58.0, barsTop + barsHeight + 64
	panelStep             = plotWidth + 72
	chartWidth            = plotLeft + 3*panelStep - 44
	chartHeight           = plotTop + plotHeight + 92
)

// The picture has its own ground, and so is legible on any page; a viewer that
// prefers dark gets a dark one.
const chartStyle = `
.ground{fill:#ffffff}
text{font:12px system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;fill:#444c56}
.title{font-size:13px;font-weight:600;fill:#1f2328}
.grid{stroke:#e3e6ea;stroke-width:1}
.bar{stroke-width:14}
.line{fill:none;stroke-width:1.8}
.own{stroke-width:3}
@media (prefers-color-scheme:dark){
.ground{fill:#0d1117}
text{fill:#aab4bf}
.title{fill:#e6edf3}
.grid{stroke:#2a313a}
}
`

func drawChart(records []record) (string, error) {
	of := map[string][]record{}
	for _, name := range []string{uncontended.name, parallel.name, contended.name} {
		if of[name] = firstSetting(name, records); len(of[name]) == 0 {
			return "", fmt.Errorf("%w %s", errNotMeasured, name)
		}
	}
	var own []record
	var xs []float64
	for _, r := range of[contended.name] {
		if r.N > 0 { // goroutines of one client are on no axis of clients
			own = append(own, r)
			if x := float64(r.N); !slices.Contains(xs, x) {
				xs = append(xs, x)
			}
		}
	}
	if len(own) == 0 {
		return "", fmt.Errorf("%w %s with separate clients", errNotMeasured, contended.name)
	}
	slices.Sort(xs)

	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%g" height="%g" viewBox="0 0 %[1]g %[2]g" role="img">`+"\n", chartWidth, chartHeight)
	b.WriteString("<title>Locks of Redis by library: one caller, many callers, and one lock among many clients</title>\n")
	b.WriteString("<style>" + chartStyle + "</style>\n")
	fmt.Fprintf(&b, `<rect class="ground" width="%g" height="%g" rx="6"/>`+"\n", chartWidth, chartHeight)
	for i, p := range barPanels {
		drawBars(&b, i, p, of[p.workload.name])
	}
	var drawn []string
	for i, p := range panels {
		lines := seriesOf(p.key, own)
		drawPanel(&b, plotLeft+float64(i)*panelStep, p, xs, lines)
		for _, l := range lines {
			if !slices.Contains(drawn, l.name) {
				drawn = append(drawn, l.name)
			}
		}
	}
	drawLegend(&b, drawn)
	b.WriteString("</svg>\n")
	return b.String(), nil
}

// errNotMeasured is of a chart that lacks a workload.
var errNotMeasured = errors.New("the file has no results of")

// firstSetting returns what was measured of a workload with the first setting that the file has.
func firstSetting(workload string, records []record) (first []record) {
	for _, r := range records {
		if r.Workload == workload && (len(first) == 0 || r.setting == first[0].setting) {
			first = append(first, r)
		}
	}
	return first
}

// metricOf is the metric of a workload by its key.
func metricOf(w workload, key string) metric {
	return w.metrics[slices.IndexFunc(w.metrics, func(m metric) bool { return m.key == key })]
}

// seriesOf reduces the rounds as the table does.
func seriesOf(key string, records []record) []series {
	m := metricOf(contended, key)
	var all []series
	for _, c := range columns() {
		byN := map[int][]record{}
		for _, r := range records {
			if r.Column == c.name {
				byN[r.N] = append(byN[r.N], r)
			}
		}
		s := series{name: c.name}
		for n, of := range byN {
			if v := m.value(of); !math.IsNaN(v) {
				s.points = append(s.points, point{float64(n), v})
			}
		}
		if len(s.points) > 0 {
			slices.SortFunc(s.points, func(a, b point) int { return int(a.x - b.x) })
			all = append(all, s)
		}
	}
	return all
}

func drawPanel(b *strings.Builder, left float64, p panel, xs []float64, lines []series) {
	var ys []float64
	for _, l := range lines {
		for _, pt := range l.points {
			ys = append(ys, pt.y)
		}
	}
	ticks := linearTicks(ys)
	if p.logarithm {
		ticks = logTicks(ys)
	}
	x := scale(xs[0], xs[len(xs)-1], left+10, left+plotWidth-10, true)
	toY := scale(ticks[0], ticks[len(ticks)-1], plotTop+plotHeight, plotTop, p.logarithm)
	y := func(v float64) float64 { return toY(max(v, ticks[0])) } // zero has no logarithm

	fmt.Fprintf(b, `<text class="title" x="%.1f" y="%.1f">%s</text>`+"\n", left-40, plotTop-20, p.title)
	for _, t := range ticks {
		fmt.Fprintf(b, `<path class="grid" d="M%.1f %.1fh%.1f"/>`, left, y(t), plotWidth)
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="end">%s</text>`+"\n", left-8, y(t)+4, tickLabel(t))
	}
	for _, t := range xs {
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="middle">%g</text>`+"\n", x(t), plotTop+plotHeight+18, t)
	}
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="middle">clients</text>`+"\n", left+plotWidth/2, plotTop+plotHeight+36)

	for _, l := range lines {
		var path strings.Builder
		for i, pt := range l.points {
			fmt.Fprintf(&path, "%c%.1f %.1f", "ML"[min(i, 1)], x(pt.x), y(pt.y))
		}
		fmt.Fprintf(b, `<path %s d="%s"/>`, stroke(l.name), path.String())
		for _, pt := range l.points {
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="2.6" fill="%s"><title>%s, %g clients: %.3g</title></circle>`,
				x(pt.x), y(pt.y), lineStyle[l.name].colour, escape(l.name), pt.x, pt.y)
		}
		b.WriteString("\n")
	}
}

func drawLegend(b *strings.Builder, names []string) {
	x, y := plotLeft-40, plotTop+plotHeight+66
	for _, name := range names {
		fmt.Fprintf(b, `<path %s d="M%.1f %.1fh24"/>`, stroke(name), x, y-4)
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f">%s</text>`+"\n", x+30, y, escape(name))
		x += 30 + 7.2*float64(len(name)) + 22
	}
}

func stroke(name string) string {
	class := "line"
	if isOwn(name) {
		class = "line own"
	}
	s := fmt.Sprintf(`class="%s" stroke="%s"`, class, lineStyle[name].colour)
	if dash := lineStyle[name].dash; dash != "" {
		s += fmt.Sprintf(` stroke-dasharray="%s"`, dash)
	}
	return s
}

// scale maps [from, to] to [a, b]; a single value goes to the middle.
func scale(from, to, a, b float64, logarithm bool) func(float64) float64 {
	f := func(v float64) float64 { return v }
	if logarithm {
		f = math.Log
	}
	return func(v float64) float64 {
		if from == to {
			return (a + b) / 2
		}
		return a + (f(v)-f(from))/(f(to)-f(from))*(b-a)
	}
}

// logTicks are 1, 2 and 5 times powers of ten around the values, fewer if they span much.
func logTicks(values []float64) []float64 {
	low, high := math.Max(slices.Min(values), 1e-3), math.Max(slices.Max(values), 2e-3)
	steps := []float64{1, 2, 5}
	if high/low > 200 {
		steps = []float64{1}
	}
	var ticks []float64
	for e := math.Floor(math.Log10(low)); ; e++ {
		for i, s := range steps {
			next := append(steps, 10*steps[0])[i+1] * math.Pow(10, e)
			if next > low {
				ticks = append(ticks, s*math.Pow(10, e))
			}
			if len(ticks) > 1 && ticks[len(ticks)-1] >= high {
				return ticks
			}
		}
	}
}

// linearTicks are about five round steps from zero to above the values.
func linearTicks(values []float64) []float64 {
	high := slices.Max(values)
	step := math.Pow(10, math.Floor(math.Log10(high/4)))
	for _, m := range []float64{1, 2, 5, 10} {
		if high <= 5*m*step {
			step *= m
			break
		}
	}
	ticks := []float64{0}
	for ticks[len(ticks)-1] < high {
		ticks = append(ticks, ticks[len(ticks)-1]+step)
	}
	return ticks
}

func tickLabel(v float64) string {
	if v >= 10000 {
		return fmt.Sprintf("%gk", v/1000)
	}
	return fmt.Sprintf("%g", v)
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a buffer takes everything
	return b.String()
}
