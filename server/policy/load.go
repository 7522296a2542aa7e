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

// maxFile limits the size of a policy file, in bytes.
const maxFile = 1 << 20

// Load reads a policy file. Only the default path may be missing, which means the default policy: a chosen path must
// exist, and an invalid file never falls back to anything. Load also refuses a file that others can write, that is not
// a regular file or that is larger than 1 MiB.
func Load(path string) (*Policy, error) { return load(path, path == DefaultPath) }

func load(path string, optional bool) (*Policy, error) {
	if _, err := os.Lstat(path); optional && errors.Is(err, fs.ErrNotExist) {
		return Default(), nil
	}
	p, _, err := ReadFile(path)
	return p, err
}

// ReadFile reads a policy file as Load does, and also returns its text. The file must exist.
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

// Parse parses a policy file over the image's own. It refuses unknown, repeated and differently cased keys and every
// null; errors begin with line:column. The key "$schema" may name the JSON Schema.
func Parse(b []byte) (*Policy, error) {
	w := walker{text: b, keys: map[string]int64{}}
	p := imageDefault()
	err := w.walkFile(p)
	if err == nil {
		_, suffixes := w.keys["open.allow_host_suffixes"]
		if _, hosts := w.keys["open.allow_hosts"]; suffixes && !hosts {
			p.Open.AllowHosts = nil // not any host
		}
		err = json.Unmarshal(b, p)
	}
	if err == nil {
		err = p.validateKeys()
	}
	if err == nil {
		p.Open.addSuffixes()
		err = p.validate()
	}
	if err != nil {
		return nil, w.addPosition(err)
	}
	p.Commands = expandRead(p.Commands)
	return p, nil
}

// keyError is an error about one key, for instance limits.max_calls or commands[2].
type keyError struct{ key, text string }

func (e *keyError) Error() string { return e.text }

// newKeyError returns an error about a key; the text continues after its name.
func newKeyError(key, format string, args ...any) error {
	return &keyError{key, key + " " + fmt.Sprintf(format, args...)}
}

// walker compares a file with the keys of a policy.
type walker struct {
	text []byte
	keys map[string]int64 // offset of each key
}

func (w walker) walkFile(model *Policy) error {
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
	return w.walkObject(root, known, "")
}

func (w walker) walkObject(n strictjson.Node, known map[string]any, path string) error {
	for _, m := range n.Members {
		key := path + m.Name
		w.keys[key] = m.At
		want, ok := known[m.Name]
		if !ok {
			return &keyError{key, fmt.Sprintf("unknown key %q; known here: %s", key, strings.Join(slices.Sorted(maps.Keys(known)), ", "))}
		}
		if sub, ok := want.(map[string]any); ok {
			if m.Members == nil {
				return newKeyError(key, "must be an object")
			}
			if err := w.walkObject(m.Node, sub, key+"."); err != nil {
				return err
			}
		}
		if _, ok := m.Value.(string); key == "$schema" && !ok {
			return newKeyError(key, "must be a string")
		}
	}
	return nil
}

// addPosition prepends line:column of the key to an error about one.
func (w walker) addPosition(err error) error {
	var (
		ke *keyError
		te *json.UnmarshalTypeError
	)
	switch {
	case errors.As(err, &te):
		return w.addPosition(newKeyError(te.Field, "must be %s, found %s", kindName(te.Type), te.Value))
	case errors.As(err, &ke):
		err = strictjson.Errorf(w.findOffset(ke.key), "%s", ke.text)
	}
	return strictjson.Locate(w.text, err)
}

// findOffset returns the offset of a key, or of the nearest enclosing one.
func (w walker) findOffset(key string) int64 {
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
