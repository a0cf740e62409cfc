package main

import (
	"path/filepath"
	"strings"
	"testing"

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
		"contended -rounds 1 -for 100ms -warm 10ms -n 3 -process 3",
		"crash -rounds 1 -locks 2 -ttl 400ms -others 0 -give-up 5s",
		"liveness -runs 1 -for 50ms -n 3 -process 3",
		"idle -waiters 5 -for 50ms -only redislock,leasehold",
		"renew -rounds 1 -leases 20 -ttl 600ms -for 300ms -only redislock,leasehold",
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "r.json")
			var out, trouble strings.Builder
			args := append(strings.Fields(line), "-json", file)
			require.Zero(t, run(t.Context(), args, &out, &trouble), "%s", &trouble)
			require.Contains(t, out.String(), "| leasehold |")
			records, err := readRecordFile(file)
			require.NoError(t, err)
			require.Equal(t, "machine", records[0].Workload)
			for _, r := range records {
				require.Zero(t, r.Values["overlaps"], "%s", r.Column)
				if strings.HasPrefix(r.Column, "leasehold") { // a peer's trouble is a result, not a failure
					require.Zero(t, r.Values["lost"]+r.Values["never"]+r.Values["hung"], "%s: %v", r.Column, r.Values)
				}
			}
			if strings.HasPrefix(line, "contended") {
				_, err = drawChart(records)
				require.NoError(t, err)
			}
		})
	}
}

func TestAWrongCommandOrColumnSaysWhatThereIs(t *testing.T) {
	var out, trouble strings.Builder
	require.Equal(t, 2, run(t.Context(), []string{"nonsense"}, &out, &trouble))
	require.Contains(t, trouble.String(), "uncontended")
	trouble.Reset()
	require.Equal(t, 1, run(t.Context(), []string{"idle", "-only", "nonsense"}, &out, &trouble))
	require.Contains(t, trouble.String(), "leasehold by hand")
}
