package probe

import (
	"encoding/json"
	"strings"
)

// maxConfig bounds the engine configuration that is kept.
const maxConfig = 64 << 10

// secret names what no run may hold.
func secret(name string) bool {
	name = strings.ToLower(name)
	for _, s := range []string{"key", "password", "secret", "credential", "hf_token", "auth", "chat_template", "env"} {
		if strings.Contains(name, s) {
			return true
		}
	}
	return false
}

// readConfig reads what an endpoint says of an engine's configuration, secrets left out; nil where it says nothing.
func readConfig(body []byte) any {
	var v any
	if len(body) > maxConfig || json.Unmarshal(body, &v) != nil {
		return nil
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil
	}
	scrub(m)
	return m
}

func scrub(v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if secret(k) {
				delete(v, k)
				continue
			}
			scrub(e)
		}
	case []any:
		for _, e := range v {
			scrub(e)
		}
	}
}
