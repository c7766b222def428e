//go:build !linux

package campaign

import "syscall"

// childAttr protects a child from the terminal's interrupt.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
