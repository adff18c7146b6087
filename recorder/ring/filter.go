package ring

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Filter says which TCP packets are wanted. The zero value wants all. Later fragments of a packet, which have no ports, are always
// wanted where their addresses are.
type Filter struct {
	root node
	text string
}

// String returns the expression that the filter was made of.
func (f Filter) String() string { return f.text }

// Flow is what Match looks at: one TCP packet's addresses and VLANs, outermost tag first.
type Flow struct {
	Source, Destination netip.AddrPort
	VLANs               []uint16
}

// Match reports whether the filter wants the packet.
func (f Filter) Match(p Flow) bool { return f.root == nil || f.root.match(p) }

// And returns a filter that wants what both want.
func (f Filter) And(g Filter) Filter {
	switch {
	case f.root == nil:
		return g
	case g.root == nil:
		return f
	}
	return Filter{both{f.root, g.root}, "(" + f.text + ") and (" + g.text + ")"}
}

// Ports returns a filter for packets from or to any of the ports; with none it wants all.
func Ports(ports ...uint16) Filter {
	var f Filter
	for _, p := range ports {
		g := Filter{portRange{anySide, p, p}, "port " + strconv.Itoa(int(p))}
		if f.root == nil {
			f = g
		} else {
			f = Filter{either{f.root, g.root}, f.text + " or " + g.text}
		}
	}
	return f
}

// ParseFilter reads an expression in a subset of tcpdump's language: [src|dst] host ADDRESS, [src|dst] net PREFIX, [src|dst] port N,
// [src|dst] portrange N-M, vlan [N], ip, ip6, tcp, joined by and, or, not (&&, ||, !) and parentheses. As in tcpdump, and and or bind
// equally, from left to right. Unlike there, "vlan N" does not shift what follows: it asks for any tag N. The empty text wants all.
func ParseFilter(text string) (Filter, error) {
	p := parser{tokens: tokenize(text)}
	if len(p.tokens) == 0 {
		return Filter{}, nil
	}
	if len(p.tokens) > 4096 {
		return Filter{}, fmt.Errorf("read filter: %d words are too many", len(p.tokens))
	}
	root, err := p.expression(0)
	if err == nil && p.at < len(p.tokens) {
		err = fmt.Errorf("%q after a complete expression", p.tokens[p.at])
	}
	if err != nil {
		return Filter{}, fmt.Errorf("read filter %q: %w", text, err)
	}
	return Filter{root, strings.Join(strings.Fields(text), " ")}, nil
}

func tokenize(text string) []string {
	for _, s := range []string{"(", ")", "&&", "||", "!"} {
		text = strings.ReplaceAll(text, s, " "+s+" ")
	}
	return strings.Fields(text)
}

// node is one part of an expression: a second form of it, machine code, is in compile.go.
type node interface{ match(Flow) bool }

type side uint8

const (
	anySide side = iota
	sourceSide
	destinationSide
)

type (
	both    struct{ a, b node }
	either  struct{ a, b node }
	inverse struct{ a node }
	prefix  struct {
		side side
		net  netip.Prefix
	}
	portRange struct {
		side     side
		from, to uint16
	}
	tagged struct {
		any bool
		id  uint16
	}
	version struct{ v uint32 }
	always  struct{}
)

func (n both) match(p Flow) bool    { return n.a.match(p) && n.b.match(p) }
func (n either) match(p Flow) bool  { return n.a.match(p) || n.b.match(p) }
func (n inverse) match(p Flow) bool { return !n.a.match(p) }
func (always) match(Flow) bool      { return true }

func (n prefix) match(p Flow) bool {
	return n.side != destinationSide && n.net.Contains(p.Source.Addr()) || n.side != sourceSide && n.net.Contains(p.Destination.Addr())
}

func (n portRange) match(p Flow) bool {
	in := func(port uint16) bool { return n.from <= port && port <= n.to }
	return n.side != destinationSide && in(p.Source.Port()) || n.side != sourceSide && in(p.Destination.Port())
}

func (n tagged) match(p Flow) bool {
	for _, id := range p.VLANs {
		if n.any || id == n.id {
			return true
		}
	}
	return false
}

func (n version) match(p Flow) bool { return p.Source.Addr().Is4() == (n.v == 4) }

type parser struct {
	tokens []string
	at     int
}

func (p *parser) peek() string {
	if p.at < len(p.tokens) {
		return p.tokens[p.at]
	}
	return ""
}

func (p *parser) take() string {
	t := p.peek()
	p.at++
	return t
}

const maxDepth = 64

func (p *parser) expression(depth int) (node, error) {
	left, err := p.term(depth)
	for err == nil {
		switch p.peek() {
		case "and", "&&":
			p.at++
			var right node
			if right, err = p.term(depth); err == nil {
				left = both{left, right}
			}
		case "or", "||":
			p.at++
			var right node
			if right, err = p.term(depth); err == nil {
				left = either{left, right}
			}
		default:
			return left, nil
		}
	}
	return nil, err
}

func (p *parser) term(depth int) (node, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxDepth)
	}
	switch p.peek() {
	case "not", "!":
		p.at++
		n, err := p.term(depth + 1)
		return inverse{n}, err
	case "(":
		p.at++
		n, err := p.expression(depth + 1)
		if err == nil && p.take() != ")" {
			err = fmt.Errorf("a parenthesis is not closed")
		}
		return n, err
	}
	return p.primitive()
}

func (p *parser) primitive() (node, error) {
	s := anySide
	switch p.peek() {
	case "src":
		s = sourceSide
		p.at++
	case "dst":
		s = destinationSide
		p.at++
	}
	word := p.take()
	if s != anySide && word != "host" && word != "net" && word != "port" && word != "portrange" {
		return nil, fmt.Errorf("src or dst before %q: host, net, port or portrange", word)
	}
	switch word {
	case "host":
		a, err := netip.ParseAddr(p.take())
		if err != nil {
			return nil, fmt.Errorf("host: %w", err)
		}
		a = a.Unmap().WithZone("")
		return prefix{s, netip.PrefixFrom(a, a.BitLen())}, nil
	case "net":
		n, err := netip.ParsePrefix(p.take())
		if err != nil {
			return nil, fmt.Errorf("net: %w", err)
		}
		return prefix{s, n.Masked()}, nil
	case "port":
		v, err := port(p.take())
		return portRange{s, v, v}, err
	case "portrange":
		from, to, ok := strings.Cut(p.take(), "-")
		if !ok {
			return nil, fmt.Errorf("portrange: two ports, as in 8000-8010")
		}
		a, err := port(from)
		if err != nil {
			return nil, err
		}
		b, err := port(to)
		if err == nil && b < a {
			err = fmt.Errorf("portrange %d-%d is empty", a, b)
		}
		return portRange{s, a, b}, err
	case "vlan":
		if v, err := strconv.ParseUint(p.peek(), 10, 16); err == nil {
			p.at++
			if v > 4095 {
				return nil, fmt.Errorf("vlan %d: 0 to 4095", v)
			}
			return tagged{id: uint16(v)}, nil
		}
		return tagged{any: true}, nil
	case "ip":
		return version{4}, nil
	case "ip6":
		return version{6}, nil
	case "tcp":
		return always{}, nil
	case "":
		return nil, fmt.Errorf("it ends where host, net, port, portrange, vlan, ip, ip6 or tcp should stand")
	}
	return nil, fmt.Errorf("%q is not one of host, net, port, portrange, vlan, ip, ip6, tcp", word)
}

func port(s string) (uint16, error) {
	v, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("port %q: a number from 0 to 65535", s)
	}
	return uint16(v), nil
}
