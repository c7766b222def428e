package bridgetest

import "syscall"

// childAttr makes a server end when the process of the test ends, also when that process is killed.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
