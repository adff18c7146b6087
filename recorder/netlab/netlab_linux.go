// Package netlab builds small networks of network namespaces for tests: it needs root, and leaves nothing behind.
package netlab

import (
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Host is a network namespace of its own, held by one thread.
type Host struct {
	t    testing.TB
	work chan func()
	tid  int
}

// Need skips the test loudly where it may not make namespaces.
func Need(t testing.TB) {
	t.Helper()
	if unix.Geteuid() != 0 {
		t.Skip("SKIPPED: this test makes network namespaces and needs root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("SKIPPED: this test needs the ip command (iproute2)")
	}
}

// NewHost makes a namespace with its loopback interface up. It ends with the test.
func NewHost(t testing.TB) *Host {
	t.Helper()
	Need(t)
	h := &Host{t: t, work: make(chan func())}
	started := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // never unlocked: the thread, and the namespace with it, ends with the goroutine
		h.tid = unix.Gettid()
		err := unix.Unshare(unix.CLONE_NEWNET)
		started <- err
		if err != nil {
			return
		}
		for f := range h.work {
			f()
		}
	}()
	if err := <-started; err != nil {
		t.Skipf("SKIPPED: a network namespace cannot be made here: %v", err)
	}
	t.Cleanup(func() { close(h.work); <-ended })
	h.IP("link set lo up")
	return h
}

// Do runs f on the namespace's thread and waits for it. Sockets that f opens belong to the namespace. f must not end the test, nor call Do.
func (h *Host) Do(f func()) {
	done := make(chan struct{})
	h.work <- func() { defer close(done); f() }
	<-done
}

// IP runs the ip command in the namespace, once for each line.
func (h *Host) IP(lines ...string) {
	h.t.Helper()
	for _, line := range lines {
		if err := h.TryIP(line); err != nil {
			h.t.Fatal(err)
		}
	}
}

// TryIP is IP that reports a failure.
func (h *Host) TryIP(line string) error { return h.Try("ip " + line) }

// Try runs a command in the namespace and reports a failure.
func (h *Host) Try(line string) (err error) {
	h.Do(func() {
		words := strings.Fields(line)
		out, e := exec.Command(words[0], words[1:]...).CombinedOutput()
		if e != nil {
			err = fmt.Errorf("%s: %w: %s", line, e, strings.TrimSpace(string(out)))
		}
	})
	return err
}

// Link connects two hosts (or one with itself) by a veth pair of the given names. The ends are up; an address in the form 10.0.0.1/24 is
// set where it is not empty.
func Link(a *Host, nameA, addressA string, b *Host, nameB, addressB string) {
	a.t.Helper()
	a.IP(fmt.Sprintf("link add %s type veth peer name %s", nameA, nameB))
	if a != b {
		a.IP(fmt.Sprintf("link set %s netns %d", nameB, b.tid))
	}
	for _, e := range []struct {
		h             *Host
		name, address string
	}{{a, nameA, addressA}, {b, nameB, addressB}} {
		if e.address != "" {
			nodad := ""
			if strings.Contains(e.address, ":") {
				nodad = " nodad"
			}
			e.h.IP(fmt.Sprintf("addr add %s dev %s%s", e.address, e.name, nodad))
		}
		e.h.IP(fmt.Sprintf("link set %s up", e.name))
	}
}
