package objects

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/objects/s3test"
)

// cutting passes connections on to an address, and breaks off those whose turn it is after some bytes of what comes back.
func cutting(t *testing.T, to string, cut func(connection int64) int64) (address string, connections *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	connections = new(atomic.Int64)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				s, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer s.Close()
				go io.Copy(s, c)
				if n := cut(connections.Add(1)); n > 0 {
					io.CopyN(c, s, n)
					c.(*net.TCPConn).SetLinger(0)
					return
				}
				io.Copy(c, s)
			}()
		}
	}()
	return l.Addr().String(), connections
}

// TestInstalledStorage holds the store against implementations of the protocol by others.
func TestInstalledStorage(t *testing.T) {
	for _, name := range s3test.Installed {
		t.Run(name, func(t *testing.T) {
			p := s3test.Start(t, name)
			to := func(endpoint string) *Storage {
				return New(t.Context(), Config{Endpoint: endpoint, Region: "us-east-1", Temp: t.TempDir()})
			}
			endpoint := "http://" + p.Address()
			formats.Mount("s3", to(endpoint).Store)
			content := make([]byte, 37<<20+123)
			rand.NewChaCha8([32]byte{1}).Read(content)
			st, err := to(endpoint).Store("s3://traces/big")
			if err != nil {
				t.Fatal(err)
			}
			put := func(name string, b []byte) {
				t.Helper()
				o, err := st.Create(name)
				if err == nil {
					_, err = o.Write(b)
				}
				if err == nil {
					err = st.Commit(o)
				}
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
			get := func(st formats.Store, name string) ([]byte, error) {
				o, err := st.Open(name)
				if err != nil {
					return nil, err
				}
				defer o.Close()
				return io.ReadAll(io.NewSectionReader(o, 0, o.Size()))
			}
			// Sizes about the limits: of nothing, of a block, of an upload in parts.
			for _, size := range []int{0, 1, blockSize - 1, blockSize, blockSize + 1, partSize - 1, partSize, partSize + 1, len(content)} {
				put("o", content[:size])
				if b, err := get(st, "o"); err != nil || !bytes.Equal(b, content[:size]) {
					t.Fatalf("%d bytes: %d came back: %v", size, len(b), err)
				}
			}
			if n := p.Uploads(); n != 0 {
				t.Errorf("%d uploads are not ended", n)
			}
			// What is replaced while it is read is an error.
			put("o", content[:3<<20])
			o, err := st.Open("o")
			if err != nil {
				t.Fatal(err)
			}
			put("o", content[1:3<<20])
			if _, err := o.ReadAt(make([]byte, 10), 2<<20); err == nil || !strings.Contains(err.Error(), "replaced while it was read") {
				t.Errorf("replaced: %v", err)
			}
			// Connections that break off in the middle of an answer.
			content = content[:5<<20+1]
			put("o", content)
			address, n := cutting(t, p.Address(), func(i int64) int64 {
				if i%2 == 1 {
					return 700_000
				}
				return 0
			})
			frayed, err := to("http://" + address).Store("s3://traces/big")
			if err != nil {
				t.Fatal(err)
			}
			if b, err := get(frayed, "o"); err != nil || !bytes.Equal(b, content) {
				t.Errorf("cut connections: %d bytes of %d: %v", len(b), len(content), err)
			}
			if n.Load() < 3 {
				t.Errorf("%d connections: none was cut", n.Load())
			}
			// More than a page of a listing holds: 550 objects among 550 places.
			var putting sync.WaitGroup
			for k := range 10 {
				putting.Go(func() {
					for i := range 55 {
						p.Put(fmt.Sprintf("many/o-%d-%d", k, i), "x")
						p.Put(fmt.Sprintf("many/below-%d-%d/o", k, i), "x")
					}
				})
			}
			putting.Wait()
			many, err := to(endpoint).Store("s3://traces/many")
			if err != nil {
				t.Fatal(err)
			}
			if es, err := many.List(""); err != nil || len(es) != 550 || !slices.IsSortedFunc(es, func(a, b formats.Entry) int { return strings.Compare(a.Name, b.Name) }) {
				t.Errorf("%d objects: %v", len(es), err)
			}
			if below, err := many.Below(); err != nil || len(below) != 550 {
				t.Errorf("%d places below: %v", len(below), err)
			}
			// Objects that are none of ours.
			p.Put("mixed/README.md", "what this is")
			p.Put("mixed/other/deep/file.parquet", "PAR1 or not")
			write(t, "s3://traces/mixed/node-a", 30)
			write(t, "s3://traces/mixed/node-b", 20)
			p.Put("mixed/node-a/notes.txt", "by hand")
			p.Put("mixed/node-c/", "")
			if got := read(t, "s3://traces/mixed"); len(got) != 50 {
				t.Errorf("%d rows beside what is not ours", len(got))
			}
			if err := formats.Remove("s3://traces/mixed/node-a"); err == nil || !strings.Contains(err.Error(), "notes.txt") || strings.Contains(err.Error(), "\n") {
				t.Errorf("removed with what is not ours: %v", err)
			}
			if err := formats.Remove("s3://traces/mixed/node-b"); err != nil {
				t.Error(err)
			}
			if keys := p.Keys(); slices.ContainsFunc(keys, func(k string) bool { return strings.HasPrefix(k, "mixed/node-b") }) || !slices.Contains(keys, "mixed/node-a/notes.txt") {
				t.Errorf("left: %q", keys)
			}
			// What is not there, and who may not.
			for where, want := range map[string]string{"s3://nowhere/a": "there is no bucket nowhere", "s3://traces/none": "no segments", "s3://traces/mixed/node-a/exchanges-99999.parquet": "file does not exist"} {
				if _, err := formats.Open(where); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
					t.Errorf("%s: %v", where, err)
				}
			}
			if _, err := st.Open("none"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("an object that is not there: %v", err)
			}
			if err := st.Remove("none"); err != nil {
				t.Errorf("remove what is not there: %v", err)
			}
			if name == "moto_server" { // it lets anybody in
				return
			}
			for _, c := range []struct{ id, secret string }{{"test", "wrong"}, {"nobody", "testtest"}} {
				t.Setenv("AWS_ACCESS_KEY_ID", c.id)
				t.Setenv("AWS_SECRET_ACCESS_KEY", c.secret)
				formats.Mount("s3", to(endpoint).Store)
				_, err := formats.Open("s3://traces/mixed/node-a")
				_, cerr := formats.CreateRun("s3://traces/refused", formats.Manifest{})
				for _, err := range []error{err, cerr} {
					if err == nil || !strings.Contains(err.Error(), "AWS_SECRET_ACCESS_KEY") || strings.Contains(err.Error(), "\n") {
						t.Errorf("%q: %v", c.id, err)
					}
				}
			}
		})
	}
}
