package ring

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// The kernel runs the program on a packet from its network header on (packet(7), SOCK_DGRAM); what stood before that is asked for at
// these negative addresses (Documentation/networking/filter.rst, linux/filter.h).
const (
	adProtocol   = 0xfffff000 + 0
	adPacketType = 0xfffff000 + 4
	adHardware   = 0xfffff000 + 28
	adTag        = 0xfffff000 + 44
	adTagPresent = 0xfffff000 + 48
)

// Scratch memory of the program.
const (
	memNetwork   = iota // offset of the IP header
	memVersion          // 4 or 6
	memTransport        // offset of the TCP header
	memInner            // id of the tag inside the packet plus one, 0 without one
	memFragment         // not 0: a later fragment, without ports
	memNext             // IPv6: the next header
)

const (
	passBytes  = 0x7fffffff // as much of the packet as fits
	maxProgram = 4096       // BPF_MAXINSNS
)

// label names a place in the program.
type label int

const fallThrough label = -1

type instruction struct {
	code   uint16
	k      uint32
	yes    label // of a conditional jump, or of a plain one
	no     label
	jumps  bool
	far    bool // its targets are farther than a byte can say: two plain jumps follow it
	places []label
}

// assembler makes programs with labels; conditional jumps reach as far as needed.
type assembler struct {
	code   []instruction
	labels int
	here   []label // labels of the next instruction
}

func (a *assembler) newLabel() label { a.labels++; return label(a.labels - 1) }
func (a *assembler) place(l label)   { a.here = append(a.here, l) }

func (a *assembler) add(i instruction) {
	i.places, a.here = a.here, nil
	a.code = append(a.code, i)
}

func (a *assembler) op(code uint16, k uint32) { a.add(instruction{code: code, k: k}) }

// If jumps to yes or no by comparing the accumulator with k.
func (a *assembler) branch(compare uint16, k uint32, yes, no label) {
	a.add(instruction{code: unix.BPF_JMP | unix.BPF_K | compare, k: k, yes: yes, no: no, jumps: true})
}

func (a *assembler) jump(to label) { a.add(instruction{code: unix.BPF_JMP | unix.BPF_JA, yes: to}) }

func (a *assembler) loadAbs(size uint16, k uint32) { a.op(unix.BPF_LD|unix.BPF_ABS|size, k) }
func (a *assembler) loadInd(size uint16, k uint32) { a.op(unix.BPF_LD|unix.BPF_IND|size, k) }
func (a *assembler) loadMem(m uint32)              { a.op(unix.BPF_LD|unix.BPF_MEM, m) }
func (a *assembler) loadXMem(m uint32)             { a.op(unix.BPF_LDX|unix.BPF_MEM, m) }
func (a *assembler) store(m uint32)                { a.op(unix.BPF_ST, m) }
func (a *assembler) loadImm(k uint32)              { a.op(unix.BPF_LD|unix.BPF_IMM, k) }
func (a *assembler) alu(op uint16, k uint32)       { a.op(unix.BPF_ALU|unix.BPF_K|op, k) }
func (a *assembler) addX()                         { a.op(unix.BPF_ALU|unix.BPF_ADD|unix.BPF_X, 0) }
func (a *assembler) toX()                          { a.op(unix.BPF_MISC|unix.BPF_TAX, 0) }

// link resolves the labels. Jumps are forward only, as classic BPF demands.
func (a *assembler) link() ([]unix.SockFilter, error) {
	for {
		at := make([]int, a.labels)
		start := make([]int, len(a.code))
		n := 0
		for i, in := range a.code {
			for _, l := range in.places {
				at[l] = n
			}
			start[i] = n
			n++
			if in.far {
				n += 2
			}
		}
		if n > maxProgram {
			return nil, fmt.Errorf("the filter needs %d kernel instructions, %d are allowed: use fewer hosts, nets and ports", n, maxProgram)
		}
		grown := false
		offset := func(l label, from int) int {
			if l == fallThrough {
				return 0
			}
			return at[l] - from - 1
		}
		var out []unix.SockFilter
		for i, in := range a.code {
			s := unix.SockFilter{Code: in.code, K: in.k}
			switch {
			case in.jumps && in.far:
				s.Jt, s.Jf = 0, 1
				out = append(out, s,
					unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(max(offset(in.yes, start[i]+1), 0))},
					unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(max(offset(in.no, start[i]+2), 0))})
				if in.yes == fallThrough {
					out[len(out)-2].K = 1
				}
				continue
			case in.jumps:
				yes, no := offset(in.yes, start[i]), offset(in.no, start[i])
				if yes > 255 || no > 255 {
					a.code[i].far, grown = true, true
				}
				s.Jt, s.Jf = uint8(yes), uint8(no)
			case in.code == unix.BPF_JMP|unix.BPF_JA:
				s.K = uint32(offset(in.yes, start[i]))
			}
			out = append(out, s)
		}
		if !grown {
			return out, nil
		}
	}
}

// compile makes the kernel program: TCP over IPv4 or IPv6, behind up to three VLAN tags, for which the expression holds; where tunnels
// are wanted, also every packet that may wrap one.
func (f Filter) compile(tunnels bool) ([]unix.SockFilter, error) {
	a := &assembler{}
	accept, reject := a.newLabel(), a.newLabel()
	f.loopbackCopies(a, reject)
	f.findNetwork(a, reject)
	tcp := a.newLabel()
	f.findTransport(a, tunnels, tcp, accept, reject)
	a.place(tcp)
	// A later fragment has no ports. It is let in: whether it is wanted is known once the packet is whole.
	expression := a.newLabel()
	a.loadMem(memFragment)
	a.branch(unix.BPF_JEQ, 0, expression, accept)
	a.place(expression)
	if f.root != nil {
		a.emit(f.root, accept, reject)
	}
	a.place(accept)
	a.op(unix.BPF_RET|unix.BPF_K, passBytes)
	a.place(reject)
	a.op(unix.BPF_RET|unix.BPF_K, 0)
	return a.link()
}

// loopbackCopies rejects the outgoing one of the two copies that pass a loopback interface.
func (f Filter) loopbackCopies(a *assembler, reject label) {
	other := a.newLabel()
	a.loadAbs(unix.BPF_H, adHardware)
	a.branch(unix.BPF_JEQ, unix.ARPHRD_LOOPBACK, fallThrough, other)
	a.loadAbs(unix.BPF_H, adPacketType)
	a.branch(unix.BPF_JEQ, unix.PACKET_OUTGOING, reject, other)
	a.place(other)
}

// findNetwork stores the offset of the IP header. The kernel has taken the outermost tag off; the ones inside still stand there.
func (f Filter) findNetwork(a *assembler, reject label) {
	ip, tag, second, two := a.newLabel(), a.newLabel(), a.newLabel(), a.newLabel()
	four, eight, none := a.newLabel(), a.newLabel(), a.newLabel()
	a.loadImm(0)
	a.store(memFragment)
	a.store(memInner)
	a.loadAbs(unix.BPF_H, adProtocol)
	a.branch(unix.BPF_JEQ, unix.ETH_P_IP, none, fallThrough)
	a.branch(unix.BPF_JEQ, unix.ETH_P_IPV6, none, fallThrough)
	a.branch(unix.BPF_JEQ, unix.ETH_P_8021Q, tag, fallThrough)
	a.branch(unix.BPF_JEQ, unix.ETH_P_8021AD, tag, fallThrough)
	a.branch(unix.BPF_JEQ, 0x9100, tag, reject)
	a.place(tag)
	a.loadAbs(unix.BPF_H, 2)
	a.branch(unix.BPF_JEQ, unix.ETH_P_IP, four, fallThrough)
	a.branch(unix.BPF_JEQ, unix.ETH_P_IPV6, four, fallThrough)
	a.branch(unix.BPF_JEQ, unix.ETH_P_8021Q, second, fallThrough)
	a.branch(unix.BPF_JEQ, unix.ETH_P_8021AD, second, none) // else the tag was skipped: an IP header stands here
	a.place(second)
	a.loadAbs(unix.BPF_H, 6)
	a.branch(unix.BPF_JEQ, unix.ETH_P_IP, eight, fallThrough)
	a.branch(unix.BPF_JEQ, unix.ETH_P_IPV6, eight, reject)
	a.place(none)
	a.loadImm(0)
	a.jump(ip)
	a.place(eight)
	a.loadAbs(unix.BPF_H, 4)
	a.alu(unix.BPF_AND, 0xfff)
	a.alu(unix.BPF_ADD, 1)
	a.alu(unix.BPF_LSH, 16)
	a.store(memInner)
	a.loadImm(8)
	a.jump(two)
	a.place(four)
	a.loadImm(4)
	a.place(two)
	a.store(memNetwork)
	a.loadAbs(unix.BPF_H, 0)
	a.alu(unix.BPF_AND, 0xfff)
	a.alu(unix.BPF_ADD, 1)
	a.loadXMem(memInner)
	a.addX()
	a.store(memInner)
	a.loadMem(memNetwork)
	a.place(ip)
	a.store(memNetwork)
	a.toX()
}

// findTransport stores the IP version and the offset of the TCP header. X holds the network offset.
func (f Filter) findTransport(a *assembler, tunnels bool, tcp, accept, reject label) {
	v4, v6 := a.newLabel(), a.newLabel()
	wrapped := reject
	if tunnels {
		wrapped = accept
	}
	a.loadInd(unix.BPF_B, 0)
	a.alu(unix.BPF_RSH, 4)
	a.store(memVersion)
	a.branch(unix.BPF_JEQ, 4, v4, fallThrough)
	a.branch(unix.BPF_JEQ, 6, v6, reject)

	a.place(v4)
	a.loadInd(unix.BPF_B, 0)
	a.alu(unix.BPF_AND, 0xf)
	a.alu(unix.BPF_LSH, 2)
	a.addX()
	a.store(memTransport)
	a.loadInd(unix.BPF_H, 6)
	a.alu(unix.BPF_AND, 0x1fff)
	a.store(memFragment)
	a.loadInd(unix.BPF_B, 9)
	f.transport(a, tunnels, tcp, wrapped, accept, reject, func() { a.jump(reject) })

	a.place(v6)
	a.loadInd(unix.BPF_B, 6)
	a.store(memNext)
	a.loadMem(memNetwork)
	a.alu(unix.BPF_ADD, 40)
	a.store(memTransport)
	for range 5 { // extension headers: hop by hop, routing, destination options, fragment, authentication
		options, fragment, auth, next := a.newLabel(), a.newLabel(), a.newLabel(), a.newLabel()
		a.loadMem(memNext)
		f.transport(a, tunnels, tcp, wrapped, accept, reject, func() {
			a.branch(unix.BPF_JEQ, 0, options, fallThrough)
			a.branch(unix.BPF_JEQ, 43, options, fallThrough)
			a.branch(unix.BPF_JEQ, 60, options, fallThrough)
			a.branch(unix.BPF_JEQ, 44, fragment, fallThrough)
			a.branch(unix.BPF_JEQ, 51, auth, reject)
		})
		a.place(options)
		f.extension(a, next, func() { a.alu(unix.BPF_ADD, 1); a.alu(unix.BPF_LSH, 3) })
		a.place(auth)
		f.extension(a, next, func() { a.alu(unix.BPF_ADD, 2); a.alu(unix.BPF_LSH, 2) })
		a.place(fragment)
		a.loadXMem(memTransport)
		a.loadInd(unix.BPF_H, 2)
		a.alu(unix.BPF_AND, 0xfff8)
		a.store(memFragment)
		f.extension(a, next, func() { a.loadImm(8) })
		a.place(next)
	}
	a.loadMem(memNext)
	a.branch(unix.BPF_JEQ, unix.IPPROTO_TCP, tcp, accept) // a longer chain than that: let the decoder say
}

// extension steps over one IPv6 extension header; size turns its length byte into bytes.
func (f Filter) extension(a *assembler, next label, size func()) {
	a.loadXMem(memTransport)
	a.loadInd(unix.BPF_B, 0)
	a.store(memNext)
	a.loadInd(unix.BPF_B, 1)
	size()
	a.addX()
	a.store(memTransport)
	a.jump(next)
}

// transport branches on the protocol in the accumulator.
func (f Filter) transport(a *assembler, tunnels bool, tcp, wrapped, accept, reject label, otherwise func()) {
	a.branch(unix.BPF_JEQ, unix.IPPROTO_TCP, tcp, fallThrough)
	if tunnels {
		udp, other := a.newLabel(), a.newLabel()
		a.branch(unix.BPF_JEQ, unix.IPPROTO_GRE, wrapped, fallThrough)
		a.branch(unix.BPF_JEQ, unix.IPPROTO_IPIP, wrapped, fallThrough)
		a.branch(unix.BPF_JEQ, unix.IPPROTO_IPV6, wrapped, fallThrough)
		a.branch(unix.BPF_JEQ, unix.IPPROTO_UDP, udp, other)
		a.place(udp)
		first := a.newLabel()
		a.loadMem(memFragment)
		a.branch(unix.BPF_JEQ, 0, first, accept)
		a.place(first)
		a.loadXMem(memTransport)
		a.loadInd(unix.BPF_H, 2)
		for _, p := range []uint32{4789, 8472} { // VXLAN: the registered port, and Linux's own
			a.branch(unix.BPF_JEQ, p, accept, fallThrough)
		}
		a.branch(unix.BPF_JEQ, 6081, accept, reject) // Geneve
		a.place(other)
	}
	otherwise()
}

// emit makes code that jumps to yes where n holds of the packet, else to no.
func (a *assembler) emit(n node, yes, no label) {
	switch n := n.(type) {
	case both:
		next := a.newLabel()
		a.emit(n.a, next, no)
		a.place(next)
		a.emit(n.b, yes, no)
	case either:
		next := a.newLabel()
		a.emit(n.a, yes, next)
		a.place(next)
		a.emit(n.b, yes, no)
	case inverse:
		a.emit(n.a, no, yes)
	case version:
		a.loadMem(memVersion)
		a.branch(unix.BPF_JEQ, n.v, yes, no)
	case tagged:
		a.tag(n, yes, no)
	case portRange:
		a.ports(n, yes, no)
	case prefix:
		a.prefix(n, yes, no)
	default: // always
		a.jump(yes)
	}
}

func (a *assembler) tag(n tagged, yes, no label) {
	bare, inner := a.newLabel(), a.newLabel()
	a.loadAbs(unix.BPF_B, adTagPresent)
	if n.any {
		a.branch(unix.BPF_JEQ, 0, bare, yes)
		a.place(bare)
		a.loadMem(memInner)
		a.branch(unix.BPF_JEQ, 0, no, yes)
		return
	}
	outer := a.newLabel()
	a.branch(unix.BPF_JEQ, 0, bare, outer)
	a.place(outer)
	a.loadAbs(unix.BPF_H, adTag)
	a.alu(unix.BPF_AND, 0xfff)
	a.branch(unix.BPF_JEQ, uint32(n.id), yes, bare)
	a.place(bare)
	a.loadMem(memInner)
	a.alu(unix.BPF_AND, 0xffff)
	a.branch(unix.BPF_JEQ, uint32(n.id)+1, yes, inner)
	a.place(inner)
	a.loadMem(memInner)
	a.alu(unix.BPF_RSH, 16)
	a.branch(unix.BPF_JEQ, uint32(n.id)+1, yes, no)
}

func (a *assembler) ports(n portRange, yes, no label) {
	test := func(offset uint32, no label) {
		a.loadXMem(memTransport)
		a.loadInd(unix.BPF_H, offset)
		if n.from == n.to {
			a.branch(unix.BPF_JEQ, uint32(n.from), yes, no)
			return
		}
		high := a.newLabel()
		a.branch(unix.BPF_JGE, uint32(n.from), high, no)
		a.place(high)
		a.branch(unix.BPF_JGT, uint32(n.to), no, yes)
	}
	a.sides(n.side, no, 0, 2, test)
}

func (a *assembler) prefix(n prefix, yes, no label) {
	family, words := uint32(4), 1
	from, to := uint32(12), uint32(16)
	if n.net.Addr().Is6() {
		family, words, from, to = 6, 4, 8, 24
	}
	same := a.newLabel()
	a.loadMem(memVersion)
	a.branch(unix.BPF_JEQ, family, same, no)
	a.place(same)
	raw := n.net.Addr().AsSlice()
	a.sides(n.side, no, from, to, func(offset uint32, no label) {
		a.loadXMem(memNetwork)
		for w := range words {
			mask := prefixMask(n.net, w)
			if mask == 0 {
				break
			}
			a.loadInd(unix.BPF_W, offset+uint32(4*w))
			a.alu(unix.BPF_AND, mask)
			a.branch(unix.BPF_JEQ, binary.BigEndian.Uint32(raw[4*w:])&mask, fallThrough, no)
		}
		a.jump(yes)
	})
}

// prefixMask is the mask of the w-th 32 bits of a prefix.
func prefixMask(p netip.Prefix, w int) uint32 {
	bits := min(max(p.Bits()-32*w, 0), 32)
	return uint32(^uint64(0) << (32 - bits))
}

// sides tests the field of one side, or of the source and then of the destination.
func (a *assembler) sides(s side, no label, source, destination uint32, test func(offset uint32, no label)) {
	if s != destinationSide {
		other := no
		if s == anySide {
			other = a.newLabel()
		}
		test(source, other)
		if s == sourceSide {
			return
		}
		a.place(other)
	}
	test(destination, no)
}
