// Package promtext reads the metrics pages of inference servers: a lenient reader of the text exposition formats, and the table of
// dialects that turns each server's series into the canonical ones.
package promtext
