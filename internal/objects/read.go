package objects

import (
	"container/list"
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"
)

const (
	blockSize   = 1 << 20 // what one ranged request asks for
	cacheBlocks = 64      // what all readers of a service hold together
	readTries   = 4       // of a block whose answer broke off
)

// reader reads an object in blocks by ranged requests, and refuses one that was replaced meanwhile.
type reader struct {
	st        *store
	key, etag string
	size      int64
}

func (r *reader) Size() int64  { return r.size }
func (r *reader) Close() error { return nil }

// ReadAt is io.ReaderAt.
func (r *reader) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, fmt.Errorf("read at %d", off)
	}
	for n < len(p) {
		if off >= r.size {
			return n, io.EOF
		}
		i := off / blockSize
		b, err := r.st.s.cache.get(blockID{r.st.bucket, r.key, r.etag, i}, func() ([]byte, error) { return r.fetch(i) })
		if err != nil {
			return n, err
		}
		k := copy(p[n:], b[off-i*blockSize:])
		n, off = n+k, off+int64(k)
	}
	return n, nil
}

// fetch gets one block. The client repeats a request that is refused for a while; here one whose body breaks off is.
func (r *reader) fetch(i int64) ([]byte, error) {
	from := i * blockSize
	b := make([]byte, min(blockSize, r.size-from))
	var err error
	for try := range readTries {
		if try > 0 {
			select {
			case <-time.After(time.Duration(try) * 200 * time.Millisecond):
			case <-r.st.s.ctx.Done():
			}
		}
		if err = r.once(b, from); err == nil {
			return b, nil
		}
		if e := r.st.explain(err); e != err || r.st.s.ctx.Err() != nil { // an answer of the service is one
			return nil, e
		}
	}
	return nil, fmt.Errorf("read %s at %d: %w", r.key, from, err)
}

func (r *reader) once(b []byte, from int64) error {
	ctx, cancel := context.WithTimeout(r.st.s.ctx, patience)
	defer cancel()
	var o minio.GetObjectOptions
	if err := o.SetRange(from, from+int64(len(b))-1); err != nil {
		return err
	}
	if err := o.SetMatchETag(r.etag); err != nil {
		return err
	}
	body, _, _, err := minio.Core{Client: r.st.c}.GetObject(ctx, r.st.bucket, r.key, o)
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.ReadFull(body, b)
	return err
}

// blockID names a block of one version of an object.
type blockID struct {
	bucket, key, etag string
	i                 int64
}

// cache keeps the blocks that were used last, and lets one caller fetch what several want. Its size bounds what reading holds, however
// many objects are open.
type cache struct {
	mu     sync.Mutex
	blocks map[blockID]*list.Element // of *block
	recent *list.List                // the latest in front
}

type block struct {
	id    blockID
	ready chan struct{} // closed when data or err stands
	data  []byte
	err   error
}

func newCache() *cache { return &cache{blocks: map[blockID]*list.Element{}, recent: list.New()} }

func (c *cache) get(id blockID, fetch func() ([]byte, error)) ([]byte, error) {
	c.mu.Lock()
	if e, ok := c.blocks[id]; ok {
		c.recent.MoveToFront(e)
		c.mu.Unlock()
		b := e.Value.(*block)
		<-b.ready
		return b.data, b.err
	}
	b := &block{id: id, ready: make(chan struct{})}
	e := c.recent.PushFront(b)
	c.blocks[id] = e
	for c.recent.Len() > cacheBlocks {
		c.drop(c.recent.Back())
	}
	c.mu.Unlock()
	b.data, b.err = fetch()
	close(b.ready)
	if b.err != nil { // the next caller tries again
		c.mu.Lock()
		if c.blocks[id] == e {
			c.drop(e)
		}
		c.mu.Unlock()
	}
	return b.data, b.err
}

func (c *cache) drop(e *list.Element) {
	c.recent.Remove(e)
	delete(c.blocks, e.Value.(*block).id)
}
