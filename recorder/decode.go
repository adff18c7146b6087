package recorder

import "encoding/binary"

// addr is an IPv4 address mapped into IPv6, or an IPv6 address.
type addr [16]byte

// flow names a TCP connection's two ends, in an order that does not depend on the direction.
type flow struct {
	a, b   addr
	pa, pb uint16
}

// outer is what a frame wore around the TCP connection: one flow can be seen in several ways.
type outer struct {
	iface uint32
	vlan  uint32 // two tags' ids, outermost high
	vni   uint32 // plus 1 << 24 for VXLAN, 2 << 24 for Geneve, 3 << 24 for GRE
}

// segment is one TCP segment as it was captured.
type segment struct {
	flow    flow
	from    int // 0: sent by the flow's a, 1: by b
	out     outer
	seq     uint32
	ack     uint32
	flags   byte
	ipID    uint32
	ttl     uint8 // or hop limit
	payload []byte
	cut     int // payload bytes that the snap length left out
	at      int64
	untimed bool // at is that of the packets before it: its own was wrong
}

const (
	tcpFIN = 1 << iota
	tcpSYN
	tcpRST
	tcpPSH
	tcpACK
)

// The link types that are read.
const (
	linkNull     = 0
	linkEthernet = 1
	linkRawBSD   = 12
	linkRawOpen  = 14
	linkRaw      = 101
	linkLoop     = 108
	linkSLL      = 113
	linkIPv4     = 228
	linkIPv6     = 229
	linkSLL2     = 276
)

// verdict says what became of a frame.
type verdict uint8

const (
	isTCP    verdict = iota
	notTCP           // something else, well formed as far as it was read
	unread           // damaged, or of a kind that is not read
	filtered         // TCP, but none of the wanted ports
)

// decoder peels frames down to TCP segments. It never panics and keeps no reference to a frame, but for fragments, which it copies.
type decoder struct {
	ports map[uint16]bool // server ports; empty is all
	frags fragments
	depth int
}

const (
	etherIPv4  = 0x0800
	etherIPv6  = 0x86dd
	etherVLAN  = 0x8100
	etherQinQ  = 0x88a8
	etherQinQ2 = 0x9100
	etherTEB   = 0x6558
	etherPPPoE = 0x8864
	etherMPLS  = 0x8847
)

// decode fills s from a frame.
func (d *decoder) decode(p *packet, s *segment) verdict {
	*s = segment{at: p.at, untimed: p.untimed, out: outer{iface: p.iface}}
	b := p.data
	missing := p.orig - len(b)
	d.depth = 0
	switch p.link {
	case linkEthernet:
		return d.ethernet(b, missing, s)
	case linkNull, linkLoop:
		if len(b) < 4 {
			return unread
		}
		return d.ip(b[4:], missing, s)
	case linkRaw, linkRawBSD, linkRawOpen, linkIPv4, linkIPv6:
		return d.ip(b, missing, s)
	case linkSLL:
		if len(b) < 16 {
			return unread
		}
		return d.ether(binary.BigEndian.Uint16(b[14:]), b[16:], missing, s)
	case linkSLL2:
		if len(b) < 20 {
			return unread
		}
		s.out.iface = binary.BigEndian.Uint32(b[4:])
		return d.ether(binary.BigEndian.Uint16(b), b[20:], missing, s)
	}
	return unread
}

func (d *decoder) ethernet(b []byte, missing int, s *segment) verdict {
	if len(b) < 14 {
		return unread
	}
	return d.ether(binary.BigEndian.Uint16(b[12:]), b[14:], missing, s)
}

func (d *decoder) ether(kind uint16, b []byte, missing int, s *segment) verdict {
	for {
		switch kind {
		case etherIPv4, etherIPv6:
			return d.ip(b, missing, s)
		case etherVLAN, etherQinQ, etherQinQ2:
			if len(b) < 4 {
				return unread
			}
			s.out.vlan = s.out.vlan<<12 | uint32(binary.BigEndian.Uint16(b)&0xfff)
			kind, b = binary.BigEndian.Uint16(b[2:]), b[4:]
		case etherTEB:
			return d.ethernet(b, missing, s)
		case etherPPPoE:
			if len(b) < 8 {
				return unread
			}
			return d.ip(b[8:], missing, s)
		case etherMPLS:
			for {
				if len(b) < 4 {
					return unread
				}
				bottom := b[2]&1 == 1
				b = b[4:]
				if bottom {
					return d.ip(b, missing, s)
				}
			}
		default:
			return notTCP
		}
	}
}

// ip reads an IP packet, of which missing bytes follow b on the wire but not in the capture.
func (d *decoder) ip(b []byte, missing int, s *segment) verdict {
	if d.depth++; d.depth > 8 || len(b) < 1 {
		return unread
	}
	switch b[0] >> 4 {
	case 4:
		return d.ip4(b, missing, s)
	case 6:
		return d.ip6(b, missing, s)
	}
	return notTCP
}

func (d *decoder) ip4(b []byte, missing int, s *segment) verdict {
	if len(b) < 20 {
		return unread
	}
	head := int(b[0]&15) * 4
	if head < 20 || len(b) < head {
		return unread
	}
	total := int(binary.BigEndian.Uint16(b[2:]))
	if total == 0 || total < head { // a segmentation-offload packet, whose length is filled in by the card
		total = len(b) + missing
	}
	b, missing = trim(b, total, missing)
	if len(b) < head {
		return unread
	}
	var src, dst addr
	src[10], src[11], dst[10], dst[11] = 0xff, 0xff, 0xff, 0xff
	copy(src[12:], b[12:16])
	copy(dst[12:], b[16:20])
	s.ipID, s.ttl = uint32(binary.BigEndian.Uint16(b[4:]))|1<<16, b[8]
	proto := b[9]
	if off := binary.BigEndian.Uint16(b[6:]); off&0x3fff != 0 {
		whole, ok := d.frags.add4(b, head, missing, src, dst, s)
		if !ok {
			return notTCP
		}
		return d.transport(proto, whole, 0, src, dst, s)
	}
	return d.transport(proto, b[head:], missing, src, dst, s)
}

// trim cuts link-layer padding: b becomes the packet's own bytes, and missing what the capture lacks of them.
func trim(b []byte, total, missing int) ([]byte, int) {
	if total <= len(b) {
		return b[:total], 0
	}
	return b, min(missing, total-len(b))
}

func (d *decoder) ip6(b []byte, missing int, s *segment) verdict {
	if len(b) < 40 {
		return unread
	}
	total := int(binary.BigEndian.Uint16(b[4:]))
	if total > 0 { // 0: a jumbogram or a segmentation-offload packet
		b, missing = trim(b, total+40, missing)
	}
	var src, dst addr
	copy(src[:], b[8:24])
	copy(dst[:], b[24:40])
	s.ttl = b[7]
	next, rest := b[6], b[40:]
	for range 16 {
		switch next {
		case 0, 43, 60, 135, 139, 140: // hop-by-hop, routing, destination, mobility, HIP, shim6
			if len(rest) < 8 {
				return unread
			}
			n := (int(rest[1]) + 1) * 8
			if len(rest) < n {
				return unread
			}
			next, rest = rest[0], rest[n:]
		case 51: // authentication
			if len(rest) < 8 {
				return unread
			}
			n := (int(rest[1]) + 2) * 4
			if len(rest) < n {
				return unread
			}
			next, rest = rest[0], rest[n:]
		case 44: // fragment
			if len(rest) < 8 {
				return unread
			}
			next = rest[0]
			if binary.BigEndian.Uint16(rest[2:])&0xfff9 == 0 { // the only fragment
				rest = rest[8:]
				continue
			}
			whole, ok := d.frags.add6(rest, missing, src, dst, s)
			if !ok {
				return notTCP
			}
			rest, missing = whole, 0
		default:
			return d.transport(next, rest, missing, src, dst, s)
		}
	}
	return unread
}

func (d *decoder) transport(proto byte, b []byte, missing int, src, dst addr, s *segment) verdict {
	switch proto {
	case 6:
		return d.tcp(b, missing, src, dst, s)
	case 17:
		return d.udp(b, missing, s)
	case 4, 41: // IP in IP
		return d.ip(b, missing, s)
	case 47:
		return d.gre(b, missing, s)
	}
	return notTCP
}

func (d *decoder) tcp(b []byte, missing int, src, dst addr, s *segment) verdict {
	if len(b) < 20 {
		return unread
	}
	head := int(b[12]>>4) * 4
	if head < 20 {
		return unread
	}
	sp, dp := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	if len(d.ports) > 0 && !d.ports[sp] && !d.ports[dp] {
		return filtered
	}
	s.seq, s.ack = binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
	s.flags = b[13]
	if len(b) < head { // cut inside the options: all of the payload is missing
		s.cut = max(missing-(head-len(b)), 0)
	} else {
		s.payload, s.cut = b[head:], missing
	}
	if sp < dp || sp == dp && string(src[:]) <= string(dst[:]) {
		s.flow, s.from = flow{src, dst, sp, dp}, 0
	} else {
		s.flow, s.from = flow{dst, src, dp, sp}, 1
	}
	return isTCP
}

// udp reads the tunnels that run over UDP.
func (d *decoder) udp(b []byte, missing int, s *segment) verdict {
	if len(b) < 8 {
		return unread
	}
	switch binary.BigEndian.Uint16(b[2:]) {
	case 4789, 8472: // VXLAN
		if len(b) < 16 {
			return unread
		}
		if b[8]&8 == 0 {
			return notTCP
		}
		s.out.vni = binary.BigEndian.Uint32(b[12:])>>8 | 1<<24
		return d.tunnel(b[16:], missing, s)
	case 6081: // Geneve
		if len(b) < 16 {
			return unread
		}
		n := 16 + int(b[8]&0x3f)*4
		if len(b) < n || b[8]>>6 != 0 {
			return unread
		}
		s.out.vni = binary.BigEndian.Uint32(b[12:])>>8 | 2<<24
		return d.tunnelKind(binary.BigEndian.Uint16(b[10:]), b[n:], missing, s)
	}
	return notTCP
}

func (d *decoder) gre(b []byte, missing int, s *segment) verdict {
	if len(b) < 4 {
		return unread
	}
	flags, kind := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	if flags&7 != 0 { // version 1 is PPTP's
		return notTCP
	}
	n := 4
	for _, bit := range []uint16{0x8000, 0x2000, 0x1000} { // checksum, key, sequence
		if flags&bit == 0 {
			continue
		}
		if len(b) < n+4 {
			return unread
		}
		if bit == 0x2000 {
			s.out.vni = binary.BigEndian.Uint32(b[n:])&(1<<24-1) | 3<<24
		}
		n += 4
	}
	if kind == 0x88be && flags&0x1000 != 0 { // ERSPAN type II
		n += 8
		if len(b) < n {
			return unread
		}
		return d.tunnel(b[n:], missing, s)
	}
	return d.tunnelKind(kind, b[n:], missing, s)
}

func (d *decoder) tunnelKind(kind uint16, b []byte, missing int, s *segment) verdict {
	if kind == etherTEB {
		return d.tunnel(b, missing, s)
	}
	if d.depth++; d.depth > 8 {
		return unread
	}
	return d.ether(kind, b, missing, s)
}

func (d *decoder) tunnel(b []byte, missing int, s *segment) verdict {
	if d.depth++; d.depth > 8 {
		return unread
	}
	return d.ethernet(b, missing, s)
}
