package redistest

import "syscall"

// childAttr makes a child die with this process, and keeps the terminal's interrupt from reaching it before the tests
// have ended.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// childGroup keeps the terminal's interrupt from a child that ends with its input.
func childGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
