package guard

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Limits for input that a server must parse. Languages with big integers read more digits than maxNumber slowly.
const (
	maxDepth  = 64
	maxNumber = 128
)

// scan checks the arguments of one call.
type scan struct {
	paths []string // lower case; nil: not checked
	shell string   // characters; "": not checked

	denied, allowed []string // directories; nil: no restriction
}

func (s scan) checkArguments(raw json.RawMessage) *Denial {
	if text := string(bytes.TrimSpace(raw)); text == "" || text == "null" {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
		return deny(RuleJSON, "the arguments are not a JSON object")
	}
	open := []byte{'{'}
	name := true // the next string is an object's key
	for len(open) > 0 {
		tok, err := dec.Token()
		if err != nil {
			return deny(RuleJSON, "the arguments are not JSON")
		}
		var d *Denial
		switch tok := tok.(type) {
		case json.Delim:
			if tok == '{' || tok == '[' {
				open = append(open, byte(tok))
			} else {
				open = open[:len(open)-1]
			}
			if len(open) > maxDepth {
				d = deny(RuleJSON, "the arguments are nested more than %d levels deep", maxDepth)
			}
			name = len(open) > 0 && open[len(open)-1] == '{'
		case string:
			d = s.checkText(tok, name)
			name = !name && open[len(open)-1] == '{'
		default:
			if n, ok := tok.(json.Number); ok && !inRange(n) {
				d = deny(RuleJSON, "the arguments hold a number that is too long or too large")
			}
			name = open[len(open)-1] == '{'
		}
		if d != nil {
			return d
		}
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return deny(RuleJSON, "there is text after the arguments")
	}
	return nil
}

func inRange(n json.Number) bool {
	_, err := strconv.ParseFloat(string(n), 64)
	return err == nil && len(n) <= maxNumber
}

// checkText checks one string. A key names an argument ("password"), and counts as a path only if it looks like one.
func (s scan) checkText(t string, isName bool) *Denial {
	folded := foldText(t)
	if s.shell != "" && (strings.ContainsAny(t, s.shell) || strings.ContainsAny(folded, s.shell) || strings.ContainsFunc(t, unicode.IsControl)) {
		return deny(RuleInjection, "an argument holds a control character or one of %s, which a shell takes for more than text; leave them out", s.shell)
	}
	if len(s.paths)+len(s.denied)+len(s.allowed) == 0 {
		return nil
	}
	forms := []string{folded}
	if strings.Contains(folded, "%") {
		forms = append(forms, foldText(unescapeAll(folded)))
	}
	if d := s.checkDirectory(t, s.allowed, nil); d != nil { // case-sensitive
		return d
	}
	for _, f := range forms {
		if d := s.checkDirectory(f, lower(s.allowed), lower(s.denied)); d != nil {
			return d
		}
		if isName && !strings.ContainsAny(f, `/\`) && !strings.HasPrefix(f, ".") && !strings.HasPrefix(f, "~") {
			continue
		}
		clean := path.Clean(strings.ReplaceAll(f, `\`, "/")) // for patterns with slashes
		for _, p := range s.paths {
			if strings.Contains(f, p) || strings.Contains(clean, p) {
				return deny(RulePath, "an argument holds %q, which is one of sensitive_paths; use another file", p)
			}
		}
	}
	return nil
}

// checkDirectory denies a string that is a path outside allowed or inside denied, unless allowed names a directory below
// the denied one. It also checks the text after a "=".
func (s scan) checkDirectory(t string, allowed, denied []string) *Denial {
	_, value, _ := strings.Cut(t, "=")
	for _, text := range []string{t, value} {
		p, ok := pathOf(text)
		if !ok {
			continue
		}
		for _, dir := range denied {
			opened := func(a string) bool { return isWithin(dir, a) && isWithin(a, p) }
			if isWithin(dir, p) && !slices.ContainsFunc(allowed, opened) {
				return deny(RulePath, "an argument is a path in %s, which is one of denied_directories; use another directory", dir)
			}
		}
		if len(allowed) > 0 && !slices.ContainsFunc(allowed, func(dir string) bool { return isWithin(dir, p) }) {
			return deny(RulePath, "an argument is a path outside of allowed_directories (%s)", strings.Join(allowed, ", "))
		}
	}
	return nil
}

// pathOf returns the cleaned path in a string: an absolute path, also of a file: URL, or one relative to a parent or
// the home. The server's working directory is unknown, so a path to a parent is resolved from the root.
func pathOf(t string) (string, bool) {
	t = strings.ReplaceAll(strings.TrimSpace(t), `\`, "/")
	if len(t) >= 5 && strings.EqualFold(t[:5], "file:") {
		t = t[5:]
		if rest, ok := strings.CutPrefix(t, "//"); ok {
			_, rest, _ = strings.Cut(rest, "/") // after the host
			t = "/" + rest
		}
	}
	switch {
	case strings.HasPrefix(t, "~"):
		return t, true // in no directory that can be listed
	case strings.HasPrefix(t, "/"):
		return path.Clean(t), true
	}
	if up := path.Clean(t); up == ".." || strings.HasPrefix(up, "../") {
		return path.Clean("/" + up), true
	}
	return "", false
}

// isWithin reports whether a path is dir or below it.
func isWithin(dir, p string) bool {
	dir = path.Clean(dir)
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}

func lower(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = strings.ToLower(s)
	}
	return out
}

// other replaces non-ASCII characters, since patterns have none.
var other = []byte("·")

// foldText converts texts that a file system, a URL parser or a careless server may treat as equal to one ASCII text.
// It removes case (also of ſ and K), compatibility forms (．ｓｓｈ), accents (credentİals) and invisible characters.
func foldText(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) {
		return strings.ToLower(s)
	}
	out := make([]byte, 0, len(s))
	for i, r := range s {
		if r >= utf8.RuneSelf {
			if long := norm.NFKD.PropertiesString(s[i:]).Decomposition(); long != nil {
				for _, r := range string(long) {
					out = appendFolded(out, r)
				}
				continue
			}
		}
		out = appendFolded(out, r)
	}
	return string(out)
}

func appendFolded(out []byte, r rune) []byte {
	switch {
	case r >= 'A' && r <= 'Z':
		return append(out, byte(r)+'a'-'A')
	case r >= ' ' && r <= '~':
		return append(out, byte(r))
	case r == 'ı':
		return append(out, 'i')
	case bytes.HasSuffix(out, other), r == utf8.RuneError, unicode.In(r, unicode.Mn, unicode.Cf, unicode.Cc, unicode.Other_Default_Ignorable_Code_Point):
		return out
	}
	return append(out, other...)
}

// unescapeAll decodes percent-encoding repeatedly (%252e is a dot), and overlong UTF-8 of ASCII (%c0%ae is a dot to old
// decoders). Each step back shortens the text, so the time is linear.
func unescapeAll(s string) string {
	var c [1]byte
	out := make([]byte, 0, len(s))
	for i := range len(s) {
		out = append(out, s[i])
		for {
			n := len(out)
			if n >= 3 && out[n-3] == '%' {
				if _, err := hex.Decode(c[:], out[n-2:]); err == nil {
					out = append(out[:n-3], c[0])
					continue
				}
			}
			if n >= 2 && out[n-2]&^1 == 0xc0 && out[n-1]&^0x3f == 0x80 {
				out = append(out[:n-2], out[n-2]&1<<6|out[n-1]&0x3f)
				continue
			}
			break
		}
	}
	return string(out)
}
