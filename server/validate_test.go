package server

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/slimctl/slimctl/server/policy"
)

// parseCall reads arguments as the validate hook does.
func parseCall(args string) (Call, *policy.Refusal) {
	v := validate{policy: policy.Default()}
	return v.parseArguments(Call{Tool: policy.ToolName, Arguments: json.RawMessage(args)})
}

func TestParseCall(t *testing.T) {
	got, r := parseCall(`{"session_id":"a.b-c_D","argv":["wait",200,true,1e3],"timeout_sec":30.0}`)
	if r != nil {
		t.Fatal(r)
	}
	if d := cmp.Diff([]string{"wait", "200", "true", "1e3"}, got.Argv); d != "" || got.SessionID != "a.b-c_D" || got.Timeout != 30*time.Second {
		t.Errorf("got %+v %s", got, d)
	}
	if got, _ = parseCall(`{"session_id":"s","argv":["close"]}`); got.Timeout != 30*time.Second {
		t.Errorf("default timeout is %s", got.Timeout)
	}
}

// badArguments are refused before anything runs, each by its rule.
var badArguments = []struct{ args, rule, session string }{
	{``, "args.object", ""},
	{`null`, "args.object", ""},
	{`[]`, "args.object", ""},
	{`{"session_id":"s","session_id":"t","argv":["close"]}`, "args.object", ""},
	{`{"session_id":"s","argv":["close"],"argv":["open","x"]}`, "args.object", ""},
	{`{}`, "session.format", ""},
	{`{"session_id":null,"argv":["close"]}`, "session.format", ""},
	{`{"session_id":7,"argv":["close"]}`, "session.format", ""},
	{`{"session_id":"","argv":["close"]}`, "session.format", ""},
	{`{"session_id":"a b","argv":["close"]}`, "session.format", ""},
	{`{"session_id":"é","argv":["close"]}`, "session.format", ""},
	{`{"session_id":"s\n","argv":["close"]}`, "session.format", ""},
	{`{"session_id":"` + strings.Repeat("s", 65) + `","argv":["close"]}`, "session.format", ""},
	{`{"session_id":"../x","argv":["close"]}`, "session.path", ""},
	{`{"session_id":"/etc/x","argv":["close"]}`, "session.path", ""},
	{`{"session_id":"a\\b","argv":["close"]}`, "session.path", ""},
	{`{"session_id":"s\u0000","argv":["close"]}`, "session.path", ""},
	{`{"session_id":"s","argv":["close"],"cmd":"id"}`, "args.unknown-key", "s"},
	{`{"session_id":"s","Argv":["close"]}`, "args.unknown-key", "s"},
	{`{"session_id":"s","argv":["close"],"TIMEOUT_SEC":1}`, "args.unknown-key", "s"},
	{`{"session_id":"s"}`, "argv.type", "s"},
	{`{"session_id":"s","argv":"close"}`, "argv.type", "s"},
	{`{"session_id":"s","argv":null}`, "argv.type", "s"},
	{`{"session_id":"s","argv":[null]}`, "argv.type", "s"},
	{`{"session_id":"s","argv":[["close"]]}`, "argv.type", "s"},
	{`{"session_id":"s","argv":[{}]}`, "argv.type", "s"},
	{`{"session_id":"s","argv":["close"],"timeout_sec":0}`, "args.timeout", "s"},
	{`{"session_id":"s","argv":["close"],"timeout_sec":121}`, "args.timeout", "s"},
	{`{"session_id":"s","argv":["close"],"timeout_sec":0.5}`, "args.timeout", "s"},
	{`{"session_id":"s","argv":["close"],"timeout_sec":120.5}`, "args.timeout", "s"},
	{`{"session_id":"s","argv":["close"],"timeout_sec":"5"}`, "args.timeout", "s"},
	{`{"session_id":"s","argv":["close"],"timeout_sec":null}`, "args.timeout", "s"},
	{`{"session_id":"s","argv":["close"],"timeout_sec":1e309}`, "args.timeout", "s"},
}

func TestParseCallRefuses(t *testing.T) {
	for _, tt := range badArguments {
		t.Run(tt.args, func(t *testing.T) {
			c, r := parseCall(tt.args)
			if r == nil {
				t.Fatalf("accepted as %+v", c)
			}
			if r.Rule != tt.rule || c.SessionID != tt.session {
				t.Errorf("got %s, session %q; want %s, session %q", r.Rule, c.SessionID, tt.rule, tt.session)
			}
		})
	}
}

// TestSchemaAgrees: what the published schema refuses, parseCall refuses too.
func TestSchemaAgrees(t *testing.T) {
	schema := compile(t, inputSchema)
	for _, tt := range badArguments {
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(tt.args))
		if err != nil || strings.Contains(tt.rule, "object") || strings.Contains(tt.args, "1e309") {
			continue // not JSON, or doubled keys, which a schema cannot see
		}
		if schema.Validate(v) == nil {
			t.Errorf("the schema accepts %s", tt.args)
		}
	}
	v, _ := jsonschema.UnmarshalJSON(strings.NewReader(`{"session_id":"s","argv":["wait",200,true],"timeout_sec":30.5}`))
	if err := schema.Validate(v); err != nil {
		t.Error(err)
	}
}

func TestOutputSchema(t *testing.T) {
	schema := compile(t, outputSchema)
	for _, res := range []Result{{SessionID: "s", Stdout: "{}\n"}, Result{}.withRefusal(&policy.Refusal{Code: policy.PolicyBlocked, Rule: "x", Message: "y"})} {
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(res.toMCP().Content[0].(*mcp.TextContent).Text))
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(v); err != nil {
			t.Error(err)
		}
	}
}

func compile(t *testing.T, text string) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("mem:schema", doc); err != nil {
		t.Fatal(err)
	}
	return c.MustCompile("mem:schema")
}

// TestDaemonName: the names fit both generations and do not meet.
func TestDaemonName(t *testing.T) {
	form := regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$`)
	seen := map[string]string{}
	for _, id := range []string{"a", "A", "a.b", "a-b", "a_b", ".", "..", strings.Repeat("x", 64), strings.Repeat("x", 63), "bs-a"} {
		n := daemonName(id)
		if !form.MatchString(n) {
			t.Errorf("%q gives %q", id, n)
		}
		if other, ok := seen[n]; ok {
			t.Errorf("%q and %q share %q", id, other, n)
		}
		seen[n] = id
	}
}
