//go:build linux || darwin

package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

func TestRunEndsWithTheStatusOfTheCommandOrItsOwn(t *testing.T) {
	m, client := redistest.Mini(t)
	locker := leasehold.New(client, leasehold.WithOwner("ash"))
	defer locker.Close()
	_, err := locker.TryAcquire(t.Context(), "held", time.Minute)
	require.NoError(t, err)
	for _, tt := range []struct {
		args   string
		status int
		errs   string
	}{
		{"-key k -- true", 0, ""},
		{"-key k true", 0, ""},
		{"-key k -- sh -c exit\t7", 7, ""},
		{"-key k -- sh -c kill\t-9\t$$", 137, ""},
		{"-key held -try -- true", exitHeld, "held"},
		{"-key held -wait 20ms -- true", exitHeld, "held"},
		{"-key k -max-hold 50ms -- sleep 60", exitLost, "longer than -max-hold 50ms"},
		{"-key k -try -redis 127.0.0.1:1 -- true", exitUnreachable, "refused"},
		{"-key k -ttl 1ms -- true", exitRunUsage, "want 10ms"},
		{"-key k -try -wait 1s -- true", exitRunUsage, "not both"},
		{"-key k", exitRunUsage, "the COMMAND is missing"},
		{"true", exitRunUsage, "-key is missing"},
		{"-key k -- /", exitCannotRun, "directory"},
		{"-key k -- no-such-command", exitNotFound, "not found"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			t.Setenv("REDIS_URL", "redis://"+m.Addr())
			args := append([]string{"run"}, strings.Split(tt.args, " ")...)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "\t", " ")
			}
			status, _, errs := call("", args...)
			assert.Equal(t, tt.status, status, errs)
			assert.Contains(t, errs, tt.errs)
			assert.False(t, m.Exists("k"), "the lock is released")
		})
	}
}

func TestTheCommandFindsTheLeaseInItsEnvironment(t *testing.T) {
	m, client := redistest.Mini(t)
	status, out, errs := call("in", "run", "-redis", m.Addr(), "-prefix", "app:", "-key", "k", "-v", "--",
		"sh", "-c", `cat; echo " $LEASEHOLD_KEY $LEASEHOLD_FENCING_TOKEN $LEASEHOLD_DEADLINE"`)
	require.Zero(t, status, errs)
	fields := strings.Fields(out)
	require.Len(t, fields, 4, out)
	assert.Equal(t, []string{"in", "app:k"}, fields[:2])
	counter := client.Get(t.Context(), "app:leasehold:counter:{app:k}").Val()
	assert.Equal(t, strings.TrimSuffix(counter, "+"), fields[2])
	until, err := time.Parse(time.RFC3339Nano, fields[3])
	require.NoError(t, err)
	assert.InDelta(t, 30, time.Until(until).Seconds(), 5)
	assert.Contains(t, errs, "has released")
}

// A process of the command.
type running struct {
	*exec.Cmd
	out  notebook
	errs *bytes.Buffer
}

func launch(t *testing.T, args ...string) *running {
	t.Helper()
	r := &running{exec.CommandContext(t.Context(), os.Args[0], append([]string{"run"}, args...)...), make(notebook, 100), &bytes.Buffer{}}
	r.Env = append(os.Environ(), childVariable+"=1")
	r.Stdout, r.Stderr = r.out, r.errs
	r.WaitDelay = 100 * time.Millisecond
	require.NoError(t, r.Start())
	return r
}

func (r *running) ended(t *testing.T) int {
	t.Helper()
	_ = r.Wait()
	t.Log(r.errs)
	return r.ProcessState.ExitCode()
}

// pid reads the number that a script writes to a file when it is ready.
func pid(t *testing.T, file string) int {
	t.Helper()
	n := 0
	require.Eventually(t, func() bool {
		text, _ := os.ReadFile(file)
		var err error
		n, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil && n > 1
	}, 20*time.Second, 5*time.Millisecond)
	return n
}

// dead reports whether a process runs no more. A zombie does not.
func dead(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	stat, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	_, state, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(state, "Z")
}

// stubborn is a script that hears no TERM, and has a child that hears none either. It writes both numbers.
const stubborn = `trap "" TERM; sh -c 'trap "" TERM; echo $$ > "$1/child"; while :; do sleep 0.01; done' x "$0" &
echo $$ > "$0/parent"; while :; do sleep 0.01; done`

func TestSignalsArePassedToTheCommand(t *testing.T) {
	m, _ := redistest.Mini(t)
	r := launch(t, "-redis", m.Addr(), "-key", "k", "--", "sh", "-c", `trap 'echo heard; exit 3' TERM; echo ready; while :; do sleep 0.01; done`)
	r.out.await(t, "ready")
	require.NoError(t, r.Process.Signal(syscall.SIGTERM))
	r.out.await(t, "heard")
	assert.Equal(t, 3, r.ended(t))
	assert.False(t, m.Exists("k"))
}

func TestASignalEndsTheWaitForTheLock(t *testing.T) {
	m, client := redistest.Mini(t)
	locker := leasehold.New(client)
	defer locker.Close()
	_, err := locker.TryAcquire(t.Context(), "k", time.Minute)
	require.NoError(t, err)
	r := launch(t, "-redis", m.Addr(), "-key", "k", "--", "true")
	require.Eventually(t, func() bool {
		state, err := locker.Inspect(t.Context(), "k")
		return err == nil && state.Waiters == 1
	}, 20*time.Second, 5*time.Millisecond)
	require.NoError(t, r.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, 128+15, r.ended(t))
}

func TestTheWholeGroupIsKilledBeforeAnotherCanHaveTheLock(t *testing.T) {
	t.Parallel()
	srv := redistest.Server(t)
	proxy := redistest.Proxy(t, srv.Addr())
	locker := leasehold.New(srv.Client())
	defer locker.Close()
	dir := t.TempDir()
	r := launch(t, "-redis", proxy.Addr(), "-key", "k", "-ttl", "1s", "-grace", "500ms", "--", "sh", "-c", stubborn, dir)
	parent, child := pid(t, dir+"/parent"), pid(t, dir+"/child")
	proxy.Close()
	lease, err := locker.Acquire(t.Context(), "k", time.Minute)
	require.NoError(t, err)
	assert.True(t, dead(parent), "the command runs, and another has the lock")
	assert.True(t, dead(child), "a child of the command runs, and another has the lock")
	require.NoError(t, lease.Release(t.Context()))
	assert.Equal(t, exitLost, r.ended(t))
}

func TestTheGroupIsEndedWhenTheLockIsForcedFromIt(t *testing.T) {
	t.Parallel()
	srv := redistest.Server(t)
	locker := leasehold.New(srv.Client())
	defer locker.Close()
	dir := t.TempDir()
	r := launch(t, "-redis", srv.Addr(), "-key", "k", "-ttl", "1s", "-grace", "100ms", "--", "sh", "-c", stubborn, dir)
	parent, child := pid(t, dir+"/parent"), pid(t, dir+"/child")
	require.NoError(t, locker.ForceRelease(t.Context(), "k"))
	assert.Equal(t, exitLost, r.ended(t))
	assert.True(t, dead(parent))
	assert.True(t, dead(child))
	assert.Contains(t, r.errs.String(), "lease lost")
}

func TestWhatTheCommandLeavesBehindIsEndedBeforeTheRelease(t *testing.T) {
	t.Parallel()
	m, _ := redistest.Mini(t)
	dir := t.TempDir()
	r := launch(t, "-redis", m.Addr(), "-key", "k", "-grace", "100ms", "--", "sh", "-c",
		`sh -c 'trap "" TERM; echo $$ > "$1/child"; while :; do sleep 0.01; done' x "$0" >/dev/null 2>&1 &
while ! test -s "$0/child"; do sleep 0.01; done; exit 4`, dir)
	child := pid(t, dir+"/child")
	assert.Equal(t, 4, r.ended(t))
	assert.True(t, dead(child))
	assert.False(t, m.Exists("k"))
}

func TestTheCommandDiesWithLeasehold(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ties a process to its parent")
	}
	t.Parallel()
	m, _ := redistest.Mini(t)
	dir := t.TempDir()
	r := launch(t, "-redis", m.Addr(), "-key", "k", "--", "sh", "-c", stubborn, dir)
	parent, child := pid(t, dir+"/parent"), pid(t, dir+"/child")
	defer func() { _ = syscall.Kill(child, syscall.SIGKILL) }()
	runtime.Gosched()
	require.NoError(t, r.Process.Kill())
	_ = r.Wait()
	require.Eventually(t, func() bool { return dead(parent) }, 5*time.Second, time.Millisecond)
}

func TestTheLockRestsUntilMinHoldIsOver(t *testing.T) {
	m, _ := redistest.Mini(t)
	status, _, errs := call("", "run", "-redis", m.Addr(), "-key", "k", "-min-hold", "1m", "--", "true")
	require.Zero(t, status, errs)
	assert.True(t, m.Exists("k"))
	status, _, _ = call("", "run", "-redis", m.Addr(), "-key", "k", "-try", "--", "true")
	assert.Equal(t, exitHeld, status)
}
