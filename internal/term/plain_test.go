package term

import (
	"bytes"
	"encoding/json"
	"testing"
)

func TestPlainCommandsNothing(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"two\tcolumns\nand — ümläut 漢字 👩‍🔬\n", "two\tcolumns\nand — ümläut 漢字 👩‍🔬\n"},
		{"a\x1b[31mred\x1b]0;title\x07", `a\u001b[31mred\u001b]0;title\u0007`},
		{"\r\x00\x7f", `\u000d\u0000\u007f`},
		{"C1 \u009b2J, alone \x9b2J", `C1 \u009b2J, alone \u009b2J`},
		{"\u202egnp.exe\u2066", `\u202egnp.exe\u2066`},
		{"broken \xff\xe2\x80", "broken \xff\xe2\\u0080"},
		{"", ""},
	} {
		if got := Clean(c.in); got != c.want {
			t.Errorf("%q became %q, want %q", c.in, got, c.want)
		}
	}
	var out bytes.Buffer
	if n, err := Plain(&out).Write([]byte("a\x1bb")); n != 3 || err != nil {
		t.Errorf("wrote %d, %v", n, err)
	}
	if Raw(Plain(&out)) != &out || Raw(&out) != &out {
		t.Error("Raw is not what Plain was given")
	}
}

func TestPlainKeepsJSON(t *testing.T) {
	want := "\u009b2J\u202e\x7f\x1b"
	b, _ := json.Marshal(want)
	var got string
	if err := json.Unmarshal([]byte(Clean(string(b))), &got); err != nil || got != want {
		t.Errorf("%q, %v", got, err)
	}
}
