package ring

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// frameInKernel is a packet as the kernel's filter meets it: from the network header on, with what it knows beside.
type frameInKernel struct {
	data       []byte
	protocol   uint16
	packetType uint8
	hardware   uint16
	tag        uint16
	tagged     bool
}

// runProgram is a second reading of linux/filter.h, for the tests: it returns how many bytes of the frame pass.
func runProgram(program []unix.SockFilter, f frameInKernel) uint32 {
	var acc, x uint32
	var mem [16]uint32
	load := func(size uint16, at uint32) (uint32, bool) {
		switch at {
		case adProtocol:
			return uint32(f.protocol), true
		case adPacketType:
			return uint32(f.packetType), true
		case adHardware:
			return uint32(f.hardware), true
		case adTag:
			return uint32(f.tag), true
		case adTagPresent:
			if f.tagged {
				return 1, true
			}
			return 0, true
		}
		n := map[uint16]uint32{unix.BPF_B: 1, unix.BPF_H: 2, unix.BPF_W: 4}[size]
		if at > 1<<20 || at+n > uint32(len(f.data)) {
			return 0, false
		}
		switch n {
		case 1:
			return uint32(f.data[at]), true
		case 2:
			return uint32(binary.BigEndian.Uint16(f.data[at:])), true
		}
		return binary.BigEndian.Uint32(f.data[at:]), true
	}
	for pc := 0; ; pc++ {
		i := program[pc]
		operand := i.K
		if i.Code&unix.BPF_X != 0 {
			operand = x
		}
		switch i.Code & 7 {
		case unix.BPF_LD:
			switch i.Code & 0xe0 {
			case unix.BPF_IMM:
				acc = i.K
			case unix.BPF_MEM:
				acc = mem[i.K]
			default:
				at := i.K
				if i.Code&0xe0 == unix.BPF_IND {
					at += x
				}
				v, ok := load(i.Code&0x18, at)
				if !ok {
					return 0
				}
				acc = v
			}
		case unix.BPF_LDX:
			x = mem[i.K]
		case unix.BPF_ST:
			mem[i.K] = acc
		case unix.BPF_MISC:
			x = acc
		case unix.BPF_ALU:
			switch i.Code & 0xf0 {
			case unix.BPF_ADD:
				acc += operand
			case unix.BPF_AND:
				acc &= operand
			case unix.BPF_LSH:
				acc <<= operand
			case unix.BPF_RSH:
				acc >>= operand
			default:
				panic("unknown operation")
			}
		case unix.BPF_JMP:
			var holds bool
			switch i.Code & 0xf0 {
			case unix.BPF_JA:
				pc += int(i.K)
				continue
			case unix.BPF_JEQ:
				holds = acc == operand
			case unix.BPF_JGT:
				holds = acc > operand
			case unix.BPF_JGE:
				holds = acc >= operand
			default:
				panic("unknown comparison")
			}
			if holds {
				pc += int(i.Jt)
			} else {
				pc += int(i.Jf)
			}
		case unix.BPF_RET:
			return i.K
		}
	}
}
