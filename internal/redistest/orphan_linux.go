package redistest

import (
	"os/exec"
	"syscall"
)

// dieWithParent makes the kernel kill the server when the test process is gone:
// no cleanup runs after a panic or a timeout of go test. The parent is strictly
// the thread that starts the server, which must not be locked to a goroutine.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
