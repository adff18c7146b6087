package foreign

import (
	"encoding/json"

	"github.com/shadowtape/shadowtape/formats"
)

// ownRows reads back what export csv and export jsonl write: the columns of a trace by name. Columns that this build does not know are
// left out. The header is lost on the way: hashes have no key id, blocks no size, and whether times are relative is for the reader to say.
func ownRows(in *input) (formats.Decoder, error) {
	rs, err := newRecords(in, "")
	if err != nil {
		return nil, err
	}
	columns := formats.Columns()
	return func(x *formats.Exchange) error {
		r, err := rs.next()
		if err != nil {
			return err
		}
		for _, c := range columns {
			v := r[string(c)]
			if len(v) == 0 || string(v) == "null" {
				continue
			}
			text := string(v)
			if v[0] == '"' {
				var s string
				if err := json.Unmarshal(v, &s); err != nil {
					return rs.broken(plainJSON(err))
				}
				text = s
			}
			if err := c.Parse(x, text); err != nil {
				return rs.broken(err)
			}
		}
		if r.text(string(formats.ColArrival)) == "" {
			return rs.left("no_time")
		}
		if in.part > 0 && x.ExchangeID != 0 { // numbered again, so that the files' numbers do not meet
			x.ExchangeID, x.ParentID = 0, formats.Null[int64]{}
			in.notes["renumbered"]++
		}
		return nil
	}, nil
}

// looksLikeOwn finds the names of our columns.
func looksLikeOwn(head []byte) bool {
	return headed(",", "exchange_id", "arrival_unix_ns")(head) || keyed("exchange_id", "arrival_unix_ns")(head)
}
