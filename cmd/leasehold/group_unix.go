//go:build linux || darwin

package main

import (
	"os"
	"os/signal"
	"slices"
	"syscall"
	"unsafe"
)

// ending are the signals that end a wait for the lock; passed are those that the command gets.
var (
	ending = []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM}
	passed = append([]os.Signal{syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGCONT}, ending...)
)

func catch(signals chan os.Signal) (stop func()) {
	signal.Notify(signals, passed...)
	return func() { signal.Stop(signals) }
}

func ends(sig os.Signal) bool { return slices.Contains(ending, sig) }

func number(sig os.Signal) int { return int(sig.(syscall.Signal)) }

// prepare has the command lead a process group. If leasehold is in the foreground of a terminal, the command's group
// takes its place, or it could not read from there. It does not stop at ctrl-Z then: nothing would tell the shell.
func (g *group) prepare() {
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(g.cmd.SysProcAttr)
	f, ok := isTerminal(g.cmd.Stdin)
	if !ok {
		return
	}
	tty := f.Fd()
	if front, ok := foreground(tty, syscall.TIOCGPGRP, 0); !ok || front != syscall.Getpgrp() {
		return
	}
	signal.Ignore(syscall.SIGTSTP)
	g.cmd.SysProcAttr.Foreground, g.cmd.SysProcAttr.Ctty = true, int(tty)
	g.restore = func() {
		signal.Ignore(syscall.SIGTTOU) // which this process would get, being in the background
		foreground(tty, syscall.TIOCSPGRP, syscall.Getpgrp())
		signal.Reset(syscall.SIGTTOU, syscall.SIGTSTP)
	}
}

// foreground asks for the group in the foreground of a terminal, or sets it.
func foreground(tty, request uintptr, group int) (int, bool) {
	pgrp := int32(group)
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, tty, request, uintptr(unsafe.Pointer(&pgrp)))
	return int(pgrp), errno == 0
}

func (g *group) signal(sig os.Signal) { _ = syscall.Kill(-g.cmd.Process.Pid, sig.(syscall.Signal)) }

// terminate asks the group to end. CONT lets processes that were stopped hear it.
func (g *group) terminate() {
	g.signal(syscall.SIGTERM)
	g.signal(syscall.SIGCONT)
}

func (g *group) kill() { g.signal(syscall.SIGKILL) }

func (g *group) alive() bool { return syscall.Kill(-g.cmd.Process.Pid, 0) == nil }

func (g *group) status() int {
	if s, ok := g.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return exitSignal + int(s.Signal())
	}
	return g.cmd.ProcessState.ExitCode()
}
