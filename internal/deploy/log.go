package deploy

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
)

// boundedLog keeps a candidate's output: the first half of the limit goes to the file as it comes, the last half is kept in a ring and
// appended at close, with a line that says how much is missing between. Secrets are replaced before anything is kept. It is safe for
// concurrent use.
type boundedLog struct {
	mu      sync.Mutex
	w       io.Writer // nil: nothing is written down
	secrets [][]byte
	head    int64 // bytes that may still go to w directly
	line    []byte
	tail    []byte // last bytes after the head, at most limit/2
	half    int64
	lost    int64
	last    []string // last lines, for errors and progress
	err     error
}

const (
	defaultLogLimit = 16 << 20
	tailLines       = 20
	maxLine         = 64 << 10
)

func newBoundedLog(w io.Writer, limit int64, secrets [][]byte) *boundedLog {
	if limit == 0 {
		limit = defaultLogLimit
	}
	return &boundedLog{w: w, secrets: secrets, head: limit / 2, half: limit / 2}
}

// Write takes output in pieces of any size; it never fails, so that a full disk does not block the candidate. The first write error is
// returned by close.
func (l *boundedLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(b)
	for len(b) > 0 {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			l.line = append(l.line, b...)
			b = nil
		} else {
			l.line = append(l.line, b[:i+1]...)
			b = b[i+1:]
		}
		if i >= 0 || len(l.line) >= maxLine {
			l.flush()
		}
	}
	return n, nil
}

// flush keeps the line gathered so far. Whole lines are redacted, so a secret that arrives in two pieces is still found.
func (l *boundedLog) flush() {
	if len(l.line) == 0 {
		return
	}
	line := redact(l.line, l.secrets)
	text := strings.TrimRight(string(line), "\r\n")
	if strings.TrimSpace(text) != "" {
		l.last = append(l.last, text)
		if len(l.last) > tailLines {
			l.last = l.last[1:]
		}
	}
	if int64(len(line)) <= l.head {
		l.head -= int64(len(line))
		l.write(line)
	} else {
		l.head = 0
		l.tail = append(l.tail, line...)
		if over := int64(len(l.tail)) - l.half; over > l.half/4+maxLine { // cut seldom, a line's beginning at a time
			cut := over
			if i := bytes.IndexByte(l.tail[cut:], '\n'); i >= 0 {
				cut += int64(i) + 1
			}
			l.lost += cut
			l.tail = append(l.tail[:0:0], l.tail[cut:]...)
		}
	}
	l.line = l.line[:0]
}

func (l *boundedLog) write(b []byte) {
	if l.w == nil || l.err != nil || len(b) == 0 {
		return
	}
	_, l.err = l.w.Write(b)
}

// lines returns the last n lines.
func (l *boundedLog) lines(n int) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.last
	if rest := strings.TrimSpace(string(redact(bytes.Clone(l.line), l.secrets))); rest != "" {
		all = append(all[:len(all):len(all)], rest)
	}
	if len(all) > n {
		all = all[len(all)-n:]
	}
	return append([]string(nil), all...)
}

// close writes the kept end. Nothing may be written afterwards.
func (l *boundedLog) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flush()
	if over := int64(len(l.tail)) - l.half; over > 0 {
		l.lost += over
		l.tail = l.tail[over:]
	}
	if l.lost > 0 {
		l.write(fmt.Appendf(nil, "[shadowtape left out %d bytes here]\n", l.lost))
	}
	l.write(l.tail)
	l.tail = nil
	if l.err != nil {
		return fmt.Errorf("write the candidate's log: %w", l.err)
	}
	return nil
}
