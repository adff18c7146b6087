package prompt

import "slices"

// Dialect is what a server understands beyond the OpenAI API. The zero value is a server of which nothing is known.
type Dialect struct {
	Name       string
	IgnoreEOS  bool   // takes ignore_eos
	MinTokens  string // the field that sets a minimum of generated tokens; "": none
	MaxField   string // the field that limits a chat answer's tokens; "": max_tokens
	Extended   bool   // takes top_k, min_p, repetition_penalty
	CacheSalt  bool   // takes cache_salt
	Priority   bool   // takes priority
	ResetCache string // the path that empties the prefix cache by POST; "": none
	TokenIDs   bool   // is expected to take token-id prompts; a probe decides
}

// Forces reports whether output lengths can be forced.
func (d Dialect) Forces() bool { return d.IgnoreEOS }

// dialects are the servers known, after their sources and documentation.
var dialects = []Dialect{
	{Name: "vllm", IgnoreEOS: true, MinTokens: "min_tokens", Extended: true, CacheSalt: true, Priority: true, ResetCache: "/reset_prefix_cache", TokenIDs: true},
	{Name: "sglang", IgnoreEOS: true, MinTokens: "min_tokens", Extended: true, CacheSalt: true, Priority: true, ResetCache: "/flush_cache", TokenIDs: true},
	{Name: "trtllm", IgnoreEOS: true, MinTokens: "min_tokens", Extended: true, CacheSalt: true, TokenIDs: true},
	{Name: "lmdeploy", IgnoreEOS: true, MinTokens: "min_new_tokens", Extended: true},
	{Name: "llamacpp", IgnoreEOS: true, Extended: true, TokenIDs: true},
	{Name: "tgi"},
	{Name: "ollama"},
	{Name: "openai", MaxField: "max_completion_tokens"},
	{Name: "unknown"},
}

// DialectNamed finds a dialect.
func DialectNamed(name string) (Dialect, bool) {
	i := slices.IndexFunc(dialects, func(d Dialect) bool { return d.Name == name })
	if i < 0 {
		return Dialect{}, false
	}
	return dialects[i], true
}

// DialectNames lists the dialects.
func DialectNames() []string {
	var out []string
	for _, d := range dialects {
		out = append(out, d.Name)
	}
	return out
}
