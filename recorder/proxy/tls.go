package proxy

import (
	"crypto/tls"
	"fmt"
	"os"
	"sync"
	"time"
)

// certificateTick is how often the files are looked at for a renewed certificate.
const certificateTick = 10 * time.Second

// Certificate returns a tls.Config's GetCertificate that reads a PEM certificate and key, and reads them again when they are renewed. A
// renewal that cannot be read leaves the old one in use.
func Certificate(certFile, keyFile string) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	c := &certificate{certFile: certFile, keyFile: keyFile}
	if err := c.load(); err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current(), nil }, nil
}

type certificate struct {
	certFile, keyFile string

	mu      sync.Mutex
	now     *tls.Certificate
	changed time.Time
	looked  time.Time
}

func (c *certificate) load() error {
	info, err := os.Stat(c.certFile)
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return err
	}
	c.now, c.changed = &pair, info.ModTime()
	return nil
}

func (c *certificate) current() *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) >= certificateTick {
		c.looked = time.Now()
		if info, err := os.Stat(c.certFile); err == nil && !info.ModTime().Equal(c.changed) {
			_ = c.load()
		}
	}
	return c.now
}
