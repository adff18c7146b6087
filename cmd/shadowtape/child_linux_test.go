package main

import (
	"os/exec"
	"syscall"
)

// dieWithParent has the kernel end a child whose test was killed before it could.
func dieWithParent(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
