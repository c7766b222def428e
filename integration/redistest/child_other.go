//go:build !linux

package redistest

import "syscall"

// childAttr returns no attributes, because this system has no parent-death signal. A test process that is killed leaves
// its servers running.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

// childGroup returns no attributes on this system.
func childGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
