package foreign

import (
	"bytes"
	"fmt"
	"math"
	"strings"

	"github.com/shadowtape/shadowtape/formats"
)

// azure reads the Azure LLM inference traces of 2023 and 2024 and the multimodal one of 2025: TIMESTAMP, ContextTokens,
// GeneratedTokens, and NumImages where there is one, in any order. Times without a zone are UTC.
func azure(names ...string) func(*input) (formats.Decoder, error) {
	return func(in *input) (formats.Decoder, error) {
		t, err := newTable(in.r, ',', names...)
		if err != nil {
			return nil, err
		}
		in.header.TimeBase = "absolute"
		return func(x *formats.Exchange) error {
			if err := t.next(); err != nil {
				return err
			}
			stamp := t.field("timestamp")
			if stamp == "" {
				return t.left("no_time")
			}
			if x.ArrivalUnixNS, err = clock(stamp); err != nil {
				return t.broken(err)
			}
			if x.InputTokens, err = t.count("contexttokens"); err != nil {
				return err
			}
			if x.OutputTokens, err = t.count("generatedtokens"); err != nil {
				return err
			}
			images, err := t.count("numimages")
			if err != nil {
				return err
			}
			if images.V > math.MaxInt32 {
				return t.broken(fmt.Errorf("NumImages: %d images", images.V))
			}
			if images.Valid {
				x.ImageCount = formats.Of(int32(images.V))
			}
			sourced(x)
			return nil
		}, nil
	}
}

// sourced marks token counts as the trace's own.
func sourced(x *formats.Exchange) {
	if x.InputTokens.Valid {
		x.InputTokensSource = formats.TokensTrace
	}
	if x.OutputTokens.Valid {
		x.OutputTokensSource = formats.TokensTrace
	}
}

// headed detects a table by the names in its first line; a name behind "!" must not be there.
func headed(comma string, names ...string) func([]byte) bool {
	return func(head []byte) bool {
		line, _, _ := bytes.Cut(head, []byte("\n"))
		have := map[string]bool{}
		for _, f := range strings.Split(strings.ToLower(string(line)), comma) {
			have[strings.Trim(strings.TrimSpace(f), `"`)] = true
		}
		for _, n := range names {
			name, absent := strings.CutPrefix(strings.ToLower(n), "!")
			if have[name] == absent {
				return false
			}
		}
		return true
	}
}
