package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
)

// report writes the tables of a -json file to standard output, or into a
// page between its markers.
func report(args []string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("report", flag.ContinueOnError)
	fs.SetOutput(stderr)
	file := fs.String("json", "", "the `file` that the workloads have appended to")
	page := fs.String("into", "", "write the tables into this `page`, between its markers")
	if err := fs.Parse(args); err != nil {
		return err
	}
	records, err := readRecordFile(*file)
	if err != nil {
		return err
	}
	if *page == "" {
		for _, w := range workloads() {
			if err := writeTables(stdout, w, records); err != nil {
				return err
			}
		}
		return nil
	}
	text, err := os.ReadFile(*page)
	if err != nil {
		return err
	}
	for _, w := range workloads() {
		var tables bytes.Buffer
		if err := writeTables(&tables, w, records); err != nil {
			return err
		}
		if tables.Len() == 0 {
			continue // not measured: what the page says stays
		}
		if text, err = fillIn(text, w.name, tables.Bytes()); err != nil {
			return err
		}
	}
	if facts := machines(records); facts != "" {
		if text, err = fillIn(text, "machine", []byte(facts)); err != nil {
			return err
		}
	}
	return os.WriteFile(*page, text, 0o644)
}

// fillIn replaces what stands between the markers of that name.
func fillIn(page []byte, name string, text []byte) ([]byte, error) {
	begin := []byte("<!-- begin " + name + " -->\n")
	end := []byte("<!-- end " + name + " -->\n")
	before, rest, ok := bytes.Cut(page, begin)
	if !ok {
		return nil, fmt.Errorf("the page has no line %q", begin)
	}
	_, after, ok := bytes.Cut(rest, end)
	if !ok {
		return nil, fmt.Errorf("the page has no line %q", end)
	}
	return slices.Concat(before, begin, []byte("\n"), text, []byte("\n"), end, after), nil
}

// writeTables writes one table for each case and setting of a workload, in the order in
// which they were measured, and nothing if none was.
func writeTables(out io.Writer, w workload, records []record) error {
	type one struct {
		name string
		setting
	}
	var order []one
	tables := map[one][]record{}
	for _, r := range records {
		if r.Workload != w.name {
			continue
		}
		t := one{r.Case, r.setting}
		if tables[t] == nil {
			order = append(order, t)
		}
		tables[t] = append(tables[t], r)
	}
	var text []string
	for _, t := range order {
		text = append(text, table(caption(t.name, tables[t]), w, tables[t]))
	}
	_, err := io.WriteString(out, strings.Join(text, "\n"))
	return err
}

// caption is the title of a table: the case, and what the process and the machine were like meanwhile.
func caption(title string, records []record) string {
	first := records[0]
	if first.Procs == 0 {
		return title // an old file does not tell
	}
	low, high := first.Load, first.Load
	for _, r := range records {
		low, high = min(low, r.Load), max(high, r.Load)
	}
	return fmt.Sprintf("%s (%v, load %.1f to %.1f)", title, first.setting, low, high)
}

// table has a line per column of the program, or row of the workload, and a column per metric. A
// metric that nothing in it has is left out.
func table(title string, w workload, records []record) string {
	rows := w.rows
	if rows == nil {
		for _, c := range columns() {
			rows = append(rows, c.name)
		}
	}
	metrics := slices.DeleteFunc(slices.Clone(w.metrics), func(m metric) bool {
		return !slices.ContainsFunc(records, func(r record) bool { _, ok := r.Values[m.key]; return ok })
	})
	var b strings.Builder
	fmt.Fprintf(&b, "| %s |", title)
	for _, m := range metrics {
		fmt.Fprintf(&b, " %s |", m.title)
	}
	b.WriteString("\n| --- |" + strings.Repeat(" ---: |", len(metrics)) + "\n")
	for _, row := range rows {
		var of []record
		for _, r := range records {
			if r.Column == row {
				of = append(of, r)
			}
		}
		if len(of) == 0 {
			continue
		}
		fmt.Fprintf(&b, "| %s |", row)
		for _, m := range metrics {
			fmt.Fprintf(&b, " %s |", m.show(of))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// value reduces the rounds to one figure; NaN if no round has it.
func (m metric) value(records []record) float64 {
	var values []float64
	for _, r := range records {
		if v, ok := r.Values[m.key]; ok && !math.IsNaN(v) {
			values = append(values, v)
		}
	}
	if len(values) == 0 {
		return math.NaN()
	}
	return m.over(values)
}

func (m metric) show(records []record) string {
	v := m.value(records)
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "–"
	}
	return fmt.Sprintf(m.format, v)
}

// machines says what the figures were measured with; more than once if
// the file was not begun afresh on another machine.
func machines(records []record) string {
	var all []string
	for _, r := range records {
		if r.Workload != "machine" {
			continue
		}
		var facts []string
		for name, value := range r.Facts {
			facts = append(facts, name+" "+value)
		}
		slices.Sort(facts)
		if line := strings.Join(facts, ", ") + ".\n"; !slices.Contains(all, line) {
			all = append(all, line)
		}
	}
	return strings.Join(all, "\n")
}
