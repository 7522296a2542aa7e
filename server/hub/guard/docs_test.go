package guard

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// TestDocs: the guide names every key and rule, and its example is a policy that does what the guide says.
func TestDocs(t *testing.T) {
	b, err := os.ReadFile(filepath.FromSlash("../hub.md"))
	if err != nil {
		t.Fatal(err)
	}
	doc := string(b)
	for f := range reflect.TypeFor[rules]().Fields() {
		if !strings.Contains(doc, "| `"+f.Tag.Get("json")+"` |") {
			t.Errorf("docs/hub.md does not tell of %s", f.Tag.Get("json"))
		}
	}
	for _, rule := range []string{RuleBlocked, RuleSize, RuleJSON, RulePath, RuleInjection} {
		if !strings.Contains(doc, "`"+rule+"`") {
			t.Errorf("docs/hub.md does not tell of %s", rule)
		}
	}
	examples := regexp.MustCompile("(?s)```json\n(.*?)```").FindAllStringSubmatch(doc, -1)
	if len(examples) != 3 {
		t.Fatalf("%d examples", len(examples))
	}
	p := parse(t, examples[2][1])
	for _, tt := range []struct{ server, tool, args, want string }{
		{"files", "read_file", `{"path":"/data/x"}`, ""},
		{"files", "read_file", `{"path":"/data/../etc/shadow"}`, RulePath},
		{"files", "read_file", `{"path":"/data/x","password":"x"}`, ""},
		{"files", "write_file", `{}`, RuleBlocked},
		{"files", "list_deleted", `{}`, RuleBlocked},
		{"search", "ask", `{"text":"how do I reset a password"}`, ""},
		{"runner", "run", `{"arg":"x; y"}`, RuleInjection},
		{"runner", "run", `{"arg":"` + strings.Repeat("x", 4096) + `"}`, RuleSize},
		{"browser_shell", "browser-shell", `{"argv":["fill","@e1","password"]}`, ""},
	} {
		if got := p.Check(Call{Server: tt.server, Tool: tt.tool, Alias: tt.tool, Arguments: []byte(tt.args)}); rule(got) != tt.want {
			t.Errorf("%s/%s %.50s: %v, not %q", tt.server, tt.tool, tt.args, got, tt.want)
		}
	}
}
