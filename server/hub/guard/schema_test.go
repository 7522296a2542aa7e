package guard

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

var update = flag.Bool("update", false, "write assets/policy/hub.schema.json")

// schemaID is an identifier; nothing need answer there.
const schemaID = "https://github.com/slimctl/slimctl/schema/hub-policy/v1"

// schema makes the JSON Schema (2020-12) of the file from the tags that a file is checked by.
func schema(t testing.TB) []byte {
	t.Helper()
	b, err := json.MarshalIndent(map[string]any{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": schemaID,
		"title":       "policy of the hub",
		"description": "The policy file of browser-shell hub, " + DefaultPath + ": which tools may be called, with what. A key that is left out keeps its default.",
		"type":        "object", "additionalProperties": false,
		"properties": map[string]any{
			"$schema": map[string]any{"type": "string", "description": "the schema of this file, for editors"},
			"version": map[string]any{"const": 1, "description": "the version of this format"},
			"default": rulesSchema(true),
			"servers": map[string]any{
				"type": "object", "maxProperties": maxNamed, "additionalProperties": rulesSchema(false),
				"propertyNames": map[string]any{"pattern": serverName.String()},
				"description":   "what holds for one server of mcp-hub.json, by its name there",
			},
		},
	}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(b, '\n')
}

func rulesSchema(base bool) map[string]any {
	properties := map[string]any{}
	values := reflect.ValueOf(Default().base)
	for f, v := range values.Fields() {
		s := map[string]any{}
		switch f.Type.Kind() {
		case reflect.Bool:
			s["type"] = "boolean"
		case reflect.Int:
			s["type"] = "integer"
			s["minimum"], s["maximum"] = readBounds(f.Tag)
		case reflect.String:
			s["type"], s["pattern"] = "string", f.Tag.Get("pattern")
		case reflect.Slice:
			s["type"], s["maxItems"] = "array", maxList
			s["items"] = map[string]any{"type": "string", "pattern": f.Tag.Get("pattern")}
		}
		s["description"] = f.Tag.Get("doc")
		if base {
			s["default"] = v.Interface()
		}
		properties[f.Tag.Get("json")] = s
	}
	what := "what holds for every server, but for the keys that its entry has"
	if !base {
		what = "a key that is left out is as in default"
	}
	return map[string]any{"type": "object", "additionalProperties": false, "properties": properties, "description": what}
}

func TestSchemaAsset(t *testing.T) {
	path := filepath.FromSlash("../../../assets/policy/hub.schema.json")
	want := schema(t)
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("run `go test ./server/hub/guard -run TestSchemaAsset -update`; the file differs (-code +file):\n%s", d)
	}
}

func asset(t testing.TB) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.FromSlash("../../../assets/policy/hub.policy.json"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestAssetIsDefault: what the image carries says what holds without it.
func TestAssetIsDefault(t *testing.T) {
	p, err := Parse(asset(t))
	if err != nil {
		t.Fatal(err)
	}
	p.named = nil // a file that speaks of it is another thing
	if d := cmp.Diff(Default(), p, cmp.AllowUnexported(Policy{}, rules{})); d != "" {
		t.Errorf("built-in and file differ (-built-in +file):\n%s", d)
	}
	for f := range reflect.TypeFor[rules]().Fields() {
		if key := fmt.Sprintf("%q:", f.Tag.Get("json")); !bytes.Contains(asset(t), []byte(key)) {
			t.Errorf("the file does not show %s", key)
		}
	}
}

// TestSchemaAgrees: schema and loader take and refuse the same.
func TestSchemaAgrees(t *testing.T) {
	c := jsonschema.NewCompiler()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema(t)))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.AddResource(schemaID, doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile(schemaID)
	if err != nil {
		t.Fatal(err)
	}
	long := `"` + strings.Repeat(`a`, 257) + `"`
	many := `["aaa"` + strings.Repeat(`,"aaa"`, maxList) + `]`
	for _, tt := range []struct {
		text string
		ok   bool
	}{
		{string(asset(t)), true},
		{`{}`, true},
		{`{"version":1}`, true},
		{`{"version":2}`, false},
		{`{"version":"1"}`, false},
		{`{"$schema":"x"}`, true},
		{`{"$schema":1}`, false},
		{`[]`, false},
		{`"x"`, false},
		{`{"defaults":{}}`, false},
		{`{"Default":{}}`, false},
		{`{"default":null}`, false},
		{`{"default":[]}`, false},
		{`{"default":{"alow":[]}}`, false},
		{`{"default":{"allow":[]}}`, true},
		{`{"default":{"allow":null}}`, false},
		{`{"default":{"allow":[null]}}`, false},
		{`{"default":{"allow":["a b"]}}`, false},
		{`{"default":{"allow":["é"]}}`, false},
		{`{"default":{"allow":[""]}}`, false},
		{`{"default":{"block":[` + long + `]}}`, false},
		{`{"default":{"block":` + many + `}}`, false},
		{`{"default":{"block":"x"}}`, false},
		{`{"default":{"sensitive_paths":["x"]}}`, false},
		{`{"default":{"sensitive_paths":[".x/"]}}`, true},
		{`{"default":{"max_argument_bytes":63}}`, false},
		{`{"default":{"max_argument_bytes":64}}`, true},
		{`{"default":{"max_argument_bytes":16777216}}`, true},
		{`{"default":{"max_argument_bytes":16777217}}`, false},
		{`{"default":{"call_timeout_sec":0}}`, false},
		{`{"default":{"call_timeout_sec":1}}`, true},
		{`{"default":{"call_timeout_sec":600}}`, true},
		{`{"default":{"call_timeout_sec":601}}`, false},
		{`{"default":{"call_timeout_sec":1.5}}`, false},
		{`{"default":{"call_timeout_sec":"30"}}`, false},
		{`{"default":{"call_timeout_sec":9999999999999999999999}}`, false},
		{`{"default":{"shell":1}}`, false},
		{`{"default":{"shell_characters":""}}`, false},
		{`{"default":{"shell_characters":";a"}}`, false},
		{"{\"default\":{\"shell_characters\":\";`\\\\[]\"}}", true},
		{`{"servers":[]}`, false},
		{`{"servers":{"a/b":{}}}`, false},
		{`{"servers":{"":{}}}`, false},
		{`{"servers":{"A":{}}}`, false},
		{`{"servers":{"a":null}}`, false},
		{`{"servers":{"a":{"shell":true}}}`, true},
		{`{"servers":{"a":{"servers":{}}}}`, false},
	} {
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(tt.text))
		if err != nil {
			t.Fatalf("%s: %v", tt.text, err)
		}
		if err := s.Validate(v); (err == nil) != tt.ok {
			t.Errorf("the schema says of %s: %v", tt.text, err)
		}
		if _, err := Parse([]byte(tt.text)); (err == nil) != tt.ok {
			t.Errorf("the loader says of %s: %v", tt.text, err)
		}
	}
}
