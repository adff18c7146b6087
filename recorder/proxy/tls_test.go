package proxy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// writePair writes a self-signed certificate with a serial number, and its key.
func writePair(t *testing.T, cert, key string, serial int64, changed time.Time) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"example.com"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "EC PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, changed, changed); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCertificateIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	if _, err := Certificate(cert, key); err == nil {
		t.Error("no certificate, no error")
	}
	start := time.Now().Truncate(time.Second)
	writePair(t, cert, key, 1, start)
	c := &certificate{certFile: cert, keyFile: key}
	if err := c.load(); err != nil {
		t.Fatal(err)
	}
	serial := func() int64 {
		c.looked = time.Time{} // it is time to look
		leaf, err := x509.ParseCertificate(c.current().Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		return leaf.SerialNumber.Int64()
	}
	if serial() != 1 {
		t.Error("not the certificate that was written")
	}
	writePair(t, cert, key, 2, start.Add(time.Minute))
	if serial() != 2 {
		t.Error("the renewed certificate is not used")
	}
	if err := os.WriteFile(cert, []byte("half a certi"), 0o600); err != nil {
		t.Fatal(err)
	}
	if serial() != 2 {
		t.Error("a renewal that cannot be read took the old one away")
	}
	writePair(t, cert, key, 3, start.Add(2*time.Minute))
	if serial() != 3 {
		t.Error("the next renewal is not used")
	}
}
