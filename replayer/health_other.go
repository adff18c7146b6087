//go:build !unix

package replayer

// cpuSeconds is not known here.
func cpuSeconds() float64 { return 0 }
