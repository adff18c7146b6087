package recorder

import "encoding/binary"

// fragments puts IP fragments together. It holds a bounded number of bytes; the oldest packet gives way.
type fragments struct {
	open  map[fragKey]*fragPacket
	order []fragKey
	held  int
}

type fragKey struct {
	src, dst addr
	id       uint32
	proto    byte
	vni      uint32
}

type fragPacket struct {
	parts []fragPart
	total int // -1: the last part has not come
	held  int
	at    int64
}

type fragPart struct {
	off  int
	data []byte
}

const (
	maxFragHeld  = 8 << 20
	maxFragParts = 512
	fragTimeout  = 30e9
)

func (f *fragments) add4(b []byte, head, missing int, src, dst addr, s *segment) ([]byte, bool) {
	off := binary.BigEndian.Uint16(b[6:])
	k := fragKey{src, dst, uint32(binary.BigEndian.Uint16(b[4:])), b[9], s.out.vni}
	return f.add(k, int(off&0x1fff)*8, off&0x2000 != 0, b[head:], missing, s.at)
}

func (f *fragments) add6(b []byte, missing int, src, dst addr, s *segment) ([]byte, bool) {
	off := binary.BigEndian.Uint16(b[2:])
	k := fragKey{src, dst, binary.BigEndian.Uint32(b[4:]), b[0], s.out.vni}
	return f.add(k, int(off&^7), off&1 != 0, b[8:], missing, s.at)
}

// add takes a part and returns the whole packet's payload when it was the last to come. Parts that overlap others are ignored, as
// receivers must (RFC 5722); a part that the snap length cut never completes its packet.
func (f *fragments) add(k fragKey, off int, more bool, data []byte, missing int, at int64) ([]byte, bool) {
	if missing > 0 || len(data) == 0 {
		return nil, false
	}
	if f.open == nil {
		f.open = map[fragKey]*fragPacket{}
	}
	p := f.open[k]
	if p != nil && (at-p.at > fragTimeout || len(p.parts) >= maxFragParts) {
		f.drop(k)
		p = nil
	}
	if p == nil {
		p = &fragPacket{total: -1, at: at}
		f.open[k] = p
		f.order = append(f.order, k)
	}
	i := 0
	for i < len(p.parts) && p.parts[i].off < off {
		i++
	}
	if i > 0 && p.parts[i-1].off+len(p.parts[i-1].data) > off || i < len(p.parts) && p.parts[i].off < off+len(data) {
		return nil, false
	}
	p.parts = append(p.parts, fragPart{})
	copy(p.parts[i+1:], p.parts[i:])
	p.parts[i] = fragPart{off, append([]byte(nil), data...)}
	p.held += len(data)
	f.held += len(data)
	if !more {
		p.total = off + len(data)
	}
	if p.total == p.held {
		whole := make([]byte, 0, p.total)
		for _, part := range p.parts {
			if part.off != len(whole) {
				return nil, false
			}
			whole = append(whole, part.data...)
		}
		f.drop(k)
		return whole, true
	}
	for f.held > maxFragHeld && len(f.order) > 0 {
		f.drop(f.order[0])
	}
	return nil, false
}

func (f *fragments) drop(k fragKey) {
	if p := f.open[k]; p != nil {
		f.held -= p.held
		delete(f.open, k)
	}
	for i, o := range f.order {
		if o == k {
			f.order = append(f.order[:i], f.order[i+1:]...)
			break
		}
	}
}
