//go:build unix

package job

import "golang.org/x/sys/unix"

// cpuSeconds is the processor time of this process, user and system.
func cpuSeconds() float64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
