package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// state is everything of a repository that a bisection leaves as it was.
func (r toy) state() string {
	r.t.Helper()
	var all []string
	for _, args := range [][]string{{"status", "--porcelain=v2", "--branch", "--ignore-submodules=none"}, {"config", "--local", "--list"}, {"worktree", "list"}, {"for-each-ref"}, {"submodule", "status"}, {"diff"}, {"stash", "list"}} {
		all = append(all, r.git(args...))
	}
	return strings.Join(all, "\n--\n")
}

// launched checks a commit out as a launch does, builds it, and removes it again; it returns what kept it from being launched.
func (r toy) launched(commit, build string) error {
	r.t.Helper()
	b := &bisection{a: &app{out: io.Discard, err: io.Discard}, o: bisectFlags{out: filepath.Join(r.t.TempDir(), "out"), file: "d.yaml", build: build}, trees: map[string]*tree{}, repo: r.dir}
	defer b.clean()
	return b.tree(r.t.Context(), commit).err
}

// TestBisectTrees: whatever the repository is like, each commit's tree is whole or it is said in a line why not, and the repository is
// afterwards as it was.
func TestBisectTrees(t *testing.T) {
	plain := func(t *testing.T) (r toy, first, last string) {
		r = newToy(t)
		write(t, filepath.Join(r.dir, "d.yaml"), simDeployment)
		return r, r.commit("c0"), r.commit("c1")
	}
	unchanged := func(r toy, do func()) {
		r.t.Helper()
		before := r.state()
		do()
		if after := r.state(); after != before {
			r.t.Errorf("before\n%s\nafter\n%s", before, after)
		}
	}
	t.Run("submodules", func(t *testing.T) {
		deep, lib := newToy(t), newToy(t)
		deep.commit("deepest")
		lib.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", "--name", "a name", deep.dir, "deep")
		lib.commit("one")
		r := newToy(t)
		write(t, filepath.Join(r.dir, "d.yaml"), simDeployment)
		r.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", lib.dir, "sub dir/lib")
		r.git("-c", "protocol.file.allow=always", "submodule", "update", "-q", "--init", "--recursive")
		first := r.commit("c0")
		lib.commit("two")
		inside := toy{t, filepath.Join(r.dir, "sub dir/lib")}
		inside.git("-c", "protocol.file.allow=always", "pull", "-q", "origin", "main")
		last := r.commit("c1")
		if err := os.RemoveAll(lib.dir); err != nil { // nothing is fetched
			t.Fatal(err)
		}
		unchanged(r, func() {
			if err := r.launched(first, `test -e "sub dir/lib/one" -a -e "sub dir/lib/deep/deepest" -a ! -e "sub dir/lib/two"`); err != nil {
				t.Error(err)
			}
			if err := r.launched(last, `test -e "sub dir/lib/two"`); err != nil {
				t.Error(err)
			}
		})
		r.git("submodule", "deinit", "-q", "--all", "--force")
		if err := os.RemoveAll(filepath.Join(r.dir, ".git", "modules")); err != nil {
			t.Fatal(err)
		}
		unchanged(r, func() {
			if err := r.launched(last, "true"); err != nil {
				t.Errorf("a build that needs none: %v", err)
			}
			if err := r.launched(last, "echo no lib; exit 3"); err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "exit status 3: no lib (its tree lacks the submodules sub dir/lib") {
				t.Errorf("%v", err)
			}
		})
	})
	t.Run("a worktree", func(t *testing.T) {
		r, first, last := plain(t)
		other := toy{t, filepath.Join(t.TempDir(), "other")}
		r.git("worktree", "add", "-q", other.dir, first)
		unchanged(other, func() {
			unchanged(r, func() {
				if err := other.launched(last, "test -e c1"); err != nil {
					t.Error(err)
				}
			})
		})
	})
	t.Run("a submodule's own repository", func(t *testing.T) {
		lib, _, last := plain(t)
		r := newToy(t)
		r.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", lib.dir, "lib")
		r.commit("c0")
		inside := toy{t, filepath.Join(r.dir, "lib")}
		unchanged(inside, func() {
			unchanged(r, func() {
				if err := inside.launched(last, "test -e c1"); err != nil {
					t.Error(err)
				}
			})
		})
	})
	t.Run("called by a hook", func(t *testing.T) {
		r, first, last := plain(t)
		write(t, filepath.Join(r.dir, "c1"), "staged")
		r.git("add", "c1")
		write(t, filepath.Join(r.dir, "c1"), "changed")
		unchanged(r, func() {
			t.Setenv("GIT_DIR", filepath.Join(r.dir, ".git"))
			t.Setenv("GIT_INDEX_FILE", filepath.Join(r.dir, ".git", "index"))
			t.Setenv("GIT_WORK_TREE", r.dir)
			if err := r.launched(first, "test ! -e c1 && git status"); err != nil {
				t.Error(err)
			}
			if err := r.launched(last, `test "$(cat c1)" = c1`); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("trees of a call that was killed, and removed by hand", func(t *testing.T) {
		r, first, _ := plain(t)
		b := &bisection{a: &app{out: io.Discard, err: io.Discard}, o: bisectFlags{out: filepath.Join(t.TempDir(), "out"), file: "d.yaml"}, repo: r.dir}
		for range 2 { // the second finds the first's, the third git's notes on it
			b.trees = map[string]*tree{}
			if x := b.tree(t.Context(), first); x.err != nil {
				t.Fatal(x.err)
			}
		}
		if err := os.RemoveAll(b.o.out); err != nil {
			t.Fatal(err)
		}
		b.trees = map[string]*tree{}
		if x := b.tree(t.Context(), first); x.err != nil {
			t.Fatal(x.err)
		}
		if b.clean(); strings.Contains(r.git("worktree", "list"), "\n") {
			t.Error("a worktree is left")
		}
	})
}

// TestBisectRefusesRepositories: what cannot be searched is refused in one line, before anything is launched, and nothing is changed.
func TestBisectRefusesRepositories(t *testing.T) {
	trace := shortTrace(t)
	r := newToy(t)
	write(t, filepath.Join(r.dir, "d.yaml"), simDeployment)
	first := r.commit("c0")
	r.commit("c1")
	r.git("checkout", "-q", "--orphan", "apart")
	apart := r.commit("other")
	r.git("checkout", "-q", "main")
	shallow := filepath.Join(t.TempDir(), "shallow")
	r.git("clone", "-q", "--depth", "1", "--branch", "main", "file://"+r.dir, shallow)
	bare := filepath.Join(t.TempDir(), "bare.git")
	r.git("clone", "-q", "--bare", r.dir, bare)
	empty := filepath.Join(t.TempDir(), "empty")
	r.git("init", "-q", empty)
	for _, c := range []struct{ name, dir, good, bad, want string }{
		{"a shallow clone", shallow, first, "HEAD", "git fetch --unshallow"},
		{"a shallow clone that has both, and nothing between", shallow, "HEAD", "HEAD", "holds no commit"},
		{"no commit in common", r.dir, apart, "main", "have no commit in common"},
		{"swapped ends", r.dir, "main", first, "swapped"},
		{"no working tree", bare, first, "main", "must be run in a work tree"},
		{"no repository", t.TempDir(), first, "main", "not a git repository"},
		{"no commit at all", empty, "HEAD~1", "HEAD", "is no commit"},
		{"an option for a commit", r.dir, "--all", "main", "is no commit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Chdir(c.dir)
			t.Setenv("GIT_CEILING_DIRECTORIES", filepath.Dir(c.dir))
			before, err := os.ReadDir(c.dir)
			if err != nil {
				t.Fatal(err)
			}
			var o, e bytes.Buffer
			code := run(t.Context(), []string{"bisect", "--good", c.good, "--bad", c.bad, "--deploy", "d.yaml", "--trace", trace, "-o", filepath.Join(c.dir, "out")}, strings.NewReader(""), &o, &e)
			after, err := os.ReadDir(c.dir)
			if err != nil {
				t.Fatal(err)
			}
			if lines := strings.Split(strings.TrimSpace(e.String()), "\n"); code == exitGood || !strings.Contains(e.String(), c.want) || len(lines) > 2 || o.Len() > 0 {
				t.Errorf("exit %d: %s%s", code, o.String(), e.String())
			}
			if len(before) != len(after) {
				t.Errorf("%v has become %v", before, after)
			}
		})
	}
}
