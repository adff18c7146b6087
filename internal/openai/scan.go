package openai

// scanner reads one JSON value incrementally and in constant memory: bytes are pushed in whatever pieces they arrive, values at paths
// that the table names are handed to the Response, and everything else is skipped without being kept. It checks structure, not
// every detail of RFC 8259: it exists to find a dozen fields in a stream of small objects.
type scanner struct {
	to    *Response
	root  *node
	state scanState
	esc   bool  // the byte before was a backslash
	wrote bool  // the value has begun
	depth int   // containers open
	size  int   // bytes of the open string or scalar
	key   bool  // the open string is a key
	bare  byte  // first byte of the open scalar
	node  *node // table position of the value being read; nil is skipped
	kept  int   // bytes in text
	text  [maxText]byte
	from  int // where the open string begins, in the bytes of this feed
	nodes [maxNodes]*node
	array [maxDepth / 64]uint64 // bit per open container: it is an array

	genFrom, genTo int  // the first string of generated text that one feed held whole
	take           bool // the open string is kept by its Response
}

const (
	maxText  = 128 // longest key or scalar that is looked at
	maxNodes = 16  // the table is less deep than this
	maxDepth = 512
)

type scanState uint8

const (
	wantValue scanState = iota
	wantKeyOrEnd
	wantKey
	wantColon
	wantElemOrEnd
	afterValue
	inString
	inBare
	valueDone
	valueBad
)

func (s *scanner) reset() {
	s.state, s.esc, s.wrote, s.depth, s.key, s.take = wantValue, false, false, 0, false, false
	s.node = s.root
}

// end says that no more bytes belong to the value: a bare scalar at the top is complete only then.
func (s *scanner) end() {
	if s.state == inBare && s.depth == 0 {
		s.scalar()
	}
}

// complete reports whether exactly one whole value has been read.
func (s *scanner) complete() bool { return s.state == valueDone }

// feed takes the next bytes. It stops after a complete value and returns how many bytes it used; what follows is the caller's.
func (s *scanner) feed(p []byte) int {
	for i := 0; i < len(p); {
		switch s.state {
		case inString:
			i = s.inString(p, i)
			continue
		case inBare:
			c := p[i]
			if isBare(c) {
				s.keep(c)
				i++
				continue
			}
			s.scalar()
			continue // the byte belongs to what follows
		case valueDone, valueBad:
			return i
		}
		c := p[i]
		i++
		if c <= ' ' {
			continue
		}
		switch s.state {
		case wantValue:
			s.from = i
			s.begin(c)
		case wantElemOrEnd:
			if c == ']' {
				s.pop(true)
				continue
			}
			s.from = i
			s.begin(c)
		case wantKeyOrEnd, wantKey:
			switch {
			case c == '"':
				s.state, s.key, s.kept, s.size = inString, true, 0, 0
			case c == '}' && s.state == wantKeyOrEnd:
				s.pop(false)
			default:
				s.state = valueBad
			}
		case wantColon:
			if c != ':' {
				s.state = valueBad
				continue
			}
			s.state = wantValue
		case afterValue:
			switch {
			case c == ',' && s.inArray():
				s.state, s.node = wantValue, s.elem()
			case c == ',':
				s.state = wantKey
			case c == ']' || c == '}':
				s.pop(c == ']')
			default:
				s.state = valueBad
			}
		}
	}
	return len(p)
}

func isBare(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '.' || c == '-' || c == '+'
}

func (s *scanner) keep(c byte) {
	if s.kept < maxText {
		s.text[s.kept] = c
		s.kept++
	}
	s.size++
}

// inString takes bytes of the open string from p[i:] and returns where it stopped.
func (s *scanner) inString(p []byte, i int) int {
	if s.esc {
		s.esc = false
		s.keep(p[i])
		if s.take {
			s.to.takeText(p[i : i+1])
		}
		return i + 1
	}
	start := i
	for i < len(p) && p[i] != '"' && p[i] != '\\' {
		i++
	}
	if run := p[start:i]; len(run) > 0 {
		s.size += len(run)
		if s.key || s.node != nil {
			s.kept += copy(s.text[s.kept:], run)
		}
		if s.take {
			s.to.takeText(run)
		}
	}
	if i == len(p) {
		return i
	}
	if p[i] == '\\' {
		s.keep('\\')
		if s.take {
			s.to.takeText(p[i : i+1])
		}
		s.esc = true
		return i + 1
	}
	if s.key {
		s.key = false
		s.state = wantColon
		s.node = s.child()
		return i + 1
	}
	if s.node != nil && s.node.field != none {
		if s.genTo == 0 && s.size > 0 && s.node.field.text() {
			s.genFrom, s.genTo = s.from, i
		}
		if s.take {
			s.take = false
			s.to.tookText(s.node.field)
		}
		s.to.scalar(s.node.field, '"', s.text[:s.kept], s.size)
	}
	s.valueEnd()
	return i + 1
}

// scalar ends the open bare scalar.
func (s *scanner) scalar() {
	ok := false
	switch t := string(s.text[:s.kept]); s.bare {
	case 't':
		ok = t == "true"
	case 'f':
		ok = t == "false"
	case 'n':
		ok = t == "null"
	case 'N', 'I': // what Python's json writes for nan and inf
		ok = t == "NaN" || t == "Infinity"
	default:
		ok = true // a number: read by who needs it
	}
	if !ok || s.size > maxText {
		s.state = valueBad
		return
	}
	if s.node != nil && s.node.field != none {
		kind := s.bare
		if kind == '-' || kind >= '0' && kind <= '9' {
			kind = '0'
		}
		s.to.scalar(s.node.field, kind, s.text[:s.kept], s.size)
	}
	s.valueEnd()
}

// begin starts a value whose first byte is c.
func (s *scanner) begin(c byte) {
	s.wrote = true
	switch {
	case c == '"':
		s.state, s.kept, s.size = inString, 0, 0
		s.take = s.to.texts != nil && s.node != nil && s.node.field.text() && s.to.beginText()
	case c == '{' || c == '[':
		s.push(c == '[')
	case c == '-' || c >= '0' && c <= '9' || c == 't' || c == 'f' || c == 'n' || c == 'N' || c == 'I':
		s.state, s.bare, s.kept, s.size = inBare, c, 0, 0
		s.keep(c)
	default:
		s.state = valueBad
	}
}

func (s *scanner) push(array bool) {
	if s.node != nil && s.node.field != none {
		s.to.open(s.node.field)
	}
	if s.depth == maxDepth {
		s.state = valueBad
		return
	}
	if s.depth < maxNodes {
		s.nodes[s.depth] = s.node
	}
	w, bit := s.depth/64, uint64(1)<<(s.depth%64)
	s.depth++
	if array {
		s.array[w] |= bit
		s.state, s.node = wantElemOrEnd, s.elem()
	} else {
		s.array[w] &^= bit
		s.state, s.node = wantKeyOrEnd, nil
	}
}

// pop closes the innermost container.
func (s *scanner) pop(array bool) {
	if s.inArray() != array {
		s.state = valueBad
		return
	}
	s.depth--
	if s.node = s.at(s.depth); s.node != nil && s.node.field != none {
		s.to.close(s.node.field)
	}
	s.valueEnd()
}

func (s *scanner) valueEnd() {
	if s.depth == 0 {
		s.state = valueDone
		return
	}
	s.state = afterValue
}

func (s *scanner) inArray() bool {
	d := s.depth - 1
	return s.array[d/64]>>(d%64)&1 == 1
}

func (s *scanner) at(depth int) *node {
	if depth >= maxNodes {
		return nil
	}
	return s.nodes[depth]
}

// elem is the table position of an element of the innermost container, child that of the member whose key was just read.
func (s *scanner) elem() *node {
	if n := s.at(s.depth - 1); n != nil {
		return n.elem
	}
	return nil
}

func (s *scanner) child() *node {
	n := s.at(s.depth - 1)
	if n == nil || s.size > maxText {
		return nil
	}
	for i, k := range n.keys {
		if len(k) == s.kept && k == string(s.text[:s.kept]) {
			return n.kids[i]
		}
	}
	return nil
}
