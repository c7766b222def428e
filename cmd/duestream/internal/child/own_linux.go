package child

import (
	"os/exec"
	"syscall"
)

// ownGroup makes the program lead a process group of its own, and die with the thread that starts it.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
