package foreign

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shadowtape/shadowtape/formats"
)

func TestWekaRealSession(t *testing.T) {
	got := mustImport(t, "weka", Options{}, file(t, "weka_trace_0103.json"))
	if got.Kept != 3 || got.Dropped != 0 || len(got.Notes) != 0 {
		t.Fatalf("%+v", got.Report)
	}
	h := got.header
	if h.TimeBase != "relative" || h.Prompts != "cumulative" || h.PrefixBlockSize != 64 || h.PrefixBlockRule != "floor" || len(h.HashKeyID) != 16 {
		t.Errorf("header %+v", h)
	}
	x := got.rows[1]
	if x.ArrivalUnixNS != 5e9 || x.InputTokens.V != 15966 || x.OutputTokens.V != 130 || x.FirstTokenNS != formats.Of(int64(1_070_000_000)) ||
		x.EndNS != formats.Of(int64(2_040_000_000)) || x.Stream != formats.Of(true) || x.FinishReason != "tool_use" || x.Turn != formats.Of(int32(2)) ||
		len(x.PrefixBlocks) != 249 || x.PrefixTailTokens != formats.Of(int64(15966-249*64)) || x.ParentID.Valid {
		t.Errorf("%+v", x)
	}
	if got.rows[0].PrefixBlocks[0] != x.PrefixBlocks[0] || got.rows[0].PrefixBlocks[0] == 1 {
		t.Error("the sessions' local ids were not mapped, or not alike")
	}
}

const wekaSessions = `{"id":"A","block_size":64,"hash_id_scope":"local","requests":[
 {"t":0,"type":"n","in":130,"out":5,"hash_ids":[1,2],"stop":"tool_use"},
 {"t":2.5,"type":"subagent","agent_id":"x","requests":[
   {"t":0.25,"type":"s","in":64,"out":0,"hash_ids":[7]},
   {"t":1,"type":"subagent","agent_id":"y","requests":[{"t":0.5,"type":"s","in":10,"out":1,"hash_ids":[]}]},
   {"t":3,"type":"s","in":70,"out":1,"hash_ids":[7]}]},
 {"t":9,"type":"n","in":100,"out":1,"hash_ids":[1]},
 {"t":"soon","type":"n","in":100,"out":1},
 {"t":10,"type":"n","in":null,"out":-1}]}`

func TestWekaSubAgents(t *testing.T) {
	b := strings.ReplaceAll(wekaSessions, `"id":"A"`, `"id":"B"`)
	got := mustImport(t, "weka", Options{SessionGap: time.Minute, HashKey: []byte("0123456789abcdef")}, wekaSessions, b)
	if d := cmp.Diff(map[string]int64{"broken_row": 2}, got.Reasons); d != "" {
		t.Error(d)
	}
	type seen struct {
		id, at int64
		parent formats.Null[int64]
		turn   int32
		tail   int64
	}
	var rows []seen
	for _, x := range got.rows {
		rows = append(rows, seen{x.ExchangeID, x.ArrivalUnixNS, x.ParentID, x.Turn.V, x.PrefixTailTokens.V})
	}
	none, of := formats.Null[int64]{}, func(n int64) formats.Null[int64] { return formats.Of(n) }
	want := []seen{
		{1, 0, none, 1, 2},
		{2, 2_750_000_000, of(1), 1, 0},
		{3, 4_000_000_000, of(2), 1, 10},
		{4, 5_500_000_000, of(1), 2, 6},
		{5, 9_000_000_000, none, 2, 36},
		{6, 10_000_000_000, none, 3, 0},
	}
	for _, s := range want[:6] {
		s.id, s.at = s.id+6, s.at+60e9
		if s.parent.Valid {
			s.parent.V += 6
		}
		want = append(want, s)
	}
	if d := cmp.Diff(want, rows, cmp.AllowUnexported(seen{})); d != "" {
		t.Error(d)
	}
	sessions := map[formats.Hash]int{}
	for _, x := range got.rows {
		sessions[x.SessionID.V]++
	}
	if len(sessions) != 6 {
		t.Errorf("%d sessions: each of the two has two agents", len(sessions))
	}
	if got.rows[0].PrefixBlocks[0] == got.rows[6].PrefixBlocks[0] {
		t.Error("block 1 of two sessions is one block")
	}
	if x := got.rows[5]; x.InputTokens.Valid || x.OutputTokens.Valid || x.PrefixBlocks != nil {
		t.Errorf("null and -1: %+v", x)
	}
	again := mustImport(t, "weka", Options{HashKey: []byte("0123456789abcdef")}, wekaSessions)
	if again.rows[0].SessionID != got.rows[0].SessionID || again.header.HashKeyID != got.header.HashKeyID {
		t.Error("one key gives two hashes")
	}
}

// TestWekaRules: copies elsewhere count the partial tail as a block; and files of two rules do not make one trace.
func TestWekaRules(t *testing.T) {
	ceil := `{"id":"A","block_size":64,"hash_id_scope":"local","requests":[{"t":0,"type":"n","in":130,"out":5,"hash_ids":[1,2,3]}]}`
	got := mustImport(t, "weka", Options{}, ceil)
	if got.header.PrefixBlockRule != "ceil" || got.rows[0].PrefixTailTokens.V != 2 {
		t.Errorf("%+v", got.header)
	}
	if _, err := importText(t, "weka", Options{}, ceil, wekaSessions); err == nil || !strings.Contains(err.Error(), "import them apart") {
		t.Errorf("error %v", err)
	}
	if _, err := importText(t, "weka", Options{}, wekaSessions[:300]); err == nil {
		t.Error("a session cut in half was read")
	}
}

func TestBurstGPT(t *testing.T) {
	one := "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\r\n5,ChatGPT,472,18,490,Conversation log\r\n45,GPT-4,0,0,0,API log\r\n" +
		"45,ChatGPT,1087,0,1087,API log\r\n118,GPT-4,417,276,693,API log"
	got := mustImport(t, "burstgpt", Options{}, one)
	if d := cmp.Diff(map[string]int64{"empty": 1, "failed": 1}, got.Reasons); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]int64{5e9, 118e9}, got.arrivals()); d != "" {
		t.Error(d)
	}
	if x := got.rows[0]; x.RequestModel != "ChatGPT" || x.InputTokens.V != 472 || x.OutputTokens.V != 18 || x.SessionID.Valid || x.EndNS.Valid {
		t.Errorf("%+v", x)
	}
	if len(got.Warnings) != 0 || got.header.TimeBase != "relative" || got.header.HashKeyID != "" {
		t.Errorf("%v, %+v", got.Warnings, got.header)
	}
	// The third has its new columns in second and third place.
	three := "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n" +
		"19440110.0,6a3c,12,GPT-4,100,20,120,Conversation log\n19440110.0,,3,ChatGPT,200,30,230,API log\n19440111.0,None,3,ChatGPT,200,30,230,API log\n" +
		"19440112.0,6a3c,2,GPT-4,150,40,190,Conversation log\n"
	got = mustImport(t, "burstgpt", Options{Prompts: promptsPerTurn}, three)
	if len(got.rows) != 4 {
		t.Fatalf("%+v", got.Report)
	}
	a, b, c, d := got.rows[0], got.rows[1], got.rows[2], got.rows[3]
	if a.RequestModel != "GPT-4" || a.InputTokens.V != 100 || a.ArrivalUnixNS != 19440110e9 || a.EndNS != formats.Of(int64(12e9)) {
		t.Errorf("%+v", a)
	}
	if !a.SessionID.Valid || a.SessionID != d.SessionID || b.SessionID.Valid || c.SessionID.Valid {
		t.Error("sessions: a blank is none, and so is None")
	}
	if got.header.Extra["end_resolution_ns"] != 1e9 {
		t.Errorf("%v", got.header.Extra)
	}
}

func TestBailian(t *testing.T) {
	got := mustImport(t, "bailian", Options{}, strings.Join([]string{
		`{"chat_id":159,"parent_chat_id":55,"timestamp":61.114,"input_length":21,"output_length":132,"type":"text","turn":2,"hash_ids":[1089,7]}`,
		`{"chat_id":160,"parent_chat_id":-1,"timestamp":61.115,"input_length":16,"output_length":1,"type":"image","turn":1,"hash_ids":[5]}`,
		`{"chat_id":161,"parent_chat_id":159,"timestamp":70,"input_length":40,"output_length":2,"type":"text","turn":3,"hash_ids":[1089,8,9]}`,
		`{"chat_id":162,"parent_chat_id":160,"timestamp":80.5,"input_length":33,"output_length":2,"type":"text","turn":2,"hash_ids":[5,6,7]}`,
		`{"chat_id":163,"parent_chat_id":-1,"input_length":33,"output_length":2,"hash_ids":[5,6,7]}`,
	}, "\n"))
	if d := cmp.Diff([]int64{61_114_000_000, 61_115_000_000, 70e9, 80_500_000_000}, got.arrivals()); d != "" {
		t.Error(d)
	}
	x := got.rows
	if x[0].SessionID != x[2].SessionID || x[1].SessionID != x[3].SessionID || x[0].SessionID == x[1].SessionID {
		t.Error("sessions follow the parents")
	}
	if x[0].Turn.V != 2 || x[0].PrefixTailTokens.V != 5 || x[1].PrefixTailTokens.V != 16 {
		t.Errorf("%+v", x[0])
	}
	h := got.header
	if h.PrefixBlockSize != 16 || h.PrefixBlockRule != "ceil" || h.Prompts != "cumulative" || got.Reasons["no_time"] != 1 {
		t.Errorf("%+v %v", h, got.Reasons)
	}
}
