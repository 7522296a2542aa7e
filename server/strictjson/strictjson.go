// Package strictjson reads files that an operator writes by hand. It accepts nothing ambiguous, and its errors have
// positions. encoding/json lets a repeated key win, accepts keys in any case, ignores null and reports no positions.
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
)

const maxNest = 8 // levels

// Read reads a file of at most so many bytes. It refuses a file that others can write and one that isn't regular. It
// checks the opened file, so that it can't be replaced after the check.
func Read(path string, most int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a FIFO would block
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
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s is larger than %d bytes", path, most)
	}
	return text, err
}

// Node is a JSON value with its position.
type Node struct {
	At    int64           // offset of its first byte
	Raw   json.RawMessage // the value's own text
	Value any             // string, bool or json.Number
	Items []Node          // of a list; not nil

	Members []Member // of an object; not nil; see Object
}

// Member is a key of an object with its position and value.
type Member struct {
	Name string
	At   int64
	Node
}

// fault is an error with a position.
type fault struct {
	at   int64
	text string
}

func (f *fault) Error() string { return f.text }

// Errorf returns an error with a position.
func Errorf(at int64, format string, args ...any) error {
	return &fault{at, fmt.Sprintf(format, args...)}
}

// Locate prepends line:column to an error of this package.
func Locate(text []byte, err error) error {
	var f *fault
	if !errors.As(err, &f) {
		return err
	}
	head := text[:min(int(f.at), len(text))]
	return fmt.Errorf("%d:%d: %w", 1+bytes.Count(head, []byte("\n")), len(head)-bytes.LastIndexByte(head, '\n'), err)
}

// Parse parses one JSON value without null.
func Parse(text []byte) (Node, error) { return parse(text, false) }

// ParseNulls parses one JSON value; null becomes a Node without Value.
func ParseNulls(text []byte) (Node, error) { return parse(text, true) }

func parse(text []byte, nulls bool) (Node, error) {
	r := reader{text, json.NewDecoder(bytes.NewReader(text)), nulls}
	r.dec.UseNumber()
	root, err := r.value(0)
	if err != nil {
		return root, err
	}
	at := r.next()
	if _, err := r.dec.Token(); err != io.EOF {
		return root, Errorf(at, "there is text after the object; remove it")
	}
	return root, nil
}

type reader struct {
	text  []byte
	dec   *json.Decoder
	nulls bool // null is allowed
}

// next returns the offset of the next token.
func (r reader) next() int64 {
	rest := r.text[r.dec.InputOffset():]
	return int64(len(r.text) - len(bytes.TrimLeft(rest, ":, \t\r\n")))
}

func (r reader) token() (json.Token, error) {
	tok, err := r.dec.Token()
	if err == nil {
		return tok, nil
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return nil, Errorf(syntax.Offset, "not JSON: %s", err)
	}
	return nil, Errorf(r.dec.InputOffset(), "not JSON: the text ends too early")
}

func (r reader) value(depth int) (n Node, err error) {
	n.At = r.next()
	tok, err := r.token()
	if err != nil {
		return n, err
	}
	if depth > maxNest {
		return n, Errorf(n.At, "nested more than %d levels deep", maxNest)
	}
	switch tok {
	case json.Delim('{'):
		n.Members = []Member{}
		for r.dec.More() {
			m := Member{At: r.next()}
			key, err := r.token()
			if err != nil {
				return n, err
			}
			m.Name, _ = key.(string) // an object's keys are always strings
			if m.Node, err = r.value(depth + 1); err != nil {
				return n, err
			}
			n.Members = append(n.Members, m)
		}
		_, err = r.token()
	case json.Delim('['):
		n.Items = []Node{}
		for r.dec.More() {
			item, err := r.value(depth + 1)
			if err != nil {
				return n, err
			}
			n.Items = append(n.Items, item)
		}
		_, err = r.token()
	case nil:
		if !r.nulls {
			return n, Errorf(n.At, "null says nothing; leave it out")
		}
	default:
		n.Value = tok
	}
	n.Raw = r.text[n.At:r.dec.InputOffset()]
	return n, err
}

// Object returns an object's members. Each must be unique and one of names, unless names is empty.
func (n Node) Object(what string, known ...string) ([]Member, error) {
	if n.Members == nil {
		return nil, Errorf(n.At, "%s must be an object", what)
	}
	seen := map[string]bool{}
	for _, m := range n.Members {
		if len(known) > 0 && !slices.Contains(known, m.Name) {
			return nil, Errorf(m.At, "unknown key %q in %s; known here: %s", m.Name, what, strings.Join(known, ", "))
		}
		if seen[m.Name] {
			return nil, Errorf(m.At, "%s: %q is given twice", what, m.Name)
		}
		seen[m.Name] = true
	}
	return n.Members, nil
}

// Has reports whether an object has a key.
func (n Node) Has(key string) bool {
	return slices.ContainsFunc(n.Members, func(m Member) bool { return m.Name == key })
}
