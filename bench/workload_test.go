package main

import (
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Each workload runs as from the shell, as briefly as it can. Those that start
// a process per column leave out some columns, which adds nothing but time.
func TestEveryWorkloadRunsAndShowsItsTable(t *testing.T) {
	needRedis(t)
	for _, line := range []string{
		"uncontended -rounds 1 -cycles 20",
		"uncontended -rounds 1 -cycles 20 -only leasehold -wait",
		"parallel -rounds 1 -for 10ms -goroutines 4",
		"cluster -rounds 1 -for 10ms -goroutines 4",
		"contended -rounds 1 -for 100ms -warm 10ms -n 3 -process 3",
		"crash -rounds 1 -locks 2 -ttl 400ms -others 0 -give-up 5s",
		"liveness -runs 1 -for 50ms -n 3 -process 3",
		"idle -waiters 5 -for 50ms -only redislock,leasehold",
		"renew -rounds 1 -leases 20 -ttl 600ms -for 300ms -only redislock,leasehold",
		"outage -rounds 1 -leases 20 -ttl 1500ms",
		"cycles -cycles 2000 -goroutines 4",
		"quorum -rounds 1 -cycles 20 -silent-rounds 1 -silent-for 100ms",
		"fenced -rounds 1 -writes 20",
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "r.json")
			var out, trouble strings.Builder
			args := append(strings.Fields(line), "-json", file)
			require.Zero(t, run(t.Context(), args, &out, &trouble), "%s", &trouble)
			require.Regexp(t, `\| (leasehold|FencedScript) \|`, out.String())
			records, err := readRecordFile(file)
			require.NoError(t, err)
			require.Equal(t, "machine", records[0].Workload)
			for _, r := range records {
				require.Zero(t, r.Values["overlaps"], "%s", r.Column)
				if strings.HasPrefix(r.Column, "leasehold") { // a peer's trouble is a result, not a failure
					require.Zero(t, r.Values["lost"]+r.Values["never"]+r.Values["hung"], "%s: %v", r.Column, r.Values)
				}
			}
			require.Regexp(t, `\(\d+ CPUs?, GOMAXPROCS \d+, load [\d.]+ to [\d.]+\) \|`, out.String())
		})
	}
}

// Everything that the chart shows can be measured into one file.
func TestTheChartDrawsWhatTheWorkloadsHaveKept(t *testing.T) {
	needRedis(t)
	dir := t.TempDir()
	file, svg := filepath.Join(dir, "r.json"), filepath.Join(dir, "c.svg")
	for _, line := range []string{
		"uncontended -rounds 1 -cycles 20", "parallel -rounds 1 -for 10ms -goroutines 4",
		"contended -rounds 1 -for 50ms -warm 10ms -n 2,3 -process 3 -only redislock,leasehold",
	} {
		require.Zero(t, run(t.Context(), append(strings.Fields(line), "-json", file), io.Discard, t.Output()))
	}
	require.Zero(t, run(t.Context(), []string{"chart", "-json", file, "-o", svg}, io.Discard, t.Output()))
	text, err := os.ReadFile(svg)
	require.NoError(t, err)
	require.Contains(t, string(text), ">4 goroutines, 4 keys: acquires and releases per second</text>")
}

// GOMAXPROCS is the process's, so this test is not parallel.
func TestProcsIsTheGOMAXPROCSOfTheClientAndOfItsChildren(t *testing.T) {
	needRedis(t)
	before := runtime.GOMAXPROCS(0)
	for _, line := range []string{
		"uncontended -rounds 1 -cycles 20 -only leasehold -procs 3",
		"cycles -cycles 200 -goroutines 2 -only leasehold -procs 3",
	} {
		var out strings.Builder
		require.Zero(t, run(t.Context(), strings.Fields(line), &out, t.Output()))
		require.Contains(t, out.String(), "GOMAXPROCS 3,")
		require.Equal(t, before, runtime.GOMAXPROCS(0), "it is as it was")
	}
	runtime.GOMAXPROCS(3)
	defer runtime.GOMAXPROCS(before)
	values, err := inChild(t.Context(), "setting")
	require.NoError(t, err)
	require.Equal(t, 3.0, values["procs"])

	require.Equal(t, 1, run(t.Context(), []string{"uncontended", "-procs", "-1"}, io.Discard, io.Discard))
}

func TestTheBusiestSecondIsTheOneWithTheMostCommands(t *testing.T) {
	var samples []sentBy
	begun := time.Now()
	for i, n := range []int64{0, 10, 20, 120, 220, 230, 240} { // every half second
		samples = append(samples, sentBy{begun.Add(time.Duration(i) * time.Second / 2), n})
	}
	require.Equal(t, 200.0, busiest(samples, time.Second))
	require.Equal(t, 80.0, busiest(samples, 3*time.Second))
	require.Equal(t, 20.0, busiest(samples[:3], time.Second))
	require.True(t, math.IsNaN(busiest(samples[:2], time.Second)))
}

func TestAWrongCommandOrColumnSaysWhatThereIs(t *testing.T) {
	var out, trouble strings.Builder
	require.Equal(t, 2, run(t.Context(), []string{"nonsense"}, &out, &trouble))
	require.Contains(t, trouble.String(), "uncontended")
	trouble.Reset()
	require.Equal(t, 1, run(t.Context(), []string{"idle", "-only", "nonsense"}, &out, &trouble))
	require.Contains(t, trouble.String(), "leasehold by hand")
}
