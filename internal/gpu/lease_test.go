//go:build unix

package gpu

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestMain lets the test binary be run again as a second process that holds a lease until its input ends, or opens the machine's library.
func TestMain(m *testing.M) {
	if os.Getenv("TEST_LIBRARY") != "" {
		tellLibrary()
		os.Exit(0)
	}
	if dir := os.Getenv("TEST_HOLD"); dir != "" {
		l, err := Acquire(context.Background(), strings.Split(os.Getenv("TEST_GPUS"), ","), LeaseOptions{Dir: dir, Holder: "alice, shadowtape replay"})
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		fmt.Println("held")
		bufio.NewReader(os.Stdin).ReadString('\n')
		l.Release()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// hold leases GPUs from another process and returns it and what ends its hold orderly.
func hold(t *testing.T, dir string, uuids ...string) (*exec.Cmd, func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "TEST_HOLD="+dir, "TEST_GPUS="+strings.Join(uuids, ","))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "held\n" {
		t.Fatalf("%q %v", line, err)
	}
	return cmd, func() { in.Write([]byte("\n")) }
}

func TestSecondSaysWho(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "locks")
	cmd, _ := hold(t, dir, "GPU-a", "GPU-b")
	_, err := Acquire(t.Context(), []string{"GPU-c", "GPU-b"}, LeaseOptions{Dir: dir})
	var busy *BusyError
	if !errors.As(err, &busy) || busy.UUID != "GPU-b" || busy.Holder.PID != cmd.Process.Pid || busy.Holder.Holder != "alice, shadowtape replay" ||
		time.Since(busy.Holder.Since) > time.Minute || busy.Holder.Host == "" {
		t.Fatalf("%v", err)
	}
	if !strings.Contains(err.Error(), fmt.Sprintf("GPU GPU-b is held by alice, shadowtape replay (process %d on ", cmd.Process.Pid)) || strings.Contains(err.Error(), "\n") {
		t.Error(err)
	}
	// All or none: GPU-c is free again.
	if h, held, err := HolderOf(dir, "GPU-c"); held || err != nil {
		t.Errorf("%v %t %v", h, held, err)
	}
	if h, held, err := HolderOf(dir, "GPU-a"); !held || err != nil || h.PID != cmd.Process.Pid {
		t.Errorf("%v %t %v", h, held, err)
	}
	if _, held, err := HolderOf(dir, "GPU-never"); held || err != nil {
		t.Errorf("%t %v", held, err)
	}
	// A killed holder holds nothing.
	cmd.Process.Kill()
	cmd.Wait()
	l, err := Acquire(t.Context(), []string{"GPU-b", "GPU-a"}, LeaseOptions{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Release(); err != nil || l.Release() != nil {
		t.Error(err)
	}
	if _, held, _ := HolderOf(dir, "GPU-a"); held {
		t.Error("released, and held")
	}
}

func TestWait(t *testing.T) {
	dir := t.TempDir()
	cmd, release := hold(t, dir, "GPU-a")
	var told []string
	done := make(chan error, 1)
	go func() {
		l, err := Acquire(t.Context(), []string{"GPU-a"}, LeaseOptions{Dir: dir, Wait: true, Every: 5 * time.Millisecond, Told: func(err error) {
			told = append(told, err.Error())
			release()
		}})
		if err == nil {
			err = l.Release()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if len(told) == 0 || !strings.Contains(told[0], fmt.Sprint(cmd.Process.Pid)) {
		t.Errorf("told %q", told)
	}
	hold(t, dir, "GPU-a")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	var busy *BusyError
	if _, err := Acquire(ctx, []string{"GPU-a"}, LeaseOptions{Dir: dir, Wait: true, Every: time.Millisecond}); !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &busy) {
		t.Error(err)
	}
}

func TestAcquireAny(t *testing.T) {
	dir := t.TempDir()
	all := []string{"GPU-a", "GPU-b", "GPU-c"}
	_, release := hold(t, dir, "GPU-b")
	l, err := AcquireAny(t.Context(), all, 2, LeaseOptions{Dir: dir})
	if err != nil || strings.Join(l.UUIDs, " ") != "GPU-a GPU-c" {
		t.Fatalf("%v %v", l, err)
	}
	var busy *BusyError
	if _, err := AcquireAny(t.Context(), all, 1, LeaseOptions{Dir: dir}); !errors.As(err, &busy) {
		t.Error(err)
	}
	l.Release()
	l, err = AcquireAny(t.Context(), all, 3, LeaseOptions{Dir: dir, Wait: true, Every: time.Millisecond, Told: func(error) { release() }})
	if err != nil || len(l.UUIDs) != 3 {
		t.Fatal(err)
	}
	l.Release()
	for _, want := range []int{0, 4} {
		if _, err := AcquireAny(t.Context(), all, want, LeaseOptions{Dir: dir}); err == nil {
			t.Errorf("%d of 3 were leased", want)
		}
	}
}

// Many at once, in every order: never two holders, never a deadlock.
func TestLeaseExcludes(t *testing.T) {
	dir := t.TempDir()
	var mu sync.Mutex
	holders := map[string]int{}
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			ids := []string{"GPU-a", "GPU-b", "GPU-c"}
			ids[0], ids[i%3] = ids[i%3], ids[0]
			for range 20 {
				l, err := Acquire(t.Context(), ids[:2], LeaseOptions{Dir: dir, Wait: true, Every: time.Millisecond})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, id := range l.UUIDs {
					if holders[id]++; holders[id] > 1 {
						t.Errorf("%s has %d holders", id, holders[id])
					}
				}
				mu.Unlock()
				HolderOf(dir, "GPU-c")
				mu.Lock()
				for _, id := range l.UUIDs {
					holders[id]--
				}
				mu.Unlock()
				l.Release()
			}
		})
	}
	wg.Wait()
}

func TestLeaseRefuses(t *testing.T) {
	dir := t.TempDir()
	for _, ids := range [][]string{nil, {"GPU-a", "GPU-a"}, {"../../etc/passwd"}, {""}} {
		if _, err := Acquire(t.Context(), ids, LeaseOptions{Dir: dir}); err == nil {
			t.Errorf("%q were leased", ids)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Acquire(t.Context(), []string{"GPU-a"}, LeaseOptions{Dir: filepath.Join(dir, "file")}); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Error(err)
	}
	// A link planted in the shared directory is not followed.
	victim := filepath.Join(dir, "victim")
	os.WriteFile(victim, []byte("precious"), 0o600)
	os.Symlink(victim, filepath.Join(dir, "gpu-x.lock"))
	if _, err := Acquire(t.Context(), []string{"GPU-x"}, LeaseOptions{Dir: dir}); err == nil {
		t.Error("a link was followed")
	}
	if b, _ := os.ReadFile(victim); string(b) != "precious" {
		t.Errorf("the link's target holds %q", b)
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		t.Error(err)
	}
	shared := filepath.Join(dir, "shared")
	l, err := Acquire(t.Context(), []string{"GPU-a"}, LeaseOptions{Dir: shared})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	d, _ := os.Stat(shared)
	f, _ := os.Stat(filepath.Join(shared, "gpu-a.lock"))
	if d.Mode().Perm() != 0o777 || d.Mode()&os.ModeSticky == 0 || f.Mode().Perm() != 0o666 {
		t.Errorf("modes %v %v: another user could not lock", d.Mode(), f.Mode())
	}
}
