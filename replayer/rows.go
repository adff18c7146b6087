package replayer

import (
	"sync"
	"sync/atomic"

	"github.com/shadowtape/shadowtape/formats"
)

// rowQueue takes rows from every exchange without ever making one wait, and hands them to the sink from one goroutine.
type rowQueue struct {
	mu     sync.Mutex
	more   *sync.Cond
	rows   []*formats.Exchange
	closed bool
	once   sync.Once
}

func (q *rowQueue) init() { q.once.Do(func() { q.more = sync.NewCond(&q.mu) }) }

func (q *rowQueue) put(x *formats.Exchange) {
	q.init()
	q.mu.Lock()
	q.rows = append(q.rows, x)
	q.mu.Unlock()
	q.more.Signal()
}

func (q *rowQueue) close() {
	q.init()
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.more.Signal()
}

// drain writes rows until close. After the first error it writes nothing more, and calls failed.
func (q *rowQueue) drain(dst Sink, failed func()) error {
	q.init()
	var err error
	var batch []*formats.Exchange
	for {
		q.mu.Lock()
		for len(q.rows) == 0 && !q.closed {
			q.more.Wait()
		}
		batch, q.rows = q.rows, batch[:0]
		end := q.closed && len(batch) == 0
		q.mu.Unlock()
		if end {
			return err
		}
		for i, x := range batch {
			if err == nil {
				if err = dst.Write(x); err != nil {
					failed()
				}
			}
			batch[i] = nil
		}
	}
}

// storeMax raises an atomic to v.
func storeMax(a *atomic.Int64, v int64) {
	for {
		old := a.Load()
		if v <= old || a.CompareAndSwap(old, v) {
			return
		}
	}
}
