package conf

import (
	"path"
	"slices"
	"strings"
)

// glob lists what glob(3) lists as nginx calls it, with no flags: symlinks are followed inside of the image, names that
// start with a dot are only matched by a dot, and the order is that of bytes. Files that are made at start are there, and
// templates that are deleted then are not.
//
// It gives false when there is more to look through than a configuration has.
func (s *source) glob(pattern string) (found []string, all bool) {
	dirs, all := []string{""}, true
	parts := strings.FieldsFunc(pattern, func(c rune) bool { return c == '/' })
	looked := 0
	for i, part := range parts {
		var next []string
		for _, dir := range dirs {
			candidates, literal := []string{part}, !strings.ContainsAny(part, `*?[\`)
			if !literal {
				candidates = s.names(dir)
			}
			for _, name := range candidates {
				if looked++; looked > maxLooked || len(next) == maxInclusions {
					all = false
					break
				}
				if p := dir + "/" + name; (literal || globMatch(part, name)) && s.exists(p, i < len(parts)-1) {
					next = append(next, p)
				}
			}
		}
		dirs = next
	}
	slices.Sort(dirs)
	for _, p := range dirs {
		found = append(found, s.shown(p))
	}
	return found, all
}

// maxLooked bounds how many names one pattern is compared with.
const maxLooked = 500_000

// names lists what will be in the directory dir when nginx starts.
func (s *source) names(dir string) []string {
	var out []string
	real := s.realDir(dir)
	for _, c := range s.img.Dir(real) {
		out = append(out, path.Base(c.Path))
	}
	for output := range s.outputs {
		if rest, ok := strings.CutPrefix(output, strings.TrimSuffix(real, "/")+"/"); ok {
			if name, _, _ := strings.Cut(rest, "/"); !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	return out
}

// realDir is where dir leads to.
func (s *source) realDir(dir string) string {
	dir = s.resolve(dir)
	if e, ok := s.img.Stat(dir); ok {
		return e.Path
	}
	return dir
}

func (s *source) exists(p string, dir bool) bool {
	if dir {
		real := s.realDir(p)
		e, ok := s.img.Lookup(real)
		for output := range s.outputs { // whatever makes it makes its directory
			ok = ok || strings.HasPrefix(output, real+"/")
		}
		return ok && (e.IsDir() || e.Path == "")
	}
	real := s.resolve(p)
	if templates, ok := s.outputs[real]; ok {
		n, chosen := s.choice[real]
		return !chosen || templates[n].Path != ""
	}
	_, ok := s.img.Lookup(real)
	return ok && !s.gone[real]
}

// globMatch is fnmatch(3) in the C locale, for a name without slashes. It takes time of at most len(pattern)·len(name).
func globMatch(pattern, name string) bool {
	if strings.HasPrefix(name, ".") && !strings.HasPrefix(pattern, ".") && !strings.HasPrefix(pattern, `\.`) {
		return false
	}
	p, n := 0, 0
	star, mark := -1, 0
	for n < len(name) {
		if p < len(pattern) && pattern[p] == '*' {
			star, mark = p, n
			p++
			continue
		}
		if p < len(pattern) {
			if size, ok := globOne(pattern[p:], name[n]); ok {
				p += size
				n++
				continue
			}
		}
		if star < 0 {
			return false
		}
		mark++
		p, n = star+1, mark
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// globOne matches c with the first element of pattern, and gives that element's length.
func globOne(pattern string, c byte) (int, bool) {
	switch pattern[0] {
	case '?':
		return 1, true
	case '\\':
		if len(pattern) > 1 {
			return 2, pattern[1] == c
		}
	case '[':
		if size, ok, closed := globSet(pattern, c); closed {
			return size, ok
		}
	}
	return 1, pattern[0] == c
}

// globSet matches c with a bracket expression. One that is not closed is an ordinary "[".
func globSet(pattern string, c byte) (size int, ok, closed bool) {
	i := 1
	negated := i < len(pattern) && (pattern[i] == '!' || pattern[i] == '^')
	if negated {
		i++
	}
	for first := true; i < len(pattern); first = false {
		if pattern[i] == ']' && !first {
			return i + 1, ok != negated, true
		}
		if strings.HasPrefix(pattern[i:], "[:") {
			if end := strings.Index(pattern[i:], ":]"); end > 0 {
				ok = ok || inClass(pattern[i+2:i+end], c)
				i += end + 2
				continue
			}
		}
		from, n := setByte(pattern[i:])
		i += n
		to := from
		if i+1 < len(pattern) && pattern[i] == '-' && pattern[i+1] != ']' {
			to, n = setByte(pattern[i+1:])
			i += 1 + n
		}
		ok = ok || from <= c && c <= to
	}
	return 0, false, false
}

func setByte(s string) (byte, int) {
	if s[0] == '\\' && len(s) > 1 {
		return s[1], 2
	}
	return s[0], 1
}

// inClass knows the classes of ASCII (POSIX, "C" locale); an unknown one has everything in it, so that no file is missed.
func inClass(class string, c byte) bool {
	lower, upper, digit := c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9'
	switch class {
	case "alpha":
		return lower || upper
	case "digit":
		return digit
	case "alnum":
		return lower || upper || digit
	case "lower":
		return lower
	case "upper":
		return upper
	case "xdigit":
		return digit || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
	case "space":
		return c == ' ' || c >= '\t' && c <= '\r'
	case "blank":
		return c == ' ' || c == '\t'
	case "punct":
		return c > ' ' && c < 0x7f && !lower && !upper && !digit
	}
	return true
}
