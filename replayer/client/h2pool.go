package client

import (
	"context"
	"slices"
	"time"
)

// connect2 is a connection with room for one more stream: one that stands, or nil.
func (t *Target) connect2() *conn2 {
	t.mu.Lock()
	defer t.mu.Unlock()
	for n := len(t.free); n > 0; n = len(t.free) {
		c := t.free[n-1]
		found := c.reserve()
		if k, _ := c.room(); !found || k == 0 { // full or over: it comes back with the end of a stream
			t.free[n-1] = nil
			t.free, c.offered = t.free[:n-1], false
		}
		if found {
			return c
		}
	}
	return nil
}

// offer2 lets exchanges know of a connection that has room.
func (t *Target) offer2(c *conn2) {
	t.mu.Lock()
	if !c.offered {
		t.free, c.offered = append(t.free, c), true
	}
	t.mu.Unlock()
}

// keep2 makes a new connection known to other exchanges; with reserved, room for one stream is the caller's.
func (t *Target) keep2(c *conn2, reserved bool) {
	if reserved {
		c.mu.Lock()
		c.active++
		c.unused = time.Time{}
		c.mu.Unlock()
	}
	t.mu.Lock()
	if len(t.multi) == cap(t.multi) {
		t.multi = slices.DeleteFunc(t.multi, func(c *conn2) bool { _, ok := c.room(); return !ok })
	}
	t.multi = append(t.multi, c)
	t.mu.Unlock()
	if k, _ := c.room(); k > 0 {
		t.offer2(c)
	}
}

// warm2 opens connections until n streams have room, and closes those that are more and have not been used for long.
func (t *Target) warm2(ctx context.Context, n int) {
	t.mu.Lock()
	t.multi = slices.DeleteFunc(t.multi, func(c *conn2) bool { _, ok := c.room(); return !ok })
	multi := slices.Clone(t.multi)
	wait := time.Now().Before(t.noWarm)
	t.mu.Unlock()
	free, most := 0, h2Streams
	if t.c.o.HTTP != "2" {
		n, most = min(n, t.c.o.MaxIdle), 1
	}
	for _, c := range multi {
		k, ok := c.room()
		if ok && c.limit() == 0 { // it takes no stream now: more connections to it would only pile up
			c.retire(0)
			t.mu.Lock()
			t.noWarm, wait = time.Now().Add(time.Second), true
			t.mu.Unlock()
			continue
		}
		if !ok || free >= n && c.retire(t.c.o.IdleTimeout) {
			continue
		}
		free += k
		most = max(c.limit(), 1)
	}
	if free >= n || wait {
		return
	}
	t.openMany(ctx, (n-free+most-1)/most)
}

func (c *conn2) limit() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.most
}
