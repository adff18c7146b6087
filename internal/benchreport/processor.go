package benchreport

import (
	"syscall"
	"time"
)

// ProcessorTime is what this process has used of processors, in user and in system mode: what a machine's other work hardly changes. 0 where
// the system does not say.
func ProcessorTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
