package replayer

import (
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/shadowtape/shadowtape/formats"
)

// rowQueue takes rows from every exchange without ever making one wait, and hands them to the sink from one goroutine. Where the sink
// does not keep up it holds most bytes at most, and what comes then is lost and counted: to wait would be to change the load.
type rowQueue struct {
	most   int64
	mu     sync.Mutex
	more   *sync.Cond
	rows   []*formats.Exchange
	held   int64 // bytes of the rows that are not written
	lost   int64 // rows
	closed bool
}

func newRowQueue(most int64) *rowQueue {
	q := &rowQueue{most: most}
	q.more = sync.NewCond(&q.mu)
	return q
}

var rowSize = int64(reflect.TypeFor[formats.Exchange]().Size())

// rowBytes is about what a row holds in memory: itself, and its lists with what they have grown to.
func rowBytes(x *formats.Exchange) int64 {
	return rowSize + 8*int64(cap(x.PrefixBlocks)+cap(x.ChoiceOutputTokens)) + 4*int64(cap(x.EventGapUS)+cap(x.EventTokens)+cap(x.EventChoice)+cap(x.EventFlags)) + 64*int64(len(x.TemplateFlags)+len(x.ExtraParams))
}

func (q *rowQueue) put(x *formats.Exchange) {
	n := rowBytes(x)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.held > 0 && q.held+n > q.most {
		q.lost++
		return
	}
	q.held += n
	q.rows = append(q.rows, x)
	q.more.Signal()
}

func (q *rowQueue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.more.Signal()
}

// drain writes rows until close. After the first error it writes nothing more, and calls failed.
func (q *rowQueue) drain(dst Sink, failed func()) error {
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
			n := rowBytes(x) // the sink may take its lists
			if err == nil {
				if err = dst.Write(x); err != nil {
					failed()
				}
			}
			batch[i] = nil
			q.mu.Lock()
			q.held -= n
			q.mu.Unlock()
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
