package formats

import (
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding"
)

// kind is how a column is stored.
type kind uint8

const (
	kindInt64 kind = iota
	kindInt32
	kindBool
	kindFloat
	kindString
	kindHash
	kindInt64List
	kindInt32List
	kindStringList
)

// String is the kind as FORMAT.md spells it.
func (k kind) String() string {
	return [...]string{"INT64", "INT32", "BOOLEAN", "DOUBLE", "STRING", "FIXED_LEN_BYTE_ARRAY(8)",
		"list of INT64", "list of INT32", "list of STRING"}[k]
}

// list reports whether a row holds a list.
func (k kind) list() bool { return k >= kindInt64List }

// node is the Parquet schema of a leaf of this kind, without its encoding and repetition.
func (k kind) node() parquet.Node {
	switch k {
	case kindInt64, kindInt64List:
		return parquet.Leaf(parquet.Int64Type)
	case kindInt32, kindInt32List:
		return parquet.Leaf(parquet.Int32Type)
	case kindBool:
		return parquet.Leaf(parquet.BooleanType)
	case kindFloat:
		return parquet.Leaf(parquet.DoubleType)
	case kindHash:
		return parquet.Leaf(parquet.FixedLenByteArrayType(len(Hash{})))
	default:
		return parquet.String()
	}
}

// column is one line of the table that writing, reading, projection and FORMAT.md are driven by. Exactly the accessors of its kind
// are set; a getter's false, an empty string and a nil slice are unknown.
type column struct {
	name      Column
	kind      kind
	group     string
	unit      string
	doc       string
	required  bool
	encoding  encoding.Encoding
	getInt    func(*Exchange) (int64, bool) // INT64, INT32 and BOOLEAN
	setInt    func(*Exchange, int64)
	float     func(*Exchange) *Null[float64]
	getString func(*Exchange) string
	setString func(*Exchange, string)
	hash      func(*Exchange) *Null[Hash]
	longs     func(*Exchange) *[]int64
	ints      func(*Exchange) *[]int32
	strings   func(*Exchange) *[]string
}

// The encodings, chosen by measurement on the imported public traces and on generated recordings (FORMAT.md has the figures): deltas
// where neighbors are near or small, dictionaries where values repeat.
var (
	plain = encoding.Encoding(&parquet.Plain)
	dict  = encoding.Encoding(&parquet.RLEDictionary)
	delta = encoding.Encoding(&parquet.DeltaBinaryPacked)
)

func long(name Column, unit string, e encoding.Encoding, at func(*Exchange) *Null[int64], doc string) *column {
	return &column{name: name, kind: kindInt64, unit: unit, encoding: e, doc: doc,
		getInt: func(x *Exchange) (int64, bool) { v := at(x); return v.V, v.Valid },
		setInt: func(x *Exchange, v int64) { *at(x) = Of(v) }}
}

// must is a column of integers that are always known.
func must(name Column, unit string, e encoding.Encoding, at func(*Exchange) *int64, doc string) *column {
	return always(&column{name: name, kind: kindInt64, unit: unit, encoding: e, doc: doc,
		getInt: func(x *Exchange) (int64, bool) { return *at(x), true },
		setInt: func(x *Exchange, v int64) { *at(x) = v }})
}

// always marks a column whose value is always known.
func always(c *column) *column {
	c.required = true
	return c
}

func short(name Column, unit string, at func(*Exchange) *Null[int32], doc string) *column {
	return &column{name: name, kind: kindInt32, unit: unit, encoding: dict, doc: doc,
		getInt: func(x *Exchange) (int64, bool) { v := at(x); return int64(v.V), v.Valid },
		setInt: func(x *Exchange, v int64) { *at(x) = Of(int32(v)) }}
}

func boolean(name Column, at func(*Exchange) *Null[bool], doc string) *column {
	return &column{name: name, kind: kindBool, encoding: plain, doc: doc,
		getInt: func(x *Exchange) (int64, bool) {
			v := at(x)
			if v.V {
				return 1, v.Valid
			}
			return 0, v.Valid
		},
		setInt: func(x *Exchange, v int64) { *at(x) = Of(v != 0) }}
}

func float(name Column, at func(*Exchange) *Null[float64], doc string) *column {
	return &column{name: name, kind: kindFloat, encoding: dict, doc: doc, float: at}
}

func text[T ~string](name Column, at func(*Exchange) *T, doc string) *column {
	return &column{name: name, kind: kindString, encoding: dict, doc: doc,
		getString: func(x *Exchange) string { return string(*at(x)) },
		setString: func(x *Exchange, s string) { *at(x) = T(s) }}
}

func hashed(name Column, e encoding.Encoding, at func(*Exchange) *Null[Hash], doc string) *column {
	return &column{name: name, kind: kindHash, encoding: e, doc: doc, hash: at}
}

func longs(name Column, unit string, e encoding.Encoding, at func(*Exchange) *[]int64, doc string) *column {
	return &column{name: name, kind: kindInt64List, unit: unit, encoding: e, doc: doc, longs: at}
}

func ints(name Column, unit string, e encoding.Encoding, at func(*Exchange) *[]int32, doc string) *column {
	return &column{name: name, kind: kindInt32List, unit: unit, encoding: e, doc: doc, ints: at}
}

func texts(name Column, at func(*Exchange) *[]string, doc string) *column {
	return &column{name: name, kind: kindStringList, encoding: dict, doc: doc, strings: at}
}

// in puts columns into a group of FORMAT.md.
func in(group string, cs ...*column) []*column {
	for _, c := range cs {
		c.group = group
	}
	return cs
}

// column finds a line of the table, or nil.
func (c Column) column() *column { return byName[c] }

// List reports whether each row of the column holds a list.
func (c Column) List() bool { k := byName[c]; return k != nil && k.kind.list() }

// Columns returns the names of all columns in stored order.
func Columns() []Column {
	names := make([]Column, len(columns))
	for i, c := range columns {
		names[i] = c.name
	}
	return names
}

var byName = func() map[Column]*column {
	m := make(map[Column]*column, len(columns))
	for _, c := range columns {
		m[c.name] = c
	}
	return m
}()
