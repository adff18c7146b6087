//go:build !linux

package ring

import (
	"context"
	"fmt"
	"time"
)

// Ring is one packet ring.
type Ring struct{}

// Open fails with ErrUnsupported.
func Open(o Options) ([]*Ring, error) {
	return nil, fmt.Errorf("open packet ring on %s: %w", o.Interface, ErrUnsupported)
}

// Read fails with ErrUnsupported.
func (r *Ring) Read(ctx context.Context, wait time.Duration, emit func(*Packet)) (int, error) {
	return 0, ErrUnsupported
}

// Stats returns zeros.
func (r *Ring) Stats() (Stats, error) { return Stats{}, ErrUnsupported }

// Close does nothing.
func (r *Ring) Close() error { return nil }

// DropPrivileges does nothing.
func DropPrivileges() error { return nil }

// NoCoreDumps does nothing.
func NoCoreDumps() error { return nil }
