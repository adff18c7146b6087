package proxy

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// loop passes bytes between plain TCP connections in one goroutine: wait for any of them, read, show, write. A token costs two system calls
// and its share of a third, no goroutine is woken, and no memory is held for a connection on which nothing waits. What is in TLS, and what is
// no TCP, is pumped by goroutines.
type loop struct {
	fd     int // epoll's
	wake   int
	buffer []byte
	ends   []*end // by descriptor; the loop's goroutine only
	ended  chan struct{}

	mu       sync.Mutex
	commands []func() // for the loop's goroutine
	closed   bool     // it has ended

	stopping bool // the loop's goroutine only
}

// end is one connection of a pair.
type end struct {
	fd       int
	side     Side
	pair     *pair
	interest uint32 // what epoll is asked for; 0: it does not know the descriptor
}

// pair is a client's connection and its upstream's, in the hands of a loop.
type pair struct {
	link *link
	loop *loop
	ends [2]end    // by side
	way  [2]stream // by the side that sends
	over bool
	done chan struct{}
	late *time.Timer // ends a client that does not close after the server has
}

// stream is one direction.
type stream struct {
	pending []byte // read and not written: its reader is slower than its writer, which is not read meanwhile
	ended   bool   // the sender has ended
}

// newLoops returns one loop for each two processors, at least one; none where there can be none.
func newLoops() []*loop {
	var all []*loop
	for range max(1, runtime.NumCPU()/2) {
		l, err := newLoop()
		if err != nil {
			break
		}
		all = append(all, l)
	}
	return all
}

func newLoop() (*loop, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("set up the proxy's loop: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(wake)})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("set up the proxy's loop: %w", err), unix.Close(epoll), unix.Close(wake))
	}
	l := &loop{fd: epoll, wake: wake, buffer: make([]byte, largeBuffer), ended: make(chan struct{})}
	go l.run()
	return l, nil
}

// stop ends the loop, whose pairs must be over.
func (l *loop) stop() {
	l.post(func() { l.stopping = true })
	<-l.ended
}

// post has f done in the loop's goroutine.
func (l *loop) post(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	if l.commands = append(l.commands, f); len(l.commands) == 1 {
		one := [8]byte{1}
		_, _ = unix.Write(l.wake, one[:])
	}
}

func (l *loop) run() {
	defer close(l.ended)
	goFirst()
	events := make([]unix.EpollEvent, 512)
	for !l.stopping {
		n, err := unix.EpollWait(l.fd, events, -1)
		if err != nil {
			continue // interrupted
		}
		woken := false
		for i := range events[:n] {
			fd := int(events[i].Fd)
			if fd == l.wake {
				woken = true
				continue
			}
			if e := l.ends[fd]; e != nil {
				e.pair.handle(e, events[i].Events)
			}
		}
		if woken { // last: a command may use a descriptor again that an event above names
			var count [8]byte
			_, _ = unix.Read(l.wake, count[:])
			l.mu.Lock()
			commands := l.commands
			l.commands = nil
			l.mu.Unlock()
			for _, f := range commands {
				f()
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	_, _ = unix.Close(l.fd), unix.Close(l.wake)
}

// join takes a link's connections over, where both are plain TCP; nil where they are not. The pair's done is closed when it is over.
func (p *Proxy) join(k *link) *pair {
	if len(p.loops) == 0 {
		return nil
	}
	client, ok := k.client.(*net.TCPConn)
	server, ok2 := k.server.(*net.TCPConn)
	if !ok || !ok2 {
		return nil
	}
	fds := [2]int{-1, -1}
	for i, c := range []*net.TCPConn{client, server} {
		fd, err := takeOver(c)
		if err != nil {
			if i == 1 {
				unix.Close(fds[0])
			}
			return nil
		}
		fds[i] = fd
	}
	a := &pair{link: k, loop: p.loops[int(p.turn.Add(1))%len(p.loops)], done: make(chan struct{})}
	for i := range a.ends {
		a.ends[i] = end{fd: fds[i], side: Side(i), pair: a}
	}
	k.mu.Lock()
	stopped := k.stopped
	if !stopped {
		k.pair = a
	}
	k.mu.Unlock()
	// The runtime's poller must not know them any more: it would wake up for each token, too.
	client.Close()
	server.Close()
	if stopped {
		unix.Close(fds[0])
		unix.Close(fds[1])
		close(a.done)
		return a
	}
	a.loop.post(a.begin)
	return a
}

// takeOver returns a descriptor of our own for a connection.
func takeOver(c *net.TCPConn) (fd int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	cerr := raw.Control(func(own uintptr) { fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) })
	return fd, errors.Join(cerr, err)
}

func (a *pair) begin() {
	if a.over {
		return
	}
	for i := range a.ends {
		e := &a.ends[i]
		for len(a.loop.ends) <= e.fd {
			a.loop.ends = append(a.loop.ends, nil)
		}
		a.loop.ends[e.fd] = e
	}
	a.ask()
}

// ask tells epoll what is waited for now: to read from a side whose last bytes are on their way, to write to one for which bytes wait. A
// descriptor of which nothing is asked is taken out: its end would be told of without end.
func (a *pair) ask() {
	for i := range a.ends {
		e := &a.ends[i]
		want := uint32(0)
		if s := &a.way[e.side]; !s.ended && len(s.pending) == 0 {
			want |= unix.EPOLLIN
		}
		if len(a.way[other(e.side)].pending) > 0 {
			want |= unix.EPOLLOUT
		}
		if want == e.interest {
			continue
		}
		op := unix.EPOLL_CTL_MOD
		switch {
		case want == 0:
			op = unix.EPOLL_CTL_DEL
		case e.interest == 0:
			op = unix.EPOLL_CTL_ADD
		}
		if err := unix.EpollCtl(a.loop.fd, op, e.fd, &unix.EpollEvent{Events: want, Fd: int32(e.fd)}); err != nil {
			a.end(true)
			return
		}
		e.interest = want
	}
}

func (a *pair) handle(e *end, events uint32) {
	const broken = unix.EPOLLERR | unix.EPOLLHUP // the read or the write says how
	if !a.over && e.interest&unix.EPOLLOUT != 0 && events&(unix.EPOLLOUT|broken) != 0 {
		a.flush(e)
	}
	if !a.over && e.interest&unix.EPOLLIN != 0 && events&(unix.EPOLLIN|broken) != 0 {
		a.read(e)
	}
}

// read passes on what a side has sent.
func (a *pair) read(e *end) {
	k, s := a.link, &a.way[e.side]
	n, errno := transfer(unix.SYS_RECVFROM, e.fd, a.loop.buffer)
	switch {
	case errno == unix.EAGAIN || errno == unix.EINTR:
		return
	case errno != 0:
		k.ended(e.side, true)
		a.end(true)
		return
	case n == 0:
		k.ended(e.side, false)
		s.ended = true
		if e.side == FromServer { // a client that does not close is not waited for without end
			a.late = time.AfterFunc(lingerTime, k.abort)
		}
		a.ask()
		a.finish(e.side)
		return
	}
	k.show(e.side, a.loop.buffer[:n])
	if sent := a.write(e.side, a.loop.buffer[:n]); sent < n && !a.over {
		s.pending = append(s.pending, a.loop.buffer[sent:n]...)
		a.ask()
	}
}

// flush writes what waited for a side.
func (a *pair) flush(e *end) {
	from := other(e.side)
	s := &a.way[from]
	sent := a.write(from, s.pending)
	if a.over {
		return
	}
	if s.pending = s.pending[sent:]; len(s.pending) > 0 {
		return
	}
	s.pending = nil
	a.ask()
	a.finish(from)
}

// write sends bytes of a side to the other, as many as it takes now.
func (a *pair) write(from Side, b []byte) int {
	for {
		n, errno := transfer(unix.SYS_SENDTO, a.ends[other(from)].fd, b)
		switch errno {
		case 0:
			a.link.passed(from, n)
			return n
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return 0
		}
		a.link.ended(other(from), true)
		a.end(true)
		return 0
	}
}

// finish passes a side's end on once all before it has been written.
func (a *pair) finish(from Side) {
	s := &a.way[from]
	if a.over || !s.ended || len(s.pending) > 0 {
		return
	}
	if unix.Shutdown(a.ends[other(from)].fd, unix.SHUT_WR) != nil {
		a.end(true)
		return
	}
	if t := &a.way[other(from)]; t.ended && len(t.pending) == 0 {
		a.end(false)
	}
}

// end closes both connections; with a reset, as the peers would see of each other.
func (a *pair) end(reset bool) {
	if a.over {
		return
	}
	a.over = true
	if a.late != nil {
		a.late.Stop()
	}
	for i := range a.ends {
		e := &a.ends[i]
		if e.fd < len(a.loop.ends) {
			a.loop.ends[e.fd] = nil
		}
		if reset {
			_ = unix.SetsockoptLinger(e.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		}
		unix.Close(e.fd) // epoll forgets it with that
	}
	close(a.done)
}

// stop ends the pair from any goroutine.
func (a *pair) stop(reset bool) { a.loop.post(func() { a.end(reset) }) }

// transfer receives or sends without blocking and, since it does not block, without leaving the scheduler.
func transfer(call uintptr, fd int, b []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(call, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	return int(n), errno
}

// goFirst puts the calling goroutine on a thread of its own that asks the system for short turns: it is then let in sooner when it has been
// woken, and gets no more than its share. Linux before 6.12 does not know that, and it changes nothing.
func goFirst() {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	a, err := unix.SchedGetAttr(0, 0)
	if err != nil || a.Policy != unix.SCHED_NORMAL {
		return
	}
	a.Runtime = uint64(shortTurn)
	_ = unix.SchedSetAttr(0, a, 0)
}

// shortTurn is the shortest turn that Linux gives.
const shortTurn = 100 * time.Microsecond

// giveWay puts the calling goroutine on a thread of its own that the system runs after the others, whatever class the process was started
// in: where processors are short, what passes goes before what is read along.
func giveWay() {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Nice: 10}, 0)
}
