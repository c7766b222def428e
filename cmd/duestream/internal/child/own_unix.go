//go:build unix && !linux

package child

import (
	"os/exec"
	"syscall"
)

// ownGroup makes the program lead a process group of its own.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
