//go:build !linux

package recorder

// MemoryLimit finds no limit.
func MemoryLimit() (int64, bool) { return 0, false }
