package rawname

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestQuote(t *testing.T) {
	seen := map[string]string{}
	for _, s := range []string{"", "/opt/x", "/opt/ü\u202e", `"abc"`, `"`, "/x\xff", "/x\xfe", "\xff", `"\xff"`, `"\"\\xff\""`, "/x\ufffd"} {
		q := Quote(s)
		if Unquote(q) != s {
			t.Errorf("%q becomes %q, and then %q", s, q, Unquote(q))
		}
		text, _ := json.Marshal(q)
		if other, ok := seen[string(text)]; ok {
			t.Errorf("%q and %q are both %s", s, other, text)
		}
		seen[string(text)] = s
	}
	if Quote(`"abc"`) != `"abc"` || Quote("/x\xff") != `"/x\xff"` {
		t.Errorf("%q, %q", Quote(`"abc"`), Quote("/x\xff"))
	}
}

func TestQuoted(t *testing.T) {
	type inner struct {
		Path string
		At   time.Time
	}
	type outer struct {
		List  []inner
		Map   map[string][]string
		Any   any
		Next  *inner
		Bytes []byte
		None  []string
	}
	v := outer{
		[]inner{{"/a\xff", time.Unix(1, 0)}}, map[string][]string{"\xfe": {"x", "\xfd"}, "\xfd": nil}, map[string]any{"k": "\xff"},
		&inner{Path: "\xff"}, []byte("\xff"), nil,
	}
	text, err := json.Marshal(Quoted(v))
	if err != nil {
		t.Fatal(err)
	}
	var back outer
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	back.List[0].At = back.List[0].At.Local()
	if d := cmp.Diff(v, Unquoted(back), cmp.Comparer(func(a, b time.Time) bool { return a.Equal(b) })); d != "" {
		t.Errorf("(-before +after)\n%s", d)
	}
	if v.List[0].Path != "/a\xff" || v.Next.Path != "\xff" {
		t.Error("the original was changed")
	}
}
