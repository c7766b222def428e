//go:build unix && !linux

package child

import (
	"os/exec"
	"syscall"
)

func own(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
