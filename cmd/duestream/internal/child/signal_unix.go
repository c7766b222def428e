//go:build unix

package child

import (
	"os/exec"
	"syscall"
)

// signalGroup signals all processes of the group. An error means that none is left.
func signalGroup(cmd *exec.Cmd, sig syscall.Signal) { _ = syscall.Kill(-cmd.Process.Pid, sig) }
