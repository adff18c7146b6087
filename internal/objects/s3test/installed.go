package s3test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// Installed are implementations of the protocol by others, each tested against where it is on the path.
var Installed = []string{"versitygw", "moto_server"}

// Process is one of them, as a process of its own with one bucket.
type Process struct {
	Client *minio.Client
	Bucket string

	t       testing.TB
	address string
	args    []string
	env     []string
	command *exec.Cmd
	output  *bytes.Buffer
}

// Start starts one of the installed, until the test ends, and points the environment at it. Where it is not installed the test is skipped.
func Start(t testing.TB, name string) *Process {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("SKIPPED: no %s on the path", name)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{Bucket: "traces", t: t, address: l.Addr().String()}
	l.Close()
	host, port, _ := net.SplitHostPort(p.address)
	switch name {
	case "versitygw":
		dir := t.TempDir()
		for _, d := range []string{"objects", "attributes"} {
			if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		p.args = []string{path, "--port", p.address, "posix", "--sidecar", filepath.Join(dir, "attributes"), filepath.Join(dir, "objects")}
		p.env = []string{"ROOT_ACCESS_KEY=test", "ROOT_SECRET_KEY=testtest"}
	case "moto_server":
		p.args = []string{path, "-H", host, "-p", port}
	}
	t.Cleanup(p.Stop)
	p.Restart()
	p.Client, err = minio.New(p.address, &minio.Options{Creds: credentials.NewStaticV4("test", "testtest", ""), Region: "us-east-1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Client.MakeBucket(context.Background(), p.Bucket, minio.MakeBucketOptions{Region: "us-east-1"}); err != nil {
		t.Fatalf("%s: make a bucket: %v\n%s", name, err, p.output)
	}
	for k, v := range p.Environment() {
		t.(interface{ Setenv(key, value string) }).Setenv(k, v)
	}
	return p
}

// Environment is what a client needs to be told.
func (p *Process) Environment() map[string]string {
	return map[string]string{"AWS_ENDPOINT_URL_S3": "http://" + p.address, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "testtest", "AWS_REGION": "us-east-1"}
}

// Address is where it listens.
func (p *Process) Address() string { return p.address }

// Stop ends the process; what is in it stays, as far as it keeps anything.
func (p *Process) Stop() {
	if p.command == nil {
		return
	}
	p.command.Process.Kill()
	p.command.Wait()
	p.command = nil
}

// Restart starts it, again.
func (p *Process) Restart() {
	p.t.Helper()
	p.output = &bytes.Buffer{}
	p.command = exec.Command(p.args[0], p.args[1:]...)
	p.command.Env = append(os.Environ(), p.env...)
	p.command.Stdout, p.command.Stderr = p.output, p.output
	if err := p.command.Start(); err != nil {
		p.t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if c, err := net.Dial("tcp", p.address); err == nil {
			c.Close()
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%s does not listen", p.args[0])
		}
	}
}

// Keys are the names of all objects, in the storage's order.
func (p *Process) Keys() (keys []string) {
	for o := range p.Client.ListObjects(context.Background(), p.Bucket, minio.ListObjectsOptions{Recursive: true}) {
		if o.Err != nil {
			p.t.Fatal(o.Err)
		}
		keys = append(keys, o.Key)
	}
	return keys
}

// Uploads is how many uploads in parts were begun and neither completed nor given up.
func (p *Process) Uploads() int {
	n := 0
	for u := range p.Client.ListIncompleteUploads(context.Background(), p.Bucket, "", true) {
		if u.Err != nil {
			p.t.Fatal(fmt.Errorf("list uploads: %w", u.Err))
		}
		n++
	}
	return n
}

// Put writes an object that is none of ours.
func (p *Process) Put(key, text string) {
	p.t.Helper()
	if _, err := p.Client.PutObject(context.Background(), p.Bucket, key, bytes.NewReader([]byte(text)), int64(len(text)), minio.PutObjectOptions{}); err != nil {
		p.t.Fatalf("put %s: %v", key, err)
	}
}
