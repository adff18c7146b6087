package foreign

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// scalar is a JSON number, string or boolean as text; null and absent are "".
type scalar string

// UnmarshalJSON keeps the text, exactly.
func (s *scalar) UnmarshalJSON(b []byte) error {
	switch b[0] {
	case '"':
		return json.Unmarshal(b, (*string)(s))
	case '{', '[':
		return fmt.Errorf("%s where one value belongs", shortened(string(b)))
	}
	if *s = scalar(b); *s == "null" {
		*s = ""
	}
	return nil
}

// ids is a JSON list of block ids: integers of 64 bits, signed or not; their bits are what counts. null is nil.
type ids []int64

// UnmarshalJSON reads the list.
func (l *ids) UnmarshalJSON(b []byte) error {
	if *l = nil; bytes.Equal(b, []byte("null")) {
		return nil
	}
	if len(b) < 2 || b[0] != '[' || b[len(b)-1] != ']' {
		return fmt.Errorf("%s where a list of ids belongs", shortened(string(b)))
	}
	b = bytes.TrimSpace(b[1 : len(b)-1])
	list := make(ids, 0, bytes.Count(b, []byte{','})+1)
	for more := len(b) > 0; more; {
		var field []byte
		field, b, more = bytes.Cut(b, []byte{','})
		text := strings.Trim(string(bytes.TrimSpace(field)), `"`)
		n, err := strconv.ParseInt(text, 10, 64)
		if errors.Is(err, strconv.ErrRange) && text[0] != '-' {
			var u uint64
			u, err = strconv.ParseUint(text, 10, 64)
			n = int64(u)
		}
		if err != nil {
			return fmt.Errorf("block id %q is no 64-bit integer", shortened(text))
		}
		list = append(list, n)
	}
	*l = list
	return nil
}

// object decodes a line that must hold one JSON object.
func (l *lines) object(line []byte, v any) error {
	if len(line) == 0 || line[0] != '{' {
		return l.broken(errors.New("not a JSON object"))
	}
	if err := json.Unmarshal(line, v); err != nil {
		return l.broken(plainJSON(err))
	}
	return nil
}

// plainJSON drops the name of the package from an error.
func plainJSON(err error) error { return errors.New(strings.TrimPrefix(err.Error(), "json: ")) }

// firstObject is the first object of JSON lines by its keys, or nil; one longer than the head is read as far as it
// goes.
func firstObject(head []byte) map[string]json.RawMessage {
	head = bytes.TrimLeft(head, " \t\r\n")
	for range 16 { // a log that begins in the middle of a line, or with a message: such rows are counted, the file is still what it is
		_, rest, more := bytes.Cut(head, []byte("\n"))
		if !more || len(head) > 0 && (head[0] == '{' || head[0] == '[') {
			break
		}
		head = bytes.TrimLeft(rest, " \t\r\n")
	}
	d := json.NewDecoder(bytes.NewReader(head))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil
	}
	keys := map[string]json.RawMessage{}
	for d.More() {
		k, err := d.Token()
		if err != nil {
			break
		}
		name, _ := k.(string)
		keys[name] = nil
		var v json.RawMessage
		if d.Decode(&v) != nil {
			break
		}
		keys[name] = v
	}
	return keys
}

// keyed detects JSON by the keys of its first object; a key behind "!" must not be there.
func keyed(keys ...string) func([]byte) bool {
	return func(head []byte) bool {
		have := firstObject(head)
		if have == nil {
			return false
		}
		for _, k := range keys {
			name, absent := strings.CutPrefix(k, "!")
			if _, ok := have[name]; ok == absent {
				return false
			}
		}
		return true
	}
}
