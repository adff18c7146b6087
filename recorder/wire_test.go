package recorder

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/klauspost/compress/zstd"

	"github.com/shadowtape/shadowtape/formats"
)

// each returns a capture whose packets are changed one by one; the function gets Ethernet and returns what stands in the file.
func each(frames []frame, do func([]byte) []byte) []frame {
	out := make([]frame, 0, len(frames))
	for _, f := range frames {
		if d := do(slices.Clone(f.data)); d != nil {
			out = append(out, frame{f.at, d})
		}
	}
	return out
}

func insert(b []byte, at int, p ...byte) []byte { return slices.Concat(b[:at], p, b[at:]) }

func ipPart(b []byte) []byte { return b[14:] }

// wrapUDP puts a payload into Ethernet, IPv4 and UDP.
func wrapUDP(port uint16, payload []byte) []byte {
	b := make([]byte, 42)
	b[12], b[13] = 8, 0
	b[14], b[22], b[23] = 0x45, 64, 17
	binary.BigEndian.PutUint16(b[16:], uint16(28+len(payload)))
	copy(b[26:], []byte{192, 168, 0, 1, 192, 168, 0, 2})
	binary.BigEndian.PutUint16(b[34:], 55555)
	binary.BigEndian.PutUint16(b[36:], port)
	binary.BigEndian.PutUint16(b[38:], uint16(8+len(payload)))
	return append(b, payload...)
}

func wrapGRE(kind uint16, payload []byte) []byte {
	b := make([]byte, 38)
	b[12], b[13] = 8, 0
	b[14], b[22], b[23] = 0x45, 64, 47
	binary.BigEndian.PutUint16(b[16:], uint16(24+len(payload)))
	copy(b[26:], []byte{192, 168, 0, 1, 192, 168, 0, 2})
	binary.BigEndian.PutUint16(b[36:], kind)
	return append(b, payload...)
}

// toIPv6 carries the TCP segment in IPv6, behind the given extension headers.
func toIPv6(b []byte, first byte, ext []byte) []byte {
	tcp := b[34:]
	h := make([]byte, 40)
	h[0] = 0x60
	binary.BigEndian.PutUint16(h[4:], uint16(len(ext)+len(tcp)))
	h[6], h[7] = first, 64
	copy(h[8:], b[26:30])
	copy(h[24:], b[30:34])
	h[23], h[39] = 1, 1
	return slices.Concat(b[:12], []byte{0x86, 0xdd}, h, ext, tcp)
}

// TestWireForms records both captures in everything that they may wear on the wire: the row must be the same each time.
func TestWireForms(t *testing.T) {
	for _, name := range []string{"openai_stream_usage", "openai_normal_usage"} {
		t.Run(name, func(t *testing.T) { wireForms(t, "testdata/"+name+".pcap") })
	}
}

func wireForms(t *testing.T, name string) {
	frames := readFrames(t, name)
	clean, _ := record(t, name)
	// A wrap in the middle of what each side says: of the first packets, the client's and the server's initial sequence numbers.
	port, isn := binary.BigEndian.Uint16(frames[0].data[34:]), [2]uint32{binary.BigEndian.Uint32(frames[0].data[38:]), binary.BigEndian.Uint32(frames[1].data[38:])}
	said := uint32(0)
	for _, f := range frames {
		if binary.BigEndian.Uint16(f.data[34:]) == 8000 {
			said = max(said, binary.BigEndian.Uint32(f.data[38:])-isn[1])
		}
	}
	vni := []byte{8, 0, 0, 0, 0, 0, 42, 0}
	cases := []struct {
		name   string
		link   uint32
		server string // where the address is another
		frames []frame
	}{
		{"plain", linkEthernet, "", frames},
		{"802.1Q", linkEthernet, "", each(frames, func(b []byte) []byte { return insert(b, 12, 0x81, 0, 0, 100) })},
		{"QinQ", linkEthernet, "", each(frames, func(b []byte) []byte { return insert(b, 12, 0x88, 0xa8, 0, 7, 0x81, 0, 0, 100) })},
		{"VXLAN", linkEthernet, "", each(frames, func(b []byte) []byte { return wrapUDP(4789, slices.Concat(vni, b)) })},
		{"VXLAN on flannel's port", linkEthernet, "", each(frames, func(b []byte) []byte { return wrapUDP(8472, slices.Concat(vni, b)) })},
		{"Geneve", linkEthernet, "", each(frames, func(b []byte) []byte {
			return wrapUDP(6081, slices.Concat([]byte{1, 0, 0x65, 0x58, 0, 0, 42, 0, 1, 2, 3, 0}, b))
		})},
		{"Geneve of IP", linkEthernet, "", each(frames, func(b []byte) []byte {
			return wrapUDP(6081, slices.Concat([]byte{0, 0, 8, 0, 0, 0, 42, 0}, ipPart(b)))
		})},
		{"GRE of IP", linkEthernet, "", each(frames, func(b []byte) []byte { return wrapGRE(0x0800, ipPart(b)) })},
		{"GRE of Ethernet", linkEthernet, "", each(frames, func(b []byte) []byte { return wrapGRE(0x6558, b) })},
		{"IP in IP", linkEthernet, "", each(frames, func(b []byte) []byte { w := wrapGRE(0, ipPart(b)); w[23] = 4; return append(w[:34:34], w[38:]...) })},
		{"VLAN around VXLAN", linkEthernet, "", each(frames, func(b []byte) []byte {
			return insert(wrapUDP(4789, slices.Concat(vni, b)), 12, 0x81, 0, 0, 9)
		})},
		{"MPLS", linkEthernet, "", each(frames, func(b []byte) []byte {
			b = insert(b, 14, 0, 0, 0x10, 64, 0, 0, 0x21, 64)
			b[12], b[13] = 0x88, 0x47
			return b
		})},
		{"PPPoE", linkEthernet, "", each(frames, func(b []byte) []byte {
			b = insert(b, 14, 0x11, 0, 0, 1, 0, 0, 0, 0x21)
			b[12], b[13] = 0x88, 0x64
			return b
		})},
		{"raw IP", linkRaw, "", each(frames, ipPart)},
		{"raw IPv4", linkIPv4, "", each(frames, ipPart)},
		{"BSD loopback", linkNull, "", each(frames, func(b []byte) []byte { return slices.Concat([]byte{2, 0, 0, 0}, ipPart(b)) })},
		{"OpenBSD loopback", linkLoop, "", each(frames, func(b []byte) []byte { return slices.Concat([]byte{0, 0, 0, 2}, ipPart(b)) })},
		{"cooked v1", linkSLL, "", each(frames, func(b []byte) []byte {
			return slices.Concat([]byte{0, 0, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0}, ipPart(b))
		})},
		{"cooked v1 with VLAN", linkSLL, "", each(frames, func(b []byte) []byte {
			return slices.Concat([]byte{0, 0, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0x81, 0, 0, 5, 8, 0}, ipPart(b))
		})},
		{"cooked v2", linkSLL2, "", each(frames, func(b []byte) []byte {
			return slices.Concat([]byte{8, 0, 0, 0, 0, 0, 0, 3, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0}, ipPart(b))
		})},
		{"padding to 60 bytes and more", linkEthernet, "", each(frames, func(b []byte) []byte { return append(b, make([]byte, 12)...) })},
		{"IP length 0", linkEthernet, "", each(frames, func(b []byte) []byte { b[16], b[17] = 0, 0; return b })},
		{"wrong checksums", linkEthernet, "", each(frames, func(b []byte) []byte { b[24], b[50] = b[24]+1, b[50]+1; return b })},
		{"IPv6", linkEthernet, "[7f00:1::1]:8000", each(frames, func(b []byte) []byte { return toIPv6(b, 6, nil) })},
		{"IPv6 extension headers", linkEthernet, "[7f00:1::1]:8000", each(frames, func(b []byte) []byte {
			return toIPv6(b, 0, []byte{60, 0, 1, 4, 0, 0, 0, 0, 43, 0, 1, 4, 0, 0, 0, 0, 44, 0, 9, 0, 0, 0, 0, 0, 6, 0, 0, 0, 1, 2, 3, 4})
		})},
		{"IPv6 length 0", linkEthernet, "[7f00:1::1]:8000", each(frames, func(b []byte) []byte { b = toIPv6(b, 6, nil); b[18], b[19] = 0, 0; return b })},
		{"IPv4 fragments", linkEthernet, "", fragment4(frames, false)},
		{"IPv4 fragments, last first", linkEthernet, "", fragment4(frames, true)},
		{"IPv6 fragments", linkEthernet, "[7f00:1::1]:8000", fragment6(frames)},
		{"sequence wrap of the server", linkEthernet, "", each(frames, func(b []byte) []byte { return shiftSeq(b, 8000, -isn[1]-said/2) })},
		{"sequence wrap of the client", linkEthernet, "", each(frames, func(b []byte) []byte { return shiftSeq(b, port, -isn[0]-100) })},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, st := recordBytes(t, pcapBytes(c.link, c.frames))
			if len(got) != 1 {
				t.Fatalf("%d exchanges; %+v", len(got), st)
			}
			if c.server != "" && got[0].ServerID == c.server {
				got[0].ServerID = clean[0].ServerID
			}
			if d := difference(clean[0], got[0], 0); d != "" || flaggedRow(got[0]) {
				t.Errorf("differs in %s:\nwant %+v\ngot  %+v", d, clean[0], got[0])
			}
		})
	}
}

// shiftSeq adds to a port's sequence numbers.
func shiftSeq(b []byte, port uint16, by uint32) []byte {
	at := 38
	if binary.BigEndian.Uint16(b[34:]) != port {
		at = 42
		if b[47]&tcpACK == 0 {
			return b
		}
	}
	binary.BigEndian.PutUint32(b[at:], binary.BigEndian.Uint32(b[at:])+by)
	return b
}

func fragment4(frames []frame, backwards bool) (out []frame) {
	for n, f := range frames {
		body := f.data[34:]
		var parts []frame
		for off := 0; off < len(body); off += 64 {
			end := min(off+64, len(body))
			d := slices.Concat(f.data[:34], body[off:end])
			binary.BigEndian.PutUint16(d[16:], uint16(20+end-off))
			binary.BigEndian.PutUint16(d[18:], uint16(n))
			bits := uint16(off / 8)
			if end < len(body) {
				bits |= 0x2000
			}
			binary.BigEndian.PutUint16(d[20:], bits)
			parts = append(parts, frame{f.at, d})
		}
		if backwards {
			slices.Reverse(parts)
		}
		out = append(out, parts...)
	}
	return out
}

func fragment6(frames []frame) (out []frame) {
	for n, f := range frames {
		body := f.data[34:]
		for off := 0; off < len(body); off += 80 {
			end := min(off+80, len(body))
			ext := make([]byte, 8)
			ext[0] = 6
			bits := uint16(off)
			if end < len(body) {
				bits |= 1
			}
			binary.BigEndian.PutUint16(ext[2:], bits)
			binary.BigEndian.PutUint32(ext[4:], uint32(n))
			out = append(out, frame{f.at, toIPv6(slices.Concat(f.data[:34], body[off:end]), 44, ext)})
		}
	}
	return out
}

// TestCaptureFiles reads the stream from every kind of file.
func TestCaptureFiles(t *testing.T) {
	frames := readFrames(t, "testdata/openai_stream_usage.pcap")
	clean, _ := record(t, "testdata/openai_stream_usage.pcap")
	little, big := binary.ByteOrder(binary.LittleEndian), binary.ByteOrder(binary.BigEndian)
	plain := pcapBytes(linkEthernet, frames)
	var gz, zs bytes.Buffer
	w := gzip.NewWriter(&gz)
	w.Write(plain)
	w.Close()
	z, _ := zstd.NewWriter(&zs)
	z.Write(plain)
	z.Close()
	for _, c := range []struct {
		name  string
		bytes []byte
		moved int64
	}{
		{"pcap, nanoseconds", plain, 0},
		{"pcap, microseconds, big endian", pcapAs(big, 0xa1b2c3d4, 1000, frames), 0},
		{"pcap, nanoseconds, big endian", pcapAs(big, 0xa1b23c4d, 1, frames), 0},
		{"pcap, snap length 0 and a frame check sequence", pcapAs(little, 0xa1b2c3d4, 1000, frames), 0},
		{"gzip", gz.Bytes(), 0},
		{"zstd", zs.Bytes(), 0},
		{"pcapng", pcapng(little, frames, 1e6, nil), 0},
		{"pcapng, big endian", pcapng(big, frames, 1e6, nil), 0},
		{"pcapng, nanoseconds", pcapng(little, frames, 1e9, []byte{9, 0, 1, 0, 9, 0, 0, 0}), 0},
		{"pcapng, 2^-20 s", pcapng(little, frames, 1<<20, []byte{9, 0, 1, 0, 0x80 | 20, 0, 0, 0}), 1000},
		{"pcapng, 2^-30 s", pcapng(little, frames, 1<<30, []byte{9, 0, 1, 0, 0x80 | 30, 0, 0, 0}), 1},
		{"pcapng, 10^-2 s", pcapng(little, frames, 100, []byte{9, 0, 1, 0, 2, 0, 0, 0}), 1e7},
		{"pcapng, malformed options", pcapng(little, frames, 1e6, []byte{9, 0, 0, 0, 9, 0, 255, 255}), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, st := recordBytes(t, c.bytes)
			if len(got) != 1 {
				t.Fatalf("%d exchanges; %+v", len(got), st)
			}
			if d := difference(clean[0], got[0], c.moved); d != "" {
				t.Errorf("differs in %s:\nwant %+v\ngot  %+v", d, clean[0], got[0])
			}
			if drops := st.Notes["capture_drops"]; strings.HasPrefix(c.name, "pcapng") != (drops == 3 && len(st.Warnings) == 1) {
				t.Errorf("%d drops, %q", drops, st.Warnings)
			}
			if st.Packets != 1034 {
				t.Errorf("%d packets", st.Packets)
			}
		})
	}
}

func pcapAs(o binary.ByteOrder, magic uint32, unit int64, frames []frame) []byte {
	b := make([]byte, 24)
	o.PutUint32(b, magic)
	o.PutUint16(b[4:], 2)
	o.PutUint16(b[6:], 4)
	o.PutUint32(b[20:], 0x14000000|linkEthernet)
	for _, f := range frames {
		b = o.(binary.AppendByteOrder).AppendUint32(b, uint32(f.at/1e9))
		b = o.(binary.AppendByteOrder).AppendUint32(b, uint32(f.at%1e9/unit))
		b = o.(binary.AppendByteOrder).AppendUint32(b, uint32(len(f.data)))
		b = o.(binary.AppendByteOrder).AppendUint32(b, uint32(len(f.data)))
		b = append(b, f.data...)
	}
	return b
}

// pcapng writes two interfaces, of which the first has another link type, and blocks of kinds that are passed over.
func pcapng(o binary.ByteOrder, frames []frame, units uint64, option []byte) (out []byte) {
	a := o.(binary.AppendByteOrder)
	block := func(kind uint32, body []byte) {
		for len(body)%4 != 0 {
			body = append(body, 0)
		}
		out = a.AppendUint32(out, kind)
		out = a.AppendUint32(out, uint32(len(body)+12))
		out = append(out, body...)
		out = a.AppendUint32(out, uint32(len(body)+12))
	}
	if len(option) > 0 && o == binary.ByteOrder(binary.BigEndian) {
		panic("options are made little endian")
	}
	section := a.AppendUint32(nil, 0x1a2b3c4d)
	section = a.AppendUint16(section, 1)
	section = a.AppendUint16(section, 0)
	block(0x0a0d0d0a, a.AppendUint64(section, ^uint64(0)))
	iface := func(link uint16, opt []byte) {
		b := a.AppendUint16(nil, link)
		b = a.AppendUint16(b, 0)
		b = a.AppendUint32(b, 262144)
		block(1, append(b, opt...))
	}
	iface(linkRaw, nil)
	iface(linkEthernet, option)
	block(0xa, []byte("TLS keys would stand here"))
	block(4, nil)
	for i, f := range frames {
		// Rounded up, so that rounding down on reading gives the same time again.
		hi, lo := uint64(f.at/1e9)*units, (uint64(f.at%1e9)*units+999_999_999)/1e9
		ts := hi + lo
		b := a.AppendUint32(nil, uint32(1-i%2))
		data := f.data
		if i%2 == 1 {
			data = ipPart(data)
			ts = uint64(f.at / 1000)
		}
		b = a.AppendUint32(b, uint32(ts>>32))
		b = a.AppendUint32(b, uint32(ts))
		b = a.AppendUint32(b, uint32(len(data)))
		b = a.AppendUint32(b, uint32(len(data)))
		block(6, append(b, data...))
	}
	stats := a.AppendUint32(nil, 1)
	stats = a.AppendUint64(stats, 0)
	stats = a.AppendUint16(stats, 5)
	stats = a.AppendUint16(stats, 8)
	stats = a.AppendUint64(stats, 3)
	block(5, stats)
	return out
}

// TestDecoderAgainstGopacket holds the decoder against an independent one.
func TestDecoderAgainstGopacket(t *testing.T) {
	frames := append(readFrames(t, "testdata/openai_stream_usage.pcap"), traffic(1, 3, 2, 10)...)
	frames = append(frames, each(frames[:200], func(b []byte) []byte { return insert(b, 12, 0x81, 0, 0, 100) })...)
	frames = append(frames, each(frames[:200], func(b []byte) []byte {
		return toIPv6(b, 60, []byte{6, 0, 1, 4, 0, 0, 0, 0})
	})...)
	var d decoder
	for _, f := range frames {
		var s segment
		if v := d.decode(&packet{data: f.data, at: f.at, orig: len(f.data), link: linkEthernet}, &s); v != isTCP {
			t.Fatalf("verdict %d of %x", v, f.data)
		}
		p := gopacket.NewPacket(f.data, layers.LayerTypeEthernet, gopacket.Default)
		l, ok := p.Layer(layers.LayerTypeTCP).(*layers.TCP)
		if !ok {
			t.Fatalf("gopacket sees no TCP in %x", f.data)
		}
		ports := [2]uint16{s.flow.pa, s.flow.pb}
		flags := s.flags
		if s.seq != l.Seq || s.ack != l.Ack || !bytes.Equal(s.payload, l.Payload) || ports[s.from] != uint16(l.SrcPort) || ports[1-s.from] != uint16(l.DstPort) ||
			flags&tcpSYN != 0 != l.SYN || flags&tcpFIN != 0 != l.FIN || flags&tcpRST != 0 != l.RST || flags&tcpACK != 0 != l.ACK {
			t.Fatalf("%+v, gopacket %+v", s, l)
		}
	}
}

// TestManyViews records a flow that is seen on several interfaces, in a VLAN and in a tunnel at once.
func TestManyViews(t *testing.T) {
	frames := readFrames(t, "testdata/openai_stream_usage.pcap")
	var all []frame
	for _, f := range frames {
		all = append(all, f,
			frame{f.at + 2000, insert(f.data, 12, 0x81, 0, 0, 100)},
			frame{f.at + 4000, wrapUDP(4789, slices.Concat([]byte{8, 0, 0, 0, 0, 0, 42, 0}, f.data))})
	}
	slices.SortStableFunc(all, func(a, b frame) int { return int(a.at - b.at) })
	clean, _ := record(t, "testdata/openai_stream_usage.pcap")
	got, st := recordFrames(t, all)
	if len(got) != 1 {
		t.Fatalf("%d exchanges, %+v", len(got), st)
	}
	if d := difference(clean[0], got[0], 0); d != "" || flaggedRow(got[0]) {
		t.Errorf("differs in %s: %+v", d, got[0])
	}
	if st.Notes["duplicate_packets"] < 1000 {
		t.Errorf("duplicates: %+v", st.Notes)
	}
	// The same addresses in two networks are two flows.
	all = all[:0]
	for _, f := range frames {
		g := shiftSeq(shiftSeq(slices.Clone(f.data), 8000, 1<<30), 58820, 1<<29)
		all = append(all, f, frame{f.at + 1000, wrapUDP(4789, slices.Concat([]byte{8, 0, 0, 0, 0, 0, 43, 0}, g))})
	}
	if got, st = recordFrames(t, all); len(got) != 2 || flaggedRow(got[0]) || flaggedRow(got[1]) || got[1].OutputTokens.V != 512 {
		t.Errorf("%d exchanges, %+v", len(got), st)
	}
}

// TestDamagedFiles cuts and corrupts files: what stood before the damage is kept, with one warning.
func TestDamagedFiles(t *testing.T) {
	frames := readFrames(t, "testdata/openai_stream_usage.pcap")
	for name, b := range map[string][]byte{"pcap": pcapBytes(linkEthernet, frames), "pcapng": pcapng(binary.LittleEndian, frames, 1e6, nil)} {
		t.Run(name, func(t *testing.T) {
			got, st := recordBytes(t, b[:len(b)/2])
			if len(got) != 1 || got[0].EndReason != formats.EndCaptureCut || got[0].ErrorKind != "" || !got[0].FirstTokenNS.Valid || len(st.Warnings) != 1 {
				t.Errorf("%d exchanges, %v, %+v", len(got), st.Warnings, got)
			}
			bad := slices.Clone(b)
			copy(bad[len(b)/2:], bytes.Repeat([]byte{0xff}, 64))
			if got, st = recordBytes(t, bad); len(got) != 1 || len(st.Warnings) == 0 {
				t.Errorf("%d exchanges, %v", len(got), st.Warnings)
			}
		})
	}
	for name, b := range map[string][]byte{"empty": nil, "short": {0xa1, 0xb2}, "text": []byte("GET / HTTP/1.1"), "header only": pcapBytes(1, nil)[:20]} {
		where := filepath.Join(t.TempDir(), "x")
		if err := os.WriteFile(where, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Record(t.Context(), &Files{Names: []string{where}}, new(collect), Options{}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestSnapLength tells what the snap length cut from what was lost.
func TestSnapLength(t *testing.T) {
	b := pcapBytes(linkEthernet, nil)
	for _, f := range readFrames(t, "testdata/openai_stream_usage.pcap") {
		keep := min(len(f.data), 320)
		b = binary.LittleEndian.AppendUint32(b, uint32(f.at/1e9))
		b = binary.LittleEndian.AppendUint32(b, uint32(f.at%1e9))
		b = binary.LittleEndian.AppendUint32(b, uint32(keep))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(f.data)))
		b = append(b, f.data[:keep]...)
	}
	got, st := recordBytes(t, b)
	if len(got) != 1 || !got[0].Truncated.V || got[0].GapBytes.Valid || got[0].OutputTokens.Valid || got[0].ErrorKind != "" || st.Notes["truncated_packets"] == 0 || got[0].RequestEndNS.Valid {
		t.Errorf("%+v %+v", st, got)
	}
}

// TestOffload records packets as segmentation and receive offload make them: up to and beyond 64 KiB, with the IP length that does not fit.
func TestOffload(t *testing.T) {
	frames := stripOptions(readFrames(t, "testdata/openai_stream_usage.pcap"))
	clean, _ := recordFrames(t, frames)
	for _, group := range []int{2, 50, 400} {
		var out []frame
		var big *frame
		n := 0
		flush := func() {
			if big != nil {
				if len(big.data)-14 > 0xffff {
					binary.BigEndian.PutUint16(big.data[16:], 0)
				}
				out = append(out, *big)
				big, n = nil, 0
			}
		}
		for _, f := range frames {
			fromServer := binary.BigEndian.Uint16(f.data[34:]) == 8000
			switch {
			case fromServer && len(payloadOf(f)) > 0 && f.data[47]&(tcpSYN|tcpFIN) == 0:
				if big == nil {
					big = &frame{f.at, slices.Clone(f.data)}
				} else {
					*big = join(*big, f)
				}
				if n++; n == group {
					flush()
				}
			case !fromServer && big != nil && len(payloadOf(f)) == 0 && f.data[47]&tcpFIN == 0: // an acknowledgement that the receiver did not send
			default:
				flush()
				out = append(out, f)
			}
		}
		got, st := recordFrames(t, out)
		if len(got) != 1 {
			t.Fatalf("%d in one: %d rows, %+v", group, len(got), st)
		}
		x, want := got[0], clean[0]
		if flaggedRow(x) || x.OutputTokens != want.OutputTokens || len(x.EventGapUS) != 512 || x.FinishReason != want.FinishReason || x.ResponseBytes != want.ResponseBytes ||
			flags(x, formats.FlagCoalesced) < 512-512/group-5 {
			t.Errorf("%d in one: %d events, %d coalesced, %+v", group, len(x.EventGapUS), flags(x, formats.FlagCoalesced), st)
		}
	}
}
