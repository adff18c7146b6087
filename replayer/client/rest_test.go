package client

import "testing"

// A connection that waits idle holds no read buffer, unless it holds bytes that nobody asked for, or one that has grown.
func TestIdleConnectionsHoldNoBuffer(t *testing.T) {
	c := &conn{}
	if p := c.room(); len(p) != readBytes {
		t.Fatalf("room of %d bytes", len(p))
	}
	c.w = 7
	if c.rest(); c.buf == nil {
		t.Error("unread bytes are lost")
	}
	c.r = 7
	if c.rest(); c.buf != nil || c.r != 0 || c.w != 0 {
		t.Errorf("%d bytes are held, %d to %d", len(c.buf), c.r, c.w)
	}
	if p := c.room(); len(p) != readBytes {
		t.Errorf("room of %d bytes afterwards", len(p))
	}
	c.w = readBytes
	if c.room(); len(c.buf) != 2*readBytes {
		t.Fatalf("a head that is too long has %d bytes", len(c.buf))
	}
	c.r = c.w
	if c.rest(); c.buf == nil {
		t.Error("a buffer of another size went to the pool")
	}
}
