package client

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// parseTarget reads a base URL.
func parseTarget(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		shown := s[strings.LastIndexByte(s, '@')+1:] // without a password
		if scheme, _, ok := strings.Cut(s, "://"); ok && len(shown) < len(s) {
			shown = scheme + "://" + shown
		}
		return nil, fmt.Errorf("target %q is no http or https URL", shown)
	}
	if err := CheckServer(u); err != nil {
		return nil, fmt.Errorf("target %q %w", u.Scheme+"://"+u.Host+u.Path, err)
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("target %q has a query or fragment", u.Scheme+"://"+u.Host+u.Path)
	}
	if u.User != nil {
		return nil, fmt.Errorf("target %q carries a password: give it as a header", u.Redacted())
	}
	u.Path = strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), "/v1")
	return u, nil
}

// CheckServer says why a URL names no server: it has no host, a colon without a port, or a port that is none. net/url lets all of them
// pass, and an empty port would be taken for the scheme's own. The error is a predicate: the caller names the URL before it.
func CheckServer(u *url.URL) error {
	if u.Hostname() == "" {
		return errors.New("names no host")
	}
	if strings.HasSuffix(u.Host, ":") {
		return errors.New("has a colon and no port behind it: http://HOST:PORT, or no colon for the scheme's own port")
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return fmt.Errorf("has the port %s: ports are 1 to 65535", port)
		}
	}
	return nil
}

// hostPort is the address that a URL's host is dialed at.
func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}
