package main

import (
	"context"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// reading is what a span of work is charged with: the counters of this
// process and of the server at one moment.
type reading struct {
	at      time.Time
	cpu     time.Duration // of this process, user and system
	mallocs uint64
	bytes   uint64
	server  info
}

// read asks the server first and the process last, and since the other way
// round, so that INFO itself falls outside the span.
func (s *server) read(ctx context.Context) (reading, error) {
	in, err := s.info(ctx)
	r := readProcess()
	r.server = in
	return r, err
}

func readProcess() reading {
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	return reading{at: time.Now(), cpu: cpuTime(), mallocs: mem.Mallocs, bytes: mem.TotalAlloc}
}

// spent is the difference of two readings.
type spent struct {
	elapsed       time.Duration
	client, redis time.Duration // CPU
	mallocs       float64
	bytes         float64
	reads         float64
	calls         map[string]int64
}

func (s *server) since(ctx context.Context, before reading) (spent, error) {
	after := readProcess()
	in, err := s.info(ctx)
	if err != nil {
		return spent{}, err
	}
	d := spent{
		elapsed: after.at.Sub(before.at),
		client:  after.cpu - before.cpu,
		redis:   in.cpu - before.server.cpu,
		mallocs: float64(after.mallocs - before.mallocs),
		bytes:   float64(after.bytes - before.bytes),
		reads:   float64(in.reads - before.server.reads - 1), // the INFO that ends the span
		calls:   map[string]int64{},
	}
	for command, n := range in.calls {
		d.calls[command] = n - before.server.calls[command]
	}
	return d, nil
}

// cpuTime is the CPU time that this process has used.
func cpuTime() time.Duration {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		panic(err) // only a wrong argument fails
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// residentBytes is the memory of this process that is in RAM; zero where
// there is no /proc.
func residentBytes() float64 {
	text, _ := os.ReadFile("/proc/self/statm")
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseFloat(fields[1], 64)
	return pages * float64(os.Getpagesize())
}
