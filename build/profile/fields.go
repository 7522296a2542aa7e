package profile

import (
	"reflect"
	"strconv"
	"strings"
)

// field holds the tags of a struct field.
type field struct {
	key              string
	index            int
	required, each   bool
	check, keys      string
	oneof, needs     string
	nonEmpty, unique bool
	merge            string
	low, high        int
}

// fieldsOf returns the struct fields that are keys of a profile, in their order.
func fieldsOf(t reflect.Type) []field {
	var out []field
	for i := range t.NumField() {
		tag := t.Field(i).Tag
		key, options, _ := strings.Cut(tag.Get("yaml"), ",")
		if key == "-" {
			continue
		}
		low, high, _ := strings.Cut(tag.Get("range"), ",")
		f := field{
			key: key, index: i,
			required: options != "omitempty", each: tag.Get("each") != "",
			check: tag.Get("check"), keys: tag.Get("keys"),
			oneof: tag.Get("oneof"), needs: tag.Get("needs"),
			nonEmpty: strings.Contains(tag.Get("list"), "min"), unique: strings.Contains(tag.Get("list"), "unique"),
			merge: tag.Get("merge"),
		}
		f.low, _ = strconv.Atoi(low)
		f.high, _ = strconv.Atoi(high)
		out = append(out, f)
	}
	return out
}

func keysOf(fields []field) []string {
	out := make([]string, len(fields))
	for i, f := range fields {
		out[i] = f.key
	}
	return out
}

// groups returns the keys of each oneof group, in the order of the fields.
func groups(fields []field) [][]string {
	var out [][]string
	at := map[string]int{}
	for _, f := range fields {
		if f.oneof == "" {
			continue
		}
		i, ok := at[f.oneof]
		if !ok {
			i = len(out)
			at[f.oneof] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], f.key)
	}
	return out
}

// section returns the struct type behind t, a struct or a pointer to one, if `extends` merges it key by key.
func section(t reflect.Type) (reflect.Type, bool) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t, t.Kind() == reflect.Struct
}

// home returns the path of the first mapping in the format that has the key: "config" for "env".
func home(t reflect.Type, key, path string) string {
	for _, f := range fieldsOf(t) {
		if f.key == key && path != "" {
			return path
		}
	}
	for _, f := range fieldsOf(t) {
		inner, suffix := t.Field(f.index).Type, ""
		if inner.Kind() == reflect.Slice {
			inner, suffix = inner.Elem(), "[]"
		}
		if inner, ok := section(inner); ok {
			if found := home(inner, key, join(path, f.key)+suffix); found != "" {
				return found
			}
		}
	}
	return ""
}
