//go:build unix

package child

import (
	"os/exec"
	"syscall"
)

// signalGroup signals all processes of the group. It ignores the error, which means that the group has no processes.
func signalGroup(cmd *exec.Cmd, sig syscall.Signal) { _ = syscall.Kill(-cmd.Process.Pid, sig) }
