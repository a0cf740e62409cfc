package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// barPanel is one of the plots of the upper row: one figure of each library.
type barPanel struct {
	workload           *workload
	key, title, better string
}

var barPanels = []barPanel{
	{&uncontended, "us", "one caller: acquire and release, µs", "shorter is better"},
	{&parallel, "cycles", "%s: acquires and releases per second", "longer is better"},
}

// barColumns are those that have a bar: a library once, as its users would begin with it, and go-redis alone.
var barColumns = []string{"raw", "redislock", "redsync", "rueidislock", "leasehold"}

const (
	barsTop    = 52.0
	barStep    = 24.0
	barsHeight = 5 * barStep
	barsWidth  = 330.0 // of the longest
	barsStep   = chartWidth / 2
)

// drawBars draws the i-th panel of the upper row. It says what the process had for it, since the figures depend on
// that. If the workload was measured in several ways, the first one counts.
func drawBars(b *strings.Builder, i int, p barPanel, records []record) {
	m, first := metricOf(*p.workload, p.key), records[0]
	values := map[string]float64{}
	for _, name := range barColumns {
		var of []record
		for _, r := range records {
			if r.Column == name && r.Case == first.Case {
				of = append(of, r)
			}
		}
		if v := m.value(of); !math.IsNaN(v) {
			values[name] = v
		}
	}
	longest := slices.Max(slices.Collect(maps.Values(values)))
	title := strings.Replace(p.title, "%s", first.Case, 1)
	left := 18 + float64(i)*barsStep
	fmt.Fprintf(b, `<text class="title" x="%.1f" y="28">%s</text>`+"\n", left, escape(title))
	about := p.better
	if first.Procs > 0 {
		about = fmt.Sprintf("%v · %s", first.setting, p.better)
	}
	fmt.Fprintf(b, `<text x="%.1f" y="44">%s</text>`+"\n", left, about)
	y := barsTop + barStep/2
	for _, name := range barColumns {
		if v, measured := values[name]; measured {
			drawBar(b, left, y, name, v/longest*barsWidth, fmt.Sprintf(m.format, v))
			y += barStep
		}
	}
}

// drawBar draws one bar, its name before it and its figure behind it.
func drawBar(b *strings.Builder, left, y float64, name string, length float64, figure string) {
	const label = 80.0
	class := ""
	if isOwn(name) {
		class = ` class="title"`
	}
	fmt.Fprintf(b, `<text%s x="%.1f" y="%.1f">%s</text>`, class, left, y+4, escape(name))
	fmt.Fprintf(b, `<path class="bar" stroke="%s" d="M%.1f %.1fh%.1f"/>`, lineStyle[name].colour, left+label, y, length)
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f">%s</text>`+"\n", left+label+length+8, y+4, figure)
}
