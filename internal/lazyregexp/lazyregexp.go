// Package lazyregexp compiles regular expressions at their first use. A program that starts often and idles long, such
// as browser-shell, then neither waits for nor keeps those that it doesn't need: `{1,256}` alone takes 60 kB.
package lazyregexp

import (
	"os"
	"regexp"
	"strings"
	"sync"
)

// inTest compiles expressions at once, so that a wrong one fails every test of its package.
var inTest = strings.HasSuffix(os.Args[0], ".test")

// Regexp is a regular expression for package-level variables. Its methods are those of [regexp.Regexp].
type Regexp struct {
	text     string
	compiled func() *regexp.Regexp
}

// New returns a regular expression that is compiled when it is first used; a wrong one panics then.
func New(expr string) *Regexp {
	r := &Regexp{expr, sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })}
	if inTest {
		r.compiled()
	}
	return r
}

func (r *Regexp) String() string                       { return r.text }
func (r *Regexp) MatchString(s string) bool            { return r.compiled().MatchString(s) }
func (r *Regexp) FindStringSubmatch(s string) []string { return r.compiled().FindStringSubmatch(s) }
func (r *Regexp) FindSubmatch(b []byte) [][]byte       { return r.compiled().FindSubmatch(b) }
