//go:build unix

package sim

import "syscall"

// rawWrites says that writeNow works here.
const rawWrites = true

// writeNow writes what the socket takes without waiting.
func writeNow(fd uintptr, b []byte) (int, error) { return syscall.Write(int(fd), b) }
