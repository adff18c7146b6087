package ring

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func TestParseFilter(t *testing.T) {
	v4 := Flow{Source: netip.MustParseAddrPort("10.1.2.3:4444"), Destination: netip.MustParseAddrPort("10.9.9.9:8000"), VLANs: []uint16{7, 30}}
	v6 := Flow{Source: netip.MustParseAddrPort("[2001:db8::1]:8000"), Destination: netip.MustParseAddrPort("[2001:db8:5::2]:50000")}
	for _, c := range []struct {
		text  string
		a, b  bool // of v4, of v6
		fails string
	}{
		{text: "", a: true, b: true},
		{text: "tcp", a: true, b: true},
		{text: "port 8000", a: true, b: true},
		{text: "dst port 8000", a: true},
		{text: "src port 8000", b: true},
		{text: "portrange 7999-8001 and ip6", b: true},
		{text: "portrange 4445-7999"},
		{text: "host 10.1.2.3", a: true},
		{text: "src host 10.9.9.9"},
		{text: "net 10.0.0.0/8", a: true},
		{text: "dst net 2001:db8:5::/48", b: true},
		{text: "host ::ffff:10.1.2.3", a: true},
		{text: "vlan", a: true},
		{text: "vlan 30 && !vlan 8", a: true},
		{text: "not vlan 7", b: true},
		{text: "ip or (ip6 and port 1)", a: true},
		{text: "ip6 or ip and port 1"}, // from left to right, as in tcpdump
		{text: "not (ip6 or ip)"},
		{text: "host", fails: "host"},
		{text: "net 10.0.0.0", fails: "net"},
		{text: "port 70000", fails: "0 to 65535"},
		{text: "portrange 9-8", fails: "empty"},
		{text: "portrange 9", fails: "two ports"},
		{text: "vlan 5000", fails: "0 to 4095"},
		{text: "src vlan 5", fails: "src or dst"},
		{text: "(port 80", fails: "not closed"},
		{text: "port 80 port 81", fails: "after a complete expression"},
		{text: "port 80 and", fails: "it ends where"},
		{text: "udp", fails: "not one of"},
		{text: strings.Repeat("not ", 100) + "tcp", fails: "nested"},
	} {
		f, err := ParseFilter(c.text)
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%q: error %v, want one with %q", c.text, err, c.fails)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		if a, b := f.Match(v4), f.Match(v6); a != c.a || b != c.b {
			t.Errorf("%q matches %t, %t; want %t, %t", c.text, a, b, c.a, c.b)
		}
	}
	if f := Ports(8000, 9000).And(Filter{}); f.String() != "port 8000 or port 9000" || !f.Match(v4) {
		t.Errorf("Ports: %s", f)
	}
}

func FuzzParseFilter(f *testing.F) {
	f.Add("host 10.0.0.1 and (port 80 or not vlan 5)")
	f.Add("src net fe80::/10||portrange 1-2&&!ip6")
	f.Fuzz(func(t *testing.T, text string) {
		if got, err := ParseFilter(text); err == nil {
			got.Match(Flow{Source: netip.MustParseAddrPort("10.1.2.3:4444"), Destination: netip.MustParseAddrPort("10.9.9.9:8000")})
		}
	})
}

func ExampleParseFilter() {
	f, err := ParseFilter("net 10.0.0.0/8 and (port 8000 or port 8080)")
	fmt.Println(f, err)
	// Output: net 10.0.0.0/8 and (port 8000 or port 8080) <nil>
}
