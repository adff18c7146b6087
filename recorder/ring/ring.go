// Package ring reads packets from a Linux network interface through a memory-mapped AF_PACKET ring (TPACKET_V3), without cgo and with
// CAP_NET_RAW only. The kernel filter stands before the first packet is let in, packets are handed out in place, and every packet that
// the kernel dropped is counted.
package ring

import (
	"errors"
	"fmt"
	"time"
)

// The limits and defaults of Options.
const (
	DefaultBytes        = 32 << 20
	DefaultBlockTimeout = 20 * time.Millisecond
	blockBytes          = 1 << 20 // of one block: larger than the largest packet, GRO and BIG TCP included
	MinBytes            = 2 * blockBytes
)

// ErrPermission is what Open returns (wrapped) when the process may not open a packet socket.
var ErrPermission = errors.New("not permitted: it needs CAP_NET_RAW")

// ErrGone is what Read returns (wrapped) when the interface has been removed.
var ErrGone = errors.New("the interface is gone")

// ErrUnsupported is what Open returns (wrapped) on systems without AF_PACKET.
var ErrUnsupported = errors.New("live capture needs Linux")

// Options say what to open. Only Interface is required.
type Options struct {
	Interface    string        // a name, or "any" for all interfaces
	Filter       Filter        // what the kernel lets through; the zero value lets all TCP through
	Tunnels      bool          // also let through what may wrap a TCP packet: VXLAN, Geneve, GRE, IP in IP. Filter does not look inside
	Promiscuous  bool          // also see what is not addressed to this machine (a bridge, a mirror port)
	Bytes        int           // ring size of each worker; 0: DefaultBytes
	Workers      int           // rings between which connections are spread; 0: 1. Tunnels need 1
	BlockTimeout time.Duration // longest time a packet waits in a block that does not fill; 0: DefaultBlockTimeout. Stamps do not depend on it
}

// Validate reports everything that is wrong with o.
func (o *Options) Validate() error {
	var errs []error
	if o.Interface == "" {
		errs = append(errs, errors.New("no interface given"))
	}
	if o.Bytes != 0 && o.Bytes < MinBytes {
		errs = append(errs, fmt.Errorf("ring of %d bytes: at least %d", o.Bytes, MinBytes))
	}
	if o.Workers < 0 || o.Workers > 256 {
		errs = append(errs, fmt.Errorf("%d workers: 1 to 256", o.Workers))
	}
	if o.Tunnels && o.Workers > 1 {
		errs = append(errs, errors.New("tunnels and several workers: both directions of a tunnelled connection need not reach the same worker"))
	}
	if o.BlockTimeout < 0 || o.BlockTimeout > 0 && o.BlockTimeout < time.Millisecond {
		errs = append(errs, fmt.Errorf("block timeout of %s: at least 1ms", o.BlockTimeout))
	}
	return errors.Join(errs...)
}

// Packet is one packet in the ring. Data is valid until the function it was handed to returns.
type Packet struct {
	Data      []byte // from an Ethernet header on (addresses zero; VLAN tags that the kernel had taken off are back in place)
	Length    int    // of the packet with that header; more than len(Data) where it was cut
	UnixNS    int64  // the kernel's receive or send stamp
	Interface int    // index of the interface it was seen on
	Outgoing  bool   // sent by this machine on that interface
}

// Stats count what the sockets of one Open have met, since it was opened.
type Stats struct {
	Received int64 // packets that passed the filter, dropped ones included
	Dropped  int64 // of these, packets that found the ring full
	Frozen   int64 // times the ring was full and the kernel waited for a block
	Read     int64 // packets handed out
	Cut      int64 // of these, packets longer than a block could take
}
