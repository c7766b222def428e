package redistest

import "syscall"

// childAttr makes a child die with this process. It also keeps the terminal's interrupt from reaching the child
// before the tests have ended.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// childGroup keeps the terminal's interrupt from a child that ends when its input ends.
func childGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
