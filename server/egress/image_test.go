package egress_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server/egress"
	"github.com/slimctl/slimctl/server/policy"
)

// What the image carries for its browser is made from the policy file that it carries.
const (
	imagePolicy  = "../../assets/policy/browser-shell.policy.json"
	imageManaged = "../../assets/chromium/managed-policy.json"
	imageBrowser = "../../assets/supervisord/supervisord.conf"
)

func TestImageManagedPolicy(t *testing.T) {
	p, err := policy.Load(imagePolicy)
	if err != nil {
		t.Fatal(err)
	}
	want, err := egress.Managed(p)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(imageManaged)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("write it again: browser-shell chromium-policy --policy assets/policy/browser-shell.policy.json >assets/chromium/managed-policy.json (-want +got):\n%s", diff)
	}
}

// The words that supervisord makes of the browser's conf hold every flag of the policy, and none a second time: Chromium
// hears the last one only.
func TestImageBrowserFlags(t *testing.T) {
	p, err := policy.Load(imagePolicy)
	if err != nil {
		t.Fatal(err)
	}
	got := browserArgs(t)
	seen := map[string]string{}
	for _, arg := range got {
		name, value, _ := strings.Cut(arg, "=")
		if _, twice := seen[name]; twice {
			t.Errorf("%s twice", name)
		}
		seen[name] = value
	}
	off := []string{"--disable-features", "--disable-blink-features"}
	for _, flag := range egress.Flags(p) {
		name, value, _ := strings.Cut(flag, "=")
		has, ok := seen[name]
		switch {
		case !ok:
			t.Errorf("no %s in %s", flag, imageBrowser)
		case slices.Contains(off, name): // others may be off too
			for f := range strings.SplitSeq(value, ",") {
				if !slices.Contains(strings.Split(has, ","), f) {
					t.Errorf("%s lacks %s in %s", name, f, imageBrowser)
				}
			}
		case has != value:
			t.Errorf("%s=%s in %s, want %s", name, has, imageBrowser, value)
		}
	}
	if !slices.Contains(got, "--remote-debugging-port=9222") {
		t.Errorf("no debugging port: %q", got)
	}
}

// browserArgs lets the real supervisord start the browser's part of the conf, with a script in the browser's place.
func browserArgs(t *testing.T) []string {
	t.Helper()
	daemon := need.Program(t, "supervisord")
	dir := t.TempDir()
	args := filepath.Join(dir, "args")
	whole, err := os.ReadFile(imageBrowser)
	if err != nil {
		t.Fatal(err)
	}
	_, conf, _ := strings.Cut(string(whole), "[program:browser]\n")
	conf, _, _ = strings.Cut(conf, "\n[program:")
	conf = regexp.MustCompile(`(?m)^(directory|user|stdout_logfile)=.*\n`).ReplaceAllString(conf, "")
	const program = "command=/usr/local/bin/browser-shell start --display 99 --cage browser /usr/local/bin/browser\n"
	if !strings.Contains(conf, program) {
		t.Fatalf("%s has not %q for the browser", imageBrowser, program)
	}
	script := filepath.Join(dir, "browser")
	text := "[program:browser]\n" + strings.Replace(conf, program, "command="+script+"\n", 1)
	for path, text := range map[string]string{
		filepath.Join(dir, "main"):         "[supervisord]\nnodaemon=true\npidfile=" + dir + "/pid\nlogfile=/dev/null\nlogfile_maxbytes=0\n[include]\nfiles=" + dir + "/*.conf\n",
		filepath.Join(dir, "browser.conf"): text,
		script:                             "#!/bin/sh\nprintf '%s\\0' \"$@\" >" + args + ".new && mv " + args + ".new " + args + "\nexec sleep 60\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var said bytes.Buffer
	cmd := exec.Command(daemon, "-n", "-c", filepath.Join(dir, "main"))
	cmd.Env = []string{"SLIM_DESKTOP_USER=nobody", "SLIM_LANG=en-US,en", "SLIM_WINDOW=1280,1024", "PATH=/usr/bin:/bin"}
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := need.Start(t, cmd); err != nil {
		t.Fatal(err)
	}
	stop := func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may be gone
		_ = cmd.Wait()
	}
	defer stop()
	for end := time.Now().Add(need.Patience); ; time.Sleep(50 * time.Millisecond) {
		if raw, err := os.ReadFile(args); err == nil {
			return strings.Split(strings.TrimSuffix(string(raw), "\x00"), "\x00")
		}
		if time.Now().After(end) {
			stop()
			t.Fatalf("supervisord started no browser: %s", said.String())
		}
	}
}
