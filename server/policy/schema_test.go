package policy

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

var update = flag.Bool("update", false, "write assets/policy/schema.json")

// TestSchemaAsset: the committed schema is the one of this code.
func TestSchemaAsset(t *testing.T) {
	file := filepath.FromSlash("../../assets/policy/schema.json")
	want, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("run `go test ./server/policy -run TestSchemaAsset -update`; the file differs (-code +file):\n%s", d)
	}
}

func compileSchema(t testing.TB) *jsonschema.Schema {
	t.Helper()
	text, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(SchemaID, doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile(SchemaID)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func fits(t testing.TB, s *jsonschema.Schema, text string) error {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return s.Validate(v)
}

func TestSchemaAcceptsDefault(t *testing.T) {
	s := compileSchema(t)
	asset, err := os.ReadFile(filepath.FromSlash("../../assets/policy/browser-shell.policy.json"))
	if err != nil {
		t.Fatal(err)
	}
	built, err := json.Marshal(Default())
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{string(asset), string(built), "{}", `{"commands":["get","is","scroll","back","forward","reload"]}`} {
		if err := fits(t, s, text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if _, err := Parse([]byte(text)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestSchemaIsWhole: every key of a policy is there with a description, every
// number and every list of numbers has bounds, and at each bound schema and
// loader agree: the last value in is taken by both, the first out by neither.
func TestSchemaIsWhole(t *testing.T) {
	s := compileSchema(t)
	numbers := 0
	var walk func(typ reflect.Type, props map[string]any, path []string)
	walk = func(typ reflect.Type, props map[string]any, path []string) {
		for i := range typ.NumField() {
			f := typ.Field(i)
			name := f.Tag.Get("json")
			path := append(path[:len(path):len(path)], name)
			prop, _ := props[name].(map[string]any)
			if prop["description"] == nil || prop["description"] == "" {
				t.Errorf("%s has no description", strings.Join(path, "."))
			}
			switch f.Type.Kind() {
			case reflect.Struct:
				sub, _ := prop["properties"].(map[string]any)
				if prop["additionalProperties"] != false {
					t.Errorf("%s admits unknown keys", strings.Join(path, "."))
				}
				walk(f.Type, sub, path)
			case reflect.Int, reflect.Int64:
				numbers++
				tryBounds(t, s, prop, path, "%d")
			case reflect.Slice:
				if items, _ := prop["items"].(map[string]any); f.Type.Elem().Kind() == reflect.Int {
					numbers++
					tryBounds(t, s, items, path, "[%d]")
				}
			}
		}
	}
	text, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	var root map[string]any
	if err := json.Unmarshal(text, &root); err != nil {
		t.Fatal(err)
	}
	props, _ := root["properties"].(map[string]any)
	walk(reflect.TypeFor[Policy](), props, nil)
	if numbers != 20 {
		t.Errorf("%d numbers were tried, not 20", numbers)
	}
}

func tryBounds(t *testing.T, s *jsonschema.Schema, prop map[string]any, path []string, form string) {
	t.Helper()
	key := strings.Join(path, ".")
	least, ok1 := prop["minimum"].(float64)
	most, ok2 := prop["maximum"].(float64)
	if !ok1 || !ok2 {
		t.Errorf("%s has no bounds", key)
		return
	}
	for n, in := range map[int64]bool{int64(least) - 1: false, int64(least): true, int64(most): true, int64(most) + 1: false} {
		text := fmt.Sprintf(form, n)
		for i := len(path) - 1; i >= 0; i-- {
			text = fmt.Sprintf("{%q:%s}", path[i], text)
		}
		if err := fits(t, s, text); (err == nil) != in {
			t.Errorf("the schema says of %s: %v", text, err)
		}
		text = besides(text)
		_, err := Parse([]byte(text))
		if (err == nil) != in {
			t.Errorf("the loader says of %s: %v", text, err)
		}
		if err != nil && !strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v does not name %s", text, err, key)
		}
	}
}

// besides adds the key that the bound of another depends on.
func besides(text string) string {
	for key, with := range map[string]string{
		`"max_timeout_sec":1}`:  `"max_timeout_sec":1,"timeout_sec":1}`,
		`"max_calls":1}`:        `"max_calls":1,"session_queue":1}`,
		`"session_queue":1024}`: `"session_queue":1024,"max_calls":1024}`,
	} {
		text = strings.Replace(text, key, with, 1)
	}
	return text
}

// TestSchemaRefuses: what a schema can say, it says.
func TestSchemaRefuses(t *testing.T) {
	s := compileSchema(t)
	for _, text := range []string{
		`[]`, `{"comands":[]}`, `{"Commands":[]}`, `{"open":{"allow":1}}`, `{"open":null}`, `{"commands":null}`, `{"commands":["eval"]}`,
		`{"commands":["run_shell"]}`, `{"commands":["open","open"]}`, `{"version":2}`, `{"tool_name":"x"}`, `{"agent_browser":{"path":"x"}}`,
		`{"agent_browser":{"search_path":"/bin:."}}`, `{"state_dir":"x"}`, `{"open":{"allow_schemes":["file"]}}`, `{"open":{"allow_hosts":["*a"]}}`,
		`{"egress":{"proxy":"0.0.0.0:1"}}`, `{"egress":{"allow_ports":[0]}}`, `{"redaction":{"keys":[""]}}`, `{"$schema":1}`,
		`{"limits":{"timeout_sec":1.5}}`, `{"screenshot":{"return_image":1}}`,
	} {
		if fits(t, s, text) == nil {
			t.Errorf("the schema takes %s", text)
		}
		if _, err := Parse([]byte(text)); err == nil {
			t.Errorf("the loader takes %s", text)
		}
	}
}
