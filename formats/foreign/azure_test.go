package foreign

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shadowtape/shadowtape/formats"
)

// TestAzure2023 reads the real file's first rows: CRLF, seven fraction digits, no zone, no newline at the end.
func TestAzure2023(t *testing.T) {
	text := file(t, "azure2023_code_200.csv")
	if !strings.Contains(text, "\r\n") || strings.HasSuffix(text, "\n") {
		t.Fatal("the fixture has lost its line ends")
	}
	got := mustImport(t, "azure-llm", Options{}, text)
	if got.Kept != 200 || got.Dropped != 0 || len(got.Notes) != 0 {
		t.Errorf("%+v", got.Report)
	}
	first := &formats.Exchange{ExchangeID: 1, Phase: formats.PhaseRecord, ArrivalUnixNS: time.Date(2023, 11, 16, 18, 17, 3, 979_960_000, time.UTC).UnixNano(),
		InputTokens: formats.Of(int64(4808)), InputTokensSource: formats.TokensTrace, OutputTokens: formats.Of(int64(10)), OutputTokensSource: formats.TokensTrace}
	if d := cmp.Diff(first, got.rows[0]); d != "" {
		t.Error(d)
	}
	h := got.header
	if h.SourceKind != "import:azure-llm" || h.TimeBase != "absolute" || h.Licence != "CC-BY-4.0" || h.TimeQuantumNS != 0 || h.Source != "a.txt" || len(h.SourceSHA256) != 64 {
		t.Errorf("header %+v", h)
	}
}

func TestAzure2024(t *testing.T) {
	got := mustImport(t, "azure-llm", Options{}, "\xef\xbb\xbfContextTokens,TIMESTAMP,GeneratedTokens\n"+
		"10,2024-05-12 00:00:00.001000+00:00,1\n"+
		"11,2024-05-12 00:00:00.002000+00:00,2\n"+
		"12,2024-05-12 00:00:00.009000+00:00,3\n"+
		"13,2024-05-12 00:00:00.011000+00:00,4\n"+
		"14.0,2024-05-12 00:00:01+00:00,\n"+
		",2024-05-12 00:00:02+00:00,-1\n"+
		"15,,7\n"+
		"16,2024-05-12 00:00:03+00:00,many\n"+
		"17,2024-05-12T00:00:04Z,0\n\n")
	base := time.Date(2024, 5, 12, 0, 0, 0, 0, time.UTC).UnixNano()
	var want []int64
	for _, ms := range []int64{1, 2, 9, 11, 1000, 2000, 4000} {
		want = append(want, base+ms*1e6)
	}
	if d := cmp.Diff(want, got.arrivals()); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(map[string]int64{"no_time": 1, "broken_row": 1}, got.Reasons); d != "" {
		t.Error(d)
	}
	if x := got.rows[4]; x.InputTokens != formats.Of(int64(14)) || x.OutputTokens.Valid || x.OutputTokensSource != "" {
		t.Errorf("blank output: %+v", x)
	}
	if x := got.rows[5]; x.InputTokens.Valid || x.OutputTokens.Valid {
		t.Errorf("-1 and blank are unknown: %+v", x)
	}
	if x := got.rows[6]; x.OutputTokens != formats.Of(int64(0)) {
		t.Errorf("0 is a count: %+v", x)
	}
	if d := cmp.Diff([]string{`a.txt, row 9: generatedtokens: "many" is no count: left out`}, got.Warnings); d != "" {
		t.Error(d)
	}
}

// TestAzureColumnsByName: the multimodal trace has its new column in second place.
func TestAzureColumnsByName(t *testing.T) {
	text := "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-10-15T12:00:00.269Z,2,1500,80\n"
	got := mustImport(t, "azure-lmm", Options{}, text)
	x := got.rows[0]
	if x.ImageCount != formats.Of(int32(2)) || x.InputTokens.V != 1500 || x.OutputTokens.V != 80 || x.ArrivalUnixNS%1e9 != 269e6 {
		t.Errorf("%+v", x)
	}
	if _, err := importText(t, "azure-llm", Options{}, text); err == nil || !strings.Contains(err.Error(), "it looks like azure-lmm") {
		t.Errorf("error %v", err)
	}
}

func TestAzureWithoutHeader(t *testing.T) {
	_, err := importText(t, "azure-llm", Options{}, "2024-05-12 00:00:00+00:00,1,2\n")
	if err == nil || !strings.Contains(err.Error(), "this is no azure-llm") {
		t.Errorf("error %v", err)
	}
}
