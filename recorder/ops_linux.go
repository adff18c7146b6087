package recorder

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// MemoryLimit returns the memory limit of the control group that the process runs in, the tightest on its way up; false where there is
// none.
func MemoryLimit() (int64, bool) { return memoryLimit("/proc/self/cgroup", "/sys/fs/cgroup") }

func memoryLimit(groups, root string) (int64, bool) {
	b, err := os.ReadFile(groups)
	if err != nil {
		return 0, false
	}
	limit := int64(math.MaxInt64)
	for line := range strings.Lines(string(b)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3) // id:controllers:path
		if len(parts) != 3 {
			continue
		}
		switch {
		case parts[1] == "": // version 2, alone or beside version 1
			limit = min(limit, tightest(root, parts[2], "memory.max"), tightest(filepath.Join(root, "unified"), parts[2], "memory.max"))
		case strings.Contains(","+parts[1]+",", ",memory,"):
			limit = min(limit, tightest(filepath.Join(root, "memory"), parts[2], "memory.limit_in_bytes"))
		}
	}
	return limit, limit < 1<<60
}

// tightest returns the smallest limit from a group up to the root. Inside a container the path may not exist: then the root is the
// container's own.
func tightest(root, path, file string) int64 {
	limit := int64(math.MaxInt64)
	for p := filepath.Join("/", path); ; p = filepath.Dir(p) {
		if b, err := os.ReadFile(filepath.Join(root, p, file)); err == nil {
			if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && n > 0 {
				limit = min(limit, n)
			}
		}
		if p == "/" {
			return limit
		}
	}
}
