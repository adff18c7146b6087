// Package schedule says when a replay sends what: a trace's rows at their distances from the first, and transforms of such sequences
// that compose, keep sessions whole and hold no more than the arrivals of one instant.
package schedule
