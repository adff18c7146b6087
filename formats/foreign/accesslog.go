package foreign

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// The formats that nginx and Envoy write where nothing else is configured.
const (
	nginxCombined = `$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent"`
	envoyDefault  = `[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% %RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "%REQ(X-FORWARDED-FOR)%" "%REQ(USER-AGENT)%" "%REQ(X-REQUEST-ID)%" "%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%"`
)

// logFormat is an access log's format line: literals and variables in turn. literals has one more than variables.
type logFormat struct {
	literals  []string
	variables []string
}

// nginxFormat takes nginx's log_format apart: $name and ${name}.
func nginxFormat(s string) (logFormat, error) {
	var f logFormat
	literal := ""
	for s != "" {
		i := strings.IndexByte(s, '$')
		if i < 0 {
			literal += s
			break
		}
		literal += s[:i]
		s = s[i+1:]
		name := ""
		if rest, ok := strings.CutPrefix(s, "{"); ok {
			name, s, ok = strings.Cut(rest, "}")
			if !ok {
				return f, errors.New("log format: ${ without }")
			}
		} else {
			n := 0
			for n < len(s) && (s[n] == '_' || s[n] >= 'a' && s[n] <= 'z' || s[n] >= 'A' && s[n] <= 'Z' || s[n] >= '0' && s[n] <= '9') {
				n++
			}
			name, s = s[:n], s[n:]
		}
		if name == "" {
			return f, errors.New("log format: $ without a name")
		}
		f.literals, f.variables = append(f.literals, literal), append(f.variables, name)
		literal = ""
	}
	f.literals = append(f.literals, literal)
	return f, f.check()
}

// envoyFormat takes Envoy's format apart: %NAME%, %NAME(argument)%, %NAME(argument):length%, %START_TIME(format)%.
func envoyFormat(s string) (logFormat, error) {
	var f logFormat
	literal := ""
	for {
		i := strings.IndexByte(s, '%')
		if i < 0 {
			f.literals = append(f.literals, literal+s)
			return f, f.check()
		}
		literal += s[:i]
		s = s[i+1:]
		depth, end := 0, -1
		for j := range len(s) {
			switch {
			case s[j] == '(':
				depth++
			case s[j] == ')':
				depth--
			case s[j] == '%' && depth == 0:
				end = j
			}
			if end >= 0 {
				break
			}
		}
		if end < 0 {
			return f, errors.New("log format: % without its end")
		}
		name := strings.ToUpper(s[:end])
		if k := strings.LastIndexByte(name, ')'); k >= 0 {
			name = name[:k+1] // a length behind it
		}
		f.literals, f.variables = append(f.literals, literal), append(f.variables, name)
		literal, s = "", s[end+1:]
	}
}

// check refuses a format without variables, or with two that nothing parts.
func (f logFormat) check() error {
	if len(f.variables) == 0 {
		return errors.New("log format: it has no variables")
	}
	for i, l := range f.literals[1:len(f.variables)] {
		if l == "" {
			return fmt.Errorf("log format: nothing parts %s from %s", f.variables[i], f.variables[i+1])
		}
	}
	return nil
}

// match reads a line into values by variable. A value runs to the next literal; the last one to the end.
func (f logFormat) match(line string, values map[string]string) error {
	clear(values)
	rest, ok := strings.CutPrefix(line, f.literals[0])
	if !ok {
		return errors.New("the line is not of the log format")
	}
	for i, v := range f.variables {
		next := f.literals[i+1]
		var value string
		switch {
		case i == len(f.variables)-1 && next == "":
			value, rest = rest, ""
		case i == len(f.variables)-1:
			if value, ok = strings.CutSuffix(rest, next); !ok {
				return errors.New("the line is not of the log format")
			}
		default:
			if value, rest, ok = strings.Cut(rest, next); !ok {
				return errors.New("the line is not of the log format")
			}
		}
		if value != "-" && value != "" {
			values[v] = value
		}
	}
	return nil
}

// accessLog reads a log line by line with what one server calls its variables.
func accessLog(in *input, format logFormat, read func(v map[string]string, x *formats.Exchange) error) formats.Decoder {
	l := in.lines()
	in.header.TimeBase = "absolute"
	values := map[string]string{}
	return func(x *formats.Exchange) error {
		line, err := l.next()
		if errors.Is(err, errLineTooLong) {
			return l.broken(err)
		}
		if err != nil {
			return err
		}
		if err := format.match(string(line), values); err != nil {
			return l.broken(err)
		}
		switch err := read(values, x); {
		case err == errNotGeneration:
			return l.left("not_generation")
		case err == errNoTime:
			return l.left("no_time")
		case err != nil:
			return l.broken(err)
		}
		return nil
	}
}

var (
	errNotGeneration = errors.New("no request to a model")
	errNoTime        = errors.New("no time")
)

// nginx reads access logs in the given log_format. The log's time is when the request ended: its arrival is that less request_time.
func nginx(in *input) (formats.Decoder, error) {
	text := in.o.LogFormat
	if text == "" {
		text = nginxCombined
	}
	format, err := nginxFormat(text)
	if err != nil {
		return nil, err
	}
	return accessLog(in, format, func(v map[string]string, x *formats.Exchange) error {
		method, path := v["request_method"], v["request_uri"]
		if path == "" {
			path = v["uri"]
		}
		if f := strings.Fields(v["request"]); len(f) >= 2 {
			method, path = f[0], f[1]
		}
		if err := called(x, method, path); err != nil {
			return err
		}
		var end int64
		var err error
		switch {
		case v["msec"] != "":
			end, err = scaled(v["msec"], 1e9)
		case v["time_iso8601"] != "":
			end, err = clock(v["time_iso8601"])
		case v["time_local"] != "":
			var t time.Time
			t, err = time.Parse("02/Jan/2006:15:04:05 -0700", v["time_local"])
			end = t.UnixNano()
		default:
			return errNoTime
		}
		if err != nil {
			return err
		}
		took := duration(v["request_time"], 1e9)
		x.ArrivalUnixNS, x.EndNS = end-took.V, took
		x.ResponseHeaderNS = duration(lastTry(v["upstream_header_time"]), 1e9)
		x.ConnectNS = duration(lastTry(v["upstream_connect_time"]), 1e9)
		x.ServerID = lastTry(v["upstream_addr"])
		x.CorrelationID = in.hash.of("request", either(v["http_x_request_id"], v["request_id"]))
		if x.ResponseBytes, err = count(v["body_bytes_sent"]); err != nil {
			return err
		}
		if x.RequestBytes, err = count(v["content_length"]); err != nil {
			return err
		}
		return answeredWith(x, v["status"])
	}), nil
}

// envoy reads access logs in the given format. START_TIME is when the request began.
func envoy(in *input) (formats.Decoder, error) {
	text := in.o.LogFormat
	if text == "" {
		text = envoyDefault
	}
	format, err := envoyFormat(text)
	if err != nil {
		return nil, err
	}
	start := ""
	for _, v := range format.variables {
		if strings.HasPrefix(v, "START_TIME") {
			start = v
		}
	}
	return accessLog(in, format, func(v map[string]string, x *formats.Exchange) error {
		path := either(v["REQ(X-ENVOY-ORIGINAL-PATH?:PATH)"], v["REQ(:PATH)"])
		if err := called(x, v["REQ(:METHOD)"], path); err != nil {
			return err
		}
		if v[start] == "" {
			return errNoTime
		}
		at, ok, err := record{"t": []byte(`"` + strings.Trim(v[start], `"\`) + `"`)}.instant("t")
		if err != nil || !ok {
			return fmt.Errorf("%q is no time", shortened(v[start]))
		}
		x.ArrivalUnixNS = at
		x.EndNS, x.RequestEndNS = duration(v["DURATION"], 1e6), duration(v["REQUEST_DURATION"], 1e6)
		x.ResponseHeaderNS = duration(v["RESPONSE_DURATION"], 1e6)
		x.ServerID = v["UPSTREAM_HOST"]
		x.CorrelationID = in.hash.of("request", v["REQ(X-REQUEST-ID)"])
		if x.RequestBytes, err = count(v["BYTES_RECEIVED"]); err != nil {
			return err
		}
		if x.ResponseBytes, err = count(v["BYTES_SENT"]); err != nil {
			return err
		}
		if err := answeredWith(x, v["RESPONSE_CODE"]); err != nil {
			return err
		}
		for flag := range strings.SplitSeq(v["RESPONSE_FLAGS"], ",") {
			switch flag {
			case "DC": // the client went away
				x.EndReason, x.ErrorKind = formats.EndClientAbort, ""
			case "UT", "SI", "DPE_TIMEOUT":
				x.EndReason, x.ErrorKind = formats.EndTimeout, formats.ErrorTimeout
			case "UC", "UR", "LR":
				x.EndReason, x.ErrorKind = formats.EndServerAbort, formats.ErrorReset
			case "UF", "UH":
				x.ErrorKind = formats.ErrorConnect
			}
		}
		return nil
	}), nil
}

// called keeps requests to a model and leaves the rest of a log out.
func called(x *formats.Exchange, method, path string) error {
	x.Endpoint = pathEndpoint(path)
	if x.Endpoint == formats.EndpointOther || method != "" && method != "POST" {
		return errNotGeneration
	}
	return nil
}

// answeredWith reads the status; 499 is nginx's own for a client that went away, 0 Envoy's.
func answeredWith(x *formats.Exchange, status string) error {
	n, err := count(status)
	if err != nil || n.V > 999 {
		return fmt.Errorf("status %q", shortened(status))
	}
	switch {
	case !n.Valid:
	case n.V == 499 || n.V == 0:
		x.EndReason = formats.EndClientAbort
	case n.V >= 400:
		x.Status, x.ErrorKind = formats.Of(int32(n.V)), fmt.Sprintf("http_%d", n.V)
	default:
		x.Status, x.EndReason = formats.Of(int32(n.V)), formats.EndComplete
	}
	return nil
}

// lastTry is the last of the values that nginx lists where it tried several upstreams.
func lastTry(s string) string {
	if i := strings.LastIndexAny(s, ",:"); i >= 0 && strings.Contains(s, ", ") || strings.Contains(s, " : ") {
		parts := strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
		for i = len(parts) - 1; i >= 0; i-- {
			if parts[i] != ":" && parts[i] != "-" {
				return parts[i]
			}
		}
	}
	return strings.TrimSpace(s)
}

func either(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// looksLikeAccessLog finds an HTTP request line in the first lines of a text.
func looksLikeAccessLog(head []byte) bool {
	s := string(head[:min(len(head), 4096)])
	return !looksLikeEnvoyLog(head) && strings.Contains(s, "HTTP/1.") || strings.Contains(s, "HTTP/2") || strings.Contains(s, "HTTP/3")
}

// looksLikeEnvoyLog finds what Envoy's own format begins with: a time in brackets, as nothing before it does.
func looksLikeEnvoyLog(head []byte) bool {
	date, _, _ := strings.Cut(string(head[:min(len(head), 64)]), "] ")
	date, ok := strings.CutPrefix(date, "[")
	if !ok {
		return false
	}
	_, err := clock(date)
	return err == nil
}
