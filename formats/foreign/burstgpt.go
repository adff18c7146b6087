package foreign

import (
	"github.com/shadowtape/shadowtape/formats"
)

// burstGPT reads both schemas of BurstGPT by their column names: seconds from midnight of day 1, whole seconds. Requests without a
// response are failures, and are left out as those.
func burstGPT(in *input) (formats.Decoder, error) {
	t, err := newTable(in.r, ',', "Timestamp", "Model", "Request tokens", "Response tokens")
	if err != nil {
		return nil, err
	}
	in.header.TimeBase = "relative"
	_, elapsed := t.columns["elapsed time"]
	if elapsed { // whole seconds on the system that answered
		if in.header.Extra == nil {
			in.header.Extra = map[string]any{}
		}
		in.header.Extra["end_resolution_ns"] = int64(1e9)
	}
	return func(x *formats.Exchange) error {
		if err := t.next(); err != nil {
			return err
		}
		stamp := t.field("timestamp")
		if stamp == "" {
			return t.left("no_time")
		}
		if x.ArrivalUnixNS, err = scaled(stamp, 1e9); err != nil {
			return t.broken(err)
		}
		if x.InputTokens, err = t.count("request tokens"); err != nil {
			return err
		}
		if x.OutputTokens, err = t.count("response tokens"); err != nil {
			return err
		}
		switch {
		case x.OutputTokens == formats.Of(int64(0)) && x.InputTokens == formats.Of(int64(0)):
			return t.left("empty")
		case x.OutputTokens == formats.Of(int64(0)):
			return t.left("failed")
		}
		sourced(x)
		x.RequestModel = t.field("model")
		x.SessionID = in.hash.of("session", t.field("session id"))
		if elapsed {
			x.EndNS = duration(t.field("elapsed time"), 1e9)
		}
		return nil
	}, nil
}
