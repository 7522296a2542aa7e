package report

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"reflect"
	"strings"

	"github.com/slimctl/slimctl/internal/rawname"
)

// writeJSON writes the documents in the form of json.MarshalIndent, but element by element. An image may have a million
// files, and its JSON is larger than the image's data in memory.
func writeJSON[T any](w io.Writer, platforms []T) error {
	if platforms == nil {
		platforms = []T{}
	}
	j := jsonWriter{w: bufio.NewWriterSize(w, 1<<16), lists: map[reflect.Type]bool{}}
	j.value(reflect.ValueOf(struct {
		SchemaVersion int `json:"schemaVersion"`
		Platforms     []T `json:"platforms"`
	}{SchemaVersion, platforms}), "")
	j.put("\n")
	if j.err != nil {
		return j.err
	}
	return j.w.Flush()
}

// jsonWriter writes values; the first error ends it.
type jsonWriter struct {
	w       *bufio.Writer
	scratch bytes.Buffer
	lists   map[reflect.Type]bool // cached results of holdsList
	err     error
}

const jsonIndent = "  "

// replaced is encoding/json's replacement for a byte that is not UTF-8.
const replaced = `\ufffd`

// put writes the printable form of text.
func (j *jsonWriter) put(s string) {
	if j.err == nil {
		_, j.err = j.w.WriteString(s)
	}
}

// value writes v on a line with indent. It splits lists of structs, and values that contain one.
func (j *jsonWriter) value(v reflect.Value, indent string) {
	inner := indent + jsonIndent
	lists, ok := j.lists[v.Type()]
	if !ok {
		lists = holdsList(v.Type())
		j.lists[v.Type()] = lists
	}
	switch {
	case j.err != nil:
	case !lists, v.Kind() == reflect.Pointer && v.IsNil(), v.Kind() == reflect.Slice && v.Len() == 0:
		j.whole(v, indent)
	case v.Kind() == reflect.Pointer:
		j.value(v.Elem(), indent)
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			j.put(map[bool]string{true: "[", false: ","}[i == 0] + "\n" + inner)
			j.value(v.Index(i), inner)
		}
		j.put("\n" + indent + "]")
	default:
		n := 0
		for i := range v.NumField() {
			name, omit, _ := jsonField(v.Type().Field(i))
			if omit && isEmpty(v.Field(i)) {
				continue
			}
			j.put(map[bool]string{true: "{", false: ","}[n == 0] + "\n" + inner + `"` + name + `": `)
			j.value(v.Field(i), inner)
			n++
		}
		if n == 0 {
			j.put("{")
			indent = ""
		} else {
			indent = "\n" + indent
		}
		j.put(indent + "}")
	}
}

// whole writes v with encoding/json.
func (j *jsonWriter) whole(v reflect.Value, indent string) {
	j.scratch.Reset()
	enc := json.NewEncoder(&j.scratch)
	enc.SetIndent(indent, jsonIndent)
	if j.err = enc.Encode(v.Interface()); j.err == nil && bytes.Contains(j.scratch.Bytes(), []byte(replaced)) {
		j.scratch.Reset()
		j.err = enc.Encode(rawname.Quoted(v.Interface()))
	}
	if j.err == nil {
		_, j.err = j.w.Write(rawname.Printable(bytes.TrimSuffix(j.scratch.Bytes(), []byte("\n"))))
	}
}

// compact writes v on one line with encoding/json. That escapes <, > and &, so no string can end a script element.
func (j *jsonWriter) compact(v any) {
	if j.err != nil {
		return
	}
	var data []byte
	if data, j.err = json.Marshal(v); j.err == nil && bytes.Contains(data, []byte(replaced)) {
		data, j.err = json.Marshal(rawname.Quoted(v))
	}
	if j.err == nil {
		_, j.err = j.w.Write(rawname.Printable(data))
	}
}

// holdsList reports whether a value is a list of structs, or a struct or pointer that leads to one and that value can
// split. Other values are written as a whole, which is always correct.
func holdsList(t reflect.Type) bool {
	if t.Implements(reflect.TypeFor[json.Marshaler]()) || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Marshaler]()) {
		return false
	}
	switch t.Kind() {
	case reflect.Pointer:
		return holdsList(t.Elem())
	case reflect.Slice:
		e := t.Elem()
		return e.Kind() == reflect.Struct || e.Kind() == reflect.Pointer && e.Elem().Kind() == reflect.Struct
	case reflect.Struct:
		holds := false
		for i := range t.NumField() {
			if _, _, plain := jsonField(t.Field(i)); !plain {
				return false
			}
			holds = holds || holdsList(t.Field(i).Type)
		}
		return holds
	default:
		return false
	}
}

// jsonField parses a field's tag. plain is true if that has only a name and omitempty.
func jsonField(f reflect.StructField) (name string, omit, plain bool) {
	name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	plain = f.IsExported() && !f.Anonymous && name != "" && name != "-" && (options == "" || options == "omitempty")
	return name, options == "omitempty", plain
}

// isEmpty reports whether omitempty omits v.
func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Array, reflect.Map, reflect.Slice, reflect.String:
		return v.Len() == 0
	case reflect.Struct:
		return false
	default:
		return v.IsZero()
	}
}
