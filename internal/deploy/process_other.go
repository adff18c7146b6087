//go:build !unix

package deploy

import (
	"context"
	"errors"
	"io"
	"time"
)

// process needs process groups; where there are none, only containers can be started.
type process struct{ launch }

var errNoProcess = errors.New("a plain process can be started on Unix only: use an image")

func (*process) begin(context.Context) (string, error)          { return "", errNoProcess }
func (*process) wait() exitStatus                               { return exitStatus{} }
func (*process) stop(context.Context, time.Duration) error      { return nil }
func (*process) owns(int) bool                                  { return false }
func (*process) run(context.Context, []string, io.Writer) error { return errNoProcess }
func (*process) environment(context.Context) map[string]any     { return nil }
