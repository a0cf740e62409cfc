package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-leasehold/leasehold"
	"github.com/go-leasehold/leasehold/internal/redistest"
)

// terminal opens a pseudo-terminal and returns its two ends.
func terminal(t *testing.T) (ours, theirs *os.File) {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo-terminals: ", err)
	}
	t.Cleanup(func() { _ = ours.Close() })
	var number, unlocked uint32
	for _, call := range []struct {
		request uintptr
		value   *uint32
	}{{syscall.TIOCSPTLCK, &unlocked}, {syscall.TIOCGPTN, &number}} {
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, ours.Fd(), call.request, uintptr(unsafe.Pointer(call.value)))
		require.Zero(t, errno)
	}
	theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = theirs.Close() })
	return ours, theirs
}

func TestWatchDrawsOnATerminalUntilControlC(t *testing.T) {
	m, client := redistest.Mini(t)
	locker := leasehold.New(client, leasehold.WithOwner("ash"))
	defer locker.Close()
	ours, theirs := terminal(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "watch", "-redis", m.Addr(), "-every", "20ms", "k")
	cmd.Env = append(os.Environ(), childVariable+"=1", "TERM=xterm", "NO_COLOR=")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, cmd.Start())
	out := make(notebook, 1000)
	go func() {
		buf := make([]byte, 1<<12)
		for {
			n, err := ours.Read(buf)
			if err != nil {
				return
			}
			_, _ = out.Write(buf[:n])
		}
	}()
	out.await(t, "\x1b[32mfree\x1b[0m")
	_, err := locker.TryAcquire(t.Context(), "k", time.Minute)
	require.NoError(t, err)
	out.await(t, "\x1b[4A\x1b[J")
	out.await(t, "████████████████████████████████████████\r\n0 waiting\r\nfencing token ")
	_, err = ours.WriteString("\x03")
	require.NoError(t, err)
	require.NoError(t, cmd.Wait())
	assert.Zero(t, cmd.ProcessState.ExitCode())
}
