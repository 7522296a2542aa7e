package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/profiles"
)

// cuts are edits of profile l1 that break what it gives, each with the file whose loss has to be found, and who opens it.
var cuts = map[string]struct{ old, new, file, by string }{
	"libsoftokn3":        {"objects: [libsoftokn3.so, ", "objects: [", "/usr/lib/*/libsoftokn3.so", "chromium"},
	"libfreebl":          {"libfreeblpriv3.so, libfreebl3.so, ", "", "/usr/lib/*/libfreeblpriv3.so", "chromium"},
	"xkb-data":           {"    - xkb-data\n", "", "/usr/share/X11/xkb/*/*", "xkbcomp"},
	"dash":               {"    - dash\n", "", "/usr/bin/dash", ""},
	"the shell's root":   {"    - path: /bin/sh\n      why: Xvnc starts xkbcomp by it\n", "", "/usr/bin/dash", ""},
	"C.utf8":             {"    - libc-bin # the locale C.utf8\n", "", "/usr/lib/locale/C.utf8/LC_CTYPE", ""},
	"GTK's schemas":      {"    - /usr/share/glib-2.0/schemas/gschemas.compiled\n", "", "/usr/share/glib-2.0/schemas/gschemas.compiled", "chromium"},
	"fontconfig-config":  {"    - fontconfig-config\n", "", "/etc/fonts/fonts.conf", ""},
	"what drops the NSS": {"  drop:\n", "  drop:\n    - {glob: \"/usr/lib/*/lib{softokn3,freebl*}.so\", why: a test}\n", "/usr/lib/*/libsoftokn3.so", "chromium"},
	"edges": {"  without:\n", `  without:
    - {from: "{x11-xkb-utils,tigervnc-*,libx11-*,libxkbcommon*}", to: [xkb-data], why: a test}
    - {from: "*", to: [dash, libc-bin, fontconfig-config, libgtk-3-common], why: a test}
`, "/etc/fonts/fonts.conf", ""},
}

// TestReach: programs open nothing of the base that l1 throws away, and what it keeps and nobody opens is told.
func TestReach(t *testing.T) {
	t.Parallel()
	need.Containers(t)
	need.Program(t, "mmdebstrap")
	code, report, _ := verifyRun(t, build(t, "l1", "standin-live:B"), "--reach", "--profile", "l1", "--base", "standin-live:B")
	if code != 0 || !report.Passed || len(report.Unchecked) > 0 {
		t.Errorf("exit code %d: %+v, not checked: %q", code, report.Findings, report.Unchecked)
	}
	if u := report.Use; u == nil || u.Opened.Files < 500 || u.Opened.Bytes > u.All.Bytes || len(u.Idle) == 0 || u.Idle[0].Bytes < u.Idle[len(u.Idle)-1].Bytes {
		t.Errorf("use: %+v", u)
	}
}

// TestCuts makes l1 with all of these cuts at once, and none of them stays hidden: what is opened with all of the base says so.
func TestCuts(t *testing.T) {
	t.Parallel()
	need.Containers(t)
	need.Program(t, "mmdebstrap")
	text, err := profiles.FS.ReadFile("l1.yaml")
	if err != nil {
		t.Fatal(err)
	}
	profile := strings.Replace(string(text), "name: l1\n", "name: cut\n", 1)
	for name, c := range cuts {
		if !strings.Contains(profile, c.old) {
			t.Fatalf("%s: profile l1 has no %q", name, c.old)
		}
		profile = strings.Replace(profile, c.old, c.new, 1)
	}
	dir := t.TempDir()
	file, out := filepath.Join(dir, "cut.yaml"), filepath.Join(dir, "out")
	if err := os.WriteFile(file, []byte(profile), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, "build", "--profile", file, "--base", "standin-live:B", "--platform", "linux/"+runtime.GOARCH, "--output", "type=oci,dest="+out)
	code, report, _ := verifyRun(t, "oci:"+out, "--reach", "--profile", file, "--base", "standin-live:B")
	if code != exitGate {
		t.Errorf("exit code %d", code)
	}
	for name, c := range cuts {
		// On a loaded machine xkbcomp has ended before it is asked for its name.
		found := regexp.MustCompile(`^` + strings.ReplaceAll(regexp.QuoteMeta(c.file), `\*`, `[^/]+`) + ` is not in the image; with all of the base (\S*` + c.by + `|a program that had ended)`)
		ok := false
		for _, f := range report.Findings {
			ok = ok || f.Rule == "run-reach" && found.MatchString(f.Message)
		}
		if !ok {
			t.Errorf("%s: nothing found of %s", name, c.file)
		}
	}
	if t.Failed() {
		for _, f := range report.Findings {
			t.Logf("%s: %s", f.Rule, f.Message)
		}
	}
}

// TestRefusedCuts: what the closure keeps can't be removed, and the error names it and what needs it.
func TestRefusedCuts(t *testing.T) {
	t.Parallel()
	need.Containers(t)
	need.Program(t, "mmdebstrap")
	lib := "/usr/lib/" + map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH] + "-linux-gnu/"
	for _, cuts := range []map[string]string{
		{
			lib + "libsoftokn3.so":      "NSS, without which no page opens",
			lib + "libfreeblpriv3.so":   "NSS, without which no page opens",
			lib + "libnss3.so":          "library of /usr/lib/chromium/chromium",
			"/usr/bin/dash":             "target of",
			"/usr/bin/xkbcomp":          "makes the keymap",
			"/var/lib/dpkg/info/format": "database",
		},
		{"/usr/bin/Xvnc": "program tigervnc of /opt/gem/supervisord.conf needs"},
		{"/etc/alternatives/Xvnc": "program tigervnc of /opt/gem/supervisord.conf needs"},
	} {
		text := "version: 1\nname: cut\nextends: l1\nremove:\n"
		for path := range cuts {
			text += "  - {path: " + path + ", why: a test}\n"
		}
		file := filepath.Join(t.TempDir(), "cut.yaml")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		err := runSlimctl("plan", "--no-lock", "--profile", file, "--base", "standin-live:B", "--platform", "linux/"+runtime.GOARCH)
		if err == nil {
			t.Errorf("%v: planned", cuts)
			continue
		}
		for path, why := range cuts {
			if !slices.ContainsFunc(strings.Split(err.Error(), "\n"), func(line string) bool { return strings.Contains(line, path) && strings.Contains(line, why) }) {
				t.Errorf("%s isn't refused since %q: %v", path, why, err)
			}
		}
	}
}
