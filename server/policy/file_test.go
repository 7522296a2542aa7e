package policy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestAsset: the file in the image says what the program does without a file.
func TestAsset(t *testing.T) {
	p, err := Load(filepath.FromSlash("../../assets/policy/browser-shell.policy.json"))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(Default(), p); d != "" {
		t.Errorf("the asset differs from the built-in default (-built-in +asset):\n%s", d)
	}
}

func TestParse(t *testing.T) {
	p, err := Parse([]byte(`{"version":1,"commands":["open","get"],"limits":{"timeout_sec":5}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Commands, want.Limits.TimeoutSec = []string{"open", "get"}, 5
	if d := cmp.Diff(want, p); d != "" {
		t.Error(d)
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		``:                                    "not JSON",
		`{`:                                   "EOF",
		`[]`:                                  "object",
		`null`:                                "object",
		`{} {}`:                               "text after",
		`{"comands":[]}`:                      `unknown key "comands"`,
		`{"Commands":[]}`:                     `unknown key "Commands"`,
		"{\n  \"open\": {\"allow\": 1}}":      `2:12: unknown key "open.allow"`,
		`{"commands":[],"commands":["open"]}`: "given twice",
		`{"open":{"allow_hosts":[],"allow_hosts":["x"]}}`: "given twice",
		`{"commands":null}`:                          "null",
		`{"open":null}`:                              "must be an object",
		`{"commands":"open"}`:                        "commands must be",
		`{"commands":["eval"]}`:                      `"eval"`,
		`{"commands":["run_shell"]}`:                 `"run_shell"`,
		`{"commands":["open","open"]}`:               "given twice",
		`{"version":2}`:                              "version",
		`{"agent_browser":{"path":"agent-browser"}}`: "absolute",
		`{"agent_browser":{"search_path":"/bin:."}}`: "absolute",
		`{"agent_browser":{"cdp_port":0}}`:           "cdp_port",
		`{"state_dir":"x"}`:                          "absolute",
		`{"limits":{"max_timeout_sec":121}}`:         "max_timeout_sec",
		`{"limits":{"timeout_sec":0}}`:               "timeout_sec",
		`{"limits":{"timeout_sec":1.5}}`:             "timeout_sec",
		`{"limits":{"max_sessions":0}}`:              "max_sessions",
		`{"open":{"allow_schemes":["file"]}}`:        "only http and https",
		`{"open":{"allow_hosts":["*.example.com"]}}`: "host name",
		`{"open":{"allow_host_suffixes":[".com"]}}`:  "host name",
	} {
		_, err := Parse([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(filepath.Join(dir, "missing.json")); err == nil {
		t.Error("a chosen file that is missing was taken for the default")
	}
	file := filepath.Join(dir, "open.json")
	if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(file); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(file, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(file); err == nil {
		t.Error("a file that anyone may write was accepted")
	}
}
