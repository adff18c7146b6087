package formats

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
)

// Text is x's value of a column as text, and whether it is known: integers in decimal, truth values as true and false, floats in the
// shortest form that reads back the same, hashes as 16 hex digits, lists as JSON. A column that is not there panics.
func (c Column) Text(x *Exchange) (text string, known bool) {
	k := c.must()
	switch k.kind {
	case kindInt64, kindInt32:
		v, ok := k.getInt(x)
		return strconv.FormatInt(v, 10), ok
	case kindBool:
		v, ok := k.getInt(x)
		return strconv.FormatBool(v != 0), ok
	case kindFloat:
		v := k.float(x)
		return strconv.FormatFloat(v.V, 'g', -1, 64), v.Valid
	case kindString:
		s := k.getString(x)
		return s, s != ""
	case kindHash:
		v := k.hash(x)
		return hex.EncodeToString(v.V[:]), v.Valid
	case kindInt64List:
		return list(*k.longs(x))
	case kindInt32List:
		return list(*k.ints(x))
	default:
		return list(*k.strings(x))
	}
}

// list is a list as JSON, and whether it is known.
func list[T any](l []T) (string, bool) {
	b, err := json.Marshal(l)
	return string(b), l != nil && err == nil
}

// Quoted reports whether the text of a column is a string in JSON; the others are numbers, truth values or lists as they stand.
func (c Column) Quoted() bool { k := c.must().kind; return k == kindString || k == kindHash }

// Parse sets x's value of a column from what Text wrote.
func (c Column) Parse(x *Exchange, text string) (err error) {
	k := c.must()
	switch k.kind {
	case kindInt64, kindInt32:
		bits := 64
		if k.kind == kindInt32 {
			bits = 32
		}
		var v int64
		if v, err = strconv.ParseInt(text, 10, bits); err == nil {
			k.setInt(x, v)
		}
	case kindBool:
		var v bool
		if v, err = strconv.ParseBool(text); err == nil {
			k.setInt(x, map[bool]int64{true: 1}[v])
		}
	case kindFloat:
		var v float64
		if v, err = strconv.ParseFloat(text, 64); err == nil {
			*k.float(x) = Of(v)
		}
	case kindString:
		k.setString(x, text)
	case kindHash:
		var h Hash
		var n int
		if n, err = hex.Decode(h[:], []byte(text[:min(len(text), 2*len(h))])); err == nil && n == len(h) && len(text) == 2*len(h) {
			*k.hash(x) = Of(h)
		} else {
			err = fmt.Errorf("%q is no hash of 16 hex digits", text)
		}
	case kindInt64List:
		err = json.Unmarshal([]byte(text), k.longs(x))
	case kindInt32List:
		err = json.Unmarshal([]byte(text), k.ints(x))
	default:
		err = json.Unmarshal([]byte(text), k.strings(x))
	}
	if err != nil {
		return fmt.Errorf("column %s: %w", c, err)
	}
	return nil
}

func (c Column) must() *column {
	k := byName[c]
	if k == nil {
		panic(fmt.Sprintf("there is no column %q", c))
	}
	return k
}
