package campaign

import "syscall"

// childAttr makes a child die with this process, and protects it from the terminal's interrupt.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
