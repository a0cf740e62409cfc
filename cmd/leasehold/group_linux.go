package main

import "syscall"

// dieWithParent has the kernel kill the command when the thread that started it ends, so at the latest with leasehold.
func dieWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }
