package report

import (
	"bytes"
	"encoding/json"
	"io"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/diff"
	"github.com/slimctl/slimctl/internal/rawname"
)

// atOnce is what is written piece by piece.
func atOnce[T any](t *testing.T, platforms []T) string {
	t.Helper()
	data, err := json.MarshalIndent(struct {
		SchemaVersion int `json:"schemaVersion"`
		Platforms     []T `json:"platforms"`
	}{SchemaVersion, rawname.Quoted(platforms)}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(rawname.Printable(data)) + "\n"
}

func TestJSONIsAsAtOnce(t *testing.T) {
	check := func(what string, got func(io.Writer) error, want string) {
		t.Helper()
		var b bytes.Buffer
		if err := got(&b); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, b.String()); d != "" {
			t.Errorf("%s: -at once +piece by piece\n%s", what, d)
		}
	}
	surfaces := func(what string, s ...*inspect.Surface) {
		t.Helper()
		check(what, func(w io.Writer) error { return Surfaces(w, JSON, s, Options{}) }, atOnce(t, s))
	}
	diffs := func(what string, d ...*diff.Diff) {
		t.Helper()
		check(what, func(w io.Writer) error { return Diffs(w, JSON, d, Options{}) }, atOnce(t, d))
	}
	surfaces("a sample", sampleSurface("linux/amd64"))
	surfaces("two", sampleSurface("linux/amd64"), &inspect.Surface{})
	surfaces("an empty one", &inspect.Surface{})
	surfaces("none", []*inspect.Surface{}...)
	diffs("a sample", sampleDiff("linux/amd64"), &diff.Diff{}, nil)
	diffs("many files", largeDiff(500))
	for shift := range hostile {
		surfaces("a hostile one", hostileSurface(shift))
		diffs("a hostile one", hostileDiff(shift))
	}
}

// A document that is larger than the memory that writing it takes.
func TestJSONIsNotKept(t *testing.T) {
	d := largeDiff(20_000)
	most, written := uint64(0), 0
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	w := writerFunc(func(b []byte) (int, error) {
		if written += len(b); written/(2<<20) != (written-len(b))/(2<<20) {
			runtime.GC()
			runtime.ReadMemStats(&now)
			most = max(most, now.HeapAlloc)
		}
		return len(b), nil
	})
	if err := Diffs(w, JSON, []*diff.Diff{d}, Options{}); err != nil {
		t.Fatal(err)
	}
	if written < 8<<20 || most == 0 || most > before.HeapAlloc+1<<20 {
		t.Errorf("%d bytes of JSON kept %d bytes in memory", written, int64(most)-int64(before.HeapAlloc))
	}
	runtime.KeepAlive(d)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
