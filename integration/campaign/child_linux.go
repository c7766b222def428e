package campaign

import "syscall"

// childAttr makes a child die with this process, and keeps the terminal's interrupt from it.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
