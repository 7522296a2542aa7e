package conf

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	crossplane "github.com/nginxinc/nginx-go-crossplane"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// Limits for one configuration. nginx has none; real files stay far below them.
const (
	maxVariants   = 16
	maxInclusions = 2000
	maxBytes      = 1 << 20
	maxRead       = 4 * maxBytes // of all files that are read, included or not
	maxRounds     = 100          // of reading, since each may read a layer
	maxStatements = 20_000
	maxWords      = 100_000 // in all statements
	maxDepth      = 50      // of nested includes, and of nested blocks
	maxNotes      = 500
	maxBrief      = 200 // bytes of a statement in a text for people
)

// source parses one variant of a configuration.
type source struct {
	*Config
	ctx  context.Context
	img  *tree.Image
	opt  Options
	main string
	// outputs maps the files created at start, by resolved path; gone holds the templates deleted by then.
	outputs map[string][]Template
	gone    map[string]bool
	files   map[string][]byte // content read from the image so far, by path, for all variants
	likely  []tree.Entry      // files to read together with another of their layer
	spent   *spent

	choice map[string]int // the selected template of each output
	// open is an output that needs a choice; firstOnly selects the first template instead.
	open      string
	firstOnly bool

	stack      []string
	inclusions int
	bytes      int
	statements int
	words      int
}

// spent is the work so far, for all variants.
type spent struct {
	rounds int
	bytes  int64
}

func newSource(ctx context.Context, img *tree.Image, main string, o Options) *source {
	s := &source{
		ctx: ctx, img: img, opt: o, main: image.Clean(main),
		outputs: map[string][]Template{}, gone: map[string]bool{}, files: map[string][]byte{}, spent: &spent{},
	}
	for output, templates := range o.Rendered {
		var there []Template
		for _, t := range templates {
			if e, ok := img.Stat(t.Path); t.Path == "" || ok && e.Type == image.TypeFile {
				there = append(there, t)
				if t.Once {
					s.gone[s.resolve(t.Path)] = true
				}
			}
		}
		if len(there) > 0 {
			s.outputs[s.resolve(output)] = there
		}
	}
	s.likely = s.likelyFiles()
	return s
}

// variant begins a reading with the given choice of templates.
func (s *source) variant(choice map[string]int) *source {
	v := *s
	v.choice, v.Config = choice, &Config{Path: s.main, Unfilled: map[string]bool{}, img: s.img, noted: map[string]bool{}}
	var names []string
	for _, output := range slices.Sorted(maps.Keys(choice)) {
		from := s.outputs[output][choice[output]].Path
		if from == "" {
			names = append(names, output+" not made")
		} else {
			names = append(names, output+" from "+from)
		}
	}
	v.Variant = strings.Join(names, ", ")
	return &v
}

// resolve follows the symlinks among p's parents, one name after the other like the kernel: "link/.." is the parent of
// the link's target. Missing and unresolvable parts stay as written.
func (s *source) resolve(p string) string {
	at := "/"
	parts := strings.Split(p, "/")
	for i, part := range parts {
		switch part {
		case "", ".":
			continue
		case "..":
			at = path.Dir(at)
			continue
		}
		at = path.Join(at, part)
		if e, ok := s.img.Lookup(at); ok && e.Type == image.TypeSymlink && strings.Trim(strings.Join(parts[i+1:], ""), "/") != "" {
			if e, ok := s.img.Stat(at); ok {
				at = e.Path
			}
		}
	}
	return at
}

// likelyFiles returns small files beside the main one and in nginx's own directory. Reading one file means reading its
// layer, so files that may be needed are read together with it.
func (s *source) likelyFiles() []tree.Entry {
	var out []tree.Entry
	visited := 0
	var walk func(dir string, depth int)
	walk = func(dir string, depth int) {
		for _, e := range s.img.Dir(dir) {
			if visited++; visited > 5000 || depth > 8 {
				return
			}
			switch {
			case e.IsDir():
				walk(e.Path, depth+1)
			case e.Type == image.TypeFile && e.Size < 256<<10 && (strings.Contains(e.Path, ".conf") || path.Base(e.Path) == "mime.types"):
				out = append(out, e)
			}
		}
	}
	dirs := []string{"/etc/nginx"}
	if dir := s.resolve(path.Dir(s.main)); dir != "/" && dir != "/etc" && dir != "/etc/nginx" {
		dirs = append(dirs, dir)
	}
	for _, dir := range dirs {
		walk(dir, 0)
	}
	return out
}

// shown returns the name of p for messages.
func (s *source) shown(p string) string {
	if strings.Contains(p, "..") {
		return s.resolve(p)
	}
	return image.Clean(p)
}

// readFile returns the content of p in the image.
func (s *source) readFile(p string) ([]byte, error) {
	e, ok := s.img.Stat(s.resolve(p))
	if !ok {
		return nil, fs.ErrNotExist
	}
	if data, ok := s.files[e.Path]; ok {
		return data, nil
	}
	if e.Size > maxBytes {
		return nil, fmt.Errorf("it has %d bytes, more than the %d that are read", e.Size, maxBytes)
	}
	if s.spent.rounds == maxRounds || s.spent.bytes+e.Size > maxRead {
		return nil, errors.New("too much is read already")
	}
	wanted := []string{e.Path}
	size := int64(0)
	for _, l := range s.likely {
		if _, done := s.files[l.Path]; !done && l.Layer == e.Layer && l.Path != e.Path && size+l.Size < maxBytes {
			wanted = append(wanted, l.Path)
			size += l.Size
		}
	}
	s.spent.rounds++
	s.spent.bytes += e.Size + size
	got, err := s.img.ReadFiles(s.ctx, wanted...)
	if err != nil {
		data, err := s.img.ReadFile(s.ctx, e.Path)
		if err != nil {
			return nil, err
		}
		got = map[string][]byte{e.Path: data}
	}
	maps.Copy(s.files, got)
	return got[e.Path], nil
}

// content returns the content of p at nginx's start, and the file of the image that supplies it.
func (s *source) content(p string) (content, from string, err error) {
	templates, ok := s.outputs[s.resolve(p)]
	if !ok {
		if s.gone[s.resolve(p)] {
			return "", "", fmt.Errorf("it is deleted at start, after it was rendered: %w", fs.ErrNotExist)
		}
		data, err := s.readFile(p)
		if err != nil {
			return "", "", err
		}
		return string(data), s.shown(p), nil
	}
	n, chosen := s.choice[s.resolve(p)]
	if !chosen && len(templates) > 1 && !s.firstOnly {
		s.open = s.resolve(p)
		return "", "", errors.New("no choice made")
	}
	tpl := templates[n]
	if tpl.Path == "" {
		return "", "", fs.ErrNotExist
	}
	data, err := s.readFile(tpl.Path)
	if err != nil {
		return "", "", err
	}
	return s.render(string(data), tpl), tpl.Path, nil
}

// render implements envsubst (GNU gettext, envsubst.c): it replaces only $NAME and ${NAME}.
func (s *source) render(content string, tpl Template) string {
	var out strings.Builder
	line := 1
	for i := 0; i < len(content); {
		name, n := placeholder(content[i:])
		if n == 0 || tpl.Variables != nil && !slices.Contains(tpl.Variables, name) {
			if out.WriteByte(content[i]); content[i] == '\n' {
				line++
			}
			i++
		} else if value, known := s.opt.Env[name]; known {
			if strings.ContainsAny(value, "\n\r;{}#'\"\\") {
				s.NoteAt(s.img.Place(tpl.Path, line), "the value of %s is more than a word: %q", name, Cut(value))
			}
			out.WriteString(value)
			i += n
		} else {
			s.noteUnfilled(s.img.Place(tpl.Path, line), name, tpl)
			out.WriteString(content[i : i+n])
			i += n
		}
		if out.Len() > maxBytes {
			s.NoteAt(s.img.Place(tpl.Path, line), "rendered it has more than the %d bytes that are read", maxBytes)
			break
		}
	}
	return out.String()
}

func (s *source) noteUnfilled(at tree.Place, name string, tpl Template) {
	if tpl.Variables == nil && KnownVariable(strings.ToLower(name)) {
		if !s.Unfilled["$"+name] {
			s.Unfilled["$"+name] = true
			s.NoteAt(at, "envsubst without a list of names empties $%s, which nginx would fill", name)
		}
		return
	}
	if !s.Unfilled[strings.ToLower(name)] {
		s.Unfilled[strings.ToLower(name)] = true
		s.NoteAt(at, "nothing is known of the value of ${%s}", name)
	}
}

// placeholder returns the name of the $NAME or ${NAME} at the beginning of s, and its length; 0 if there is none.
func placeholder(s string) (name string, length int) {
	if s[0] != '$' || len(s) < 2 {
		return "", 0
	}
	rest, braces := s[1:], 0
	if rest[0] == '{' {
		rest, braces = rest[1:], 2
	}
	n := 0
	for n < len(rest) && IsNameByte(rest[n]) && (n > 0 || rest[n] < '0' || rest[n] > '9') {
		n++
	}
	if n == 0 || braces > 0 && (n == len(rest) || rest[n] != '}') {
		return "", 0
	}
	return rest[:n], 1 + braces + n
}

// parse parses the file at p. by is the include that names it, nil for the main file.
func (s *source) parse(p string, by *Statement) []*Statement {
	at := tree.Place{Path: p}
	if by != nil {
		at = s.Place(by)
	}
	real := s.resolve(p)
	if e, ok := s.img.Stat(real); ok {
		real = e.Path
	}
	s.inclusions++
	switch {
	case s.ctx.Err() != nil || s.open != "":
		return nil
	case slices.Contains(s.stack, real):
		s.NoteAt(at, "%s includes itself: nginx would not start", p)
		return nil
	case len(s.stack) >= maxDepth:
		s.NoteAt(at, "%s is not read: files include each other more than %d deep", p, maxDepth)
		return nil
	case s.bytes > maxBytes:
		s.NoteAt(at, "%s is not read: all files together have more than %d bytes", p, maxBytes)
		return nil
	case s.inclusions > maxInclusions:
		s.NoteAt(at, "%s is not read: more than %d files are included", p, maxInclusions)
		return nil
	}
	content, from, err := s.content(p)
	switch {
	case s.open != "":
		return nil
	case errors.Is(err, fs.ErrNotExist) && s.opt.Made[s.resolve(p)]:
		s.NoteAt(at, "%s is made at start: what is in it then is not known", p)
		return nil
	case errors.Is(err, fs.ErrNotExist):
		s.NoteAt(at, "%s is not there: nginx would not start", p)
		return nil
	case err != nil:
		s.NoteAt(at, "%s can't be read: %v", p, err)
		return nil
	}
	if s.bytes += len(content); s.bytes > maxBytes {
		s.NoteAt(at, "%s is not read: all files together have more than %d bytes", p, maxBytes)
		return nil
	}
	s.Files = append(s.Files, from)
	if n := strings.IndexByte(content, 0); n >= 0 {
		at := s.img.Place(from, 1+strings.Count(content[:n], "\n"))
		s.NoteAt(at, "there is a NUL byte, after which nginx may see another word than is written")
	}
	s.stack = append(s.stack, real)
	defer func() { s.stack = s.stack[:len(s.stack)-1] }()
	l := &lexer{tokens: crossplane.Lex(strings.NewReader(content))}
	defer l.drain()
	block, _ := s.block(l, from, "", 0)
	return block
}

// block parses statements up to the end of the block or the file. ended reports that nothing after it is parsed.
func (s *source) block(l *lexer, file, parent string, depth int) (out []*Statement, ended bool) {
	for {
		words, lines, end, err := l.next()
		if err != nil {
			s.NoteAt(s.img.Place(file, lines[0]), "%v: nginx would not start, and nothing after it is read", err)
			return out, true
		}
		if end == "" || end == "}" {
			return out, end == ""
		}
		for len(words) > 0 && s.isUnfilled(words[0]) { // it stands for whole directives
			s.NoteAt(s.img.Place(file, lines[0]), "%s may bring directives of its own, which are not known", words[0])
			words, lines = words[1:], lines[1:]
		}
		if len(words) == 0 {
			continue
		}
		st := &Statement{Words: words, file: file, line: lines[0], IsBlock: end == "{"}
		s.statements++
		s.words += len(words)
		if s.statements > maxStatements || s.words > maxWords || depth > maxDepth {
			s.Note(st, "there are more than %d directives of %d words, or blocks more than %d deep: nothing after it is read",
				maxStatements, maxWords, maxDepth)
			return out, true
		}
		switch {
		case st.Name() == "include" && len(words) == 2 && !st.IsBlock && parent != "split_clients":
			out = append(out, s.include(st)...)
			continue
		case st.IsBlock && strings.HasSuffix(st.Name(), "_by_lua_block"):
			s.Note(st, "%s: code decides what is answered; nothing after it is read", st.Brief())
			return append(out, st), true
		case st.IsBlock:
			if st.Block, ended = s.block(l, file, st.Name(), depth+1); ended {
				return append(out, st), true
			}
		}
		out = append(out, st)
	}
}

func (s *source) isUnfilled(word string) bool {
	name, n := placeholder(word + " ")
	return n > 0 && n == len(word) && s.Unfilled[strings.ToLower(name)]
}

// include processes an include directive: relative to the directory of the main file, like ngx_conf_include.
func (s *source) include(st *Statement) []*Statement {
	pattern := st.Arg(1)
	inc := Include{Pattern: pattern, Place: s.Place(st)}
	full := pattern
	if !strings.HasPrefix(full, "/") {
		full = path.Dir(s.main) + "/" + full
	}
	if inc.Glob = strings.ContainsAny(pattern, "*?["); inc.Glob {
		found, err := tree.Glob(starting{s}, full, maxInclusions)
		if err != nil {
			s.Note(st, "not every file that %s names is read: %v", Cut(pattern), err)
		}
		for _, p := range found {
			inc.Files = append(inc.Files, s.shown(p))
		}
	} else {
		inc.Files = []string{s.shown(full)}
		_, there := s.img.Stat(s.resolve(full))
		_, made := s.outputs[s.resolve(full)]
		inc.Missing = !there && !made && !s.opt.Made[s.resolve(full)]
	}
	s.Includes = append(s.Includes, inc)
	var out []*Statement
	for _, p := range inc.Files {
		out = append(out, s.parse(p, st)...)
	}
	return out
}
