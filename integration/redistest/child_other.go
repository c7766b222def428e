//go:build !linux

package redistest

import "syscall"

// childAttr returns no attributes. There is no parent-death signal here, so a killed test process leaves its server
// running.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

// childGroup returns no attributes, because none of this exists here.
func childGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
