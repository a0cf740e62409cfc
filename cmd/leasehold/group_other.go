//go:build !linux && !darwin

package main

import (
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
)

func catch(signals chan os.Signal) (stop func()) {
	signal.Notify(signals, os.Interrupt)
	return func() { signal.Stop(signals) }
}

func ends(os.Signal) bool { return true }

func number(os.Signal) int { return 2 }

func (g *group) prepare() {}

// signal passes nothing on: on Windows a console interrupts all its processes by itself.
func (g *group) signal(sig os.Signal) {
	if runtime.GOOS != "windows" {
		_ = g.cmd.Process.Signal(sig)
	}
}

func (g *group) terminate() { g.kill() }

// kill ends the command. On Windows taskkill ends also what the command has started.
func (g *group) kill() {
	if runtime.GOOS == "windows" {
		_ = exec.Command("taskkill", "/T", "/F", "/PID", strconv.Itoa(g.cmd.Process.Pid)).Run()
	}
	_ = g.cmd.Process.Kill()
}

func (g *group) alive() bool { return false } // nothing tells what the command has left behind

func (g *group) status() int { return g.cmd.ProcessState.ExitCode() }
