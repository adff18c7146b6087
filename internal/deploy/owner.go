package deploy

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// owner names the shadowtape process that started a candidate, so that a later one can tell a crash's leftovers from a run that goes on.
// Its text form is boot/namespace/pid/start.
type owner struct {
	boot      string // of the machine
	namespace string // of process numbers
	pid       int
	start     string // clock ticks from boot to the process's start: a number given again has another
}

// ownerVariable carries the owner's text form in the environment of a process, and as a label of a container.
const ownerVariable = "SHADOWTAPE_OWNER"

var thisOwner = sync.OnceValue(func() owner {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	ns, _ := os.Readlink("/proc/self/ns/pid")
	return owner{strings.TrimSpace(string(boot)), strings.Trim(strings.TrimPrefix(ns, "pid:"), "[]"), os.Getpid(), startOf(os.Getpid())}
})

func (o owner) String() string {
	return fmt.Sprintf("%s/%s/%d/%s", o.boot, o.namespace, o.pid, o.start)
}

func parseOwner(s string) (owner, bool) {
	p := strings.Split(s, "/")
	if len(p) != 4 {
		return owner{}, false
	}
	pid, err := strconv.Atoi(p[2])
	return owner{p[0], p[1], pid, p[3]}, err == nil
}

// dead reports whether the owner surely no longer runs. Where this process cannot see the owner's numbers it is not sure.
func (o owner) dead() bool {
	me := thisOwner()
	if me.start == "" || o.namespace != me.namespace && o.boot == me.boot {
		return false
	}
	if o.boot != me.boot {
		return o.namespace != "" && o.boot != "" // the machine was started again
	}
	return startOf(o.pid) != o.start
}

// startOf is a process's start in clock ticks since boot (field 22 of /proc/PID/stat), "" if it does not run.
func startOf(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	i := bytes.LastIndexByte(b, ')') // the name before it may hold anything
	if i < 0 {
		return ""
	}
	fields := strings.Fields(string(b[i+1:]))
	if len(fields) < 20 || fields[0] == "Z" {
		return ""
	}
	return fields[19]
}

// environOf reads NAME's value from a process's initial environment; "" where it cannot be read.
func environOf(pid int, name string) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return ""
	}
	for v := range bytes.SplitSeq(b, []byte{0}) {
		if rest, ok := bytes.CutPrefix(v, []byte(name+"=")); ok {
			return string(rest)
		}
	}
	return ""
}

func markOf(pid int) string { return environOf(pid, Mark) }

// processes lists the numbers of all visible processes.
func processes() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var pids []int
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// marked lists the processes that carry a launch's mark.
func marked(id string) []int {
	return slices.DeleteFunc(processes(), func(pid int) bool { return markOf(pid) != id })
}
