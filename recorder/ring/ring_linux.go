package ring

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	blockHeader  = 48 // struct tpacket_block_desc
	packetHeader = 48 // struct tpacket3_hdr, aligned to 16
	linkHeader   = 20 // struct sockaddr_ll behind it
	ethernet     = 14
	vlanTag      = 4
	reserve      = 32 // head room asked of the kernel before each packet: room for our Ethernet header and a tag
)

// Ring is one memory-mapped packet ring. Read may be called from one goroutine at a time; Stats and Close from any.
type Ring struct {
	name     string
	index    int // of the interface; 0: any
	fd       int
	wake     int // eventfd: ends a wait
	memory   []byte
	blocks   int
	next     int
	scratch  []byte
	down     bool // the interface went down: is it gone?
	closing  atomic.Bool
	read     atomic.Int64
	cut      atomic.Int64
	mu       sync.Mutex // guards stats and the file descriptors' end
	stats    Stats
	isClosed bool
}

// Open opens one ring for each worker on the interface. Connections are spread between them so that both directions of one reach the
// same ring. The kernel filter is attached before a packet is let in. Each must be closed.
func Open(o Options) ([]*Ring, error) {
	rings, err := open(o)
	if err != nil {
		return nil, fmt.Errorf("open packet ring on %s: %w", o.Interface, err)
	}
	return rings, nil
}

func open(o Options) (rings []*Ring, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Bytes == 0 {
		o.Bytes = DefaultBytes
	}
	if o.Workers == 0 {
		o.Workers = 1
	}
	if o.BlockTimeout == 0 {
		o.BlockTimeout = DefaultBlockTimeout
	}
	program, err := o.Filter.compile(o.Tunnels)
	if err != nil {
		return nil, err
	}
	index, loopback, err := interfaceIndex(o.Interface)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			for _, r := range rings {
				r.Close()
			}
		}
	}()
	var group int
	for range o.Workers {
		r, err := openOne(o, index, loopback)
		if err != nil {
			return rings, err
		}
		rings = append(rings, r)
		if o.Workers > 1 {
			if group, err = r.join(group); err != nil {
				return rings, fmt.Errorf("join the fanout group: %w", err)
			}
		}
	}
	for _, r := range rings { // all are in place: let packets in
		if err := r.attach(program); err != nil {
			return rings, fmt.Errorf("attach the kernel filter: %w", err)
		}
	}
	return rings, nil
}

func interfaceIndex(name string) (index int, loopback bool, err error) {
	if name == "any" {
		return 0, false, nil
	}
	ifi, err := net.InterfaceByName(name)
	if err == nil {
		return ifi.Index, ifi.Flags&net.FlagLoopback != 0, nil
	}
	all, listErr := net.Interfaces()
	if listErr != nil {
		return 0, false, err
	}
	names := make([]string, 0, len(all)+1)
	for _, i := range all {
		names = append(names, i.Name)
	}
	slices.Sort(names)
	return 0, false, fmt.Errorf("there is no such interface (there are: %s, any)", strings.Join(names, ", "))
}

// openOne opens a socket that lets nothing in yet. A socket of protocol 0 is deaf until it is bound, and a filter that drops all is on
// it by then: no unfiltered packet can reach the ring.
func openOne(o Options, index int, loopback bool) (*Ring, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return nil, ErrPermission
	}
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	r := &Ring{name: o.Interface, index: index, fd: fd, wake: -1}
	if err := r.setUp(o, loopback); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func (r *Ring) setUp(o Options, loopback bool) (err error) {
	if r.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	if err := r.attach([]unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}); err != nil {
		return fmt.Errorf("attach the kernel filter: %w", err)
	}
	if err := unix.SetsockoptInt(r.fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V3); err != nil {
		return fmt.Errorf("TPACKET_V3: %w", err)
	}
	if err := unix.SetsockoptInt(r.fd, unix.SOL_PACKET, unix.PACKET_RESERVE, reserve); err != nil {
		return fmt.Errorf("PACKET_RESERVE: %w", err)
	}
	if loopback {
		// On loopback each packet passes twice, out and in. Kernels before 4.20 do not know the option: the filter drops it as well.
		_ = unix.SetsockoptInt(r.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)
	}
	r.blocks = o.Bytes / blockBytes
	const frame = 2048 // V3 packs packets of any length into a block; the frame only has to divide it
	request := unix.TpacketReq3{
		Block_size: blockBytes, Block_nr: uint32(r.blocks),
		Frame_size: frame, Frame_nr: uint32(r.blocks * (blockBytes / frame)),
		Retire_blk_tov: uint32(o.BlockTimeout / time.Millisecond),
	}
	if err := unix.SetsockoptTpacketReq3(r.fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &request); err != nil {
		return fmt.Errorf("ring of %d bytes: %w", o.Bytes, err)
	}
	if r.memory, err = unix.Mmap(r.fd, 0, r.blocks*blockBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("map ring of %d bytes: %w", o.Bytes, err)
	}
	if o.Promiscuous && r.index != 0 {
		mreq := unix.PacketMreq{Ifindex: int32(r.index), Type: unix.PACKET_MR_PROMISC}
		if err := unix.SetsockoptPacketMreq(r.fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &mreq); err != nil {
			return fmt.Errorf("promiscuous mode: %w", err)
		}
	}
	address := unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL), Ifindex: r.index}
	if err := unix.Bind(r.fd, &address); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	return nil
}

func networkOrder(v uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return binary.NativeEndian.Uint16(b[:])
}

func (r *Ring) attach(program []unix.SockFilter) error {
	p := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	return unix.SetsockoptSockFprog(r.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &p)
}

// join enters a fanout group: a new one for 0. It returns the group's id. The hash is the kernel's symmetric one; fragments are put
// together before it is taken.
func (r *Ring) join(group int) (int, error) {
	mode := unix.PACKET_FANOUT_HASH | unix.PACKET_FANOUT_FLAG_DEFRAG
	if group == 0 {
		unique := mode | unix.PACKET_FANOUT_FLAG_UNIQUEID
		if err := unix.SetsockoptInt(r.fd, unix.SOL_PACKET, unix.PACKET_FANOUT, unique<<16); err != nil {
			return 0, err
		}
		v, err := unix.GetsockoptInt(r.fd, unix.SOL_PACKET, unix.PACKET_FANOUT)
		return v & 0xffff, err
	}
	return group, unix.SetsockoptInt(r.fd, unix.SOL_PACKET, unix.PACKET_FANOUT, group|mode<<16)
}

// Read hands out the packets of every block that is ready, in order, and returns how many there were. Where none is ready it waits for
// one, for as long as wait; 0 packets and no error mean that none came. It returns ctx's error when ctx ends (packets that are ready
// are handed out first), ErrGone when the interface has been removed, and net.ErrClosed after Close.
func (r *Ring) Read(ctx context.Context, wait time.Duration, emit func(*Packet)) (int, error) {
	n := r.drain(emit)
	if n > 0 || r.closing.Load() {
		return n, r.endOf(ctx)
	}
	if err := r.endOf(ctx); err != nil {
		return 0, err
	}
	stop := context.AfterFunc(ctx, r.signal)
	defer stop()
	if r.down {
		wait = min(wait, 100*time.Millisecond)
	}
	err := r.poll(wait)
	if err == nil {
		err = r.gone()
	}
	if err != nil {
		return 0, err
	}
	if n = r.drain(emit); n > 0 {
		r.down = false
	}
	return n, r.endOf(ctx)
}

func (r *Ring) endOf(ctx context.Context) error {
	if r.closing.Load() {
		return net.ErrClosed
	}
	return ctx.Err()
}

// signal ends a wait in poll.
func (r *Ring) signal() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.isClosed {
		var one [8]byte
		binary.NativeEndian.PutUint64(one[:], 1)
		_, _ = unix.Write(r.wake, one[:])
	}
}

func (r *Ring) poll(wait time.Duration) error {
	deadline := time.Now().Add(wait)
	for {
		left := max(time.Until(deadline), 0)
		fds := [2]unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLIN | unix.POLLERR}, {Fd: int32(r.wake), Events: unix.POLLIN}}
		_, err := unix.Poll(fds[:], int((left+time.Millisecond-1)/time.Millisecond))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("wait for packets on %s: %w", r.name, err)
		}
		if fds[1].Revents != 0 {
			var b [8]byte
			_, _ = unix.Read(r.wake, b[:])
			return nil
		}
		if fds[0].Revents&unix.POLLERR != 0 {
			return r.socketError()
		}
		if fds[0].Revents != 0 || time.Until(deadline) <= 0 {
			return nil
		}
	}
}

// socketError tells an interface that went down, which may come back, from one that has been removed.
func (r *Ring) socketError() error {
	code, err := unix.GetsockoptInt(r.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return fmt.Errorf("wait for packets on %s: %w", r.name, err)
	}
	errno := unix.Errno(code)
	if errno == 0 {
		return nil
	}
	if errno == unix.ENETDOWN {
		r.down = r.index != 0
		return r.gone()
	}
	return fmt.Errorf("wait for packets on %s: %w", r.name, errno)
}

// gone looks whether an interface that went down has been removed since: the kernel reports going down only, but unbinds the socket from
// an interface that is removed.
func (r *Ring) gone() error {
	if !r.down {
		return nil
	}
	name, err := unix.Getsockname(r.fd)
	if ll, ok := name.(*unix.SockaddrLinklayer); err != nil || !ok || ll.Ifindex != r.index {
		return fmt.Errorf("wait for packets on %s: %w", r.name, ErrGone)
	}
	return nil
}

// drain hands out the blocks that are ready, one whole ring of them at most, so that the caller gets a turn.
func (r *Ring) drain(emit func(*Packet)) int {
	n := 0
	for range r.blocks {
		block := r.memory[r.next*blockBytes : (r.next+1)*blockBytes : (r.next+1)*blockBytes]
		status := (*uint32)(unsafe.Pointer(&block[8]))
		if atomic.LoadUint32(status)&unix.TP_STATUS_USER == 0 {
			break
		}
		n += r.packets(block, emit)
		atomic.StoreUint32(status, unix.TP_STATUS_KERNEL)
		r.next = (r.next + 1) % r.blocks
	}
	r.read.Add(int64(n))
	return n
}

func (r *Ring) packets(block []byte, emit func(*Packet)) int {
	count := int(binary.NativeEndian.Uint32(block[12:]))
	at := int(binary.NativeEndian.Uint32(block[16:]))
	var p Packet
	n := 0
	for range count {
		if at < blockHeader || at > len(block)-packetHeader-linkHeader {
			break // cannot happen while the kernel keeps its word
		}
		h := (*unix.Tpacket3Hdr)(unsafe.Pointer(&block[at]))
		if r.frame(block[at:], h, &p) {
			emit(&p)
			n++
		}
		if h.Next_offset == 0 {
			break
		}
		at += int(h.Next_offset)
	}
	return n
}

// frame makes p of one packet: the kernel hands it over from its network header on, so that all kinds of interface look alike, and we
// write an Ethernet header and the tag that the kernel took off into the head room before it.
func (r *Ring) frame(b []byte, h *unix.Tpacket3Hdr, p *Packet) bool {
	start, end := int(h.Mac), int(h.Mac)+int(h.Snaplen)
	if start < packetHeader+linkHeader || end > len(b) {
		return false
	}
	ll := (*unix.RawSockaddrLinklayer)(unsafe.Pointer(&b[packetHeader]))
	protocol := networkOrder(ll.Protocol)
	network := b[start:end]
	inside := tagInside(network, int(h.Len))
	switch {
	case inside && !isVLAN(protocol):
		protocol = unix.ETH_P_8021Q // kernels from 6.11 on name the protocol behind all tags, though the inner ones still stand here
	case !inside && isVLAN(protocol):
		protocol = networkProtocol(network) // older kernels skip a tag that a driver without offload had put in, and keep its ethertype
	}
	header := ethernet
	if h.Status&unix.TP_STATUS_VLAN_VALID != 0 {
		header += vlanTag
	}
	from := start - header
	if from < packetHeader+linkHeader { // the head room is too small: copy
		r.scratch = append(append(r.scratch[:0], make([]byte, header)...), network...)
		b, from, end = r.scratch, 0, len(r.scratch)
	}
	f := b[from:end:end]
	clear(f[:12])
	if header > ethernet {
		tpid := uint16(unix.ETH_P_8021Q)
		if h.Status&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
			tpid = h.Hv1.Vlan_tpid
		}
		binary.BigEndian.PutUint16(f[12:], tpid)
		binary.BigEndian.PutUint16(f[14:], uint16(h.Hv1.Vlan_tci))
	}
	binary.BigEndian.PutUint16(f[header-2:], protocol)
	if h.Len > h.Snaplen {
		r.cut.Add(1)
	}
	*p = Packet{
		Data: f, Length: int(h.Len) + header, UnixNS: int64(h.Sec)*1e9 + int64(h.Nsec),
		Interface: int(ll.Ifindex), Outgoing: ll.Pkttype == unix.PACKET_OUTGOING,
	}
	return true
}

func isVLAN(ethertype uint16) bool {
	return ethertype == unix.ETH_P_8021Q || ethertype == unix.ETH_P_8021AD || ethertype == 0x9100
}

// tagInside reports whether b begins with the rest of a VLAN tag rather than with an IP header; length is that of the packet. What
// decides where both could be read is whose length field is right.
func tagInside(b []byte, length int) bool {
	if len(b) < 4 || isIP(b, length) {
		return false
	}
	t := binary.BigEndian.Uint16(b[2:])
	return t == unix.ETH_P_IP || t == unix.ETH_P_IPV6 || isVLAN(t)
}

// isIP reports whether b begins with an IP header whose length field fits the packet: 0 (as segmentation offload leaves it) or its
// length, less the padding of short frames.
func isIP(b []byte, length int) bool {
	const padded = 46
	total := -1
	switch {
	case b[0]>>4 == 4 && b[0]&15 >= 5 && len(b) >= 20:
		total = int(binary.BigEndian.Uint16(b[2:]))
	case b[0]>>4 == 6 && len(b) >= 40:
		total = int(binary.BigEndian.Uint16(b[4:]))
		if total != 0 {
			total += 40
		}
	}
	return total == length || total == 0 || total > 0 && total < length && length <= padded
}

func networkProtocol(b []byte) uint16 {
	if len(b) > 0 && b[0]>>4 == 6 {
		return unix.ETH_P_IPV6
	}
	return unix.ETH_P_IP
}

// Stats returns the counts so far. The kernel resets its own at each call: they are summed here.
func (r *Ring) Stats() (Stats, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var err error
	if !r.isClosed {
		err = r.collect()
	}
	s := r.stats
	s.Read, s.Cut = r.read.Load(), r.cut.Load()
	return s, err
}

func (r *Ring) collect() error {
	k, err := unix.GetsockoptTpacketStatsV3(r.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return fmt.Errorf("read the drop counters of %s: %w", r.name, err)
	}
	r.stats.Received += int64(k.Packets)
	r.stats.Dropped += int64(k.Drops)
	r.stats.Frozen += int64(k.Freeze_q_cnt)
	return nil
}

// Close releases the ring. It must not be called while Read runs: end Read's context first.
func (r *Ring) Close() error {
	r.closing.Store(true)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isClosed {
		return nil
	}
	r.isClosed = true
	var errs []error
	if r.memory != nil {
		_ = r.collect()
		errs = append(errs, unix.Munmap(r.memory))
		r.memory, r.blocks = nil, 0
	}
	errs = append(errs, unix.Close(r.fd))
	if r.wake >= 0 {
		errs = append(errs, unix.Close(r.wake))
	}
	return errors.Join(errs...)
}
