package ring

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// made is a packet that a test builds, and what it is.
type made struct {
	frameInKernel
	flow     Flow
	tcp      bool // a TCP packet that the program should see as one
	fragment bool // a later fragment of one
	wrapped  bool // a tunnel's packet
}

var (
	lab4 = []string{"10.0.0.1", "10.0.0.2", "10.1.0.1", "192.168.3.4"}
	lab6 = []string{"2001:db8::1", "2001:db8::2", "2001:db8:1::1", "fe80::1234"}
	lab  = []uint16{80, 8000, 8001, 50000}
	tags = []uint16{1, 2, 7, 4095}
)

func pick[T any](r *rand.Rand, s []T) T { return s[r.IntN(len(s))] }

// randomPacket builds a packet from its network header on, as the kernel hands it to a filter.
func randomPacket(r *rand.Rand) made {
	var m made
	six := r.IntN(2) == 0
	addresses := lab4
	if six {
		addresses = lab6
	}
	src, dst := netip.MustParseAddr(pick(r, addresses)), netip.MustParseAddr(pick(r, addresses))
	m.flow = Flow{Source: netip.AddrPortFrom(src, pick(r, lab)), Destination: netip.AddrPortFrom(dst, pick(r, lab))}
	m.fragment = r.IntN(8) == 0
	proto := byte(unix.IPPROTO_TCP)
	body := make([]byte, 24)
	binary.BigEndian.PutUint16(body, m.flow.Source.Port())
	binary.BigEndian.PutUint16(body[2:], m.flow.Destination.Port())
	m.tcp = true
	switch r.IntN(8) {
	case 0:
		m.tcp, m.fragment, proto = false, false, unix.IPPROTO_UDP
		if r.IntN(2) == 0 {
			m.wrapped = true
			binary.BigEndian.PutUint16(body[2:], pick(r, []uint16{4789, 8472, 6081}))
		}
	case 1:
		m.tcp, m.fragment, proto, m.wrapped = false, false, pick(r, []byte{unix.IPPROTO_GRE, unix.IPPROTO_IPIP, unix.IPPROTO_IPV6}), true
	case 2:
		m.tcp, m.fragment, proto = false, false, unix.IPPROTO_SCTP
	}
	for i := range body[4:] {
		body[4+i] = byte(r.Uint32())
	}
	if six {
		m.data, m.protocol = ipv6(r, src, dst, proto, m.fragment, body), unix.ETH_P_IPV6
	} else {
		m.data, m.protocol = ipv4(r, src, dst, proto, m.fragment, body), unix.ETH_P_IP
	}
	for n := r.IntN(4); n > 0; n-- { // the outermost last; the kernel has taken that one off
		id := pick(r, tags)
		tpid := pick(r, []uint16{unix.ETH_P_8021Q, unix.ETH_P_8021AD})
		m.flow.VLANs = append([]uint16{id}, m.flow.VLANs...)
		tci := uint16(r.IntN(16))<<12 | id
		if n == 1 {
			m.tag, m.tagged = tci, true
			break
		}
		h := binary.BigEndian.AppendUint16(nil, tci)
		m.data = append(binary.BigEndian.AppendUint16(h, m.protocol), m.data...)
		m.protocol = tpid
	}
	m.hardware = unix.ARPHRD_ETHER
	return m
}

func ipv4(r *rand.Rand, src, dst netip.Addr, proto byte, fragment bool, body []byte) []byte {
	options := 4 * r.IntN(4)
	h := make([]byte, 20+options)
	h[0] = 0x40 | byte(len(h)/4)
	binary.BigEndian.PutUint16(h[2:], uint16(len(h)+len(body)))
	if fragment {
		binary.BigEndian.PutUint16(h[6:], 0x2000|uint16(1+r.IntN(0x1ffe)))
	} else {
		binary.BigEndian.PutUint16(h[6:], pick(r, []uint16{0, 0x4000, 0x2000}))
	}
	h[8], h[9] = 64, proto
	copy(h[12:], src.AsSlice())
	copy(h[16:], dst.AsSlice())
	return append(h, body...)
}

func ipv6(r *rand.Rand, src, dst netip.Addr, proto byte, fragment bool, body []byte) []byte {
	type extension struct {
		kind byte
		b    []byte
	}
	var chain []extension
	for range r.IntN(4) {
		kind := pick(r, []byte{0, 43, 60, 51})
		n := r.IntN(3)
		b := make([]byte, 8*(n+1))
		b[1] = byte(n)
		if kind == 51 { // counts in 4 bytes, less 2
			b = make([]byte, 4*(n+3))
			b[1] = byte(n + 1)
		}
		chain = append(chain, extension{kind, b})
	}
	if fragment || r.IntN(6) == 0 {
		b := make([]byte, 8)
		if fragment {
			binary.BigEndian.PutUint16(b[2:], uint16(1+r.IntN(0x1ffe))<<3|1)
		} else {
			b[3] = 1
		}
		chain = append(chain, extension{44, b})
	}
	h := make([]byte, 40)
	h[0], h[7] = 0x60, 64
	copy(h[8:], src.AsSlice())
	copy(h[24:], dst.AsSlice())
	next := &h[6]
	out := [][]byte{h}
	for _, e := range chain {
		*next = e.kind
		next = &e.b[0]
		out = append(out, e.b)
	}
	*next = proto
	var all []byte
	for _, b := range append(out, body) {
		all = append(all, b...)
	}
	binary.BigEndian.PutUint16(all[4:], uint16(len(all)-40))
	return all
}

func randomExpression(r *rand.Rand, depth int) string {
	if depth > 0 && r.IntN(3) > 0 {
		switch r.IntN(3) {
		case 0:
			return "not (" + randomExpression(r, depth-1) + ")"
		case 1:
			return "(" + randomExpression(r, depth-1) + ") and (" + randomExpression(r, depth-1) + ")"
		}
		return "(" + randomExpression(r, depth-1) + ") or (" + randomExpression(r, depth-1) + ")"
	}
	s := pick(r, []string{"", "src ", "dst "})
	switch r.IntN(8) {
	case 0:
		return s + "host " + pick(r, append(lab4, lab6...))
	case 1:
		return s + fmt.Sprintf("net %s/%d", pick(r, lab4), r.IntN(33))
	case 2:
		return s + fmt.Sprintf("net %s/%d", pick(r, lab6), r.IntN(129))
	case 3, 4:
		return s + fmt.Sprintf("port %d", pick(r, lab))
	case 5:
		return s + fmt.Sprintf("portrange %d-%d", 70+r.IntN(20), 7990+r.IntN(20))
	case 6:
		return pick(r, []string{"vlan", "vlan 7", "vlan 1", "vlan 4095"})
	}
	return pick(r, []string{"ip", "ip6", "tcp"})
}

// TestCompileAgreesWithMatch holds the machine code against the other reading of the same expression, on random packets.
func TestCompileAgreesWithMatch(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	passed := 0
	for range 400 {
		text := randomExpression(r, 4)
		f, err := ParseFilter(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		for _, tunnels := range []bool{false, true} {
			program, err := f.compile(tunnels)
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			for range 100 {
				m := randomPacket(r)
				want := m.tcp && (m.fragment || f.Match(m.flow)) || m.wrapped && tunnels
				if got := runProgram(program, m.frameInKernel) != 0; got != want {
					t.Fatalf("%s (tunnels %t): passes %t, want %t: %+v", text, tunnels, got, want, m)
				}
				if want {
					passed++
				}
			}
		}
	}
	if passed < 10000 {
		t.Errorf("only %d of 80000 packets passed: the test tests little", passed)
	}
}

// TestKernelTakesProgram attaches programs to a socket that anybody may open: the kernel checks every jump and memory cell.
func TestKernelTakesProgram(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	attach := func(text string, tunnels bool) error {
		f, err := ParseFilter(text)
		if err != nil {
			return err
		}
		program, err := f.compile(tunnels)
		if err != nil {
			return err
		}
		return (&Ring{fd: fd}).attach(program)
	}
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		text := randomExpression(r, 5)
		if err := attach(text, r.IntN(2) == 0); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	many := make([]string, 300) // far jumps
	for i := range many {
		many[i] = fmt.Sprintf("host 10.0.%d.%d", i/250, i%250)
	}
	if err := attach(strings.Join(many, " or "), false); err != nil {
		t.Errorf("300 hosts: %v", err)
	}
	for len(many) < 3000 {
		many = append(many, many...)
	}
	if err := attach(strings.Join(many[:1300], " or "), false); err == nil || !strings.Contains(err.Error(), "fewer hosts") {
		t.Errorf("1300 hosts: error %v, want one that says what to do", err)
	}
}

func TestFarJumps(t *testing.T) {
	hosts := make([]string, 300)
	for i := range hosts {
		hosts[i] = fmt.Sprintf("dst host 10.7.%d.%d", i/250, i%250)
	}
	f, err := ParseFilter("not (" + strings.Join(hosts, " or ") + ")")
	if err != nil {
		t.Fatal(err)
	}
	program, err := f.compile(false)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(5, 6))
	for i := range 400 {
		dst := netip.AddrFrom4([4]byte{10, 7, byte(i / 250), byte(i % 250)})
		body := make([]byte, 20)
		in := frameInKernel{data: ipv4(r, netip.MustParseAddr("10.0.0.1"), dst, unix.IPPROTO_TCP, false, body), protocol: unix.ETH_P_IP}
		if got, want := runProgram(program, in) != 0, i >= 300; got != want {
			t.Fatalf("%s passes %t, want %t", dst, got, want)
		}
	}
}

func TestLoopbackCopies(t *testing.T) {
	program, err := Filter{}.compile(false)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(7, 8))
	data := ipv4(r, netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.1"), unix.IPPROTO_TCP, false, make([]byte, 20))
	for _, c := range []struct {
		hardware   uint16
		packetType uint8
		want       bool
	}{
		{unix.ARPHRD_LOOPBACK, unix.PACKET_OUTGOING, false},
		{unix.ARPHRD_LOOPBACK, unix.PACKET_HOST, true},
		{unix.ARPHRD_ETHER, unix.PACKET_OUTGOING, true},
	} {
		in := frameInKernel{data: data, protocol: unix.ETH_P_IP, hardware: c.hardware, packetType: c.packetType}
		if got := runProgram(program, in) != 0; got != c.want {
			t.Errorf("hardware %d, packet type %d: passes %t", c.hardware, c.packetType, got)
		}
	}
}
