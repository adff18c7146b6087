package main

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/recorder"
)

// The sources of record, as its flags name them.
const (
	fromFiles     = "--pcap"
	fromInterface = "--interface"
	fromProxy     = "--listen"
	fromSink      = "--sink"
)

// recordOnly are the flags that say something to some sources only: given with another they would be ignored, so they are refused.
var recordOnly = []struct {
	sources []string
	flags   []string
}{
	{[]string{fromInterface}, []string{"filter", "tunnels", "promiscuous", "workers", "ring", "max-cpu", "check"}},
	{[]string{fromFiles, fromInterface}, []string{"port", "gap-timeout"}},
	{[]string{fromProxy}, []string{"tls-cert", "tls-key", "upstream-ca", "close-idle", "drain-delay"}},
	{[]string{fromProxy, fromSink}, []string{"max-connections", "grace"}},
	{[]string{fromInterface, fromProxy, fromSink}, []string{"duration", "metrics-listen", "metrics", "gpu-metrics", "scrape", "memory", "segment-age", "segment-size", "quota", "append", "spool"}},
}

// source is the one source that is asked for.
func (o *recordFlags) source() (string, error) {
	l := &o.live
	var named []string
	for _, s := range []struct {
		name string
		on   bool
	}{{fromFiles, len(o.pcaps) > 0}, {fromInterface, l.iface != ""}, {fromProxy, l.listen != "" || l.upstream != ""}, {fromSink, l.sink != ""}} {
		if s.on {
			named = append(named, s.name)
		}
	}
	switch len(named) {
	case 0:
		return "", usageError(errors.New("record needs a source"), "--pcap FILE, --interface NAME, --listen ADDRESS --upstream URL, or --sink ADDRESS")
	case 1:
		return named[0], nil
	}
	return "", usageError(errors.New("record takes one source, not "+strings.Join(named, " and ")), "--pcap, --interface, --listen with --upstream, or --sink")
}

// misuse finds what is wrong with the flags alone, before anything is opened or made. given reports whether a flag was set.
func (o *recordFlags) misuse(given func(string) bool) error {
	source, err := o.source()
	if err != nil {
		return err
	}
	l := &o.live
	if source == fromFiles && l.watches() {
		return usageError(errors.New("a capture file's server cannot be watched: --metrics and --gpu-metrics are for traffic as it passes"), "--interface NAME, --listen ADDRESS --upstream URL, or --sink ADDRESS")
	}
	for _, r := range recordOnly {
		for _, name := range r.flags {
			if given(name) && !slices.Contains(r.sources, source) {
				return usageError(fmt.Errorf("--%s says nothing to %s", name, source), "it goes with "+strings.Join(r.sources, " or "))
			}
		}
	}
	for _, p := range o.ports {
		if p == 0 || p > 65535 {
			return usageError(fmt.Errorf("--port %d: no TCP port", p), "")
		}
	}
	for _, d := range []struct {
		flag string
		v    time.Duration
		zero bool // is allowed
	}{
		{"idle-timeout", o.idle, false}, {"gap-timeout", o.gap, false}, {"scrape", l.scrape, false}, {"segment-age", l.segmentAge, false}, {"sample-window", l.sampleWindow, false},
		{"duration", l.duration, true}, {"grace", l.grace, true}, {"drain-delay", l.drainDelay, true}, {"close-idle", l.closeIdle, true},
	} {
		if d.v < 0 || d.v == 0 && !d.zero {
			return usageError(fmt.Errorf("--%s %s is %s", d.flag, d.v, map[bool]string{true: "negative", false: "not positive"}[d.zero]), "")
		}
	}
	switch {
	case o.out == "" && !l.check:
		return usageError(errors.New("record needs -o TRACE"), "")
	case l.sample == 0:
		return usageError(errors.New("--sample 0 records nothing"), "")
	case given("keep-bodies-limit") && o.text.bodies == "":
		return usageError(errors.New("--keep-bodies-limit without --keep-bodies"), "--keep-bodies FILE")
	case o.text.bodies != "" && o.text.limit == 0:
		return usageError(errors.New("--keep-bodies-limit 0 keeps nothing"), "leave --keep-bodies out")
	case o.text.bodies != "" && inside(o.text.bodies, o.out):
		return usageError(fmt.Errorf("--keep-bodies %s is within the trace: its text stands apart", o.text.bodies), "another directory")
	}
	selection := recorder.Selection{Paths: l.paths, Models: l.models, Statuses: l.statuses, Fraction: l.sample, By: recorder.SampleUnit(l.sampleBy), Window: l.sampleWindow}
	if err := selection.Validate(); err != nil {
		return usageError(err, "")
	}
	if source == fromFiles {
		return nil
	}
	return l.misuse(o)
}

// misuse finds what is wrong with the flags of traffic as it passes.
func (l *liveFlags) misuse(o *recordFlags) error {
	switch {
	case strings.HasSuffix(o.out, ".parquet") && !l.check:
		return usageError(errors.New("traffic as it passes is recorded into a directory, not one file"), "-o DIRECTORY")
	case l.check && o.text.bodies != "":
		return usageError(errors.New("--check writes nothing: it keeps no bodies"), "leave --keep-bodies out")
	case o.text.bodies != "" && formats.Remote(o.out):
		return usageError(errors.New("--keep-bodies keeps text beside a trace on this machine, not beside one in object storage"), "-o DIRECTORY")
	case l.check && l.watches():
		return usageError(errors.New("--check writes nothing: it watches no metrics"), "leave --metrics and --gpu-metrics out")
	case l.spool != "" && !formats.Remote(o.out):
		return usageError(errors.New("--spool is for a trace that goes to object storage"), "-o s3://BUCKET/PREFIX")
	case o.force && formats.Remote(o.out) && !l.check:
		return usageError(fmt.Errorf("--force with -o %s: recorders share a prefix, and each start adds its own trace below it", o.out), "")
	case o.force && l.appendTrace:
		return usageError(errors.New("--append goes on with a trace, --force replaces it"), "one of them")
	case l.segmentSize == 0:
		return usageError(errors.New("--segment-size 0 holds nothing"), "")
	case l.workers < 1:
		return usageError(fmt.Errorf("--workers %d: at least one", l.workers), "")
	case !(l.maxCPU >= 0):
		return usageError(fmt.Errorf("--max-cpu %v is negative", l.maxCPU), "")
	case l.maxConnections < 0:
		return usageError(fmt.Errorf("--max-connections %d is negative", l.maxConnections), "")
	case (l.listen == "") != (l.upstream == ""):
		return usageError(errors.New("a proxy needs --listen ADDRESS and --upstream URL"), "--listen :8900 --upstream http://127.0.0.1:8000")
	case l.cert != "" && l.key == "":
		return usageError(errors.New("--tls-cert without --tls-key: a certificate needs its key"), "--tls-cert FILE --tls-key FILE")
	case l.key != "" && l.cert == "":
		return usageError(errors.New("--tls-key without --tls-cert: a key needs its certificate"), "--tls-cert FILE --tls-key FILE")
	}
	for _, at := range []struct{ flag, address string }{{"listen", l.listen}, {"sink", l.sink}, {"metrics-listen", l.metrics}} {
		if at.address == "" {
			continue
		}
		if _, port, err := net.SplitHostPort(at.address); err != nil {
			return usageError(fmt.Errorf("--%s %s: no address to listen on", at.flag, at.address), "HOST:PORT, or :PORT for every address of this machine")
		} else if _, err := net.LookupPort("tcp", port); err != nil {
			return usageError(fmt.Errorf("--%s %s: %q is no TCP port", at.flag, at.address, port), "HOST:PORT, or :PORT for every address of this machine")
		}
	}
	return nil
}
