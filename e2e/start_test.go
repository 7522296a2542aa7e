package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/inspect/sandbox"
)

// TestDoesNotStart: an image that can't start ends `run` by itself, which says why; and `verify --run`, with one finding.
func TestDoesNotStart(t *testing.T) {
	t.Parallel()
	good := buildL0(t, "standin-live:B")
	const policy, nginx = "/etc/agent-browser/browser-shell.policy.json", "/opt/gem/nginx-main.conf"
	for name, c := range map[string]struct {
		ref    string
		status int
		says   string
		logs   string // of the artifacts: one, and what it says
	}{
		"a policy with an unknown key": {
			withFiles(t, good, image.Bytes(policy, 0o644, []byte(`{"version": 1, "comands": []}`))), 78,
			`policy file ` + policy + `:1:16: .*comands`, "",
		},
		"a program that ends": {
			withFiles(t, good, image.Bytes(nginx, 0o644, []byte("daemonn off;\n"))), 1,
			`program nginx has ended 5 times: .*unknown directive "daemonn"`, "nginx.log",
		},
		"a program that isn't there": {
			withFiles(t, good, image.Whiteout("/usr/bin/openbox")), 1,
			`program openbox has ended 5 times: .*start /usr/bin/openbox: no such file`, "openbox.log",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bin, err := slimctl()
			if err != nil {
				t.Fatal(err)
			}
			artifacts := t.TempDir()
			cmd := exec.CommandContext(t.Context(), bin, "run", "--runtime", sandbox.Runc, "--timeout", "0", "-e", "SANDBOX_API_KEY="+key, "--artifacts", artifacts, c.ref)
			out, err := cmd.CombinedOutput()
			if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if cmd.ProcessState.ExitCode() != c.status || !regexp.MustCompile(c.says).Match(out) {
				t.Errorf("exit status %d, want %d:\n%s", cmd.ProcessState.ExitCode(), c.status, out)
			}
			kept, err := filepath.Glob(filepath.Join(artifacts, "*", "logs", "*.log"))
			if err != nil {
				t.Fatal(err)
			}
			if c.logs != "" && len(kept) != len(programs) {
				t.Errorf("logs: %q", kept)
			}
			for _, file := range kept {
				if text, err := os.ReadFile(file); err != nil || filepath.Base(file) == c.logs && len(text) == 0 {
					t.Errorf("%s: %q %v", file, text, err)
				}
			}
			if c.logs == "openbox.log" {
				return // verify awaits it as run does, by sandbox.AwaitHealthy
			}
			code, report, evidence := verifyRun(t, c.ref)
			found := ""
			for _, f := range report.Findings {
				if strings.HasPrefix(f.Rule, "run-") {
					found += f.Rule + ": " + f.Message + "\n"
				}
			}
			if code != exitGate || !strings.HasPrefix(found, "run-start: ") || !regexp.MustCompile(c.says).MatchString(found) || len(evidence) != 1 {
				t.Errorf("exit code %d after %d containers: %s", code, len(evidence), found)
			}
		})
	}
}
