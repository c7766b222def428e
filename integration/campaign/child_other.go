//go:build !linux

package campaign

import "syscall"

// childAttr keeps the terminal's interrupt from a child.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
