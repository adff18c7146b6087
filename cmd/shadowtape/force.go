package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/shadowtape/shadowtape/formats"
)

// notRead refuses an output that --force would remove although the verb reads it: the output is one of the inputs, or holds one.
func notRead(out string, inputs ...string) error {
	at := located(out)
	for _, in := range inputs {
		if p := located(in); p == at || strings.HasPrefix(p, at+"/") {
			return usageError(fmt.Errorf("-o %s holds %s, which is read: --force would remove it first", out, in), "another place for the result")
		}
	}
	return nil
}

// located is one name for a file, directory or prefix, whatever it is called: what does not exist is not there to be removed.
func located(name string) string {
	if formats.Remote(name) {
		return strings.TrimRight(name, "/")
	}
	p, err := filepath.Abs(name)
	if err != nil {
		return name
	}
	if _, err := os.Lstat(p); err == nil {
		if r, err := filepath.EvalSymlinks(p); err == nil {
			return filepath.ToSlash(r)
		}
	}
	return filepath.ToSlash(p)
}
