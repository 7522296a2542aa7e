//go:build linux

package sandbox

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestLimits: each limit is the kernel's, and holds.
func TestLimits(t *testing.T) {
	t.Parallel()
	testLimits(t, runcEngineUnderTest(t))
}

func testLimits(t *testing.T, e engineUnderTest) {
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
	if got := (cgroups{"memory": t.TempDir(), "pids": t.TempDir(), "cpu": t.TempDir()}).verify("x", settings()); len(got) != 3 {
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
		" drwxr-xr-x", "/evidence.json -rw-r--r--", "/output drwxr-xr-x", "/output/a drwxr-xr-x", "/output/a/b drwxr-xr-x",
		"/output/a/b/good -rw-r--r--", "/output/deep drwxr-xr-x", "/output/deep/d drwxr-xr-x", "/output/setuid -rw-r--r--",
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
		ev.Ended.Before(ev.Started) || ev.Error != "" || ev.ExitCode != 0 || ev.Settings.Memory != s.Memory {
		t.Errorf("%s", text)
	}
	if len(ev.Events) != 2 || ev.Events[0].Event != EventSpawn || ev.Events[1].Event != EventCleanup {
		t.Errorf("events: %+v", ev.Events)
	}
	if strings.Contains(string(text), "very-secret") || ev.Settings.Env["KEY"] != "(set)" {
		t.Error("the evidence has a secret")
	}
	if ev.Output.Files < 5 || len(ev.Output.Skipped) != ev.Output.Left || !slices.ContainsFunc(ev.Output.Skipped, func(s string) bool { return strings.Contains(s, `"huge"`) }) {
		t.Errorf("output: %+v", ev.Output)
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
	out, err := collectOutput(from, to)
	if err != nil || out.Files != 2 || out.Bytes != 200<<20 || out.Left != 5 {
		t.Errorf("%+v, %v", out, err)
	}
	if _, err := collectOutput(filepath.Join(from, "nowhere"), to); err == nil {
		t.Error("no error for what isn't there")
	}
}
