// Package lazyregexp compiles regular expressions at their first use. Programs that start often, and use few of theirs or
// idle long, save the time and the memory: of browser-shell 15 ms and 2 MB (TestStartAllocatesLittle).
package lazyregexp

import (
	"os"
	"regexp"
	"strings"
	"sync"
)

// inTest is set in tests, where expressions are compiled at once so that an invalid one fails every test of its
// package.
var inTest = strings.HasSuffix(os.Args[0], ".test")

// Regexp is a regular expression for package-level variables. Its methods are those of [regexp.Regexp].
type Regexp struct {
	text     string
	compiled func() *regexp.Regexp
}

// New returns a regular expression that is compiled at its first use. An invalid one panics then.
func New(expr string) *Regexp {
	r := &Regexp{expr, sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })}
	if inTest {
		r.compiled()
	}
	return r
}

func (r *Regexp) String() string                       { return r.text }
func (r *Regexp) MatchString(s string) bool            { return r.compiled().MatchString(s) }
func (r *Regexp) Match(b []byte) bool                  { return r.compiled().Match(b) }
func (r *Regexp) FindStringSubmatch(s string) []string { return r.compiled().FindStringSubmatch(s) }
func (r *Regexp) FindSubmatch(b []byte) [][]byte       { return r.compiled().FindSubmatch(b) }
func (r *Regexp) ReplaceAllString(src, by string) string {
	return r.compiled().ReplaceAllString(src, by)
}

func (r *Regexp) FindAllStringSubmatch(s string, n int) [][]string {
	return r.compiled().FindAllStringSubmatch(s, n)
}
func (r *Regexp) FindAllStringSubmatchIndex(s string, n int) [][]int {
	return r.compiled().FindAllStringSubmatchIndex(s, n)
}
func (r *Regexp) FindAllSubmatch(b []byte, n int) [][][]byte {
	return r.compiled().FindAllSubmatch(b, n)
}
func (r *Regexp) ReplaceAllStringFunc(s string, by func(string) string) string {
	return r.compiled().ReplaceAllStringFunc(s, by)
}
