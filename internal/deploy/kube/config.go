// Package kube speaks with a Kubernetes cluster's API as far as starting one candidate needs: apply objects, wait for them, read their
// pods' state and logs, find a service's address, delete what was applied. It is no general client.
package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"gopkg.in/yaml.v3"
)

// Options say which cluster.
type Options struct {
	Config    string              // kubeconfig file; "": the cluster that this program runs in
	Context   string              // of the kubeconfig; "": its current one
	Namespace string              // "": the context's, else default
	Environ   []string            // of a credential plugin
	Getenv    func(string) string // how a pod learns where its cluster's API is; nil: this is no pod
}

// serviceAccount is where a pod finds its own credentials.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// Client is a connection to one cluster and namespace. It is safe for concurrent use.
type Client struct {
	Namespace string
	InCluster bool
	server    string
	http      *http.Client
	token     func(refused string) (string, error) // refused: the one that the API did not take, "" at first
}

// kubeconfig is the part of a kubeconfig file that is understood (https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/).
type kubeconfig struct {
	CurrentContext string `yaml:"current-context"`
	Contexts       []struct {
		Name    string
		Context struct{ Cluster, User, Namespace string }
	}
	Clusters []struct {
		Name    string
		Cluster struct {
			Server   string
			CA       string `yaml:"certificate-authority"`
			CAData   string `yaml:"certificate-authority-data"`
			Insecure bool   `yaml:"insecure-skip-tls-verify"`
			Name     string `yaml:"tls-server-name"`
		}
	}
	Users []struct {
		Name string
		User user
	}
}

type user struct {
	Token     string
	TokenFile string `yaml:"tokenFile"`
	Cert      string `yaml:"client-certificate"`
	CertData  string `yaml:"client-certificate-data"`
	Key       string `yaml:"client-key"`
	KeyData   string `yaml:"client-key-data"`
	Provider  any    `yaml:"auth-provider"`
	Exec      *struct {
		APIVersion string `yaml:"apiVersion"`
		Command    string
		Args       []string
		Env        []struct{ Name, Value string }
	}
}

// Connect reads the configuration; it asks the cluster nothing.
func Connect(o Options) (*Client, error) {
	if o.Config == "" {
		return connectInside(o)
	}
	b, err := os.ReadFile(o.Config)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	var k kubeconfig
	if err := yaml.Unmarshal(b, &k); err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", o.Config, err)
	}
	name := o.Context
	if name == "" {
		name = k.CurrentContext
	}
	c := &Client{Namespace: o.Namespace}
	var cluster, who string
	found := false
	for _, x := range k.Contexts {
		if x.Name == name {
			found, cluster, who = true, x.Context.Cluster, x.Context.User
			if c.Namespace == "" {
				c.Namespace = x.Context.Namespace
			}
		}
	}
	if !found {
		return nil, fmt.Errorf("kubeconfig %s has no context %q", o.Config, name)
	}
	if c.Namespace == "" {
		c.Namespace = "default"
	}
	tc := &tls.Config{MinVersion: tls.VersionTLS12}
	dir := filepath.Dir(o.Config)
	for _, x := range k.Clusters {
		if x.Name != cluster {
			continue
		}
		c.server = strings.TrimRight(x.Cluster.Server, "/")
		tc.InsecureSkipVerify, tc.ServerName = x.Cluster.Insecure, x.Cluster.Name
		ca, err := data(dir, x.Cluster.CA, x.Cluster.CAData)
		if err != nil {
			return nil, fmt.Errorf("kubeconfig %s: %w", o.Config, err)
		}
		if len(ca) > 0 {
			tc.RootCAs = x509.NewCertPool()
			if !tc.RootCAs.AppendCertsFromPEM(ca) {
				return nil, fmt.Errorf("kubeconfig %s: the cluster's certificate authority is no certificate", o.Config)
			}
		}
	}
	if c.server == "" {
		return nil, fmt.Errorf("kubeconfig %s: context %q names no cluster with a server", o.Config, name)
	}
	for _, x := range k.Users {
		if x.Name == who {
			if err := c.identify(x.User, tc, dir, o.Environ); err != nil {
				return nil, fmt.Errorf("kubeconfig %s: user %s: %w", o.Config, who, err)
			}
		}
	}
	c.http = newHTTP(tc)
	return c, nil
}

func connectInside(o Options) (*Client, error) {
	host, port := "", ""
	if o.Getenv != nil {
		host, port = o.Getenv("KUBERNETES_SERVICE_HOST"), o.Getenv("KUBERNETES_SERVICE_PORT")
	}
	ca, err := os.ReadFile(serviceAccount + "/ca.crt")
	if host == "" || errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("no kubeconfig is named, and this is no pod of a cluster")
	}
	if err != nil {
		return nil, err
	}
	c := &Client{Namespace: o.Namespace, InCluster: true, server: "https://" + net.JoinHostPort(host, port)}
	if b, err := os.ReadFile(serviceAccount + "/namespace"); err == nil && c.Namespace == "" {
		c.Namespace = strings.TrimSpace(string(b))
	}
	c.token = fileToken(serviceAccount + "/token")
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	c.http = newHTTP(&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool})
	return c, nil
}

func newHTTP(tc *tls.Config) *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: tc, ResponseHeaderTimeout: 30 * time.Second}}
}

// identify sets the user's credentials.
func (c *Client) identify(u user, tc *tls.Config, dir string, environ []string) error {
	cert, err := data(dir, u.Cert, u.CertData)
	if err != nil {
		return err
	}
	key, err := data(dir, u.Key, u.KeyData)
	if err != nil {
		return err
	}
	switch {
	case len(cert) > 0:
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return fmt.Errorf("client certificate: %w", err)
		}
		tc.Certificates = []tls.Certificate{pair}
	case u.Token != "":
		c.token = func(string) (string, error) { return u.Token, nil }
	case u.TokenFile != "":
		c.token = fileToken(under(dir, u.TokenFile))
	case u.Exec != nil:
		c.token = pluginToken(u, dir, environ)
	case u.Provider != nil:
		return errors.New("auth-provider is no longer part of Kubernetes: use an exec plugin")
	}
	return nil
}

func under(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// data is a file's content or what stands in its place in base64.
func data(dir, file, inline string) ([]byte, error) {
	if inline != "" {
		b, err := base64.StdEncoding.DecodeString(inline)
		if err != nil {
			return nil, errors.New("a -data field is not base64")
		}
		return b, nil
	}
	if file == "" {
		return nil, nil
	}
	return os.ReadFile(under(dir, file))
}

func fileToken(path string) func(string) (string, error) {
	return func(string) (string, error) { // read each time: it is rotated
		b, err := os.ReadFile(path)
		return strings.TrimSpace(string(b)), err
	}
}

// pluginToken asks a credential plugin, and again when its token ends within a minute or was refused: a run may take longer than the
// quarter of an hour that some clouds' tokens live.
func pluginToken(u user, dir string, environ []string) func(string) (string, error) {
	var mu sync.Mutex
	token, until := "", time.Time{}
	return func(refused string) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if token != "" && token != refused && (until.IsZero() || time.Until(until) > time.Minute) {
			return token, nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		command := u.Exec.Command
		if strings.ContainsRune(command, '/') {
			command = under(dir, command)
		}
		cmd := exec.CommandContext(ctx, command, u.Exec.Args...)
		cmd.Env = append(cmd.Env, environ...)
		for _, e := range u.Exec.Env {
			cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
		}
		cmd.Env = append(cmd.Env, fmt.Sprintf(`KUBERNETES_EXEC_INFO={"kind":"ExecCredential","apiVersion":%q,"spec":{"interactive":false}}`, u.Exec.APIVersion))
		var out bytes.Buffer
		cmd.Stdout = &out
		if err := cmd.Run(); err != nil {
			return "", fmt.Errorf("credential plugin %s: %w", u.Exec.Command, err)
		}
		var cred struct {
			Status struct {
				Token               string
				ExpirationTimestamp time.Time
			}
		}
		if err := json.Unmarshal(out.Bytes(), &cred); err != nil || cred.Status.Token == "" {
			return "", fmt.Errorf("credential plugin %s: it gave no token", u.Exec.Command)
		}
		token, until = cred.Status.Token, cred.Status.ExpirationTimestamp
		return token, nil
	}
}
