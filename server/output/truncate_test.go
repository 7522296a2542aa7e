package output

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/slimctl/slimctl/internal/need"
)

type shot struct {
	Origin   string `json:"origin"`
	Snapshot string `json:"snapshot"`
}

func snapshotOf(n int) string {
	s := shot{Origin: "https://example.com/"}
	for i := 1; i <= n; i++ {
		s.Snapshot += fmt.Sprintf("- link \"Größe \\\"x\\\"\" [ref=e%d]\n", i)
	}
	s.Snapshot = strings.TrimSuffix(s.Snapshot, "\n")
	b, _ := json.Marshal(s)
	return string(b) + "\n"
}

// TestTruncateSnapshot: whole lines and a hint; close to the limit.
func TestTruncateSnapshot(t *testing.T) {
	doc := snapshotOf(2000)
	for _, limit := range []int{30000, 5000, 1024} {
		out, cut := Truncate(doc, limit)
		var got shot
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatal(err)
		}
		if len(out) > limit || len(out) < limit-300 {
			t.Errorf("%d bytes of %d", len(out), limit)
		}
		text, marker, ok := strings.Cut(got.Snapshot, "\n[truncated: ")
		want := fmt.Sprintf("%d characters removed; ask for less: snapshot -i, -c, -d 3 or -s SELECTOR]", cut)
		if !ok || marker != want {
			t.Errorf("marker %q, want %q", marker, want)
		}
		lines := strings.Split(text, "\n")
		for i, l := range lines {
			if !strings.HasSuffix(l, fmt.Sprintf("[ref=e%d]", i+1)) {
				t.Errorf("line %q", l)
			}
		}
		if got.Origin != "https://example.com/" {
			t.Errorf("origin %q", got.Origin)
		}
	}
}

func TestTruncateOthers(t *testing.T) {
	long := strings.Repeat("é", 50000)
	for name, tt := range map[string]struct{ in, want string }{ // want: a part of it
		"fits":            {`{"a":"b"}`, `{"a":"b"}`},
		"text":            {`{"text":"` + long + `","n":12345678901234567890}`, `é\n[truncated: `},
		"number kept":     {`{"text":"` + long + `","n":12345678901234567890}`, `"n":12345678901234567890}`},
		"escapes":         {`{"text":"` + strings.Repeat(`\u0001`, 50000) + `"}`, `\u0001\n[truncated: `},
		"longest only":    {`{"a":"` + long + `","b":"` + strings.Repeat("x", 500) + `"}`, strings.Repeat("x", 500)},
		"string":          {`"` + long + `"`, `é\n[truncated: `},
		"numbers":         {`[` + strings.Repeat("1,", 50000) + `1]`, `{"truncated":true,"removed":100003}`},
		"keys":            {`{"` + long + `":1}`, `{"truncated":true,"removed":50006}`},
		"not JSON":        {long, `{"truncated":true,"removed":50000}`},
		"one long line":   {`{"snapshot":"- x ` + long + `"}`, `{"snapshot":"- x é`},
		"half a ref":      {`{"snapshot":"` + strings.Repeat("x", 860) + ` [ref=e12` + long + `"}`, `x \n[truncated: `},
		"snapshot, title": {`{"title":"` + long + `","snapshot":"- a [ref=e1]\n` + long + `"}`, `"snapshot":"`},
	} {
		t.Run(name, func(t *testing.T) {
			out, cut := Truncate(tt.in+"\n", 1024)
			if len(out) > 1024 || !json.Valid([]byte(out)) || !strings.Contains(out, tt.want) || (cut == 0) != (out == tt.in+"\n") {
				t.Errorf("%d bytes, cut %d: %.300s … %.100s", len(out), cut, out, out[max(0, len(out)-100):])
			}
		})
	}
}

// TestTruncateLinear: a lot of what a page could write to make it slow.
func TestTruncateLinear(t *testing.T) {
	for _, unit := range []string{"ref=", "[ref=e1]", "\n", "\n\n[", "[", "x", "\x01"} {
		text := quote(strings.Repeat(unit, (1<<20)/len(unit)))
		in := `{"snapshot":` + text + `,"t":` + text + "}\n"
		t.Run(unit, func(t *testing.T) {
			var out string
			if took := need.CPU(t, func() { out, _ = Truncate(in, 30000) }); took > 2*time.Second {
				t.Errorf("it takes %s", took)
			}
			if len(out) > 30000 || !json.Valid([]byte(out)) {
				t.Errorf("it gives %d bytes", len(out))
			}
		})
	}
	var many strings.Builder
	for i := range 50000 {
		fmt.Fprintf(&many, `"k%d":"%s",`, i, strings.Repeat("x", 120))
	}
	took := need.CPU(t, func() {
		if out, _ := Truncate("{"+many.String()+`"z":1}`, 30000); len(out) > 30000 {
			t.Errorf("%d bytes", len(out))
		}
	})
	if took > 2*time.Second {
		t.Errorf("it takes %s", took)
	}
}

func TestTruncateText(t *testing.T) {
	for _, limit := range []int{0, 10, 60, 100, 1000, 30000} {
		in := strings.Repeat("é", 2000)
		out, cut := TruncateText(in, limit)
		if len(out) > limit || !utf8.ValidString(out) {
			t.Errorf("limit %d: %q", limit, out)
		}
		if limit >= 60 && limit < 4000 && !strings.HasSuffix(out, fmt.Sprintf("\n[stderr truncated: %d characters removed]\n", cut)) {
			t.Errorf("limit %d: %q, %d", limit, out, cut)
		}
		if limit == 30000 && (out != in || cut != 0) {
			t.Error("it fitted")
		}
	}
}

func FuzzTruncate(f *testing.F) {
	f.Add(snapshotOf(30), 1024)
	f.Add(`{"a":"\u00e9\n\ud800","b":[1,"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"]}`+"\n", 100)
	f.Add("\"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\"\n", 80)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		if limit < 0 || limit > 1<<20 {
			return
		}
		out, cut := Truncate(s, limit)
		if len(out) > limit || cut < 0 {
			t.Fatalf("%d bytes of %d", len(out), limit)
		}
		if out != s && limit >= 3 && !json.Valid([]byte(out)) {
			t.Errorf("limit %d: %q", limit, out)
		}
		if again, more := Truncate(out, limit); again != out || more != 0 {
			t.Errorf("%q becomes %q", out, again)
		}
		if utf8.ValidString(s) && !utf8.ValidString(out) {
			t.Errorf("%q", out)
		}
		if json.Valid([]byte(s)) && utf8.ValidString(s) {
			// The same inside an object, as a snapshot and as a text.
			doc := `{"snapshot":` + quote(s) + `,"t":` + quote(s) + `}`
			if out, _ := Truncate(doc, max(limit, 3)); out != doc && (!json.Valid([]byte(out)) || len(out) > max(limit, 3)) {
				t.Errorf("limit %d: %q", limit, out)
			}
		}
		text, _ := TruncateText(s, limit)
		if len(text) > limit || utf8.ValidString(s) && !utf8.ValidString(text) {
			t.Errorf("text %q", text)
		}
	})
}
