// Package pcre matches the regular expressions of PCRE, which nginx has, with Go's: those that mean exactly the same in
// both, once they are translated. Any other is an error.
package pcre

import (
	"errors"
	"regexp"
	"regexp/syntax"
	"strings"
)

// Regexp is a regular expression as PCRE has it, over bytes.
type Regexp struct{ re *regexp.Regexp }

// Match tells whether it matches somewhere in s.
func (p Regexp) Match(s string) bool {
	if isASCII(s) {
		return p.re.MatchString(s)
	}
	return p.re.MatchString(bytesAsRunes(s))
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// bytesAsRunes gives each byte as a character of its own, as PCRE sees text without its UTF mode.
func bytesAsRunes(s string) string {
	out := make([]rune, len(s))
	for i := range len(s) {
		out[i] = rune(s[i])
	}
	return string(out)
}

// What a regular expression may cost.
const (
	maxPattern = 2000
	maxProgram = 20_000
)

// Compile translates a regular expression of PCRE into one of Go, where that can be done exactly.
func Compile(expr string, caseless bool) (Regexp, error) {
	if len(expr) > maxPattern {
		return Regexp{}, errors.New("it is too long")
	}
	translated, err := translate(bytesAsRunes(expr))
	if err != nil {
		return Regexp{}, err
	}
	if caseless {
		translated = "(?i)" + translated
	}
	tree, err := syntax.Parse(translated, syntax.Perl)
	if err != nil {
		return Regexp{}, err
	}
	if weigh(tree) > maxProgram {
		return Regexp{}, errors.New("it is too large")
	}
	re, err := regexp.Compile(translated)
	return Regexp{re}, err
}

// translate rewrites what Go reads differently from PCRE, and refuses what Go doesn't have.
func translate(expr string) (string, error) {
	var out strings.Builder
	inSet := false
	for i := 0; i < len(expr); i++ {
		c := expr[i]
		switch {
		case c == '\\' && i+1 < len(expr):
			i++
			switch e := expr[i]; {
			case e == 'Z' && !inSet:
				out.WriteString(`(?:\n?\z)`)
			case e == 's':
				out.WriteString(within(inSet, `\t-\r `, `[\t-\r ]`))
			case e == 'S' && !inSet:
				out.WriteString(`[^\t-\r ]`)
			case e == 'h':
				out.WriteString(within(inSet, "\\t \u00a0", "[\\t \u00a0]"))
			case e == 'e':
				out.WriteString(`\x1b`)
			case strings.IndexByte("dDwWbBAzQEntrfavx", e) >= 0 && (!inSet || strings.IndexByte("bBAzQESZ", e) < 0):
				out.WriteString(`\` + string(e))
			case e < 0x80 && !isWordByte(e) || e == '_':
				out.WriteString(regexp.QuoteMeta(string(e)))
			default:
				return "", errors.New(`there is \` + string(e) + " in it")
			}
		case inSet:
			if c == ']' {
				inSet = false
			}
			if c == '[' && i+1 < len(expr) && expr[i+1] != ':' {
				out.WriteString(`\[`)
				continue
			}
			if c == '[' {
				end := strings.Index(expr[i:], ":]")
				if end < 0 {
					out.WriteString(`\[`)
					continue
				}
				out.WriteString(expr[i : i+end+2])
				i += end + 1
				continue
			}
			out.WriteByte(c)
		case c == '[':
			inSet = true
			out.WriteByte(c)
			if i+1 < len(expr) && expr[i+1] == '^' {
				i++
				out.WriteByte('^')
			}
			if i+1 < len(expr) && expr[i+1] == ']' {
				i++
				out.WriteString(`\]`)
			}
		case c == '$':
			out.WriteString(`(?:\n?\z)`)
		case strings.HasPrefix(expr[i:], "(?") && !groupStart.MatchString(expr[i:]):
			return "", errors.New("there is a group in it that looks around, recurses or sets options")
		case strings.HasPrefix(expr[i:], "(*"):
			return "", errors.New("there is a verb in it")
		case strings.HasPrefix(expr[i:], "(?'"):
			out.WriteString("(?P<")
			end := strings.IndexByte(expr[i+3:], '\'')
			if end < 0 {
				return "", errors.New("a group's name doesn't end")
			}
			out.WriteString(expr[i+3:i+3+end] + ">")
			i += 3 + end
		default:
			out.WriteByte(c)
		}
	}
	return out.String(), nil
}

func isWordByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

var groupStart = regexp.MustCompile(`^\(\?(?:P?<[A-Za-z_]\w*>|'[A-Za-z_]\w*'|:|i\)|i:)`)

func within(inSet bool, set, whole string) string {
	if inSet {
		return set
	}
	return whole
}

// weigh estimates how large a program re would become.
func weigh(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)
	for _, sub := range re.Sub {
		n += weigh(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Max, re.Min, 1)
	}
	return min(n, 1<<30)
}
