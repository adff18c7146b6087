package client

import (
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// alive looks at an unused connection: a server that has closed it, or sent what nobody asked for, makes it unfit. Under TLS bytes that
// wait to be read may be session tickets, so only its end counts.
func alive(c net.Conn, tls bool) bool {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return true
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	fit := false
	var b [1]byte
	err = rc.Read(func(fd uintptr) bool {
		if tls {
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
			n, err := unix.Poll(p, 0)
			fit = err == nil && n == 0
			return true
		}
		_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		fit = err == unix.EAGAIN
		return true
	})
	return err == nil && fit
}

// stampedConn reads a TCP connection by recvmsg, with the time at which the kernel received the newest segment of each read
// (SO_TIMESTAMPNS, socket(7)): a time that does not depend on when the reading goroutine ran.
type stampedConn struct {
	*net.TCPConn
	raw  syscall.RawConn
	try  func(fd uintptr) bool // recvmsg once; made once, so that a read allocates nothing
	msg  unix.Msghdr
	iov  unix.Iovec
	oob  [64]byte
	n    int
	err  error
	done int   // reads so far
	unix int64 // the stamp of the last read, nanoseconds since 1970; 0: none
}

// stamped asks the kernel for receive times on a connection. Where it does not give them, the connection stays as it is.
func stamped(c net.Conn) (net.Conn, stamper) {
	tc, ok := c.(*net.TCPConn)
	if !ok {
		return c, nil
	}
	raw, err := tc.SyscallConn()
	if err != nil {
		return c, nil
	}
	var set error
	if err := raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1) }); err != nil || set != nil {
		return c, nil
	}
	s := &stampedConn{TCPConn: tc, raw: raw}
	s.try = s.receive
	return s, s
}

// Read reads as net.TCPConn does, and remembers the stamp.
func (c *stampedConn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	c.into(p)
	err := c.raw.Read(c.try)
	c.iov.Base = nil
	return c.result(err)
}

// each reads into the buffer that next gives until handle, told what each read came to, returns true. It is Read again and again, but
// waits for the next bytes without asking the kernel for them first, where a read has emptied the socket: one call an event less.
func (c *stampedConn) each(next func() []byte, handle func(n int, err error) bool) {
	done := false
	err := c.raw.Read(func(fd uintptr) bool {
		for {
			p := next()
			c.into(p)
			if !c.receive(fd) {
				return false
			}
			n, err := c.result(nil)
			if done = handle(n, err); done {
				return true
			}
			if n < len(p) {
				return false // the socket is empty: what comes now wakes us
			}
		}
	})
	c.iov.Base = nil
	if !done {
		handle(c.result(err))
	}
}

func (c *stampedConn) into(p []byte) {
	c.iov.Base = &p[0]
	c.iov.SetLen(len(p))
	c.unix = 0
}

func (c *stampedConn) result(err error) (int, error) {
	switch {
	case err != nil:
		return 0, err
	case c.err != nil:
		return 0, os.NewSyscallError("recvmsg", c.err)
	case c.n == 0:
		return 0, io.EOF
	}
	return c.n, nil
}

// receive calls recvmsg once; false where there is nothing yet.
func (c *stampedConn) receive(fd uintptr) bool {
	for {
		c.msg = unix.Msghdr{Iov: &c.iov, Control: &c.oob[0]}
		c.msg.SetIovlen(1)
		c.msg.SetControllen(len(c.oob))
		n, _, e := unix.Syscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&c.msg)), 0)
		switch e {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return false
		case 0:
			c.n, c.err = int(n), nil
			c.unix = stampOf(c.oob[:min(int(c.msg.Controllen), len(c.oob))])
		default:
			c.n, c.err = 0, e
		}
		c.done++
		return true
	}
}

// stampOf finds the time in a message's control data; 0 where there is none.
func stampOf(oob []byte) int64 {
	if len(oob) < unix.CmsgSpace(int(unsafe.Sizeof(unix.Timespec{}))) {
		return 0
	}
	h := (*unix.Cmsghdr)(unsafe.Pointer(&oob[0]))
	if h.Level != unix.SOL_SOCKET || h.Type != unix.SCM_TIMESTAMPNS {
		return 0
	}
	return (*unix.Timespec)(unsafe.Pointer(&oob[unix.CmsgLen(0)])).Nano()
}

// received is the stamp of the last read.
func (c *stampedConn) received() (unixNS int64, ok bool) { return c.unix, c.unix != 0 }

// reads is how many there were.
func (c *stampedConn) reads() int { return c.done }
