package ledger_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"

	"github.com/slimctl/slimctl/build/ledger"
	"github.com/slimctl/slimctl/image"
)

func write(t testing.TB, rows ...ledger.Row) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := ledger.NewWriter(&out, ledger.Header{Profile: "l1", Platform: "linux/amd64"})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if err := w.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestFind: a path is explained up to its root, or to the rule by which it goes; links that stay are followed.
func TestFind(t *testing.T) {
	text := write(t,
		ledger.Row{Package: "p", Stays: "owner", From: "/usr/lib/l.so"},
		ledger.Row{Package: "q", Goes: "cut", From: "package p", Why: "w"},
		ledger.Row{Path: "/bin", Stays: "path", Type: image.TypeSymlink, Link: "usr/bin"},
		ledger.Row{Path: "/usr/bin/x", Stays: "root", Why: "program x"},
		ledger.Row{Path: "/usr/lib/l.so", Stays: "library", From: "/usr/bin/x"},
		ledger.Row{Path: "/loop/a", Stays: "library", From: "/loop/b"},
		ledger.Row{Path: "/loop/b", Stays: "library", From: "/loop/a"},
		ledger.Row{Path: "/to/self", Stays: "path", Type: image.TypeSymlink, Link: "self"},
		ledger.Row{Path: "/odd\xff", Goes: "unneeded"},
		ledger.Row{Path: "/d/via", Stays: "path", Type: image.TypeSymlink, Link: "../bin/../t"},
		ledger.Row{Path: "/usr/t/f", Stays: "path"},
		ledger.Row{Path: "/usr/bin/q", Package: "q", Goes: "with", From: "package q"},
	)
	library := []string{"/usr/lib/l.so: library of /usr/bin/x", "/usr/bin/x: root (program x)"}
	for path, want := range map[string][]string{
		"/bin/x":         {"/usr/bin/x: root (program x)"},
		"/usr/lib/l.so":  library,
		"/bin/../bin//q": append([]string{"/usr/bin/q: goes, with package q", "package q: goes, cut from package p (w)", "package p: owner of /usr/lib/l.so"}, library...),
		"/odd\xff":       {"/odd\xff: goes, nothing that stays needs it"},
		"/odd\xfe":       nil,
		"/to/self/x":     nil,
		"/d/via/f":       {"/usr/t/f: path"}, // as /bin is usr/bin
		"/none":          nil,
		"p":              append([]string{"package p: owner of /usr/lib/l.so"}, library...),
		"package p":      append([]string{"package p: owner of /usr/lib/l.so"}, library...),
		"usr/bin/x":      {"/usr/bin/x: root (program x)"},
		"/p":             nil,
	} {
		h, rows, err := ledger.Find(bytes.NewReader(text), path)
		if err != nil || h.Profile != "l1" {
			t.Errorf("%s: %+v, %v", path, h, err)
		}
		var got []string
		for _, r := range rows {
			got = append(got, r.String())
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %q, not %q", path, got, want)
		}
	}
	if _, rows, err := ledger.Find(bytes.NewReader(text), "/loop/a"); err != nil || len(rows) != 100 {
		t.Errorf("a ring: %d rows, %v", len(rows), err)
	}
}

// TestLongestNames: what a base with the longest and oddest names gives can be read.
func TestLongestNames(t *testing.T) {
	odd := "/" + strings.Repeat("\x01", 4094)
	text := write(t, ledger.Row{Path: odd, Link: odd, From: odd, Goes: ledger.Removed, Type: image.TypeSymlink})
	if _, rows, err := ledger.Find(bytes.NewReader(text), odd); err != nil || len(rows) != 1 || rows[0].From != odd {
		t.Errorf("%d rows, %v", len(rows), err)
	}
}

// TestNear: of what the ledger lacks, where a link leads that goes, and what was meant; of a directory, how much of it stays.
func TestNear(t *testing.T) {
	text := write(t,
		ledger.Row{Package: "openbox", Stays: "owner", From: "/usr/bin/openbox"},
		ledger.Row{Path: "/usr", Stays: ledger.Directory, Type: image.TypeDir},
		ledger.Row{Path: "/usr/bin", Stays: ledger.Directory, Type: image.TypeDir},
		ledger.Row{Path: "/usr/bin/openbox", Stays: "root"},
		ledger.Row{Path: "/usr/bin/ours", Stays: ledger.Added},
		ledger.Row{Path: "/opt/old", Goes: "unneeded", Type: image.TypeSymlink, Link: "v2"},
		ledger.Row{Path: "/opt/v2/run", Goes: "unneeded"},
		ledger.Row{Path: "/usr/bin/x", Goes: "unneeded"},
	)
	for what, want := range map[string][2]string{
		"/opt/old/run":     {"/opt/v2/run", "/opt/v2/run"},
		"/usr/bin/opnbox":  {"", "/usr/bin/openbox"},
		"/usr/sbin/x":      {"", "/usr/bin/x"},
		"opembox":          {"", "openbox"},
		"/opembox":         {"", ""},
		"/none/of/all/any": {"", ""},
	} {
		leads, guess, err := ledger.Near(bytes.NewReader(text), what)
		if err != nil || [2]string{leads, guess} != want {
			t.Errorf("%s: leads to %q, meant %q, not %q: %v", what, leads, guess, want, err)
		}
	}
	if stay, all, err := ledger.Below(bytes.NewReader(text), "/usr"); stay != 1 || all != 2 || err != nil {
		t.Errorf("%d of %d stay: %v", stay, all, err)
	}
}

// TestHostile: a ledger that someone else wrote is read within bounds, or not at all.
func TestHostile(t *testing.T) {
	pack := func(text string, times int) []byte {
		var out bytes.Buffer
		zip := gzip.NewWriter(&out)
		for range times {
			if _, err := zip.Write([]byte(text)); err != nil {
				t.Fatal(err)
			}
		}
		if err := zip.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	good := write(t, ledger.Row{Path: "/a", Stays: "root"}, ledger.Row{Path: "/b", Goes: "unneeded"})
	header := `{"ledger":1}` + "\n"
	kept := strings.Builder{}
	kept.WriteString(header)
	for i := range 400_000 {
		fmt.Fprintf(&kept, `{"path":"/%d","stays":"root"}`+"\n", i)
	}
	for name, text := range map[string][]byte{
		"nothing":            nil,
		"not gzip":           []byte("{}"),
		"empty":              pack("", 1),
		"cut off":            good[:len(good)-9],
		"another version":    pack(`{"ledger":2}`+"\n", 1),
		"a line without end": pack(header+strings.Repeat("x", 1<<20), 100),
		"not JSON":           pack(header+"x\n", 1),
		"neither":            pack(header+`{"path":"/a"}`+"\n", 1),
		"both":               pack(header+`{"path":"/a","stays":"root","goes":"cut"}`+"\n", 1),
		"of nothing":         pack(header+`{"stays":"root"}`+"\n", 1),
		"too much in memory": pack(kept.String(), 1),
	} {
		if _, rows, err := ledger.Find(bytes.NewReader(text), "/none"); err == nil || !strings.HasPrefix(err.Error(), "ledger: ") {
			t.Errorf("%s: %d rows, %v", name, len(rows), err)
		}
	}
}

func FuzzFind(f *testing.F) {
	f.Add([]byte(`{"path":"/a","stays":"target","from":"/b"}`+"\n"+`{"path":"/b","stays":"path","type":"symlink","link":"../.."}`), "/b/a")
	f.Add([]byte(`{"path":"\"\\xff\"","goes":"with","from":"package p"}`), "/\xff")
	f.Fuzz(func(t *testing.T, rows []byte, path string) {
		var text bytes.Buffer
		zip := gzip.NewWriter(&text)
		_, _ = zip.Write(append([]byte(`{"ledger":1}`+"\n"), rows...)) // a buffer takes everything
		zip.Close()
		_, found, err := ledger.Find(&text, path)
		if err == nil && len(found) > 100 {
			t.Errorf("%d rows", len(found))
		}
		for _, r := range found {
			_ = r.String()
		}
	})
}

func BenchmarkFind(b *testing.B) {
	rows := []ledger.Row{{Path: "/kept", Stays: "root"}}
	for i := range 300_000 {
		rows = append(rows, ledger.Row{Path: fmt.Sprintf("/opt/jupyter/lib/python3.11/site-packages/module%d/file%d.py", i/40, i), Goes: "unneeded", Bytes: int64(i * 7919 % 65536), Component: "system"})
	}
	text := write(b, rows...)
	b.ReportMetric(float64(len(text)), "bytes")
	for b.Loop() {
		if _, _, err := ledger.Find(bytes.NewReader(text), "/none"); err != nil {
			b.Fatal(err)
		}
	}
}
