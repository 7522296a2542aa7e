package policy

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// SchemaID names the schema of version 1 of the file. It is an identifier;
// nothing need answer there.
const SchemaID = "https://github.com/slimctl/slimctl/schema/policy/v1"

// Schema returns the JSON Schema (2020-12) of the policy file, made from the
// tags that Load checks a file by. assets/policy/schema.json is this text.
func Schema() ([]byte, error) {
	root := objectSchema(reflect.ValueOf(*imageDefault()))
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["$id"] = SchemaID
	root["title"] = "browser-shell policy"
	root["description"] = "The policy file of browser-shell, " + DefaultPath + ". A key that is left out has the default below, which is what the image carries."
	properties, ok := root["properties"].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("a policy without keys")
	}
	properties["$schema"] = map[string]any{"type": "string", "description": "the schema of this file, for editors"}
	b, err := json.MarshalIndent(root, "", "  ")
	return append(b, '\n'), err
}

func objectSchema(v reflect.Value) map[string]any {
	properties := map[string]any{}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		properties[f.Tag.Get("json")] = keySchema(f, v.Field(i))
	}
	return map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
}

func keySchema(f reflect.StructField, v reflect.Value) map[string]any {
	var s map[string]any
	switch f.Type.Kind() {
	case reflect.Struct:
		s = objectSchema(v)
	case reflect.Slice:
		items := valueSchema(f, f.Type.Elem().Kind())
		s = map[string]any{"type": "array", "items": items, "default": v.Interface()}
		if f.Name == "Commands" {
			items["enum"] = append(allCommands(), Read)
			s["uniqueItems"] = true
		}
	default:
		s = valueSchema(f, f.Type.Kind())
		s["default"] = v.Interface()
	}
	s["description"] = f.Tag.Get("doc")
	return s
}

// valueSchema is the schema of one value that is neither a list nor an object.
func valueSchema(f reflect.StructField, kind reflect.Kind) map[string]any {
	s := map[string]any{"type": "string"}
	switch kind {
	case reflect.Bool:
		s["type"] = "boolean"
	case reflect.Int, reflect.Int64:
		s["type"] = "integer"
	}
	if least, most, ok := readBounds(f); ok {
		s["minimum"], s["maximum"] = least, most
	}
	if pattern := f.Tag.Get("pattern"); pattern != "" {
		s["pattern"] = pattern
	}
	if words := f.Tag.Get("enum"); words != "" {
		s["enum"] = strings.Split(words, ",")
	}
	return s
}

func allCommands() []string {
	var names []string
	for _, row := range table {
		names = append(names, row.name)
	}
	return slices.Compact(names)
}
