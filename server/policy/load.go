package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/server/strictjson"
)

// maxFile bounds a policy file, in bytes.
const maxFile = 1 << 20

// Load reads a policy file. Only the default path may be missing, which gives
// the default policy: a path that someone chose must be there, and a broken
// file never falls back to anything. Refused are also files that others may
// write, that are no regular files and that are larger than 1 MiB.
func Load(path string) (*Policy, error) { return load(path, path == DefaultPath) }

func load(path string, optional bool) (*Policy, error) {
	if _, err := os.Lstat(path); optional && errors.Is(err, fs.ErrNotExist) {
		return Default(), nil
	}
	p, _, err := ReadFile(path)
	return p, err
}

// ReadFile reads a policy file as Load does, and returns its text, too. The file must be there.
func ReadFile(path string) (*Policy, []byte, error) {
	b, err := strictjson.Read(path, maxFile)
	if err != nil {
		return nil, nil, fmt.Errorf("policy file: %w", err)
	}
	p, err := Parse(b)
	if err != nil {
		return nil, nil, fmt.Errorf("policy file %s:%w", path, err)
	}
	return p, b, nil
}

// Parse reads the text of a policy file over the image's own. It refuses unknown,
// doubled and differently cased keys and every null; errors begin with
// line:column. The key "$schema" may name the JSON Schema.
func Parse(b []byte) (*Policy, error) {
	w := walker{text: b, keys: map[string]int64{}}
	p := forImage()
	err := w.file(p)
	if err == nil {
		err = json.Unmarshal(b, p)
	}
	if err == nil {
		err = p.validate()
	}
	if err != nil {
		return nil, w.locate(err)
	}
	p.Commands = expand(p.Commands)
	return p, nil
}

// keyError is about one key, for instance limits.max_calls or commands[2].
type keyError struct{ key, text string }

func (e *keyError) Error() string { return e.text }

// wrong says what is wrong with a key; the text goes on from its name.
func wrong(key, format string, args ...any) error {
	return &keyError{key, key + " " + fmt.Sprintf(format, args...)}
}

// renamed holds keys of earlier files, and what to write instead.
var renamed = map[string]string{
	"open.allow_host_suffixes": `is gone; write "*.example.com" (hosts below it) and "example.com" (the host itself) in open.allow_hosts`,
}

// walker compares a file with the keys that a policy has.
type walker struct {
	text []byte
	keys map[string]int64 // where each key was seen
}

func (w walker) file(model *Policy) error {
	text, err := json.Marshal(model)
	if err != nil {
		return err
	}
	var known map[string]any
	if err := json.Unmarshal(text, &known); err != nil {
		return err
	}
	known["$schema"] = ""
	root, err := strictjson.Parse(w.text)
	if err != nil {
		return err
	}
	if root.Members == nil {
		return strictjson.Errorf(root.At, "a policy is a JSON object")
	}
	return w.object(root, known, "")
}

func (w walker) object(n strictjson.Node, known map[string]any, path string) error {
	for _, m := range n.Members {
		key := path + m.Name
		_, twice := w.keys[key]
		w.keys[key] = m.At
		want, ok := known[m.Name]
		switch {
		case renamed[key] != "":
			return wrong(key, "%s", renamed[key])
		case !ok:
			return &keyError{key, fmt.Sprintf("unknown key %q; known here: %s", key, strings.Join(slices.Sorted(maps.Keys(known)), ", "))}
		case twice:
			return wrong(key, "is given twice")
		}
		if sub, ok := want.(map[string]any); ok {
			if m.Members == nil {
				return wrong(key, "must be an object")
			}
			if err := w.object(m.Node, sub, key+"."); err != nil {
				return err
			}
		}
		if _, ok := m.Value.(string); key == "$schema" && !ok {
			return wrong(key, "must be a string")
		}
	}
	return nil
}

// locate puts line:column before an error, of the key that it is about.
func (w walker) locate(err error) error {
	var (
		ke *keyError
		te *json.UnmarshalTypeError
	)
	switch {
	case errors.As(err, &te):
		return w.locate(wrong(te.Field, "must be %s, found %s", kindName(te.Type), te.Value))
	case errors.As(err, &ke):
		err = strictjson.Errorf(w.find(ke.key), "%s", ke.text)
	}
	return strictjson.Locate(w.text, err)
}

// find gives the place of a key, or of the nearest one around it.
func (w walker) find(key string) int64 {
	for key != "" {
		if at, ok := w.keys[key]; ok {
			return at
		}
		key = key[:max(strings.LastIndexAny(key, ".["), 0)]
	}
	return 0
}

func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Slice:
		return "a list"
	case reflect.String:
		return "a string"
	}
	return "an object"
}
