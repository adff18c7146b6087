package term

import (
	"io"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// Bar is one line of progress. The zero value and nil show nothing.
type Bar struct {
	progress *mpb.Progress
	bar      *mpb.Bar
	stop     chan struct{}
	done     sync.WaitGroup
}

// NewBar starts a bar on w, if w is a terminal; otherwise it returns nil, which may be used all the same. Several times a second done
// is asked how much of total is done and what to say behind the bar; it must be safe to call from another goroutine. End ends it.
func NewBar(w io.Writer, total int64, done func() (n int64, says string)) *Bar {
	if !Is(w) {
		return nil
	}
	return newBar(Raw(w), Width(w), total, func() (int64, string) { n, s := done(); return n, Clean(s) })
}

func newBar(w io.Writer, width int, total int64, done func() (int64, string), o ...mpb.ContainerOption) *Bar {
	b := &Bar{stop: make(chan struct{})}
	o = append([]mpb.ContainerOption{mpb.WithOutput(w), mpb.WithWidth(min(width/4, 24)), mpb.WithRefreshRate(200 * time.Millisecond)}, o...)
	b.progress = mpb.New(o...)
	b.bar = b.progress.New(total, mpb.BarStyle().Lbound("[").Filler("=").Tip(">").Padding(" ").Rbound("]"),
		mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { _, s := done(); return " " + s })))
	b.done.Go(func() {
		t := time.NewTicker(200 * time.Millisecond)
		defer t.Stop()
		for {
			n, _ := done()
			b.bar.SetCurrent(min(n, total-1)) // mpb ends a bar that is full; End does that
			select {
			case <-t.C:
			case <-b.stop:
				return
			}
		}
	})
	return b
}

// End draws the bar a last time and leaves it standing.
func (b *Bar) End() {
	if b == nil || b.bar == nil {
		return
	}
	close(b.stop)
	b.done.Wait()
	b.bar.EnableTriggerComplete()
	b.bar.SetTotal(-1, true)
	b.progress.Wait()
}
