package policy

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/internal/need"
)

// TestAsset: a file that leaves keys out has the values of the image's own
// file, which differ from a program's without a file in the directories alone.
func TestAsset(t *testing.T) {
	p, err := Load(filepath.FromSlash("../../assets/policy/browser-shell.policy.json"))
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.StateDir, want.ArtifactsDir = "/var/lib/browser-shell/state", "/output"
	want.Audit.File = "/var/log/browser-shell/audit/audit.jsonl"
	if d := cmp.Diff(want, p); d != "" {
		t.Errorf("the asset differs from the built-in default (-built-in +asset):\n%s", d)
	}
	if p, err = Parse([]byte("{}")); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, p); d != "" {
		t.Errorf("a file that leaves every key out differs from the asset (-asset +parsed):\n%s", d)
	}
}

func TestParse(t *testing.T) {
	p, err := Parse([]byte(`{"version":1,"commands":["open","get"],"limits":{"timeout_sec":5}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := imageDefault()
	want.Commands, want.Limits.TimeoutSec = []string{"open", "get"}, 5
	if d := cmp.Diff(want, p); d != "" {
		t.Error(d)
	}
}

// TestSuffixes: a suffix is another spelling of an entry of allow_hosts, and a list like it.
func TestSuffixes(t *testing.T) {
	for text, want := range map[string][]string{
		`{"open":{"allow_hosts":["example.com"],"allow_host_suffixes":[".example.com"]}}`:       {"example.com", "*.example.com"},
		`{"open":{"allow_host_suffixes":[".example.com",".a.b"]}}`:                              {"*.example.com", "*.a.b"},
		`{"open":{"allow_hosts":["*.example.com"],"allow_host_suffixes":[".example.com"]}}`:     {"*.example.com"},
		`{"open":{"allow_hosts":["a.b"],"allow_host_suffixes":[]}}`:                             {"a.b"},
		`{"open":{"allow_hosts":[],"allow_host_suffixes":[".a.b"]}}`:                            {"*.a.b"},
		`{"open":{"allow_host_suffixes":[".b"]},"egress":{"private_hosts":["a.b=10.0.0.0/8"]}}`: {"*.b"},
	} {
		p, err := Parse([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if d := cmp.Diff(want, p.Open.AllowHosts); d != "" || len(p.Open.AllowHostSuffixes) != 0 {
			t.Errorf("%s: %+v", text, p.Open)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		``:                                    "not JSON",
		`{`:                                   "ends too early",
		`[]`:                                  "object",
		`null`:                                "null",
		`{} {}`:                               "text after",
		`{"comands":[]}`:                      `unknown key "comands"`,
		`{"Commands":[]}`:                     `unknown key "Commands"`,
		"{\n  \"open\": {\"allow\": 1}}":      `2:12: unknown key "open.allow"`,
		`{"commands":[],"commands":["open"]}`: "given twice",
		`{"open":{"allow_hosts":[],"allow_hosts":["x"]}}`: "given twice",
		`{"commands":null}`:                           "null",
		`{"open":null}`:                               "null",
		`{"commands":"open"}`:                         "commands must be",
		`{"commands":["eval"]}`:                       `"eval"`,
		`{"commands":["run_shell"]}`:                  `"run_shell"`,
		`{"commands":["open","open"]}`:                "given twice",
		`{"commands":[null]}`:                         "null",
		`{"egress":{"allow_ports":[80,null]}}`:        "null",
		`{"version":2}`:                               "version must lie between 1 and 1, not 2",
		`{"tool_name":"run_shell"}`:                   "tool_name must be one of browser-shell, sandbox_execute_bash",
		`{"tool_name":["browser-shell"]}`:             "tool_name must be a string, found array",
		`{"agent_browser":{"path":"agent-browser"}}`:  "agent_browser.path must be an absolute path",
		`{"agent_browser":{"path":""}}`:               "agent_browser.path must be an absolute path",
		`{"agent_browser":{"path":"/a\u0000b"}}`:      "agent_browser.path must be an absolute path",
		`{"agent_browser":{"search_path":"/bin:."}}`:  "agent_browser.search_path must hold absolute directories only",
		`{"agent_browser":{"search_path":"/bin:"}}`:   "agent_browser.search_path must hold absolute directories only",
		`{"agent_browser":{"cdp_port":0}}`:            "agent_browser.cdp_port",
		`{"agent_browser":{"args":["--x"]}}`:          `unknown key "agent_browser.args"`,
		`{"state_dir":"x"}`:                           "state_dir must be an absolute path",
		`{"artifacts_dir":"../x"}`:                    "artifacts_dir must be an absolute path",
		`{"audit":{"file":"audit.jsonl"}}`:            "audit.file must be an absolute path",
		`{"audit":{"enabled":false}}`:                 `unknown key "audit.enabled"`,
		`{"limits":{"max_timeout_sec":121}}`:          "limits.max_timeout_sec must lie between 1 and 120, not 121",
		`{"limits":{"timeout_sec":0}}`:                "limits.timeout_sec",
		`{"limits":{"max_timeout_sec":20}}`:           "limits.timeout_sec must lie between 1 and max_timeout_sec, which is 20, not 30",
		`{"limits":{"max_calls":8}}`:                  "limits.session_queue must lie between 1 and max_calls, which is 8, not 16",
		`{"limits":{"timeout_sec":1.5}}`:              "limits.timeout_sec must be a whole number",
		`{"limits":{"timeout_sec":"5"}}`:              "limits.timeout_sec must be a whole number, found string",
		`{"limits":{"session_bytes":1e400}}`:          "limits.session_bytes",
		`{"limits":[]}`:                               "limits must be an object",
		`{"screenshot":{"return_image":1}}`:           "screenshot.return_image must be true or false",
		`{"open":{"allow_schemes":["file"]}}`:         "must be one of https, http",
		`{"open":{"allow_schemes":["HTTP"]}}`:         "must be one of https, http",
		`{"open":{"allow_about_blank":"yes"}}`:        "true or false",
		`{"open":{"allow_hosts":[]}}`:                 `open.allow_hosts is empty, so nothing could be opened; write ["*"] for any public host`,
		`{"open":{"allow_hosts":["*example.com"]}}`:   "open.allow_hosts[0] must be a lower-case host name",
		`{"open":{"allow_hosts":["a.*.com"]}}`:        "open.allow_hosts[0] must be a lower-case host name",
		`{"open":{"allow_hosts":["*."]}}`:             "host name",
		`{"open":{"allow_hosts":["**"]}}`:             "host name",
		`{"open":{"allow_hosts":["a.b","A.b"]}}`:      "open.allow_hosts[1] must be a lower-case host name",
		`{"open":{"allow_hosts":["a.b:80"]}}`:         "host name",
		`{"open":{"allow_hosts":["https://a.b"]}}`:    "host name",
		`{"open":{"allow_hosts":[""]}}`:               "host name",
		`{"open":{"allow_hosts":["a.b\n"]}}`:          "host name",
		`{"open":{"allow_hosts":["*..com"]}}`:         "open.allow_hosts[0] must be a lower-case host name",
		`{"open":{"allow_host_suffixes":["b.com"]}}`:  "open.allow_host_suffixes[0] must be a dot and a lower-case host name, for instance .example.com",
		`{"open":{"allow_host_suffixes":["."]}}`:      "open.allow_host_suffixes[0] must be a dot",
		`{"open":{"allow_host_suffixes":[".B.com"]}}`: "open.allow_host_suffixes[0] must be a dot",
		`{"open":{"allow_host_suffixes":[]}}`:         "open.allow_hosts is empty",
		`{"egress":{"proxy":"0.0.0.0:8118"}}`:         "egress.proxy must be a loopback address and port",
		`{"egress":{"proxy":"localhost:8118"}}`:       "egress.proxy must be a loopback address and port",
		`{"egress":{"proxy":"127.0.0.1:0"}}`:          "egress.proxy must be a loopback address and port",
		`{"egress":{"proxy":"127.0.0.1:99999"}}`:      "egress.proxy must be a loopback address and port",
		`{"egress":{"proxy":"127.0.0.999:1"}}`:        "egress.proxy must be a loopback address and port",
		`{"egress":{"proxy":""}}`:                     "egress.proxy must be a loopback address and port",
		`{"egress":{"enabled":false}}`:                `unknown key "egress.enabled"`,
		`{"egress":{"allow_ports":[443,0]}}`:          "egress.allow_ports[1] must lie between 1 and 65535, not 0",
		`{"redaction":{"keys":[""]}}`:                 "redaction.keys[0] must not be empty",
		`{"redaction":{"patterns":["a","("]}}`:        "redaction.patterns[1] is no RE2 expression",
		`{"redaction":{"patterns":["a*"]}}`:           "redaction.patterns[0] matches the empty text",
		`{"redaction":{"off":true}}`:                  `unknown key "redaction.off"`,
		`{"$schema":1}`:                               "$schema must be a string",
		`{"$schema":"a","$schema":"b"}`:               "given twice",
		"\ufeff{}":                                    "not JSON",
		`{"commands":["open"],}`:                      "invalid character",
		`{"commands":["open"]`:                        "ends too early",
	} {
		_, err := Parse([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

// TestPlaces: an error points at the key that it is about.
func TestPlaces(t *testing.T) {
	for text, want := range map[string]string{
		"{\n  \"limits\": {\n    \"max_calls\": 8, \"session_queue\" : 9\n}}":                 "3:21: limits.session_queue",
		"{\n  \"limits\": {\"max_calls\": 8}}":                                                "2:3: limits.session_queue", // the file has only its block
		"{\n  \"open\": {\n \t\"allow_hosts\":\n [\"a.b\", \"*.\"]}}":                         "3:3: open.allow_hosts[1]",
		"{\"version\":1,\n\"commands\":[\"eval\"]}":                                           "2:1: commands[0]",
		"{\"version\":1,\n \"commands\":[],\n  \"commands\":[]}":                              `3:3: key "commands" is given twice`,
		"{\"version\":1,\n \"\\u0063ommands\":[],\n \"commands\":[]}":                         `3:2: key "commands" is given twice`,
		"{\"limits\":{\n  \"timeout_sec\": \"5\"}}":                                           "2:3: limits.timeout_sec",
		"{\"commands\":\n [\"open\", 5]}":                                                     "1:2: commands",
		"{\n\n  \"version\" 1}":                                                               "3:13: not JSON",
		"{\"open\":{},\n \"open\":{\"allow_hosts\":[]}}":                                      `2:2: key "open" is given twice`,
		"{\"agent_browser\":{\"path\":\"/x\"},\n\"state_dir\":\"/\", \"audit\":{\"keep\":0}}": "2:27: audit.keep",
	} {
		_, err := Parse([]byte(text))
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		return file
	}
	link := func(to string) string {
		t.Helper()
		file := filepath.Join(dir, "link-"+filepath.Base(to))
		if err := os.Symlink(to, file); err != nil {
			t.Fatal(err)
		}
		return file
	}
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	good := write("good.json", "{}", 0o644)
	for name, tt := range map[string]struct {
		path     string
		optional bool
		want     string // part of the error; empty: none
	}{
		"good":               {path: good},
		"our group writes":   {path: write("group.json", "{}", 0o660)},
		"link to a good one": {path: link(good)}, // as Kubernetes mounts a ConfigMap
		"missing":            {path: filepath.Join(dir, "missing.json"), want: "no such file"},
		"missing default":    {path: filepath.Join(dir, "missing.json"), optional: true},
		"dangling default":   {path: link(filepath.Join(dir, "nowhere")), optional: true, want: "no such file"},
		"empty default":      {path: write("empty.json", "", 0o600), optional: true, want: "empty.json:1:1: not JSON"},
		"broken default":     {path: write("broken.json", "{", 0o600), optional: true, want: "ends too early"},
		"anyone writes":      {path: write("open.json", "{}", 0o666), want: "chmod o-w"},
		"link to that":       {path: link(filepath.Join(dir, "open.json")), want: "chmod o-w"},
		"directory":          {path: dir, want: "not a regular file"},
		"FIFO":               {path: fifo, want: "not a regular file"},
		"device":             {path: os.DevNull, want: "not a regular file"},
		"just small enough":  {path: write("most.json", "{}"+strings.Repeat(" ", maxFile-2), 0o600)},
		"too large":          {path: write("large.json", "{}"+strings.Repeat(" ", maxFile-1), 0o600), want: "larger than 1048576 bytes"},
		"unreadable rest":    {path: filepath.Join(good, "x"), optional: true, want: "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := load(tt.path, tt.optional)
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want == "":
				want := imageDefault()
				if tt.optional {
					want = Default() // there is no file
				}
				if d := cmp.Diff(want, p); d != "" {
					t.Error(d)
				}
			case err == nil || p != nil || !strings.Contains(err.Error(), tt.want):
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// TestLoadForeignGroup needs root to give a file to another group.
func TestLoadForeignGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		need.Missing(t, "needs root")
	}
	file := filepath.Join(t.TempDir(), "p.json")
	if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chown(file, -1, 12345), os.Chmod(file, 0o620)); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(file); err == nil || !strings.Contains(err.Error(), "group 12345 may write") {
		t.Errorf("got %v", err)
	}
}
