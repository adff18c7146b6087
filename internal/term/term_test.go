package term

import (
	"bytes"
	"strings"
	"sync"
	"testing"

	"github.com/vbauerster/mpb/v8"
)

func TestNothingWithoutATerminal(t *testing.T) {
	var out bytes.Buffer
	b := NewBar(&out, 10, func() (int64, string) { return 5, "half" })
	b.End()
	if out.Len() != 0 || b != nil {
		t.Errorf("a buffer got %q", out.String())
	}
	if Is(&out) || Color(&out, func(string) string { return "" }) || Width(&out) != Columns {
		t.Error("a buffer is taken for a terminal")
	}
}

func TestBarSaysWhatItIsTold(t *testing.T) {
	var mu sync.Mutex
	n := int64(0)
	var out bytes.Buffer
	b := newBar(&out, 80, 10, func() (int64, string) {
		mu.Lock()
		defer mu.Unlock()
		n++
		return n, "sent 7 failed 2"
	}, mpb.WithAutoRefresh())
	b.End()
	if s := out.String(); !strings.Contains(s, "sent 7 failed 2") {
		t.Errorf("drew %q", s)
	}
}
