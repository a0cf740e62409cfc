package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// record is one measurement of one column: a line of the -json file.
type record struct {
	Workload string             `json:"workload"`
	Case     string             `json:"case,omitempty"` // which of the workload's tables
	N        int                `json:"n,omitempty"`    // separate clients, in contended
	Column   string             `json:"column,omitempty"`
	Round    int                `json:"round"`
	Values   map[string]float64 `json:"values,omitempty"`
	Facts    map[string]string  `json:"facts,omitempty"` // only in the workload "machine"
	setting
	Load float64 `json:"load,omitempty"` // of the machine, while it was measured; see loadOfMachine
}

// setting is what the client process had for the measurement. Two settings are two tables, whatever the case.
type setting struct {
	CPUs  int `json:"cpus,omitempty"`  // that it was allowed to run on; 0: nobody wrote it down
	Procs int `json:"procs,omitempty"` // its GOMAXPROCS
}

func (s setting) String() string {
	if s.CPUs == 1 {
		return fmt.Sprintf("1 CPU, GOMAXPROCS %d", s.Procs)
	}
	return fmt.Sprintf("%d CPUs, GOMAXPROCS %d", s.CPUs, s.Procs)
}

// settingNow is that of this process.
func settingNow() setting { return setting{runtime.NumCPU(), runtime.GOMAXPROCS(0)} }

// loadOfMachine is the average of the last minute of how many threads ran or wanted to run, those of this program
// included; 0 where there is no /proc.
func loadOfMachine() float64 {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	load, _ := strconv.ParseFloat(first, 64)
	return load
}

// MarshalJSON leaves out what was not measured, since JSON has no NaN.
func (r record) MarshalJSON() ([]byte, error) {
	type plain record
	values := make(map[string]float64, len(r.Values))
	for k, v := range r.Values {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			values[k] = v
		}
	}
	r.Values = values
	return json.Marshal(plain(r))
}

func appendRecord(file string, r record) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if _, err := f.Write(append(line, '\n')); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

func readRecords(in io.Reader) ([]record, error) {
	var records []record
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var r record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("record %d: %w", len(records)+1, err)
		}
		records = append(records, r)
	}
	return records, lines.Err()
}

func readRecordFile(file string) ([]record, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	records, err := readRecords(f)
	if err == nil && len(records) == 0 {
		err = fmt.Errorf("%s has no records", file)
	}
	return records, err
}
