//go:build !linux

package replayer

import "time"

func sleepPrecise(t time.Time, stop <-chan struct{}) { SleepTimer(t, stop) }
