//go:build unix

package deploy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// process runs a candidate as a plain command in a process group of its own. Every descendant inherits its mark, so that those that
// left the group are found too.
type process struct {
	launch
	cmd     *exec.Cmd
	done    chan struct{}
	err     error // of Wait; valid after done
	stopped bool
}

func (p *process) begin(context.Context) (string, error) {
	var words []string
	p.cmd, words = p.command()
	return fmt.Sprintf("http://127.0.0.1:%d", p.port), p.start(words)
}

func (p *process) start(words []string) error {
	started := make(chan error)
	p.done = make(chan struct{})
	go func() {
		// The kernel kills the candidate when the thread that started it ends, so this one lives as long as the candidate: even a
		// killed shadowtape leaves nothing running.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		dir := p.cmd.Dir
		p.cmd = nil
		if info, statErr := os.Stat(dir); dir != "" && (statErr != nil || !info.IsDir()) {
			return hinted(fmt.Errorf("%s is no directory to work in", dir), "dir names the process's working directory; default: the deployment file's")
		}
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
			return hinted(fmt.Errorf("%s: there is no such program", words[0]), "a relative path starts at the deployment file's directory, or at dir")
		}
		if errors.Is(err, os.ErrPermission) {
			return hinted(fmt.Errorf("%s: it may not be executed", words[0]), "is it a program, and executable? chmod +x")
		}
		return fmt.Errorf("run %s: %w", words[0], err)
	}
	return nil
}

func (p *process) wait() exitStatus {
	<-p.done
	return statusOf(p.err)
}

func statusOf(err error) exitStatus {
	var e *exec.ExitError
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		return exitStatus{0, "exit code 0"}
	case errors.As(err, &e):
		if s, ok := e.Sys().(syscall.WaitStatus); ok && s.Signaled() {
			return exitStatus{128 + int(s.Signal()), "killed by signal " + s.Signal().String()}
		}
		return exitStatus{e.ExitCode(), fmt.Sprintf("exit code %d", e.ExitCode())}
	default:
		return exitStatus{-1, err.Error()}
	}
}

// stop asks the group to end, and kills what is left of it and of its marked descendants after the grace.
func (p *process) stop(ctx context.Context, grace time.Duration) error {
	if p.cmd == nil || p.stopped {
		return nil
	}
	p.stopped = true
	group := p.cmd.Process.Pid
	select {
	case <-p.done: // its number may be another's by now: only the mark is safe
	default:
		syscall.Kill(-group, syscall.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(grace):
			syscall.Kill(-group, syscall.SIGKILL)
		case <-ctx.Done():
			syscall.Kill(-group, syscall.SIGKILL)
		}
	}
	for _, pid := range marked(p.id) {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(10 * time.Second):
		return fmt.Errorf("stop process %d: it does not end", group)
	}
}

// owns knows a process by its group or by the mark in its environment.
func (p *process) owns(pid int) bool {
	if p.cmd == nil {
		return false
	}
	if g, err := syscall.Getpgid(pid); err == nil && g == p.cmd.Process.Pid {
		return true
	}
	return markOf(pid) == p.id
}

func (p *process) run(ctx context.Context, words []string, out io.Writer) error {
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Dir, cmd.Env = p.cmd.Dir, p.cmd.Env
	cmd.Stdout = out
	cmd.WaitDelay = time.Second
	return cmd.Run()
}

func (p *process) environment(context.Context) map[string]any {
	env := map[string]any{"kind": "process", "command": expand(p.file.Process, p.places)}
	if b, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.cmd.Process.Pid)); err == nil {
		env["executable"] = filepath.Base(b)
		if sum, err := fileDigest(b); err == nil {
			env["executable_sha256"] = sum
		}
	}
	return env
}

// command makes the candidate's command line, environment and attributes.
func (p *process) command() (*exec.Cmd, []string) {
	words := expand(p.file.Process, p.places)
	dir := p.file.dir
	if p.file.Dir != "" {
		dir = p.file.path(p.file.Dir)
	}
	name := words[0]
	if strings.ContainsRune(name, '/') && !filepath.IsAbs(name) {
		name = filepath.Join(dir, name)
	}
	cmd := exec.Command(name, words[1:]...)
	cmd.Dir = dir
	cmd.Env = append(inherited(p.opts.Environ), p.env...)
	if len(p.opts.GPUs) > 0 {
		cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES="+strings.Join(p.opts.GPUs, ","))
	}
	cmd.Env = append(cmd.Env, Mark+"="+p.id, ownerVariable+"="+thisOwner().String())
	cmd.Stdout, cmd.Stderr = p.log, p.log
	cmd.WaitDelay = 2 * time.Second // a grandchild that keeps the pipe open does not keep us
	cmd.SysProcAttr = childAttributes()
	return cmd, words
}
