//go:build unix && !linux

package deploy

import "syscall"

// childAttributes put a candidate in a process group of its own.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
