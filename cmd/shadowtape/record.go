package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/term"
	"github.com/shadowtape/shadowtape/recorder"
)

// recordFlags are the flags of record.
type recordFlags struct {
	pcaps   []string
	ports   []uint
	keyFile string
	node    string
	idle    time.Duration
	gap     time.Duration
	out     string
	force   bool
	asJSON  bool
	live    liveFlags
	text    textFlags
}

func recordCommand(a *app) *cobra.Command {
	c, _ := recordWithFlags(a)
	return c
}

func recordWithFlags(a *app) (*cobra.Command, *recordFlags) {
	var o recordFlags
	c := &cobra.Command{
		Use:   "record --pcap FILE… | --interface IF --port N… | --listen ADDR --upstream URL | --sink ADDR  -o TRACE",
		Short: "Record traffic as a trace that holds no text",
		Long: `Record traffic as a trace that holds no text: packets are put together to exchanges, of which times, lengths, parameters and token counts
are kept. Nothing that a user or a model wrote reaches the disk. What the capture lost is flagged, never guessed.`,
		Example: `  shadowtape record --pcap monday.pcap -o monday
  shadowtape record --pcap *.pcapng.zst --port 8000 --key-file trace.key -o week
  tcpdump -i eth0 -s 0 -w - tcp port 8000 | shadowtape record --pcap - -o now.parquet --json
  shadowtape record --interface eth0 --port 8000 --check
  shadowtape record --listen :8900 --upstream http://127.0.0.1:8000 -o production \
    --metrics http://127.0.0.1:8000/metrics`,
		RunE: func(c *cobra.Command, args []string) error {
			o.pcaps = append(o.pcaps, args...) // as a shell expands --pcap *.pcap
			if err := o.misuse(c.Flags().Changed); err != nil {
				return err
			}
			return a.record(c.Context(), o)
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringArrayVar(&o.pcaps, "pcap", nil, "capture file to read, pcap or pcapng, also compressed with gzip or zstd; several are one capture, put in order by their times; - is standard input")
	f.UintSliceVar(&o.ports, "port", nil, "TCP port of a server; packets of other ports are passed over (default: all ports)")
	f.Lookup("port").DefValue = "" // pflag would print (default [])
	f.DurationVar(&o.idle, "idle-timeout", 15*time.Minute, "give up a connection that is silent for so long, by the packets' clock")
	f.DurationVar(&o.gap, "gap-timeout", 10*time.Second, "give up waiting for lost bytes that no acknowledgement explains, by the packets' clock")
	f.StringVar(&o.keyFile, "key-file", "", "file with the key of the hashes, at least 16 bytes, so that several recordings agree (default: a key drawn and thrown away)")
	f.StringVar(&o.node, "node", "", "what to call this recorder in the trace (default: nothing)")
	f.StringVarP(&o.out, "output", "o", "", "where the trace goes: a directory, or one file if it ends in .parquet")
	f.BoolVar(&o.force, "force", false, "replace a trace that is there")
	f.BoolVar(&o.asJSON, "json", false, "print one JSON document")
	o.live.add(f)
	o.text.add(f)
	groupFlags(c, append([]flagGroup{
		{"Source", []string{"pcap", "port", "idle-timeout", "gap-timeout"}},
		{"Lengths", []string{"tokenizer"}},
		{"Privacy", []string{"key-file", "keep-bodies", "keep-bodies-limit"}},
		{"Result", []string{"output", "force", "node", "json"}},
	}, liveGroups...)...)
	return c, &o
}

func (a *app) record(ctx context.Context, o recordFlags) error {
	var opts recorder.Options
	for _, p := range o.ports {
		opts.Filter.Ports = append(opts.Filter.Ports, uint16(p))
	}
	if o.live.live() {
		return a.recordLive(ctx, o, opts.Filter.Ports)
	}
	key, err := readKey(o.keyFile)
	if err != nil {
		return err
	}
	l := o.live
	src := &recorder.Files{Names: o.pcaps, Stdin: a.in, Key: key, Node: o.node, Limits: recorder.Limits{IdleTimeout: o.idle, GapTimeout: o.gap},
		Select: recorder.Selection{Paths: l.paths, Models: l.models, Statuses: l.statuses, Fraction: l.sample, By: recorder.SampleUnit(l.sampleBy), Window: l.sampleWindow}}
	if err := src.Validate(); err != nil {
		return usageError(err, "")
	}
	size, err := src.Size()
	if err != nil {
		return err
	}
	if src.Counting, err = o.text.open(a, o, false, 0); err != nil {
		return err
	}
	opts.Bodies = src.Bodies
	h := formats.Header{ToolVersion: readBuildInfo().Version, SourceKind: "pcap", TimeBase: "absolute", Clock: formats.ClockPacket}
	var names []string
	for _, n := range o.pcaps {
		names = append(names, filepath.Base(n))
	}
	h.Source = strings.Join(names, " ")
	if l.sample < 1 {
		h.SamplingFraction = l.sample
	}
	o.text.describe(&h, key, src.Counting)
	var st recorder.Stats
	begun := false
	err = replacing(o.out, o.force, func(out string) error {
		w, err := formats.Create(out, h, formats.SegmentOptions{})
		if err != nil {
			return err
		}
		begun = true
		if ownsProcess {
			debug.SetGCPercent(200) // its heap is small, and a tenth of its time went into collecting it
		}
		bar := term.NewBar(a.err, size, func() (int64, string) { n, x := src.Progress(); return n, fmt.Sprintf("%d exchanges", x) })
		st, err = recorder.Record(ctx, src, w, opts)
		bar.End()
		for _, s := range st.Warnings {
			fmt.Fprintf(a.err, "shadowtape: warning: %s\n", oneLine(s))
		}
		w.Header().Counters = st.Counters
		err = errors.Join(err, w.Close())
		if src.Bodies != nil {
			err = errors.Join(err, src.Bodies.Close())
		}
		if err == nil && ctx.Err() != nil && out != o.out {
			err = fmt.Errorf("record: %w", errInterrupted)
		}
		return err
	})
	if !begun {
		o.text.abandon(src.Counting)
	}
	if errors.Is(err, fs.ErrExist) {
		return withHint(err, "--force replaces it")
	}
	if !begun {
		return err
	}
	if err == nil || ctx.Err() != nil {
		if perr := a.recorded(o, st); perr != nil {
			err = errors.Join(err, perr)
		}
	}
	if errors.Is(err, errInterrupted) {
		return exitWith(exitInterrupted, err, "")
	}
	if err == nil && ctx.Err() != nil {
		return exitWith(exitInterrupted, errors.New("record: interrupted, the trace holds what was read"), "")
	}
	return err
}

// recorded prints the counters.
func (a *app) recorded(o recordFlags, st recorder.Stats) error {
	if o.asJSON {
		return json.NewEncoder(a.out).Encode(recordAnswer{st.Seen, st.Filtered, st.Dropped, st.Written, st.Reasons, st.Notes, st.Packets, st.Bytes})
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s: %d exchanges seen, %d filtered, %d dropped, %d written, from %d packets\n", o.out, st.Seen, st.Filtered, st.Dropped, st.Written, st.Packets)
	for _, k := range slices.Sorted(maps.Keys(st.Reasons)) {
		fmt.Fprintf(&b, "  %-28s %d\n", k, st.Reasons[k])
	}
	for _, k := range slices.Sorted(maps.Keys(st.Notes)) {
		fmt.Fprintf(&b, "  note: %-22s %d\n", k, st.Notes[k])
	}
	_, err := io.Copy(a.out, &b)
	return err
}

// recordAnswer is what record --json prints.
type recordAnswer struct {
	Seen     int64            `json:"seen"`
	Filtered int64            `json:"filtered"`
	Dropped  int64            `json:"dropped"`
	Written  int64            `json:"written"`
	Reasons  map[string]int64 `json:"reasons"`
	Notes    map[string]int64 `json:"notes"`
	Packets  int64            `json:"packets"`
	Bytes    int64            `json:"bytes"`
}

// minKey is the shortest key that is worth the name.
const minKey = 16

// readKey reads a key file, or draws a key that nobody will know where there is none.
func readKey(name string) ([]byte, error) {
	if name == "" {
		key := make([]byte, 32)
		_, err := rand.Read(key)
		return key, err
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read key file: %w", err)
	}
	defer f.Close()
	key, err := io.ReadAll(io.LimitReader(f, 1<<16))
	if err != nil {
		return nil, fmt.Errorf("read key file: %w", err)
	}
	key = bytes.TrimSpace(key)
	if len(key) < minKey {
		return nil, withHint(fmt.Errorf("read key file %s: %d bytes, a key has at least %d", name, len(key), minKey), "head -c 32 /dev/urandom | base64 > "+name)
	}
	return key, nil
}
