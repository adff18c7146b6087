// Package objects keeps traces and runs in S3-compatible object storage: a formats.Store for each prefix of a bucket.
package objects

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/shadowtape/shadowtape/formats"
)

// Config says where the storage is. Credentials are looked for where the programs of a cloud look: the variables AWS_ACCESS_KEY_ID and
// AWS_SECRET_ACCESS_KEY, the shared credentials file with AWS_PROFILE, a web identity token, a container's or a machine's role.
type Config struct {
	Endpoint string // URL of the S3 API, such as http://minio.storage:9000; "": Amazon's
	Region   string // "": the bucket's, or us-east-1 where the storage does not say
	Temp     string // directory for objects on their way; "": the system's
}

// Storage is one S3 service. Its stores share a cache of what they read. Safe for concurrent use.
type Storage struct {
	ctx    context.Context // ends what is being read
	config Config
	once   sync.Once
	client *minio.Client
	err    error
	cache  *cache
	part   uint64 // bytes of a part of an upload
}

// New prepares a service; it is not spoken to before a store is used. What is being read ends with ctx; what is being written is written.
func New(ctx context.Context, c Config) *Storage {
	return &Storage{ctx: ctx, config: c, cache: newCache(), part: partSize}
}

// tries is how often the client sends a request that failed for a reason that may pass.
const tries = 6

func (s *Storage) connect() (*minio.Client, error) {
	s.once.Do(func() {
		host, secure := "s3.amazonaws.com", true
		if s.config.Endpoint != "" {
			u, err := url.Parse(s.config.Endpoint)
			if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.Path, "/") != "" {
				s.err = fmt.Errorf("the endpoint %q is no URL of a server, such as https://host:9000", s.config.Endpoint)
				return
			}
			host, secure = u.Host, u.Scheme == "https"
		}
		transport, err := minio.DefaultTransport(secure)
		if err != nil {
			s.err = err
			return
		}
		s.client, s.err = minio.New(host, &minio.Options{
			Transport: answers{transport},
			Creds:     credentials.NewChainCredentials([]credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}, &credentials.IAM{}}),
			Secure:    secure, Region: s.config.Region, MaxRetries: tries,
		})
		if s.client != nil {
			s.client.SetAppInfo("shadowtape", "1")
		}
	})
	return s.client, s.err
}

// errNoStorage is the error of an answer that no object storage gives.
var errNoStorage = errors.New("no answer of an object storage")

// answers is a transport that takes a listing for one only where it says so: the client takes every document for one, so that a web page is
// an empty prefix.
type answers struct{ http.RoundTripper }

func (t answers) RoundTrip(r *http.Request) (*http.Response, error) {
	a, err := t.RoundTripper.RoundTrip(r)
	if err != nil || a.StatusCode != http.StatusOK || r.Method != http.MethodGet || !r.URL.Query().Has("list-type") {
		return a, err
	}
	var read bytes.Buffer
	d := xml.NewDecoder(io.TeeReader(a.Body, &read))
	for {
		token, err := d.Token()
		begin, begins := token.(xml.StartElement)
		if err == nil && !begins {
			continue
		}
		rest := io.Reader(a.Body)
		if begins && begin.Name.Local != "ListBucketResult" {
			rest = failing{errNoStorage}
			read.Reset()
		}
		a.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(&read, rest), a.Body}
		return a, nil
	}
}

// failing is a reader of an error.
type failing struct{ error }

func (f failing) Read([]byte) (int, error) { return 0, f.error }

// Store is the store of a name such as s3://bucket/prefix. It is made without asking the service.
func (s *Storage) Store(where string) (formats.Store, error) {
	_, rest, _ := strings.Cut(where, "://")
	bucket, prefix, _ := strings.Cut(rest, "/")
	if bucket == "" {
		return nil, errors.New("it names no bucket: s3://BUCKET/PREFIX")
	}
	if slices.Contains(strings.Split(prefix, "/"), "..") || strings.Contains(prefix, "//") {
		return nil, fmt.Errorf("%q is no plain prefix", prefix)
	}
	c, err := s.connect()
	if err != nil {
		return nil, err
	}
	return &store{s: s, c: c, bucket: bucket, prefix: strings.Trim(prefix, "/")}, nil
}

// store is one prefix.
type store struct {
	s              *Storage
	c              *minio.Client
	bucket, prefix string
}

func (st *store) key(name string) string { return path.Join(st.prefix, name) }

// explain turns the client's errors into ones that name what is missing.
func (st *store) explain(err error) error {
	if err == nil {
		return nil
	}
	const where = "AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL says where object storage is"
	var r minio.ErrorResponse
	if !errors.As(err, &r) {
		var u *url.Error
		var syntax *xml.SyntaxError
		var element xml.UnmarshalError
		switch {
		case errors.As(err, &syntax), errors.As(err, &element), errors.Is(err, errNoStorage):
			return fmt.Errorf("%s does not answer as object storage does (%s)", st.c.EndpointURL(), where)
		case errors.As(err, &u) && !errors.Is(err, context.Canceled):
			return fmt.Errorf("no answer from %s: %w (%s)", st.c.EndpointURL(), u.Err, where)
		}
		return err
	}
	if status, text, ok := strings.Cut(r.Code, " "); ok && len(status) == 3 { // the client's name for what no object storage says
		return fmt.Errorf("%s answered %s %s (%s)", st.c.EndpointURL(), status, text, where)
	}
	switch {
	case r.Code == "NoSuchKey":
		return fs.ErrNotExist
	case r.Code == "NoSuchBucket":
		return fmt.Errorf("there is no bucket %s at %s", st.bucket, st.c.EndpointURL())
	case r.Code == "PreconditionFailed":
		return errors.New("it was replaced while it was read")
	case r.StatusCode == http.StatusForbidden, r.StatusCode == http.StatusUnauthorized, r.Code == "AccessDenied", r.Code == "XAdminUserNotFound": // what storages call it differs
		return fmt.Errorf("%s (%s; credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, a web identity or the machine's role)", strings.TrimSuffix(r.Message, "."), r.Code)
	}
	if r.Message == "" {
		return fmt.Errorf("the storage answered %d %s", r.StatusCode, r.Code)
	}
	return fmt.Errorf("%s (%s)", strings.TrimSuffix(r.Message, "."), r.Code)
}

// object is an object on its way: a temporary file that has no name any more, where the system allows it.
type object struct {
	*os.File
	name, path string
	done       bool
}

func (o *object) Name() string { return o.name }

func (o *object) Discard() error {
	if o.done {
		return nil
	}
	o.done = true
	err := o.File.Close()
	if o.path != "" {
		err = errors.Join(err, os.Remove(o.path))
	}
	return err
}

// Create keeps an object in a temporary file until it is committed: its length must be known to send it, and a try that fails must not
// lose it.
func (st *store) Create(name string) (formats.Object, error) {
	f, err := os.CreateTemp(st.s.config.Temp, "shadowtape-object-")
	if err != nil {
		return nil, err
	}
	o := &object{File: f, name: name, path: f.Name()}
	if os.Remove(o.path) == nil {
		o.path = ""
	}
	return o, nil
}

const (
	partSize = 16 << 20 // of an upload in parts, each sent anew where it fails
	slowest  = 64 << 10 // bytes a second that an upload is given the time for
	patience = time.Minute
)

// Commit uploads an object: one request, or parts that become an object by one request and are given up together where that is not
// reached.
func (st *store) Commit(obj formats.Object) error {
	o, ok := obj.(*object)
	if !ok || o.done {
		return fmt.Errorf("commit %s: not an open object of this store", obj.Name())
	}
	size, err := o.Seek(0, io.SeekCurrent)
	if err == nil {
		_, err = o.Seek(0, io.SeekStart)
	}
	if err != nil {
		return errors.Join(err, o.Discard())
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(st.s.ctx), patience+time.Duration(size/slowest)*time.Second)
	defer cancel()
	info, err := st.c.PutObject(ctx, st.bucket, st.key(o.name), o.File, size, minio.PutObjectOptions{PartSize: st.s.part, ContentType: "application/octet-stream"})
	if err == nil && info.ETag == "" { // whatever answered, it keeps no objects
		err = errNoStorage
	}
	return errors.Join(st.explain(err), o.Discard())
}

// each lists what is directly below the prefix.
func (st *store) each(begin string, f func(name string, o minio.ObjectInfo)) error {
	dir := st.prefix
	if dir != "" {
		dir += "/"
	}
	ctx, cancel := context.WithCancel(st.s.ctx) // ends the listing where an error ends the loop
	defer cancel()
	for o := range st.c.ListObjects(ctx, st.bucket, minio.ListObjectsOptions{Prefix: dir + begin}) {
		if o.Err != nil {
			return st.explain(o.Err)
		}
		if name := strings.TrimPrefix(o.Key, dir); name != "" {
			f(name, o)
		}
	}
	return nil
}

func (st *store) List(prefix string) ([]formats.Entry, error) {
	var all []formats.Entry
	err := st.each(prefix, func(name string, o minio.ObjectInfo) {
		if !strings.Contains(name, "/") {
			all = append(all, formats.Entry{Name: name, Size: o.Size})
		}
	})
	slices.SortFunc(all, func(a, b formats.Entry) int { return strings.Compare(a.Name, b.Name) })
	return all, err
}

func (st *store) Below() ([]string, error) {
	var all []string
	err := st.each("", func(name string, _ minio.ObjectInfo) {
		if below, _, ok := strings.Cut(name, "/"); ok {
			all = append(all, below)
		}
	})
	slices.Sort(all)
	return slices.Compact(all), err
}

func (st *store) Sub(name string) formats.Store {
	below := *st
	below.prefix = st.key(name)
	return &below
}

func (st *store) Remove(name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(st.s.ctx), patience)
	defer cancel()
	return st.explain(st.c.RemoveObject(ctx, st.bucket, st.key(name), minio.RemoveObjectOptions{}))
}

func (st *store) Open(name string) (formats.ObjectReader, error) {
	ctx, cancel := context.WithTimeout(st.s.ctx, patience)
	defer cancel()
	info, err := st.c.StatObject(ctx, st.bucket, st.key(name), minio.StatObjectOptions{})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: st.explain(err)}
	}
	return &reader{st: st, key: st.key(name), etag: info.ETag, size: info.Size}, nil
}
