package formats

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// ErrChanged is the error of a JSON document that does not say what it said when it was written.
var ErrChanged = errors.New("damaged: it does not say what it said when it was written (its checksum differs): take it from a copy; whoever changed it on purpose removes its checksum")

const documentSum = "checksum"

// MarshalDocument writes v, which makes a JSON object, as a document of ours: indented, or one line where indent is "", with the checksum of
// what it says as its last member, for CheckDocument.
func MarshalDocument(v any, indent string) ([]byte, error) {
	b, err := json.Marshal(v)
	if indent != "" && err == nil {
		b, err = json.MarshalIndent(v, "", indent)
	}
	if err != nil {
		return nil, err
	}
	sum, _, err := sumOf(b)
	if err != nil {
		return nil, err
	}
	body, end, colon := bytes.TrimSuffix(b, []byte("}")), "}", ":"
	if indent != "" {
		body, end, colon = bytes.TrimSuffix(body, []byte("\n")), "\n}", ": "
		body = append(body, ",\n"+indent...)
	} else {
		body = append(body, ',')
	}
	return fmt.Appendf(body, "%q%s%q%s", documentSum, colon, sum, end), nil
}

// CheckDocument compares a document with its checksum, if it has one: those of earlier versions have none, and what is no JSON object is for
// its reader to refuse. Its error is ErrChanged.
func CheckDocument(b []byte) error {
	sum, want, err := sumOf(b)
	if err != nil || want == nil || want == sum {
		return nil
	}
	return ErrChanged
}

// sumOf is the checksum of what a document says, and the one that stands in it, nil where there is none. It is of the document without its
// checksum, without white space, the members of objects in the order of their names, numbers as they are written.
func sumOf(b []byte) (sum string, stands any, err error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var m map[string]any
	if err := d.Decode(&m); err != nil {
		return "", nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return "", nil, errors.New("more than one document")
	}
	stands = m[documentSum]
	delete(m, documentSum)
	c := crc32.New(castagnoli)
	e := json.NewEncoder(c)
	e.SetEscapeHTML(false)
	if err := e.Encode(m); err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("crc32c:%08x", c.Sum32()), stands, nil
}
