package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"syscall"
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
	b, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("policy file: %w", err)
	}
	p, err := Parse(b)
	if err != nil {
		return nil, fmt.Errorf("policy file %s:%w", path, err)
	}
	return p, nil
}

// readFile checks what it opened, so that nothing can be put in its place.
func readFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO would wait for its writer
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	mode := info.Mode().Perm()
	if mode&0o002 != 0 {
		return nil, fmt.Errorf("anyone may write %s (mode %04o); chmod o-w", path, mode)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && mode&0o020 != 0 && st.Gid != 0 && int(st.Gid) != os.Getegid() {
		return nil, fmt.Errorf("group %d may write %s (mode %04o); chmod g-w", st.Gid, path, mode)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxFile)
	}
	return b, nil
}

// Parse reads the text of a policy file over the defaults. It refuses unknown,
// doubled and differently cased keys and every null; errors begin with
// line:column. The key "$schema" may name the JSON Schema.
func Parse(b []byte) (*Policy, error) {
	w := walker{text: b, dec: json.NewDecoder(bytes.NewReader(b)), keys: map[string]int64{}}
	p := Default()
	w.dec.UseNumber()
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
	return p, nil
}

// keyError is about one key, for instance limits.max_calls or commands[2].
type keyError struct{ key, text string }

func (e *keyError) Error() string { return e.text }

// wrong says what is wrong with a key; the text goes on from its name.
func wrong(key, format string, args ...any) error {
	return &keyError{key, key + " " + fmt.Sprintf(format, args...)}
}

// walker compares a file with the keys that a policy has, because
// encoding/json lets a second key win, takes keys in any case and takes null
// for nothing.
type walker struct {
	text []byte
	dec  *json.Decoder
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
	tok, err := w.dec.Token()
	if err != nil {
		return fmt.Errorf("not JSON: %w", err)
	}
	if tok != json.Delim('{') {
		return errors.New("a policy is a JSON object")
	}
	if err := w.object(known, ""); err != nil {
		return err
	}
	if _, err := w.dec.Token(); err != io.EOF {
		return errors.New("there is text after the policy; remove it")
	}
	return nil
}

// object reads the rest of an object whose brace was read.
func (w walker) object(known map[string]any, path string) error {
	for w.dec.More() {
		before := w.dec.InputOffset()
		tok, err := w.dec.Token()
		if err != nil {
			return err
		}
		name, _ := tok.(string) // the decoder yields only strings here
		key := path + name
		_, twice := w.keys[key]
		w.keys[key] = before + int64(len(w.text[before:])-len(bytes.TrimLeft(w.text[before:], ", \t\r\n")))
		want, ok := known[name]
		switch {
		case !ok:
			return &keyError{key, fmt.Sprintf("unknown key %q; known here: %s", key, strings.Join(slices.Sorted(maps.Keys(known)), ", "))}
		case twice:
			return wrong(key, "is given twice")
		}
		if err := w.value(want, key); err != nil {
			return err
		}
	}
	_, err := w.dec.Token() // the closing brace
	return err
}

func (w walker) value(want any, key string) error {
	if sub, ok := want.(map[string]any); ok {
		if tok, err := w.dec.Token(); err != nil || tok != json.Delim('{') {
			return wrong(key, "must be an object")
		}
		return w.object(sub, key+".")
	}
	var v any
	if err := w.dec.Decode(&v); err != nil {
		return err
	}
	list, _ := v.([]any)
	if v == nil || slices.Contains(list, nil) {
		return wrong(key, "may not be null; leave the key out for its default")
	}
	if _, ok := v.(string); key == "$schema" && !ok {
		return wrong(key, "must be a string")
	}
	return nil
}

// locate puts line:column before an error: of the key that it is about where
// the file has it, otherwise of the place where reading stopped.
func (w walker) locate(err error) error {
	offset, key := w.dec.InputOffset(), ""
	var (
		ke *keyError
		te *json.UnmarshalTypeError
		se *json.SyntaxError
	)
	switch {
	case errors.As(err, &ke):
		key = ke.key
	case errors.As(err, &te):
		key = te.Field
		err = wrong(key, "must be %s, found %s", kindName(te.Type), te.Value)
	case errors.As(err, &se):
		offset = se.Offset
	}
	if key != "" {
		offset = w.find(key)
	}
	head := w.text[:min(int(offset), len(w.text))]
	line := 1 + bytes.Count(head, []byte("\n"))
	column := len(head) - bytes.LastIndexByte(head, '\n')
	return fmt.Errorf("%d:%d: %w", line, column, err)
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
