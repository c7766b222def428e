package redistest

import "syscall"

// childAttr returns attributes with which a child process dies when this process dies. They also put the child into a
// process group of its own, so that an interrupt from the terminal does not end it before the tests have ended.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// childGroup returns attributes that only put a child process into a process group of its own. It is for a child that
// ends by itself when its input ends.
func childGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
