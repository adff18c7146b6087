package ring

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shadowtape/shadowtape/recorder/netlab"
)

// openIn opens rings in a host's namespace and closes them with the test.
func openIn(t *testing.T, h *netlab.Host, o Options) []*Ring {
	t.Helper()
	var rings []*Ring
	var err error
	h.Do(func() { rings, err = Open(o) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, r := range rings {
			r.Close()
		}
	})
	return rings
}

type seen struct {
	data      []byte
	length    int
	unixNS    int64
	outgoing  bool
	ifindex   int
	worker    int
	srcPort   uint16
	dstPort   uint16
	flags     byte
	payload   int
	vlans     []uint16
	ethertype uint16
}

// readAll reads until nothing has come for the given time.
func readAll(t *testing.T, rings []*Ring, quiet time.Duration) []seen {
	t.Helper()
	var all []seen
	for {
		n := 0
		for w, r := range rings {
			m, err := r.Read(context.Background(), quiet/time.Duration(len(rings)), func(p *Packet) {
				all = append(all, parse(t, p, w))
			})
			if err != nil {
				t.Fatal(err)
			}
			n += m
		}
		if n == 0 {
			return all
		}
	}
}

// parse is the tests' own small decoder.
func parse(t *testing.T, p *Packet, worker int) seen {
	t.Helper()
	s := seen{data: bytes.Clone(p.Data), length: p.Length, unixNS: p.UnixNS, outgoing: p.Outgoing, ifindex: p.Interface, worker: worker}
	b := p.Data[12:]
	for isVLAN(binary.BigEndian.Uint16(b)) {
		s.vlans = append(s.vlans, binary.BigEndian.Uint16(b[2:])&0xfff)
		b = b[4:]
	}
	s.ethertype = binary.BigEndian.Uint16(b)
	b = b[2:]
	total := 0
	switch s.ethertype {
	case unix.ETH_P_IP:
		total = int(binary.BigEndian.Uint16(b[2:])) - int(b[0]&15)*4
		b = b[int(b[0]&15)*4:]
	case unix.ETH_P_IPV6:
		total = int(binary.BigEndian.Uint16(b[4:]))
		b = b[40:]
	default:
		t.Fatalf("ethertype %#x passed", s.ethertype)
	}
	s.srcPort, s.dstPort = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	if len(b) > 13 {
		s.flags, s.payload = b[13], total-int(b[12]>>4)*4
	}
	return s
}

// echo serves TCP in a host: it sends back what it gets.
func echo(t *testing.T, h *netlab.Host, address string) {
	t.Helper()
	var l net.Listener
	var err error
	h.Do(func() { l, err = net.Listen("tcp", address) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); io.Copy(c, c) }()
		}
	}()
}

// talk sends n bytes over a new connection and reads them back; it returns the client's port.
func talk(t *testing.T, h *netlab.Host, address string, n int) uint16 {
	t.Helper()
	var c net.Conn
	var err error
	h.Do(func() { c, err = net.DialTimeout("tcp", address, time.Minute) })
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go c.Write(make([]byte, n))
	c.SetReadDeadline(time.Now().Add(2 * time.Minute))
	if _, err := io.ReadFull(c, make([]byte, n)); err != nil {
		t.Fatal(err)
	}
	return netip.MustParseAddrPort(c.LocalAddr().String()).Port()
}

// bytesEachWay sums the TCP payload seen to and from a port.
func bytesEachWay(all []seen, port uint16) (to, from int) {
	for _, s := range all {
		switch port {
		case s.dstPort:
			to += s.payload
		case s.srcPort:
			from += s.payload
		}
	}
	return to, from
}

func TestVeth(t *testing.T) {
	server, client := netlab.NewHost(t), netlab.NewHost(t)
	netlab.Link(server, "v0", "10.5.0.1/24", client, "v1", "10.5.0.2/24")
	server.IP("addr add fd00:5::1/64 dev v0 nodad")
	client.IP("addr add fd00:5::2/64 dev v1 nodad")
	rings := openIn(t, server, Options{Interface: "v0", Filter: Ports(8000)})
	echo(t, server, ":8000")
	echo(t, server, ":8001")
	before := time.Now()
	port4 := talk(t, client, "10.5.0.1:8000", 300_000)
	port6 := talk(t, client, "[fd00:5::1]:8000", 1000)
	talk(t, client, "10.5.0.1:8001", 1000) // not asked for
	all := readAll(t, rings, 100*time.Millisecond)
	after := time.Now()
	for _, c := range []struct {
		port uint16
		want int
	}{{port4, 300_000}, {port6, 1000}} {
		if to, from := bytesEachWay(all, c.port); to != c.want || from != c.want {
			t.Errorf("client port %d: %d bytes to it and %d from it, want %d each", c.port, to, from, c.want)
		}
	}
	last := map[bool]int64{}
	for _, s := range all {
		if s.srcPort != 8000 && s.dstPort != 8000 {
			t.Fatalf("a packet from %d to %d passed", s.srcPort, s.dstPort)
		}
		if s.outgoing != (s.srcPort == 8000) {
			t.Fatalf("packet from port %d: outgoing %t", s.srcPort, s.outgoing)
		}
		if s.unixNS < before.UnixNano() || s.unixNS > after.UnixNano() {
			t.Fatalf("stamp %d is outside [%d, %d]", s.unixNS, before.UnixNano(), after.UnixNano())
		}
		// A direction's packets are stamped one after the other; two directions on two processors, each before it queues.
		if s.unixNS < last[s.outgoing] {
			t.Fatalf("stamp %d is before the one before it, %d", s.unixNS, last[s.outgoing])
		}
		last[s.outgoing] = s.unixNS
		if len(s.data) != s.length {
			t.Fatalf("a packet of %d bytes was cut to %d", s.length, len(s.data))
		}
	}
	stats, err := rings[0].Stats()
	if err != nil {
		t.Fatal(err)
	}
	if stats.Received != int64(len(all)) || stats.Read != int64(len(all)) || stats.Dropped != 0 || stats.Cut != 0 {
		t.Errorf("stats %+v, read %d", stats, len(all))
	}
}

func TestLoopbackOnce(t *testing.T) {
	h := netlab.NewHost(t)
	for _, name := range []string{"lo", "any"} {
		rings := openIn(t, h, Options{Interface: name, Filter: Ports(8000)})
		if name == "lo" {
			echo(t, h, "127.0.0.1:8000")
		}
		port := talk(t, h, "127.0.0.1:8000", 200_000)
		all := readAll(t, rings, 100*time.Millisecond)
		if to, from := bytesEachWay(all, port); to != 200_000 || from != 200_000 {
			t.Errorf("%s: %d bytes to the client and %d from it, want 200000 each, once", name, to, from)
		}
		syn := 0
		for _, s := range all {
			if s.flags&2 != 0 {
				syn++
			}
		}
		if syn != 2 {
			t.Errorf("%s: %d SYN, want 2: one each way", name, syn)
		}
	}
}

func TestBridge(t *testing.T) {
	middle, a, b := netlab.NewHost(t), netlab.NewHost(t), netlab.NewHost(t)
	netlab.Link(middle, "pa", "", a, "va", "10.6.0.1/24")
	netlab.Link(middle, "pb", "", b, "vb", "10.6.0.2/24")
	middle.IP("link add br0 type bridge", "link set pa master br0", "link set pb master br0", "link set br0 up")
	port := openIn(t, middle, Options{Interface: "pa", Filter: Ports(8000)})
	bridge := openIn(t, middle, Options{Interface: "br0", Promiscuous: true, Filter: Ports(8000)})
	anywhere := openIn(t, middle, Options{Interface: "any", Filter: Ports(8000)})
	echo(t, a, "10.6.0.1:8000")
	client := talk(t, b, "10.6.0.1:8000", 50_000)
	if to, from := bytesEachWay(readAll(t, port, 100*time.Millisecond), client); to != 50_000 || from != 50_000 {
		t.Errorf("bridge port: %d bytes to the client and %d from it, want 50000 each", to, from)
	}
	if to, from := bytesEachWay(readAll(t, bridge, 100*time.Millisecond), client); to != 50_000 || from != 50_000 {
		t.Errorf("bridge: %d bytes to the client and %d from it, want 50000 each", to, from)
	}
	// On all interfaces the flow is seen on both ports and the bridge: the decoder merges them by interface.
	interfaces := map[int]int{}
	for _, s := range readAll(t, anywhere, 100*time.Millisecond) {
		interfaces[s.ifindex]++
	}
	if len(interfaces) < 2 {
		t.Errorf("any: seen on interfaces %v, want both ports", interfaces)
	}
}

// inject sends frames out of an interface of a host.
func inject(t *testing.T, h *netlab.Host, name string, frames ...[]byte) {
	t.Helper()
	var err error
	h.Do(func() {
		var ifi *net.Interface
		if ifi, err = net.InterfaceByName(name); err != nil {
			return
		}
		var fd int
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0); err != nil {
			return
		}
		defer unix.Close(fd)
		for _, f := range frames {
			if err = unix.Sendto(fd, f, 0, &unix.SockaddrLinklayer{Ifindex: ifi.Index, Protocol: networkOrder(unix.ETH_P_ALL)}); err != nil {
				return
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// frameOf wraps a network packet in Ethernet and tags, outermost first.
func frameOf(ethertype uint16, network []byte, tags ...[2]uint16) []byte {
	f := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}
	for _, tag := range tags {
		f = binary.BigEndian.AppendUint16(f, tag[0])
		f = binary.BigEndian.AppendUint16(f, tag[1])
	}
	return append(binary.BigEndian.AppendUint16(f, ethertype), network...)
}

func tcpSegment(src, dst uint16, n int) []byte {
	b := make([]byte, 20+n)
	binary.BigEndian.PutUint16(b, src)
	binary.BigEndian.PutUint16(b[2:], dst)
	b[12] = 5 << 4
	for i := range b[20:] {
		b[20+i] = byte(i)
	}
	return b
}

// TestTags sends tagged frames, in whose tags the kernel has a hand, and wants them back byte for byte.
func TestTags(t *testing.T) {
	h, far := netlab.NewHost(t), netlab.NewHost(t)
	netlab.Link(h, "v0", "", far, "v1", "")
	r := rand.New(rand.NewPCG(1, 1))
	four := ipv4(r, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), unix.IPPROTO_TCP, false, tcpSegment(50000, 8000, 40))
	six := ipv6(r, netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2"), unix.IPPROTO_TCP, false, tcpSegment(50000, 8000, 40))
	frames := [][]byte{
		frameOf(unix.ETH_P_IP, four),
		frameOf(unix.ETH_P_IP, four, [2]uint16{unix.ETH_P_8021Q, 5}),
		frameOf(unix.ETH_P_IPV6, six, [2]uint16{unix.ETH_P_8021Q, 3<<13 | 5}),
		frameOf(unix.ETH_P_IP, four, [2]uint16{unix.ETH_P_8021AD, 9}, [2]uint16{unix.ETH_P_8021Q, 5}),
		frameOf(unix.ETH_P_IPV6, six, [2]uint16{unix.ETH_P_8021AD, 9}, [2]uint16{unix.ETH_P_8021Q, 6}),
		frameOf(unix.ETH_P_IP, four, [2]uint16{unix.ETH_P_8021Q, 7}, [2]uint16{unix.ETH_P_8021Q, 8}, [2]uint16{unix.ETH_P_8021Q, 5}),
		frameOf(unix.ETH_P_ARP, make([]byte, 28)),
	}
	for _, c := range []struct {
		text string
		want []int
	}{
		{"", []int{0, 1, 2, 3, 4, 5}},
		{"vlan", []int{1, 2, 3, 4, 5}},
		{"vlan 5", []int{1, 2, 3, 5}},
		{"vlan 9 and not vlan 6", []int{3}},
		{"not vlan and host 10.0.0.2", []int{0}},
		{"ip6 and port 8000", []int{2, 4}},
		{"port 8001", nil},
	} {
		f, err := ParseFilter(c.text)
		if err != nil {
			t.Fatal(err)
		}
		rings := openIn(t, h, Options{Interface: "v0", Filter: f, Bytes: MinBytes})
		inject(t, far, "v1", frames...)
		all := readAll(t, rings, 60*time.Millisecond)
		if len(all) != len(c.want) {
			t.Errorf("%q: %d packets, want %v", c.text, len(all), c.want)
			continue
		}
		for i, w := range c.want {
			want := append(make([]byte, 12), frames[w][12:]...) // addresses are not kept
			if len(all[i].vlans) > 1 && isVLAN(binary.BigEndian.Uint16(all[i].data[16:])) {
				copy(want[16:18], all[i].data[16:18]) // kernels from 6.11 on do not say what kind of tag the second is
			}
			if !bytes.Equal(all[i].data, want) || all[i].length != len(want) {
				t.Errorf("%q, frame %d:\n got %x\nwant %x", c.text, w, all[i].data, want)
			}
		}
	}
	// Outgoing tags too, which older kernels and devices without offload leave in the packet.
	rings := openIn(t, h, Options{Interface: "v0", Bytes: MinBytes})
	inject(t, h, "v0", frames[:6]...)
	all := readAll(t, rings, 60*time.Millisecond)
	if len(all) != 6 {
		t.Fatalf("outgoing: %d packets, want 6", len(all))
	}
	for i, s := range all {
		if !s.outgoing || s.dstPort != 8000 {
			t.Errorf("outgoing frame %d: %+v", i, s)
		}
	}
}

// TestFilterBeforeFirst opens rings while the interface is flooded with what the filter does not want.
func TestFilterBeforeFirst(t *testing.T) {
	h, far := netlab.NewHost(t), netlab.NewHost(t)
	netlab.Link(h, "v0", "", far, "v1", "")
	r := rand.New(rand.NewPCG(1, 1))
	noise := frameOf(unix.ETH_P_IP, ipv4(r, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), unix.IPPROTO_TCP, false, tcpSegment(1, 2, 0)))
	batch := make([][]byte, 200)
	for i := range batch {
		batch[i] = noise
	}
	stop, ended := make(chan struct{}), make(chan int)
	go func() {
		sent := 0
		for {
			select {
			case <-stop:
				ended <- sent
				return
			default:
				inject(t, far, "v1", batch...)
				sent += len(batch)
			}
		}
	}()
	for range 20 {
		rings := openIn(t, h, Options{Interface: "v0", Filter: Ports(8000), Bytes: MinBytes, Workers: 2})
		if all := readAll(t, rings, 6*time.Millisecond); len(all) != 0 {
			t.Fatalf("%d packets that the filter does not want", len(all))
		}
		for _, r := range rings {
			if s, err := r.Stats(); err != nil || s.Received != 0 {
				t.Fatalf("stats %+v, %v", s, err)
			}
		}
	}
	close(stop)
	if sent := <-ended; sent < 1000 {
		t.Errorf("only %d frames of noise were sent", sent)
	}
}

func TestFanout(t *testing.T) {
	server, client := netlab.NewHost(t), netlab.NewHost(t)
	netlab.Link(server, "v0", "10.5.0.1/24", client, "v1", "10.5.0.2/24")
	const workers, connections, size = 4, 40, 20_000
	rings := openIn(t, server, Options{Interface: "v0", Filter: Ports(8000), Workers: workers, Bytes: 4 << 20})
	echo(t, server, "10.5.0.1:8000")
	ports := make([]uint16, connections)
	for i := range ports {
		ports[i] = talk(t, client, "10.5.0.1:8000", size)
	}
	all := readAll(t, rings, 200*time.Millisecond)
	where := map[uint16]map[int]bool{}
	for _, s := range all {
		port := s.srcPort
		if port == 8000 {
			port = s.dstPort
		}
		if where[port] == nil {
			where[port] = map[int]bool{}
		}
		where[port][s.worker] = true
	}
	used := map[int]bool{}
	for _, port := range ports {
		if len(where[port]) != 1 {
			t.Errorf("connection of port %d reached workers %v, want one", port, where[port])
		}
		for w := range where[port] {
			used[w] = true
		}
		if to, from := bytesEachWay(all, port); to != size || from != size {
			t.Errorf("port %d: %d bytes to the client and %d from it, want %d each, once", port, to, from, size)
		}
	}
	if len(used) < 2 {
		t.Errorf("%d connections reached %d workers only", connections, len(used))
	}
}

// TestFragments sends the pieces of packets: with one worker they all pass, with several the kernel joins them first.
func TestFragments(t *testing.T) {
	h, far := netlab.NewHost(t), netlab.NewHost(t)
	netlab.Link(h, "v0", "10.5.0.1/24", far, "v1", "10.5.0.2/24")
	segment := tcpSegment(50000, 8000, 1180)
	var frames [][]byte
	for at := 0; at < len(segment); at += 400 {
		h := make([]byte, 20)
		h[0], h[8], h[9] = 0x45, 64, unix.IPPROTO_TCP
		binary.BigEndian.PutUint16(h[2:], 420)
		binary.BigEndian.PutUint16(h[4:], 77)
		offset := uint16(at / 8)
		if at+400 < len(segment) {
			offset |= 0x2000
		}
		binary.BigEndian.PutUint16(h[6:], offset)
		copy(h[12:], []byte{10, 5, 0, 2})
		copy(h[16:], []byte{10, 5, 0, 1})
		binary.BigEndian.PutUint16(h[10:], checksum(h))
		frames = append(frames, frameOf(unix.ETH_P_IP, append(h, segment[at:at+400]...)))
	}
	for _, c := range []struct{ workers, want int }{{1, 3}, {3, 1}} {
		rings := openIn(t, h, Options{Interface: "v0", Filter: Ports(8000), Workers: c.workers, Bytes: MinBytes})
		inject(t, far, "v1", frames...)
		all := readAll(t, rings, 90*time.Millisecond)
		if len(all) != c.want {
			t.Errorf("%d workers: %d packets, want %d", c.workers, len(all), c.want)
		}
		if c.want == 1 && len(all) == 1 && !bytes.Equal(all[0].data[34:], segment) {
			t.Error("the fragments were not joined right")
		}
	}
}

func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// TestDrops floods a ring that nobody reads: what the ring could not take is counted, over several calls.
func TestDrops(t *testing.T) {
	h, far := netlab.NewHost(t), netlab.NewHost(t)
	netlab.Link(h, "v0", "", far, "v1", "")
	rings := openIn(t, h, Options{Interface: "v0", Bytes: MinBytes})
	r := rand.New(rand.NewPCG(1, 1))
	frame := frameOf(unix.ETH_P_IP, ipv4(r, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), unix.IPPROTO_TCP, false, tcpSegment(1, 8000, 1300)))
	batch := make([][]byte, 1000)
	for i := range batch {
		batch[i] = frame
	}
	var before Stats
	for i := range 4 {
		inject(t, far, "v1", batch...)
		s, err := rings[0].Stats()
		if err != nil {
			t.Fatal(err)
		}
		if s.Received != int64(1000*(i+1)) {
			t.Errorf("after %d packets: %+v", 1000*(i+1), s)
		}
		if i >= 2 && s.Dropped <= before.Dropped {
			t.Errorf("drops do not grow: %+v after %+v", s, before)
		}
		before = s
	}
	all := readAll(t, rings, 60*time.Millisecond)
	s, err := rings[0].Stats()
	if err != nil {
		t.Fatal(err)
	}
	if s.Received != 4000 || s.Received != s.Read+s.Dropped || int(s.Read) != len(all) || s.Dropped == 0 || s.Frozen == 0 {
		t.Errorf("received %d, read %d, dropped %d (frozen %d): they must add up", s.Received, s.Read, s.Dropped, s.Frozen)
	}
}

func TestReadEnds(t *testing.T) {
	h := netlab.NewHost(t)
	rings := openIn(t, h, Options{Interface: "lo", Bytes: MinBytes})
	ctx, stop := context.WithCancel(context.Background())
	time.AfterFunc(30*time.Millisecond, stop)
	start := time.Now()
	n, err := rings[0].Read(ctx, time.Hour, func(*Packet) {})
	if n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("read %d, %v", n, err)
	}
	if d := time.Since(start); d > time.Minute {
		t.Errorf("a canceled read took %s", d)
	}
	rings[0].Close()
	if _, err := rings[0].Read(context.Background(), time.Hour, func(*Packet) {}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if err := rings[0].Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestInterfaceDownAndGone(t *testing.T) {
	h := netlab.NewHost(t)
	netlab.Link(h, "v0", "", h, "v1", "")
	rings := openIn(t, h, Options{Interface: "v0", Bytes: MinBytes})
	frame := frameOf(unix.ETH_P_IP, ipv4(rand.New(rand.NewPCG(1, 1)), netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), unix.IPPROTO_TCP, false, tcpSegment(1, 8000, 0)))
	// until reads until something comes, asking for it again each time: an interface that has just come up may lose what is sent to it.
	until := func(ask func()) (n int, err error) {
		for range 1200 {
			ask()
			if n, err = rings[0].Read(context.Background(), 50*time.Millisecond, func(*Packet) {}); err != nil || n > 0 {
				return n, err
			}
		}
		return n, err
	}
	h.IP("link set v0 down", "link set v0 up")
	if n, err := until(func() { inject(t, h, "v1", frame) }); n == 0 || err != nil {
		t.Errorf("after down and up: %d packets, %v", n, err)
	}
	h.IP("link del v0")
	var err error
	for n := 1; n > 0 && err == nil; { // what was sent is read first
		n, err = until(func() {})
	}
	if !errors.Is(err, ErrGone) {
		t.Errorf("after the interface was removed: %v", err)
	}
}

func TestOpenErrors(t *testing.T) {
	h := netlab.NewHost(t)
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{}, "no interface"},
		{Options{Interface: "nope"}, "no such interface (there are: lo, any)"},
		{Options{Interface: "lo", Bytes: 1}, "at least"},
		{Options{Interface: "lo", Workers: -1}, "workers"},
		{Options{Interface: "lo", Workers: 2, Tunnels: true}, "tunnels"},
		{Options{Interface: "lo", BlockTimeout: 1}, "at least 1ms"},
	} {
		var err error
		h.Do(func() { _, err = Open(c.o) })
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v, want %q", c.o, err, c.want)
		}
	}
}
