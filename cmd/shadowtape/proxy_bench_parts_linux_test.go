package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// onLoopback runs a load and returns when each event of it was on loopback, by the kernel's stamps: as the server sent it, and as the
// proxy did (0 where there is none).
func onLoopback(dir, server, front string, load func()) (map[benchEvent][2]int64, error) {
	_, from, _ := strings.Cut(server, ":")
	_, to, _ := strings.Cut(front, ":")
	name := filepath.Join(dir, "parts.pcap")
	defer os.Remove(name)
	c := exec.Command("tcpdump", "-i", "lo", "-n", "-s", "1000", "-B", "65536", "--time-stamp-precision=nano", "-w", name, fmt.Sprintf("src port %s or src port %s", from, to))
	var said bytes.Buffer
	c.Stderr = &said
	if err := c.Start(); err != nil {
		return nil, err
	}
	time.Sleep(500 * time.Millisecond) // it has opened the interface
	load()
	c.Process.Signal(os.Interrupt)
	if err := c.Wait(); err != nil {
		return nil, fmt.Errorf("%v: %s", err, said.String())
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	if len(b) < 24 || binary.LittleEndian.Uint32(b) != 0xa1b23c4d {
		return nil, errors.New("no capture with nanoseconds, of a little-endian machine")
	}
	port, _ := strconv.Atoi(from)
	events := map[benchEvent][2]int64{}
	for b = b[24:]; len(b) >= 16; {
		at := int64(binary.LittleEndian.Uint32(b))*1e9 + int64(binary.LittleEndian.Uint32(b[4:]))
		n := int(binary.LittleEndian.Uint32(b[8:]))
		if len(b) < 16+n {
			break
		}
		frame := b[16 : 16+n]
		b = b[16+n:]
		if len(frame) < 54 {
			continue
		}
		side := 1
		if int(binary.BigEndian.Uint16(frame[34:])) == port { // IPv4 without options, in Ethernet
			side = 0
		}
		for {
			i := bytes.Index(frame, []byte(`"had":`))
			if i < 0 {
				break
			}
			frame = frame[i:]
			e := benchEvent{number(frame, `"had":`), number(frame, `"wrote":`)}
			frame = frame[6:]
			if t := events[e]; t[side] == 0 {
				t[side] = at
				events[e] = t
			}
		}
	}
	return events, nil
}

// benchParts are the rows of a way's table: what of a token's time is the server's, the proxy's, the client's.
func benchParts(name string, wire map[benchEvent][2]int64, seen map[benchEvent]int64) string {
	var parts [3][]time.Duration
	for e, now := range seen {
		t := wire[e]
		if t[0] == 0 {
			continue // it was not captured
		}
		parts[0] = append(parts[0], time.Duration(t[0]-e.wrote))
		if t[1] != 0 {
			parts[1] = append(parts[1], time.Duration(t[1]-t[0]))
			parts[2] = append(parts[2], time.Duration(now-t[1]))
		} else {
			parts[2] = append(parts[2], time.Duration(now-t[0]))
		}
	}
	var b strings.Builder
	for i, what := range []string{"the server has written it, it is on its way", "in the proxy: from the server's packet to its own", "on its way, the client has read it"} {
		if len(parts[i]) == 0 {
			continue
		}
		slices.Sort(parts[i])
		fmt.Fprintf(&b, "| %s | %s (%d) | %.0f us | %.0f us | %.0f us |\n", name, what, len(parts[i]), float64(at(parts[i], .5))/1e3, float64(at(parts[i], .9))/1e3, float64(at(parts[i], .99))/1e3)
	}
	return b.String()
}
