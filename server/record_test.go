package server

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/output"
	"github.com/slimctl/slimctl/server/policy"
)

// TestFullLogLetsClose: a full audit log refuses every call but the close of an open session, which has its line.
func TestFullLogLetsClose(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	log, err := audit.Open(path, audit.Limits{MaxBytes: 1, Keep: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	for range 2 { // the second one in a new file
		if err := log.Finish(audit.Record{Event: audit.Start}); err != nil {
			t.Fatal(err)
		}
	}
	redactor, err := output.NewRedactor(nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	h := record{log: log, redactor: redactor, policy: policy.Default()}
	for _, tt := range []struct {
		command string
		closes  bool
		rule    string
		lines   int64
	}{
		{"open", false, "audit.full", 0}, {"snapshot", false, "audit.full", 0},
		{"close", false, "audit.full", 0}, // of what isn't open
		{"close", true, "", 1},
	} {
		c := callOf("s", tt.command, policy.Native)
		c.Argv, c.closes = []string{tt.command}, tt.closes
		before, _ := log.Head()
		_, d := h.OnBefore(t.Context(), c)
		rule := ""
		if d.Refusal != nil {
			rule = d.Refusal.Rule
		} else if r := h.OnAfter(t.Context(), c, Result{}); r.Refusal != nil {
			t.Errorf("%s: the answer is withheld: %+v", tt.command, r.Refusal)
		}
		if after, _ := log.Head(); rule != tt.rule || after-before != tt.lines {
			t.Errorf("%s (of an open session: %v): %q and %d lines, want %q and %d", tt.command, tt.closes, rule, after-before, tt.rule, tt.lines)
		}
	}
}

// TestRefusedHost: the log names the host of whatever address was refused, and nothing else of it.
func TestRefusedHost(t *testing.T) {
	for address, want := range map[string]string{
		"http://169.254.169.254/latest/meta-data/": "169.254.169.254",
		"HTTPS://Admin.CORP.example:8443/x?y#z":    "admin.corp.example",
		"http://user:pa55@10.0.0.1/":               "10.0.0.1",
		"http://a@b@10.0.0.1:80":                   "10.0.0.1",
		"http://[fd00:ec2::254]:80/":               "[fd00:ec2::254]",
		"http://0x7f.1/":                           "0x7f.1",
		"http:\\\\10.0.0.1\\x":                     "10.0.0.1",
		"http:10.0.0.1/":                           "10.0.0.1",
		"https:/10.0.0.1":                          "10.0.0.1",
		"//10.0.0.1/x":                             "10.0.0.1",
		"10.0.0.1:8080/x":                          "10.0.0.1",
		" http://10.0.0.1/ ":                       "10.0.0.1",
		"localhost":                                "localhost",
		"localhost:9222/json":                      "localhost",
		"ftp://files.example/x":                    "files.example",
		"http://exa\u200bmple.com/":                "exa\ufffdmple.com",
		"http://a b/":                              "a\ufffdb",
		"http://%31%30.0.0.1/":                     "%31%30.0.0.1",
		"file:///etc/passwd":                       "",
		"javascript:alert(1)":                      "",
		"data:text/html,secret":                    "",
		"view-source:http://10.0.0.1/":             "",
		"chrome://settings":                        "settings",
		"":                                         "",
		"http://\xff\x00.example/":                 "\ufffd\ufffd.example",
		"http://" + strings.Repeat("a", 9000):      strings.Repeat("a", 128),
	} {
		if got := hostIn(address); got != want {
			t.Errorf("%.60q: %q, want %q", address, got, want)
		}
	}
}
