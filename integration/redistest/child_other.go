//go:build !linux

package redistest

import "syscall"

// childAttr: no parent-death signal here, so a killed test process leaves its server running.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

// childGroup: nothing to be had here.
func childGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
