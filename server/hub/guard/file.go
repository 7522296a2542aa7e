package guard

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// Bounds on a policy file.
const (
	maxFile  = 1 << 20 // bytes
	maxNest  = 8
	maxList  = 64 // values of one list
	maxNamed = 64 // servers
)

// Load reads a policy file. Only the default path may be missing: the built-in policy is taken then. Refused are also
// files that others may write, that are no regular files and that are larger than 1 MiB.
func Load(path string) (*Policy, error) { return load(path, path == DefaultPath) }

func load(path string, optional bool) (*Policy, error) {
	if _, err := os.Lstat(path); optional && errors.Is(err, fs.ErrNotExist) {
		return Default(), nil
	}
	b, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("hub policy: %w", err)
	}
	p, err := Parse(b)
	if err != nil {
		return nil, fmt.Errorf("hub policy %s:%w", path, err)
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

// node is a JSON value with its place, because encoding/json lets a second key win, takes keys in any case, takes null
// for nothing and doesn't say where.
type node struct {
	at      int64
	members []member // of an object, which is not nil
	items   []node   // of a list, which is not nil
	value   any      // string, bool, json.Number or nil
}

type member struct {
	name string
	at   int64
	node
}

// placed is an error about a place in the file.
type placed struct {
	at   int64
	text string
}

func (e *placed) Error() string { return e.text }

func wrong(at int64, format string, args ...any) error {
	return &placed{at, fmt.Sprintf(format, args...)}
}

// parseTree reads one JSON value; what is wrong is a placed error.
func parseTree(b []byte) (node, error) {
	r := reader{b, json.NewDecoder(bytes.NewReader(b))}
	r.dec.UseNumber()
	root, err := r.value(0)
	if err != nil {
		return root, err
	}
	at := r.next()
	if _, err := r.dec.Token(); err != io.EOF {
		return root, wrong(at, "there is text after the policy; remove it")
	}
	return root, nil
}

type reader struct {
	text []byte
	dec  *json.Decoder
}

// next is where the next token begins.
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
		return nil, wrong(syntax.Offset, "not JSON: %s", err)
	}
	return nil, wrong(r.dec.InputOffset(), "not JSON: the text ends too early")
}

func (r reader) value(depth int) (node, error) {
	n := node{at: r.next()}
	tok, err := r.token()
	if err != nil {
		return n, err
	}
	if depth > maxNest {
		return n, wrong(n.at, "nested more than %d levels deep", maxNest)
	}
	switch tok {
	case json.Delim('{'):
		n.members = []member{}
		for r.dec.More() {
			m := member{at: r.next()}
			key, err := r.token()
			if err != nil {
				return n, err
			}
			m.name, _ = key.(string) // the decoder yields only strings here
			if m.node, err = r.value(depth + 1); err != nil {
				return n, err
			}
			n.members = append(n.members, m)
		}
		_, err = r.token()
	case json.Delim('['):
		n.items = []node{}
		for r.dec.More() {
			item, err := r.value(depth + 1)
			if err != nil {
				return n, err
			}
			n.items = append(n.items, item)
		}
		_, err = r.token()
	default:
		n.value = tok
	}
	return n, err
}

// locate puts line:column before an error.
func locate(text []byte, err error) error {
	var p *placed
	if !errors.As(err, &p) {
		return err
	}
	head := text[:min(int(p.at), len(text))]
	return fmt.Errorf("%d:%d: %w", 1+bytes.Count(head, []byte("\n")), len(head)-bytes.LastIndexByte(head, '\n'), err)
}
