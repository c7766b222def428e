//go:build !unix

package child

import (
	"os/exec"
	"syscall"
)

func own(*exec.Cmd) {}

// signalGroup kills the program: this system has no signals to ask it with.
func signalGroup(cmd *exec.Cmd, _ syscall.Signal) { _ = cmd.Process.Kill() }
