package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
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
