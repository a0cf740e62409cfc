package main

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold/internal/redistest"
)

// demo runs the demo in less than half of the usual time. Where the machine is too busy for leases that short, they are lost and
// the demo says so, rightly; it then runs once more with longer ones. That it tells all that goes wrong is for the
// rehearsals, whose time is not the machine's.
func demo(t *testing.T, args ...string) (status int, out, errs string) {
	t.Helper()
	for _, beat := range []time.Duration{40 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond} {
		var o, e bytes.Buffer
		p := program{ctx: context.Background(), in: strings.NewReader(""), out: &o, errw: &e, beat: beat}
		status = p.run(append([]string{"demo"}, args...))
		if out, errs = o.String(), e.String(); status == 0 {
			break
		}
		t.Logf("with a beat of %v:\n%s%s", beat, out, errs)
	}
	return status, out, errs
}

func requireAllShown(t *testing.T, status int, out, errs string) {
	t.Helper()
	t.Log(out)
	require.Zero(t, status, errs)
	assert.Empty(t, errs)
	_, summary, _ := strings.Cut(out, "What happened")
	assert.Len(t, regexp.MustCompile(`(?m)^  ✓  \S`).FindAllString(summary, -1), len(scenes))
	assert.NotContains(t, out, "✗")
	assert.NotContains(t, out, "\x1b")
	for line := range strings.Lines(out) {
		assert.LessOrEqual(t, len([]rune(strings.TrimSuffix(line, "\n"))), 80, line)
	}
}

func TestTheDemoBringsItsOwnRedis(t *testing.T) {
	t.Parallel()
	status, out, errs := demo(t)
	requireAllShown(t, status, out, errs)
	assert.Contains(t, out, "on a Redis in memory")
}

func TestTheDemoRunsOnARealRedisAndLeavesNothingForEver(t *testing.T) {
	t.Parallel()
	srv := redistest.Server(t)
	status, out, errs := demo(t, "-redis", "redis://"+srv.Addr()+"/3")
	requireAllShown(t, status, out, errs)
	assert.Contains(t, out, "on the Redis at "+srv.Addr())

	client := srv.Client(func(o *redis.Options) { o.DB = 3 })
	keys, err := client.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	assert.NotEmpty(t, keys)
	for _, key := range keys {
		assert.Regexp(t, `^(leasehold:fenced:\{)?leasehold-demo:\w{6}:`, key)
		assert.Positive(t, client.TTL(t.Context(), key).Val(), key)
	}
}

func TestTheDemoFailsOnARedisWhereNothingExpires(t *testing.T) {
	t.Parallel()
	m, _ := redistest.Mini(t)
	var out, errs bytes.Buffer
	p := program{ctx: context.Background(), out: &out, errw: &errs, beat: 10 * time.Millisecond}
	status := p.run([]string{"demo", "-redis", "redis://" + m.Addr()})
	assert.Equal(t, exitFailed, status)
	assert.Contains(t, out.String(), "\n  ✗  A death       elm did not get in: ")
	assert.Contains(t, out.String(), "\n  ✗  A late write  elm did not get in: ")
	assert.Regexp(t, `^leasehold demo: [234] of 4 scenes did not go as they must\n$`, errs.String())
}

func TestTheDemoEndsCleanlyWhenInterrupted(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("no interrupt can be sent to a process")
	}
	m, _ := redistest.Mini(t) // without a clock: what is not released stays
	child := exec.CommandContext(t.Context(), os.Args[0], "demo", "-redis", "redis://"+m.Addr())
	child.Env = append(os.Environ(), childVariable+"=1")
	var errs bytes.Buffer
	child.Stderr = &errs
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())

	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.Contains(lines.Text(), "yew  waits in line") {
	}
	sent := time.Now()
	require.NoError(t, child.Process.Signal(os.Interrupt))
	for lines.Scan() {
		assert.NotContains(t, lines.Text(), "What happened")
	}
	require.Error(t, child.Wait())
	assert.Equal(t, exitFailed, child.ProcessState.ExitCode())
	assert.Equal(t, "leasehold demo: interrupted\n", errs.String())
	assert.Less(t, time.Since(sent), 3*time.Second)
	for _, key := range m.Keys() {
		assert.NotRegexp(t, `^leasehold-demo:\w{6}:invoice$`, key, "is still held")
	}
}
