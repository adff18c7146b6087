package formats

import "fmt"

// Decoder reads the next exchange of a foreign file into x, which it was given empty. io.EOF ends the file. A *RowError is a row that
// was left out: the next call goes on behind it. Any other error ends the import.
type Decoder func(x *Exchange) error

// Encoder writes one exchange to a foreign file.
type Encoder func(x *Exchange) error

// RowError is a row of a foreign file that was left out.
type RowError struct {
	Row    int64  // from 1, headers and blank lines included
	Reason string // a counter's name: broken_row, no_time, failed, …
	Err    error  // what was wrong; nil where the reason says it all
}

// Error names the row and the cause.
func (e *RowError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("row %d: %s", e.Row, e.Reason)
	}
	return fmt.Sprintf("row %d: %v", e.Row, e.Err)
}

// Unwrap returns the cause.
func (e *RowError) Unwrap() error { return e.Err }
