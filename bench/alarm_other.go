//go:build !linux

package main

import "time"

// alarm is time.Sleep, which lasts the longer the more a library does meanwhile in the same process.
type alarm struct{}

func newAlarm() (*alarm, error) { return &alarm{}, nil }

func (*alarm) sleep(d time.Duration) error {
	time.Sleep(d)
	return nil
}

func (*alarm) close() {}
