package ring

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shadowtape/shadowtape/recorder/netlab"
)

// TestAsChild is the body of the processes that the tests below start; by itself it does nothing.
func TestAsChild(t *testing.T) {
	switch os.Getenv("RING_TEST_CHILD") {
	case "open":
		_, err := Open(Options{Interface: "lo", Bytes: MinBytes})
		fmt.Printf("permission=%t %v\n", errors.Is(err, ErrPermission), err)
	case "drop":
		rings, err := Open(Options{Interface: "lo", Filter: Ports(8000), Bytes: MinBytes})
		if err != nil {
			fmt.Println(err)
			return
		}
		for range 4 { // threads that the drop must reach as well
			go func() { time.Sleep(100 * time.Millisecond) }()
		}
		if err := DropPrivileges(); errors.Is(err, syscall.ENOTSUP) {
			fmt.Println("cgo permission=")
			return
		} else if err != nil {
			fmt.Println(err)
			return
		}
		held := capabilities() // before /proc of this process is closed to it
		if err := NoCoreDumps(); err != nil {
			fmt.Println(err)
			return
		}
		_, err = Open(Options{Interface: "lo", Bytes: MinBytes})
		n, readErr := rings[0].Read(context.Background(), time.Millisecond, func(*Packet) {})
		var limit unix.Rlimit
		unix.Getrlimit(unix.RLIMIT_CORE, &limit)
		dumpable, _ := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
		fmt.Printf("capabilities=%s permission=%t read=%d %v core=%d dumpable=%d\n", held, errors.Is(err, ErrPermission), n, readErr, limit.Max, dumpable)
	}
}

// capabilities lists the distinct effective and permitted sets of all threads.
func capabilities() string {
	distinct := map[string]bool{}
	tasks, _ := filepath.Glob("/proc/self/task/*/status")
	for _, name := range tasks {
		b, err := os.ReadFile(name)
		if err != nil {
			return err.Error()
		}
		for line := range strings.Lines(string(b)) {
			if strings.HasPrefix(line, "CapEff") || strings.HasPrefix(line, "CapPrm") {
				distinct[strings.Fields(line)[1]] = true
			}
		}
	}
	var all []string
	for c := range distinct {
		all = append(all, c)
	}
	return strings.Join(all, "+")
}

// child runs TestAsChild as a user without privileges but the given ones, in a namespace of its own.
func child(t *testing.T, what string, uid uint32, ambient ...uintptr) string {
	t.Helper()
	netlab.Need(t)
	dir, err := os.MkdirTemp("", "ring")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	name := filepath.Join(dir, "child")
	copied, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(copied, self); err != nil {
		t.Fatal(err)
	}
	if err := copied.Close(); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(name, "-test.run=^TestAsChild$", "-test.v")
	c.Dir = dir
	c.Env = []string{"RING_TEST_CHILD=" + what}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}, AmbientCaps: ambient, Cloneflags: syscall.CLONE_NEWNET}
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "permission=") {
			return strings.TrimSpace(line)
		}
	}
	return string(out)
}

func TestOnlyNetRaw(t *testing.T) {
	if got := child(t, "open", 65534); !strings.Contains(got, "permission=true") || !strings.Contains(got, "it needs CAP_NET_RAW") {
		t.Errorf("without capabilities: %s", got)
	}
	if got := child(t, "open", 65534, unix.CAP_NET_RAW); !strings.Contains(got, "permission=false <nil>") {
		t.Errorf("with CAP_NET_RAW only: %s", got)
	}
}

func TestDropPrivileges(t *testing.T) {
	for uid, ambient := range map[uint32][]uintptr{0: nil, 65534: {unix.CAP_NET_RAW}} {
		got := child(t, "drop", uid, ambient...)
		if strings.HasPrefix(got, "cgo") {
			t.Skip("SKIPPED: privileges are dropped from all threads only in a binary without cgo: CGO_ENABLED=0 go test ./recorder/ring")
		}
		if !strings.Contains(got, "capabilities=0000000000000000 ") {
			t.Errorf("uid %d keeps capabilities: %s", uid, got)
		}
		if !strings.Contains(got, "permission=true read=0 <nil> core=0 dumpable=0") {
			t.Errorf("uid %d: %s", uid, got)
		}
	}
}
