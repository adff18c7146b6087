// Package term is what the command shows a person at a terminal: progress, and how wide and colored it may be. Where nobody looks,
// it shows nothing.
package term
