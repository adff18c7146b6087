package deploy

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strings"
)

// envReference is a secret taken from this program's environment at the launch.
var envReference = regexp.MustCompile(`^\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}$`)

// isSecret reports whether an environment value of a deployment file is a reference rather than a value.
func isSecret(v string) bool { return envReference.MatchString(v) || strings.HasPrefix(v, "file:") }

// resolveEnv returns the candidate's variables as NAME=value, sorted by name, and the secret values among them, which nothing may write
// down.
func (f *File) resolveEnv(getenv func(string) string, places *strings.Replacer) (env []string, secrets [][]byte, err error) {
	for _, name := range sortedKeys(f.Env) {
		v := f.Env[name]
		switch m := envReference.FindStringSubmatch(v); {
		case m != nil:
			if getenv != nil {
				v = getenv(m[1])
			}
			if getenv == nil || v == "" {
				return nil, nil, hinted(fmt.Errorf("env %s: variable %s is not set", name, m[1]), "export "+m[1]+" before the start")
			}
			secrets = append(secrets, []byte(v))
		case strings.HasPrefix(v, "file:"):
			b, err := os.ReadFile(f.path(strings.TrimPrefix(v, "file:")))
			if err != nil {
				return nil, nil, hinted(fmt.Errorf("env %s: %w", name, err), "file:PATH names the file that holds the secret; a relative path starts at the deployment file's directory")
			}
			v = strings.TrimRight(string(b), "\r\n")
			if v == "" {
				return nil, nil, hinted(fmt.Errorf("env %s: its file %s is empty", name, strings.TrimPrefix(f.Env[name], "file:")), "put the secret into it")
			}
			secrets = append(secrets, []byte(v))
		default:
			v = places.Replace(v)
		}
		env = append(env, name+"="+v)
	}
	return env, secrets, nil
}

// redact replaces each secret in b by asterisks of one fixed length, so that not even its length is written. Secrets shorter than six
// bytes are left: replacing them would eat ordinary text.
func redact(b []byte, secrets [][]byte) []byte {
	for _, s := range secrets {
		if len(s) >= 6 {
			b = bytes.ReplaceAll(b, s, []byte("******"))
		}
	}
	return b
}
