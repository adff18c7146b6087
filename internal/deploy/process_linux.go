package deploy

import "syscall"

// childAttributes put a candidate in a process group of its own and have the kernel kill it when this program dies.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
