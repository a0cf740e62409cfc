package main

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

// In a container the first process is often one that reaps nobody's children. What was killed then stays a zombie, in its group.
func TestRunEndsThoughNobodyReapsWhatItHasKilled(t *testing.T) {
	const subreaper = 36 // PR_SET_CHILD_SUBREAPER: orphans of what the test starts become its children
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, subreaper, 1, 0); errno != 0 {
		t.Fatal(errno)
	}
	defer syscall.RawSyscall(syscall.SYS_PRCTL, subreaper, 0, 0)
	srv := redistest.Server(t)
	locker := leasehold.New(srv.Client())
	defer locker.Close()
	dir := t.TempDir()
	r := launch(t, "-redis", srv.Addr(), "-key", "k", "-ttl", "1s", "-grace", "100ms", "--", "sh", "-c", stubborn, dir)
	child := pid(t, dir+"/child")
	require.NoError(t, locker.ForceRelease(t.Context(), "k"))
	assert.Equal(t, exitLost, r.ended(t))
	_, _ = syscall.Wait4(child, nil, 0, nil)
}
