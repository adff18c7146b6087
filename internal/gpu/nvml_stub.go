//go:build !cgo || !linux

package gpu

// Open needs cgo and Linux; elsewhere it returns ErrUnsupported.
func Open() (Reader, error) { return nil, ErrUnsupported }
