package main

import (
	"bytes"
	"container/heap"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"syscall"
	"time"
)

// evenLoad is server and clients of TestBenchProxy in one thread that never sleeps: events leave one by one, as they are due, and are read
// as they come. So what is measured is the way, and neither the turns that processes take on a processor nor the bursts that these make.
type evenLoad struct {
	epoll, listener int
	streams         []evenStream
	server          map[int]*evenConn // by descriptor: the server's ends of connections
	client          map[int]int       // by descriptor: the streams
	due             evenQueue
	end             time.Time
	times           benchTimes
	buffer          []byte
}

// evenConn is a connection of the server's: a proxy may use any for any stream.
type evenConn struct {
	fd      int
	request []byte
}

type evenStream struct {
	fd     int
	sent   int64 // the request, as of now
	tokens int
	rest   []byte // of a line
}

// evenEvent is what is due: a stream's request where server is nil, else an event of an answer.
type evenEvent struct {
	at     int64
	stream int
	server *evenConn
	had    int64
	token  int
}

type evenQueue []evenEvent

func (q evenQueue) Len() int           { return len(q) }
func (q evenQueue) Less(i, j int) bool { return q[i].at < q[j].at }
func (q evenQueue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *evenQueue) Push(e any)        { *q = append(*q, e.(evenEvent)) }
func (q *evenQueue) Pop() any {
	e := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return e
}

const (
	evenGap    = 50 * time.Millisecond
	evenTokens = 40
)

// runEven asks front, behind which the server's address is, for streams until length has passed.
func runEven(server, front string, streams int, length time.Duration) (*benchTimes, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	e := &evenLoad{server: map[int]*evenConn{}, client: map[int]int{}, buffer: make([]byte, 64<<10)}
	var err error
	if e.listener, err = evenSocket(server, func(fd int, a syscall.Sockaddr) error {
		_ = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
		return errors.Join(syscall.Bind(fd, a), syscall.Listen(fd, 4096))
	}); err != nil {
		return nil, err
	}
	defer syscall.Close(e.listener)
	if e.epoll, err = syscall.EpollCreate1(0); err != nil {
		return nil, err
	}
	defer syscall.Close(e.epoll)
	if err := e.add(e.listener); err != nil {
		return nil, err
	}
	defer func() {
		for fd := range e.server {
			syscall.Close(fd)
		}
	}()
	now := time.Now()
	e.end = now.Add(time.Second + length)
	for i := range streams {
		fd, err := evenSocket(front, syscall.Connect)
		if err != nil {
			return nil, err
		}
		defer syscall.Close(fd)
		if err := e.add(fd); err != nil {
			return nil, err
		}
		e.streams = append(e.streams, evenStream{fd: fd})
		e.client[fd] = i
		// A second for all to have connected, and the requests over the two seconds that an answer takes.
		at := now.Add(time.Second + time.Duration(i)*evenGap*evenTokens/time.Duration(streams))
		heap.Push(&e.due, evenEvent{at: at.UnixNano(), stream: i})
		if err := e.accept(); err != nil {
			return nil, err
		}
	}
	return &e.times, e.run()
}

// evenSocket is a socket that Go's own poller knows nothing of.
func evenSocket(address string, begin func(int, syscall.Sockaddr) error) (int, error) {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return -1, err
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	_ = syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1)
	if err := errors.Join(begin(fd, &syscall.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}), syscall.SetNonblock(fd, true)); err != nil {
		return -1, errors.Join(fmt.Errorf("%s: %w", address, err), syscall.Close(fd))
	}
	return fd, nil
}

func (e *evenLoad) add(fd int) error {
	return syscall.EpollCtl(e.epoll, syscall.EPOLL_CTL_ADD, fd, &syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(fd)})
}

func (e *evenLoad) accept() error {
	for {
		fd, _, err := syscall.Accept4(e.listener, syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC)
		if err == syscall.EAGAIN || err == syscall.EINTR {
			return nil
		}
		if err != nil {
			return err
		}
		_ = syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1)
		e.server[fd] = &evenConn{fd: fd}
		if err := e.add(fd); err != nil {
			return err
		}
	}
}

// run goes on until the end has passed and every answer has come.
func (e *evenLoad) run() error {
	events := make([]syscall.EpollEvent, 256)
	open := len(e.streams)
	last := e.end.Add(10 * time.Second)
	for open > 0 {
		now := time.Now()
		if now.After(last) {
			return fmt.Errorf("%d answers did not end within 10 s", open)
		}
		n, err := syscall.EpollWait(e.epoll, events, 0)
		if err != nil && err != syscall.EINTR {
			return err
		}
		for i := range max(n, 0) {
			fd := int(events[i].Fd)
			switch {
			case fd == e.listener:
				err = e.accept()
			case e.server[fd] != nil:
				err = e.asked(e.server[fd])
			default:
				var ended bool
				if ended, err = e.answered(e.client[fd]); ended {
					open--
				}
			}
			if err != nil {
				return err
			}
		}
		if len(e.due) > 0 && e.due[0].at <= time.Now().UnixNano() {
			if err := e.send(heap.Pop(&e.due).(evenEvent)); err != nil {
				return err
			}
		}
	}
	return nil
}

// asked reads a request.
func (e *evenLoad) asked(c *evenConn) error {
	n, err := syscall.Read(c.fd, e.buffer)
	if err != nil {
		return ignore(err)
	}
	if n == 0 { // a proxy that gives an idle connection up
		delete(e.server, c.fd)
		return syscall.Close(c.fd)
	}
	if c.request = append(c.request, e.buffer[:n]...); !bytes.HasSuffix(c.request, []byte("}")) {
		return nil
	}
	c.request = c.request[:0]
	now := time.Now().UnixNano()
	if err := writeAll(c.fd, []byte("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")); err != nil {
		return err
	}
	heap.Push(&e.due, evenEvent{at: now + int64(evenGap), server: c, had: now, token: 1})
	return nil
}

// send sends what is due.
func (e *evenLoad) send(d evenEvent) error {
	if d.server == nil {
		s := &e.streams[d.stream]
		s.tokens, s.sent = 0, time.Now().UnixNano()
		return writeAll(s.fd, fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(benchBody), benchBody))
	}
	if err := writeAll(d.server.fd, benchChunk(nil, d.had)); err != nil {
		return err
	}
	if d.token == evenTokens {
		return writeAll(d.server.fd, []byte(benchLast))
	}
	d.token++
	d.at += int64(evenGap)
	heap.Push(&e.due, d)
	return nil
}

// answered reads what has come for a stream; true if it was the last that it asked for.
func (e *evenLoad) answered(i int) (ended bool, err error) {
	s := &e.streams[i]
	n, err := syscall.Read(s.fd, e.buffer)
	if err != nil {
		return false, ignore(err)
	}
	if n == 0 {
		return false, fmt.Errorf("the connection of stream %d was closed", i)
	}
	now := time.Now().UnixNano()
	s.rest = append(s.rest, e.buffer[:n]...)
	for {
		line, rest, whole := bytes.Cut(s.rest, []byte("\n"))
		if !whole {
			s.rest = append(s.rest[:0], s.rest...)
			return false, nil
		}
		if bytes.HasPrefix(line, []byte("data: {")) {
			had, wrote := number(line, `"had":`), number(line, `"wrote":`)
			e.times.token = append(e.times.token, time.Duration(now-wrote))
			if s.tokens++; s.tokens == 1 {
				e.times.first = append(e.times.first, time.Duration(now-wrote+had-s.sent))
			}
		}
		s.rest = rest
		if bytes.HasPrefix(line, []byte("0\r")) { // the empty line behind it is read with it, or before the next answer
			if time.Now().After(e.end) {
				return true, nil
			}
			heap.Push(&e.due, evenEvent{at: now, stream: i})
		}
	}
}

func ignore(err error) error {
	if err == syscall.EAGAIN || err == syscall.EINTR {
		return nil
	}
	return err
}

func writeAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := syscall.Write(fd, b)
		if err != nil && ignore(err) != nil {
			return err
		}
		b = b[max(n, 0):]
	}
	return nil
}
