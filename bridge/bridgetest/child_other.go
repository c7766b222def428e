//go:build !linux

package bridgetest

import "syscall"

// childAttr returns no attributes. A process of tests that is killed leaves its server behind.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
