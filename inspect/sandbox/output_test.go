//go:build linux

package sandbox

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/inspect/sandbox/sandboxtest"
)

// TestLimits: each limit is the kernel's, and holds.
func TestLimits(t *testing.T) {
	t.Parallel()
	testLimits(t, runcEngineUnderTest(t))
}

func testLimits(t *testing.T, e engineUnderTest) {
	e.StopGrace = hurry
	s := settings("fork", "100")
	s.PIDs, s.CPUs, s.Memory = 40, 0.5, 512<<20
	sb := e.start(guestImage(t), s)
	until(t, "the guest has forked", says(sb, "started"))
	if !says(sb, "refused")() {
		t.Errorf("a hundred processes were started: %s", sb.Logs())
	}
	if got := sb.Evidence().NotApplied; len(got) > 0 && (len(got) != 1 || !strings.Contains(got[0], "swap")) {
		t.Errorf("not applied: %q", got)
	}
}

// TestLimitMissing: a limit that this machine can't set is told, or with Strict refused.
func TestLimitMissing(t *testing.T) {
	t.Parallel()
	b := &bundle{plan: &plan{Settings: settings()}, cgroups: cgroups{"memory": "/nowhere"}}
	r := b.resources()
	if r.Pids != nil || r.CPU != nil || r.Memory == nil || len(b.missing) != 2 {
		t.Errorf("%+v, missing %q", r, b.missing)
	}
	if got := (cgroups{"memory": t.TempDir(), "pids": t.TempDir(), "cpu": t.TempDir()}).findMissing("x", settings()); len(got) != 3 {
		t.Errorf("limits that the kernel doesn't have: %q", got)
	}
}

// TestOutput: what a hostile container leaves in /output is copied without following anything, and the evidence beside it
// is whole.
func TestOutput(t *testing.T) {
	t.Parallel()
	testOutput(t, runcEngineUnderTest(t))
}

func testOutput(t *testing.T, e engineUnderTest) {
	s := settings("mess")
	s.Output = filepath.Join(t.TempDir(), "artifacts")
	s.Env = map[string]string{"KEY": "very-secret"}
	sb := e.start(guestImage(t), s)
	if st := finish(t, sb); st.ExitCode != 0 {
		t.Fatalf("%+v: %s", st, sb.Logs())
	}
	top := filepath.Join(s.Output, sb.ID)
	var got []string
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if strings.Contains(p, "/deep/d/d") || err != nil {
			return err
		}
		info, err := d.Info()
		got = append(got, strings.TrimPrefix(p, top)+" "+info.Mode().String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		" drwxr-xr-x", "/events.jsonl -rw-------", "/evidence.json -rw-r--r--", "/output drwxr-xr-x", "/output/a drwxr-xr-x", "/output/a/b drwxr-xr-x",
		"/output/a/b/good -rw-r--r--", "/output/deep drwxr-xr-x", "/output/deep/d drwxr-xr-x", "/output/setuid -rw-r--r--",
	}
	if e.Runtime == Docker { // its archive is read up to the huge file
		want = want[:len(want)-1]
	}
	if !slices.Equal(got, want) {
		t.Errorf("collected:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	entries, err := os.ReadDir(s.Output)
	if err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
	text, err := os.ReadFile(filepath.Join(top, "evidence.json"))
	if err != nil {
		t.Fatal(err)
	}
	var ev Evidence
	if err := json.Unmarshal(text, &ev); err != nil {
		t.Fatal(err)
	}
	digest, err := sb.image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if ev.Run != sb.ID || ev.Image.Digest != digest || ev.Engine.Name == "" || ev.Engine.Version == "" || ev.Engine.RootFS == "" || ev.PeakMemory < 0 ||
		ev.Ended.Before(ev.Started) || ev.Error != "" || ev.ExitCode == nil || *ev.ExitCode != 0 || ev.Settings.Memory != s.Memory {
		t.Errorf("%s", text)
	}
	if len(ev.Events) != 3 || ev.Events[0].Event != EventSpawn || ev.Events[2].Event != EventCleanup {
		t.Errorf("events: %+v", ev.Events)
	}
	if strings.Contains(string(text), "very-secret") || ev.Settings.Env["KEY"] != "(set)" {
		t.Error("the evidence has a secret")
	}
	good := slices.IndexFunc(ev.Output.Files, func(f File) bool { return f.Path == "a/b/good" })
	if want := (File{"a/b/good", "770e607624d689265ca6c44884d0807d9b054d23c473c106c72be9de08b7376c", 4, "text/plain; charset=utf-8"}); good < 0 || ev.Output.Files[good] != want {
		t.Errorf("files: %+v", ev.Output.Files)
	}
	if !slices.Equal(ev.Files, ev.Output.Files) {
		t.Errorf("files at the top: %+v", ev.Files)
	}
	if len(ev.Output.Skipped) != ev.Output.Left || !slices.ContainsFunc(ev.Output.Skipped, func(s string) bool { return strings.Contains(s, `"huge"`) }) {
		t.Errorf("output: %+v", ev.Output)
	}
}

// TestMirror guards that what a running container has written is copied whole when it is asked for, and the rest of it by the
// next run if this process is killed; that a link leads nowhere; and that a file stays which the container removes again.
func TestMirror(t *testing.T) {
	t.Parallel()
	testMirror(t, runcEngineUnderTest(t))
}

func testMirror(t *testing.T, e engineUnderTest) {
	e.CacheDir = t.TempDir() // no other run sweeps it
	e.StopGrace = hurry
	s := settings("deaf")
	s.Output, s.Audit = t.TempDir(), t.TempDir()
	sb, err := e.Start(t.Context(), guestImage(t), s)
	if err != nil {
		t.Fatal(err)
	}
	until(t, "ready", says(sb, "ready"))
	top := filepath.Join(s.Output, sb.ID)
	put := func(files ...string) {
		t.Helper()
		if r, err := sb.Exec(t.Context(), append([]string{"/guest", "put"}, files...), ExecOptions{}); err != nil || r.ExitCode != 0 {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	has := func(file, want string) {
		t.Helper()
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v, want %q", file, got, err, want)
		}
	}
	mirror := func(file, log string) {
		t.Helper()
		if err := sb.Mirror(t.Context(), file); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		has(filepath.Join(top, "audit", "audit.jsonl"), log)
		has(filepath.Join(s.Audit, sb.ID, "audit.jsonl"), log)
	}
	put(AuditDir + "/audit.jsonl=1\n")
	mirror("", "1\n")
	put("/output/run/s/a.png=one", "/output/other=x", AuditDir+"/audit.jsonl=1\n2\n", AuditDir+"/audit.jsonl.9=old")
	mirror("run/s/a.png", "1\n2\n")
	has(filepath.Join(top, "output/run/s/a.png"), "one")
	has(filepath.Join(top, "audit/audit.jsonl.9"), "old")
	put("/output/run/s/a.png=another", "/output/gone=x")
	mirror("run/s/a.png", "1\n2\n")
	mirror("gone", "1\n2\n")
	has(filepath.Join(top, "output/run/s/a.png"), "another")
	put("/output/gone", "/output/run/s/a.png", "/output/run/s/a.png/below=x", "/output/"+partial+"=x")
	for _, none := range []string{"nowhere/at/all", "run", "run/s/a.png/below", partial, "../../../guest"} {
		mirror(none, "1\n2\n")
	}
	if _, err := os.Lstat(filepath.Join(top, "output", "nowhere")); err == nil {
		t.Error("a directory is made for a file that isn't there")
	}
	put("/output/late=x", AuditDir+"/audit.jsonl=1\n2\n3\n")
	if err := sb.run.lock.Unlock(); err != nil { // as if its process had been killed
		t.Fatal(err)
	}
	finish(t, e.start(guestImage(t), settings("exit", "0")))
	has(filepath.Join(top, "audit/audit.jsonl"), "1\n2\n3\n")
	for file, want := range map[string]string{"run/s/a.png": "another", "gone": "x", "late": "x", "other": "x"} {
		has(filepath.Join(top, "output", file), want)
	}
	err = filepath.WalkDir(s.Output, func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && (!d.Type().IsRegular() || d.Name() == partial) {
			t.Errorf("%s is left", p)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	_, _ = sb.Stop(t.Context()) // its own cleaning up finds nothing
}

// TestMirrorWhileSwapped guards that a file which becomes a link or a FIFO while it is copied is not followed and holds up nobody.
func TestMirrorWhileSwapped(t *testing.T) {
	t.Parallel()
	s := settings("swap")
	s.Output = t.TempDir()
	sb := runcEngineUnderTest(t).start(guestImage(t), s)
	until(t, "ready", says(sb, "ready"))
	var copies int
	for range 2000 {
		if err := sb.Mirror(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(s.Output, sb.ID, "output", "x"))
		if err == nil {
			copies++
		}
		if strings.Trim(string(got), "god") != "" {
			t.Fatalf("copied: %q", got)
		}
	}
	if copies == 0 {
		t.Error("nothing was ever copied")
	}
}

// TestPlantedOutput: what is kept of a run is what the run wrote, not what the image has at the same places.
func TestPlantedOutput(t *testing.T) {
	t.Parallel()
	testPlantedOutput(t, runcEngineUnderTest(t))
}

func testPlantedOutput(t *testing.T, e engineUnderTest) {
	s := settings("cat", "/output/planted")
	s.Output, s.Audit = t.TempDir(), t.TempDir()
	sb := e.start(guestImage(t, sandboxtest.Layer(t, sandboxtest.Dir("output/", 0o755), sandboxtest.File("output/planted", "planted"),
		sandboxtest.Dir("var/log/browser-shell/audit/", 0o755), sandboxtest.File("var/log/browser-shell/audit/audit.jsonl", "{}\n"))), s)
	if st := finish(t, sb); st.ExitCode != 1 || !says(sb, "no such file")() {
		t.Errorf("%+v: %s", st, sb.Logs())
	}
	if ev := sb.Evidence(); len(ev.Output.Files) > 0 || len(ev.Audit) > 0 {
		t.Errorf("%+v, %+v", ev.Output, ev.Audit)
	}
}

// TestCollectOutput: files of the machine that a container could name are never opened.
func TestCollectOutput(t *testing.T) {
	t.Parallel()
	from, to, secret := t.TempDir(), t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(secret, "key"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"dir": secret, "file": filepath.Join(secret, "key"), "up": "..", "self": "."} {
		if err := os.Symlink(target, filepath.Join(from, link)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		f, err := os.Create(filepath.Join(from, "big"+string(rune('0'+i))))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Truncate(100<<20), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	c := newCollector(t, to)
	if err := c.collectTree(from); err != nil || len(c.files) != 2 || c.out.Bytes != 200<<20 || c.out.Left != 5 {
		t.Errorf("%+v, %v", c.out, err)
	}
	if err := c.collectTree(filepath.Join(from, "nowhere")); err == nil {
		t.Error("no error for what isn't there")
	}
}

func newCollector(t *testing.T, dir string) *collector {
	t.Helper()
	c, err := collectInto(filepath.Join(dir, "collected"), 0o644)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.dst.Close() })
	return c
}

// header is the header of a file in an archive, without its content.
func header(t *testing.T, name string, size int64) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := tar.NewWriter(&b).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size, Format: tar.FormatGNU}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type neverRead struct{ t *testing.T }

func (n neverRead) Read([]byte) (int, error) {
	n.t.Error("the content of a huge file is read")
	return 0, io.EOF
}

// TestCollectArchive: an archive of a container's directory writes nothing beyond the destination, follows no link of its
// own, and stops at its bounds.
func TestCollectArchive(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside")
	file := sandboxtest.File
	c := newCollector(t, dir)
	err := c.collectArchive(bytes.NewReader(sandboxtest.Layer(t,
		sandboxtest.Dir("output/", 0o777), sandboxtest.Dir("output/d/", 0o4777), file("output/d/good", "ok"), file("output/../../outside", "x"),
		file("output/d/../../../outside", "x"), file("output//outside", "x"), file("/output/d/abs", "x"), file("top", "x"),
		sandboxtest.Symlink("output/link", outside), file("output/link", "x"), sandboxtest.Symlink("output/up", ".."), file("output/up/outside", "x"),
		sandboxtest.Hardlink("output/hard", "/etc/passwd"), file("output/d/good", "again"), file("output/none/x", "x"), file("output/\xff", "x"),
		sandboxtest.Item{Header: tar.Header{Typeflag: tar.TypeChar, Name: "output/dev", Devmajor: 1, Devminor: 3}},
	)), "")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, _ error) error {
		info, err := d.Info()
		got = append(got, strings.TrimPrefix(p, dir)+" "+info.Mode().String())
		return err
	})
	want := []string{" drwxr-xr-x", "/collected drwxr-xr-x", "/collected/d drwxr-xr-x", "/collected/d/good -rw-r--r--", "/collected/link -rw-r--r--"}
	if got[0] = want[0]; !slices.Equal(got, want) {
		t.Errorf("%q\n%+v", got, c.out)
	}
	if len(c.files) != 2 || c.out.Left != 11 {
		t.Errorf("%+v", c.out)
	}
	huge := sandboxtest.Layer(t, sandboxtest.Dir("output/", 0o777), file("output/a", "ok"))
	huge = append(huge[:len(huge)-1024], header(t, "output/huge", 1<<40)...)
	c = newCollector(t, t.TempDir())
	if err := c.collectArchive(io.MultiReader(bytes.NewReader(huge), neverRead{t}), ""); err != nil || len(c.files) != 1 || c.out.Left != 1 {
		t.Errorf("a huge file: %+v, %v", c.out, err)
	}
	for name, text := range map[string]string{"empty": "", "garbage": strings.Repeat("garbage", 1000)} {
		if err := newCollector(t, t.TempDir()).collectArchive(strings.NewReader(text), ""); (err != nil) != (text != "") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// zeros is a reader of left zero bytes; a read past them is errReadOn.
type zeros struct{ left int64 }

var errReadOn = errors.New("more is read than is bounded")

func (z *zeros) Read(b []byte) (int, error) {
	if z.left <= 0 {
		return 0, errReadOn
	}
	n := min(int64(len(b)), z.left)
	clear(b[:n])
	z.left -= n
	return int(n), nil
}

// TestCollectArchiveIsBounded: what an archive holds is not read without end, however it is cut into files that aren't kept.
// Sparse files cost a container nothing: twenty thousand of 256 MB would be 5 TB.
func TestCollectArchiveIsBounded(t *testing.T) {
	t.Parallel()
	const size = maxOutputBytes - 512
	for what, name := range map[string]string{
		"too deep": "output/" + strings.Repeat("d/", maxOutputDepth+1) + "x", "no UTF-8": "output/\xff", "elsewhere": "output/../x", "without a directory": "output/none/x",
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			parts := []io.Reader{bytes.NewReader(header(t, "output/kept", 0))}
			for range 8 {
				parts = append(parts, bytes.NewReader(header(t, name, size)), &io.LimitedReader{R: &zeros{size}, N: size})
			}
			c := newCollector(t, t.TempDir())
			if err := c.collectArchive(io.MultiReader(append(parts, &zeros{})...), ""); err != nil || len(c.files) != 1 ||
				!slices.ContainsFunc(c.out.Skipped, func(s string) bool { return strings.Contains(s, "nothing after it is read") }) {
				t.Errorf("%+v, %v", c.out, err)
			}
		})
	}
	huge := [][]byte{header(t, "output/\xff", maxPassed-1), header(t, "output/huge", 1<<62)}
	c := newCollector(t, t.TempDir())
	if err := c.collectArchive(io.MultiReader(bytes.NewReader(huge[0]), &io.LimitedReader{R: &zeros{maxPassed}, N: maxPassed}, bytes.NewReader(huge[1]), neverRead{t}), ""); err != nil || c.out.Left != 2 {
		t.Errorf("%+v, %v", c.out, err)
	}
}

// TestCollectNames: a name that a terminal would obey comes to no directory and no report of this machine.
func TestCollectNames(t *testing.T) {
	t.Parallel()
	odd := []string{"\x1b[2Jx", "a\nslimctl: ready", "a\x7f", "a\u009bm", "a\u202egnp.exe", "d\r"}
	from := t.TempDir()
	archive := []sandboxtest.Item{sandboxtest.Dir("output/", 0o777)}
	for _, name := range append(odd, "ünïcode 文") {
		if err := os.WriteFile(filepath.Join(from, name), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
		archive = append(archive, sandboxtest.File("output/"+name, "x"))
	}
	for what, collect := range map[string]func(*collector) error{
		"directory": func(c *collector) error { return c.collectTree(from) },
		"archive": func(c *collector) error {
			return c.collectArchive(bytes.NewReader(sandboxtest.Layer(t, archive...)), "")
		},
	} {
		c := newCollector(t, t.TempDir())
		if err := collect(c); err != nil || len(c.files) != 1 || c.out.Left != len(odd) {
			t.Errorf("%s: %+v, %v", what, c.out, err)
		}
	}
}
