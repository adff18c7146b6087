package main

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/objects/s3test"
	"github.com/shadowtape/shadowtape/recorder/netlab"
)

// TestShardsOnManyMachines: three replayers, each a process in a network namespace of its own, take one trace from object storage, replay
// their shards against a server in a fourth, and leave their runs in object storage, from where they are merged.
func TestShardsOnManyMachines(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED by -short: it waits for an agreed start")
	}
	const shards = 3
	self, err := exec.LookPath("shadowtape")
	if err != nil {
		t.Fatal(err)
	}
	server := netlab.NewHost(t)
	server.IP("addr add 10.9.0.1/32 dev lo")
	var clients []*netlab.Host
	for i := range shards {
		c := netlab.NewHost(t)
		netlab.Link(server, fmt.Sprint("s", i), fmt.Sprintf("10.8.%d.1/24", i), c, "c", fmt.Sprintf("10.8.%d.2/24", i))
		c.IP(fmt.Sprintf("route add 10.9.0.1/32 via 10.8.%d.1", i))
		clients = append(clients, c)
	}
	var l net.Listener
	server.Do(func() { l, err = net.Listen("tcp", "10.9.0.1:9000") })
	if err != nil {
		t.Fatal(err)
	}
	store := s3test.On(t, l)
	sim := exec.Command(self, "sim", "--listen", "10.9.0.1:8000", "--ttft", "2ms", "--itl", "1ms")
	out, err := sim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	server.Do(func() { err = sim.Start() })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sim.Process.Signal(os.Interrupt); sim.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	target := strings.TrimSpace(line)
	command := func(h *netlab.Host, args ...string) (string, error) {
		var b bytes.Buffer
		c := exec.Command(self, args...)
		c.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
		for k, v := range store.Environment() {
			c.Env = append(c.Env, k+"="+v)
		}
		c.Stdout, c.Stderr = &b, &b
		var err error
		h.Do(func() { err = c.Start() })
		if err == nil {
			err = c.Wait()
		}
		return b.String(), err
	}
	trace := smallTrace(t, 90, 10*time.Millisecond, func(i int, x *formats.Exchange) { x.SessionID = formats.Of(formats.Hash{byte(i % 13), 4}) })
	if text, err := command(clients[0], "simulate", trace, "--profile", "llama-3.1-8b-h100", "-o", "s3://traces/source"); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	start := time.Now().Add(6 * time.Second).UTC().Format(time.RFC3339)
	var wg sync.WaitGroup
	for i, c := range clients {
		wg.Go(func() {
			text, err := command(c, "replay", "s3://traces/source", "--target", target, "--shard", fmt.Sprintf("%d/%d", i+1, shards), "--start-at", start, "-o", fmt.Sprintf("s3://traces/night/pod-%d", i), "--allow-invalid")
			if err != nil {
				t.Errorf("shard %d: %v: %s", i+1, err, text)
			}
		})
	}
	wg.Wait()
	whole := filepath.Join(t.TempDir(), "whole")
	if text, err := command(clients[1], "merge", "s3://traces/night", "-o", whole, "--allow-invalid"); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	m, rows := readRun(t, whole)
	if len(rows) != 90 || m.Requests.Scheduled != 90 || m.Requests.Sent+m.Requests.Dropped != 90 || len(m.Shards) != shards {
		t.Fatalf("%d rows, %+v, %d shards", len(rows), m.Requests, len(m.Shards))
	}
	slices.SortFunc(rows, func(a, b *formats.Exchange) int { return int(a.ArrivalIndex.V - b.ArrivalIndex.V) })
	for i, x := range rows {
		if x.ArrivalIndex.V != int64(i) || x.ArrivalUnixNS != m.StartUnixNS+int64(i)*int64(10*time.Millisecond) {
			t.Fatalf("row %d: %+v", i, x)
		}
	}
}
