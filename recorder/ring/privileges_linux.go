package ring

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// DropPrivileges takes every capability from all threads of the process and forbids it to gain new ones. Call it once the rings are
// open. In a binary built with cgo it fails with ENOTSUP and changes nothing.
func DropPrivileges() error {
	if _, _, e := syscall.AllThreadsSyscall6(syscall.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); e != 0 {
		return fmt.Errorf("drop privileges: no_new_privs: %w", e)
	}
	if _, _, e := syscall.AllThreadsSyscall6(syscall.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0, 0); e != 0 && e != syscall.EINVAL {
		return fmt.Errorf("drop privileges: ambient capabilities: %w", e)
	}
	header := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	none := &[2]unix.CapUserData{}
	if _, _, e := syscall.AllThreadsSyscall(syscall.SYS_CAPSET, uintptr(unsafe.Pointer(header)), uintptr(unsafe.Pointer(none)), 0); e != 0 {
		return fmt.Errorf("drop privileges: capabilities: %w", e)
	}
	return nil
}

// NoCoreDumps keeps the process's memory, which holds prompts, from being written to disk by a crash or read by a debugger of the same user.
func NoCoreDumps() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("switch core dumps off: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("switch core dumps off: %w", err)
	}
	return nil
}
