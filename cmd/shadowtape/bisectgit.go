package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// culprit is what `git bisect run` has found.
type culprit struct {
	Commit string   // the first bad commit
	Before string   // a good one before it: its first parent where that could be measured, else the nearest that is known to be good
	Unsure []string // commits that could not be measured: any of them may be it too
}

// gitSearch lets git search the first bad commit after good: in a worktree of its own, so that what is checked out stays as it is. step is the
// command that classifies what git checks out, with the exit codes of `git bisect run`. told gets what git and the steps say; the search's log,
// which `git bisect replay` takes, is left beside the worktree.
func gitSearch(ctx context.Context, repo, tree, good, bad string, firstParent bool, step []string, told io.Writer) (c culprit, err error) {
	fresh := func() { // of this call or of an interrupted one; git's notes on a bisection belong to its worktree
		git(context.WithoutCancel(ctx), repo, "worktree", "remove", "--force", tree)
	}
	fresh()
	if _, err := git(ctx, repo, "worktree", "add", "--detach", tree, bad); err != nil {
		return c, err
	}
	defer fresh()
	start := []string{"bisect", "start"}
	if firstParent {
		start = append(start, "--first-parent")
	}
	if _, err := git(ctx, tree, append(start, bad, good)...); err != nil {
		return c, err
	}
	run := exec.CommandContext(ctx, "git", append([]string{"bisect", "run"}, step...)...)
	run.Dir, run.Env = tree, gitEnvironment()
	var said tail
	both := io.MultiWriter(told, &said) // one writer for both: they come in order
	run.Stdout, run.Stderr = both, both
	run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // git does not pass on a signal: the step has to hear of it too, and ends its server
	run.Cancel = func() error { return syscall.Kill(-run.Process.Pid, syscall.SIGINT) }
	runErr := run.Run()
	if err := ctx.Err(); err != nil {
		return c, err
	}
	if log, err := git(ctx, tree, "bisect", "log"); err == nil {
		if err := os.WriteFile(tree+".log", []byte(log+"\n"), 0o644); err != nil {
			return c, err
		}
	}
	var exit *exec.ExitError
	onlySkipped := errors.As(runErr, &exit) && exit.ExitCode() == 2
	if runErr != nil && !onlySkipped {
		return c, fmt.Errorf("git bisect run: %w: %s", runErr, said.last())
	}
	if c.Commit, err = git(ctx, tree, "rev-parse", "--verify", "refs/bisect/bad"); err != nil {
		return c, err
	}
	if onlySkipped {
		list := []string{"rev-list", "refs/bisect/bad", "--not", "--glob=refs/bisect/good-*"}
		if firstParent {
			list = slices.Insert(list, 1, "--first-parent")
		}
		left, err := git(ctx, tree, list...)
		if err != nil {
			return c, err
		}
		c.Unsure = slices.DeleteFunc(strings.Fields(left), func(s string) bool { return s == c.Commit })
	}
	c.Before, err = goodBefore(ctx, tree, c)
	return c, err
}

// goodBefore is the commit to hold the culprit against.
func goodBefore(ctx context.Context, tree string, c culprit) (string, error) {
	if parent, err := git(ctx, tree, "rev-parse", "--verify", "--quiet", c.Commit+"^1"); err == nil && !slices.Contains(c.Unsure, parent) {
		return parent, nil
	}
	goods, err := git(ctx, tree, "for-each-ref", "--format=%(objectname)", "refs/bisect/good-*")
	if err != nil {
		return "", err
	}
	nearest, least := "", 0
	for _, g := range strings.Fields(goods) {
		if _, err := git(ctx, tree, "merge-base", "--is-ancestor", g, c.Commit); err != nil {
			continue
		}
		between, err := git(ctx, tree, "rev-list", g+".."+c.Commit)
		if err != nil {
			return "", err
		}
		if n := len(strings.Fields(between)); nearest == "" || n < least {
			nearest, least = g, n
		}
	}
	if nearest == "" {
		return "", errors.New("no commit before it is known to be good")
	}
	return nearest, nil
}

// tail keeps the end of what is written to it.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	t.b = t.b[max(0, len(t.b)-4096):]
	return len(p), nil
}

// last is the last line.
func (t *tail) last() string {
	lines := strings.Split(strings.TrimSpace(string(t.b)), "\n")
	return lines[len(lines)-1]
}

// commitOf resolves what a flag names.
func commitOf(ctx context.Context, repo, flag, ref string) (string, error) {
	commit, err := git(ctx, repo, "rev-parse", "--verify", "--quiet", "--end-of-options", ref+"^{commit}")
	if err != nil {
		return "", withHint(fmt.Errorf("bisect: %s %q is no commit of %s", flag, ref, filepath.Base(repo)), "git log --oneline lists them; a shallow clone has only the last: git fetch --unshallow")
	}
	return commit, nil
}

// fillSubmodules checks out in a worktree the submodules that the repository itself has, out of its own copies of them: nothing is fetched,
// and its configuration stays as it is. It returns the paths of the others.
func fillSubmodules(ctx context.Context, repo, tree string) (missing []string, err error) {
	staged, err := git(ctx, tree, "ls-files", "--stage")
	if err != nil || !strings.HasPrefix(staged, "160000 ") && !strings.Contains(staged, "\n160000 ") {
		return nil, err
	}
	common, err := git(ctx, repo, "rev-parse", "--path-format=absolute", "--git-common-dir")
	if err != nil {
		return nil, err
	}
	listed, err := git(ctx, tree, "config", "--null", "--file", ".gitmodules", "--get-regexp", `^submodule\..*\.path$`)
	if err != nil {
		return nil, fmt.Errorf("its .gitmodules: %w", err)
	}
	for entry := range strings.SplitSeq(strings.TrimRight(listed, "\x00"), "\x00") {
		name, path, _ := strings.Cut(entry, "\n")
		name = strings.TrimSuffix(strings.TrimPrefix(name, "submodule."), ".path")
		own := filepath.Join(common, "modules", filepath.FromSlash(name))
		if _, err := os.Stat(own); err != nil {
			missing = append(missing, path)
			continue
		}
		if _, err := git(ctx, tree, "-c", "submodule."+name+".url="+own, "-c", "protocol.file.allow=always", "submodule", "update", "--init", "--", path); err != nil {
			return nil, fmt.Errorf("submodule %s: %w", path, err)
		}
		below, err := fillSubmodules(ctx, filepath.Join(repo, path), filepath.Join(tree, path))
		if err != nil {
			return nil, fmt.Errorf("submodule %s: %w", path, err)
		}
		for _, m := range below {
			missing = append(missing, path+"/"+m)
		}
	}
	return missing, nil
}

// gitEnvironment is the environment without what a hook of git's sets: it would name another repository, or another index, than the directory
// does.
func gitEnvironment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		switch name {
		case "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE", "GIT_QUARANTINE_PATH":
			return true
		}
		return false
	})
}

// git runs git in a directory and returns its answer.
func git(ctx context.Context, dir string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, "git", args...)
	c.Dir, c.Env = dir, gitEnvironment()
	var errs strings.Builder
	c.Stderr = io.Writer(&errs)
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, oneLine(errs.String()))
	}
	return strings.TrimSpace(string(out)), nil
}
