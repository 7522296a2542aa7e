// Package strictjson is the one strict JSON reader: of files that an operator writes by hand, of a call's arguments and
// of agent-browser's answers. It accepts nothing ambiguous, and its errors have positions. encoding/json lets a repeated
// key win, accepts keys in any case, ignores null and reports no positions.
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

const (
	maxNest  = 8   // levels below the root, in a file
	dataNest = 199 // in data
)

// Read reads a file of at most so many bytes. It refuses a file that others can write and one that isn't regular. It
// checks the opened file, so that it can't be replaced after the check.
func Read(path string, most int64) ([]byte, error) {
	text, st, err := readRegular(path, most)
	switch mode := st.Mode & 0o777; {
	case err != nil:
	case mode&0o002 != 0:
		err = fmt.Errorf("anyone may write %s (mode %04o); chmod o-w", path, mode)
	case mode&0o020 != 0 && st.Gid != 0 && int(st.Gid) != os.Getegid():
		err = fmt.Errorf("group %d may write %s (mode %04o); chmod g-w", st.Gid, path, mode)
	}
	return text, err
}

// ReadOwn is Read for a file that belongs to this user or root, and that nobody else may write.
func ReadOwn(path string, most int64) ([]byte, error) {
	text, st, err := readRegular(path, most)
	switch mode := st.Mode & 0o777; {
	case err != nil:
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		err = fmt.Errorf("%s belongs to another user; chown it to user %d or root", path, os.Geteuid())
	case mode&0o022 != 0:
		err = fmt.Errorf("others may write %s (mode %04o); chmod go-w", path, mode)
	}
	return text, err
}

func readRegular(path string, most int64) (text []byte, st syscall.Stat_t, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a FIFO would block
	if err != nil {
		return nil, st, err
	}
	defer f.Close()
	if err := syscall.Fstat(int(f.Fd()), &st); err != nil {
		return nil, st, err
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return nil, st, fmt.Errorf("%s is not a regular file", path)
	}
	text, err = io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s is larger than %d bytes", path, most)
	}
	return text, st, err
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

// Parse parses the JSON value of a file: at most 8 levels, without null and repeated keys.
func Parse(text []byte) (Node, error) { return parse(text, reader{depth: maxNest}) }

// ParseData parses a JSON value of at most 200 levels without repeated keys; null becomes a Node without Value.
func ParseData(text []byte) (Node, error) { return parse(text, reader{depth: dataNest, nulls: true}) }

// ParseNulls parses what others read less strictly: null becomes a Node without Value, and repeated keys are kept.
func ParseNulls(text []byte) (Node, error) {
	return parse(text, reader{depth: maxNest, nulls: true, repeats: true})
}

func parse(text []byte, r reader) (Node, error) {
	r.text, r.dec = text, json.NewDecoder(bytes.NewReader(text))
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
	text    []byte
	dec     *json.Decoder
	depth   int
	nulls   bool // null is allowed
	repeats bool // so are repeated keys
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
	if depth > r.depth {
		return n, Errorf(n.At, "nested more than %d levels deep", r.depth)
	}
	switch tok {
	case json.Delim('{'):
		n.Members = []Member{}
		seen := map[string]bool{}
		for r.dec.More() {
			m := Member{At: r.next()}
			key, err := r.token()
			if err != nil {
				return n, err
			}
			m.Name, _ = key.(string) // an object's keys are always strings
			if seen[m.Name] && !r.repeats {
				return n, Errorf(m.At, "key %q is given twice", m.Name)
			}
			seen[m.Name] = true
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

// Object returns an object's members. Each must be one of known, unless that is empty.
func (n Node) Object(what string, known ...string) ([]Member, error) {
	if n.Members == nil {
		return nil, Errorf(n.At, "%s must be an object", what)
	}
	for _, m := range n.Members {
		if len(known) > 0 && !slices.Contains(known, m.Name) {
			return nil, Errorf(m.At, "unknown key %q in %s; known here: %s", m.Name, what, strings.Join(known, ", "))
		}
	}
	return n.Members, nil
}
