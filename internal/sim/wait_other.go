//go:build !linux

package sim

func newWaiter() waiter { return newTimerWaiter() }
