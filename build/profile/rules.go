package profile

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/google/go-containerregistry/pkg/name"

	"github.com/slimctl/slimctl/internal/nearest"
)

// rule is the rule for a text. Patterns use only the common syntax of RE2 and ECMA-262, because the JSON Schema
// contains them.
type rule struct {
	want    string         // for "expected WANT, found ..."
	values  []string       // the only valid texts, if not nil
	pattern *regexp.Regexp // the text must match it
	reject  *regexp.Regexp // the text must not match it
	max     int            // characters; 0 means 4096
	// check returns why a text that fits the patterns is invalid, or "".
	check func(string) string
}

const (
	noControl = `[^\x00-\x1f\x7f-\x9f]`
	slug      = `[a-z0-9][a-z0-9._-]*`
	semver    = `(0|[1-9][0-9]{0,8})`
	id        = `(0|[1-9][0-9]{0,9})`
	portRange = `([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])`
	account   = `[A-Za-z0-9_][A-Za-z0-9_.-]*`
	hostLabel = `[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?`
	dots      = `(^|/)\.\.?(/|$)|//|/\.wh\.`
)

func whole(p string) *regexp.Regexp { return regexp.MustCompile(`^(` + p + `)$`) }

// stars matches a ** that is not between two slashes.
var stars = regexp.MustCompile(`[^/{,]\*\*|\*\*[^/},]`)

// loaders matches variables that make a program load or run somebody else's code: ld.so(8), python(1), node(1), bash(1),
// perlrun(1), openssl-env(7), and the module paths of GTK, Qt and Mesa.
var loaders = whole(`LD_.*|GCONV_PATH|GLIBC_TUNABLES|LOCPATH|NLSPATH|MALLOC_.*|GETCONF_DIR|PYTHON(PATH|HOME|STARTUP|INSPECT|BREAKPOINT|USERBASE|EXECUTABLE|PLATLIBDIR|PYCACHEPREFIX)|` +
	`NODE_(OPTIONS|PATH|REPL_EXTERNAL_MODULE|CHANNEL_FD)|BASH_ENV|BASH_FUNC_.*|ENV|SHELLOPTS|BASHOPTS|PROMPT_COMMAND|PS4|` +
	`IFS|PERL5.*|PERLLIB|RUBY(OPT|LIB)|OPENSSL_(CONF|ENGINES|MODULES)|GTK_(MODULES|PATH|EXE_PREFIX)|GDK_PIXBUF_MODULE.*|` +
	`GIO_(EXTRA_MODULES|MODULE_DIR)|QT_(PLUGIN_PATH|QPA_PLATFORM_PLUGIN_PATH)|VK_.*|LIBGL_DRIVERS_PATH|LIBVA_DRIVERS_PATH|GBM_BACKENDS_PATH|` +
	`GST_PLUGIN_.*|__EGL_.*|(CHROME|BROWSER)_.*WRAPPER|CHROME_(WRAPPER|USER_FLAGS|DEVEL_SANDBOX)|BROWSER_WRAPPER|CHROMIUM_(USER_)?FLAGS|AGENT_BROWSER_.*`)

// internal matches the addresses that no route may lead to: the browser's debugging port, the egress proxy, the desktop
// without the gate, and the management of supervisord.
var internal = regexp.MustCompile(`:(9222|8118|59[0-9][0-9])$|^unix:/run/(supervisor|browser-shell)([/.]|$)`)

var baseLines = []string{"A", "B", "C"}

// rules maps the words in check and keys tags to rules.
var rules = map[string]rule{
	"any":  {want: "text", pattern: whole(`[^\x00]*`), max: maxSize},
	"text": {want: "text that is not blank", pattern: regexp.MustCompile(`^[^\x00-\x08\x0b-\x1f\x7f-\x9f]*$`), reject: regexp.MustCompile(`^\s*$`)},
	"name": {want: "a name of lower-case letters, digits, '.', '_' and '-'", pattern: whole(slug), max: 64},
	"line": {want: "a base line (A, B or C)", values: baseLines},
	"platform": {
		want:   "a platform that the payload has a binary for (linux/amd64 or linux/arm64)",
		values: []string{"linux/amd64", "linux/arm64"},
	},
	"version": {want: "a plain version such as 0.8.10", pattern: whole(semver + `\.` + semver + `\.` + semver)},
	// 64 bytes in base64: 85 digits carry 510 bits, so the last one carries two bits and four zeros.
	"integrity": {want: `npm's integrity: "sha512-" and 88 base64 digits`, pattern: whole(`sha512-[A-Za-z0-9+/]{85}[AQgw]==`)},
	"reference": {
		want:    "a registry reference, oci:DIR[:TAG], oci-archive:FILE, docker-archive:FILE, docker-daemon:REF, standin:LINE or standin-live:LINE",
		pattern: whole(`[^\s\x00-\x1f\x7f-\x9f]+`), check: checkReference,
	},
	"path": {
		want: "an absolute path below /", pattern: whole(`(/[^/*?\x00-\x1f\x7f-\x9f]+)+`),
		reject: regexp.MustCompile(dots), check: checkPath,
	},
	"dir": {
		want: "an absolute directory", pattern: whole(`/|(/[^/*?\x00-\x1f\x7f-\x9f]+)+`),
		reject: regexp.MustCompile(dots), check: checkDir,
	},
	"glob": {
		want: "an absolute glob", pattern: whole(`/` + noControl + `*[^/\x00-\x1f\x7f-\x9f]`),
		reject: regexp.MustCompile(dots + "|" + stars.String()), max: 1024, check: checkGlob,
	},
	"package": {want: "a package's name, or a glob of names", pattern: whole(`[a-z0-9{*\[][a-z0-9.+*?{},\[\]-]*`), max: 256, check: checkPattern},
	"object":  {want: "a library's name, or an absolute glob", pattern: whole(`[A-Za-z0-9_][A-Za-z0-9._+-]*|/` + noControl + `*[^/\x00-\x1f\x7f-\x9f]`), max: 1024, check: checkPattern},
	"source": {
		want: "asset:NAME or a file below the profile's directory", pattern: whole(`(asset:)?[^:\\\x00-\x1f\x7f-\x9f]+`),
		reject: regexp.MustCompile(`^(asset:)?/|/$|(^|[:/])\.\.?(/|$)|//|(^|[:/])\.wh\.`), check: checkSource,
	},
	"target":    {want: "the target of a symbolic link", pattern: whole(noControl + `+`)},
	"true":      {want: "true", values: []string{"true"}},
	"mode":      {want: `a mode in octal and quotes, "0001" to "07777"`, pattern: whole(`0[0-7]{3,4}`), reject: regexp.MustCompile(`^0+$`)},
	"owner":     {want: `UID:GID in numbers, such as "0:0"`, pattern: whole(id + `:` + id), check: checkOwner},
	"ifMissing": {want: "fail or ignore", values: []string{"fail", "ignore"}},
	"envName":   {want: "a variable's name: letters, digits and '_', no digit first", pattern: whole(`[A-Za-z_][A-Za-z0-9_]*`), max: 256},
	"setEnv": {
		want:    "a variable's name (letters, digits and '_', no digit first) that loads no code into programs, as LD_PRELOAD and NODE_OPTIONS do",
		pattern: whole(`[A-Za-z_][A-Za-z0-9_]*`), reject: loaders, max: 256,
	},
	"label": {want: "a label's name: letters, digits, '.', '_', '/' and '-', a letter or digit first and last", pattern: whole(`[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?`), max: 256},
	"value": {want: "one line of text", pattern: whole(noControl + `*`)},
	"arg":   {want: "text", pattern: regexp.MustCompile(`^[^\x00-\x08\x0b-\x1f\x7f-\x9f]*$`)},
	"user":  {want: "a user, with :group if wanted", pattern: whole(account + `(:` + account + `)?`), max: 64},
	"port":  {want: `a port, "8080" or "8080/tcp"`, pattern: whole(portRange + `(/(tcp|udp|sctp))?`)},
	"listener": {
		want:    `an address that is listened on, such as "*:8080", "[::1]:8080", "127.0.0.1:5900" or "unix:/run/x.sock"`,
		pattern: whole(`(\*|[0-9]{1,3}(\.[0-9]{1,3}){3}|\[[0-9a-f:.]+\]):` + portRange + `|unix:(/[^/*?\x00-\x1f\x7f-\x9f]+)+`),
		check:   checkListener,
	},
	"upstream": {
		want: `an address in the image that nginx may pass requests to, such as "unix:/run/x.sock" or "127.0.0.1:3000", and never ` +
			`the browser's debugging port (9222), the egress proxy (8118), the desktop (5900) or a management socket`,
		pattern: whole(`(127\.0\.0\.1|\[::1\]):` + portRange + `|unix:/run(/[^/*?\x00-\x1f\x7f-\x9f]+)+`),
		reject:  internal, check: checkListener,
	},
	"host":      {want: `a host such as "example.com", "*.example.com" or "*"`, pattern: whole(`\*|(\*\.)?` + hostLabel + `(\.` + hostLabel + `)*`), max: 255},
	"duration":  {want: `a Go duration such as "10s"`, pattern: whole(`([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+`), check: checkDuration},
	"mcpServer": {want: "browser_shell, the one MCP server", values: []string{"browser_shell"}},
	"tool":      {want: "browser-shell or sandbox_execute_bash, the one tool", values: []string{"browser-shell", "sandbox_execute_bash"}},
}

// verdict returns what is wrong with s and what to do, or two empty strings.
func (r rule) verdict(s string) (msg, hint string) {
	if n := utf8.RuneCountInString(s); n > r.limit() {
		return fmt.Sprintf("expected %s, found %d characters, more than %d", r.want, n, r.limit()), ""
	}
	if r.values != nil {
		if slices.Contains(r.values, s) {
			return "", ""
		}
		return fmt.Sprintf("expected %s, found %s", r.want, quote(s)), didYouMean(s, r.values)
	}
	if r.check != nil {
		if reason := r.check(s); reason != "" {
			return fmt.Sprintf("expected %s, found %s: %s", r.want, quote(s), reason), ""
		}
	}
	if !r.pattern.MatchString(s) || r.reject != nil && r.reject.MatchString(s) {
		msg := fmt.Sprintf("expected %s, found %s", r.want, quote(s))
		if strings.ContainsFunc(s, unicode.IsControl) {
			msg += ": it holds a control character or line break"
		}
		return msg, ""
	}
	return "", ""
}

func (r rule) limit() int { return cmp.Or(r.max, 4096) }

// quote returns the beginning of s on one line, with control characters escaped.
func quote(s string) string {
	const limit = 80
	if r := []rune(s); len(r) > limit {
		return strconv.Quote(string(r[:limit])) + "..."
	}
	return strconv.Quote(s)
}

// didYouMean returns a hint with the most similar valid word, or "".
func didYouMean(word string, valid []string) string {
	if best := nearest.Word(word, valid); best != "" {
		return fmt.Sprintf("did you mean %q?", best)
	}
	return ""
}

func checkPath(p string) string {
	switch {
	case p == "/":
		return "it is the root itself"
	case strings.ContainsAny(p, "*?"):
		return "only glob expands * and ?"
	}
	return checkSegments(p)
}

func checkDir(p string) string {
	if p == "/" {
		return ""
	}
	return checkPath(p)
}

func checkGlob(g string) string {
	if path.Clean(g) == "/" {
		return "it is the root itself"
	}
	if reason := checkSegments(g); reason != "" {
		return reason
	}
	if stars.MatchString(g) {
		return "a ** that is not a whole segment is the same as *"
	}
	if !doublestar.ValidatePattern(g) {
		return "a bracket, brace or backslash in it is not closed"
	}
	if len(ExpandBraces(g)) > mostAlternatives {
		return fmt.Sprintf("its braces come to more than %d globs", mostAlternatives)
	}
	for _, probe := range []string{"/", "/~any~", "/~any~/~any~"} {
		if ok, err := doublestar.Match(g, probe); err != nil || ok {
			return "it matches everything"
		}
	}
	return ""
}

func checkPattern(p string) string {
	switch {
	case !doublestar.ValidatePattern(p):
		return "a bracket, brace or backslash in it is not closed"
	case len(ExpandBraces(p)) > mostAlternatives:
		return fmt.Sprintf("its braces come to more than %d globs", mostAlternatives)
	}
	return ""
}

// mostAlternatives limits the number of globs in a glob's braces.
const mostAlternatives = 256

// ExpandBraces returns the alternatives of a pattern: /a/c and /b/c for /{a,b}/c. For a pattern with too many it
// returns one more than a valid one may have.
func ExpandBraces(pattern string) []string { return expandBraces(pattern, mostAlternatives+1) }

func expandBraces(pattern string, most int) []string {
	open, class := -1, false
	depth, start := 0, 0
	var parts []string
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '\\':
			i++
		case class:
			class = c != ']'
		case c == '[':
			class = true
		case c == '{':
			if depth == 0 {
				open, start = i, i+1
			}
			depth++
		case c == ',' && depth == 1:
			parts, start = append(parts, pattern[start:i]), i+1
		case c == '}' && depth == 1:
			parts = append(parts, pattern[start:i])
			var out []string
			for _, part := range parts {
				if len(out) < most {
					out = append(out, expandBraces(pattern[:open]+part+pattern[i+1:], most-len(out))...)
				}
			}
			return out
		case c == '}' && depth > 1:
			depth--
		}
	}
	return []string{pattern}
}

// checkSegments returns why the patterns refuse the segments of an absolute path or glob, or "".
func checkSegments(p string) string {
	rest, absolute := strings.CutPrefix(p, "/")
	if !absolute {
		return "it does not start with /"
	}
	for segment := range strings.SplitSeq(strings.TrimSuffix(rest, "/"), "/") {
		switch {
		case segment == "":
			return "a segment is empty"
		case segment == "." || segment == "..":
			return fmt.Sprintf("%q is a segment of it", segment)
		case strings.HasPrefix(segment, ".wh."):
			return `names that start with ".wh." are a layer's own marks`
		case len(segment) > 255:
			return "a segment is longer than 255 bytes"
		}
	}
	if strings.HasSuffix(p, "/") {
		return "it ends in /"
	}
	return ""
}

func checkSource(s string) string {
	name, isAsset := strings.CutPrefix(s, "asset:")
	switch {
	case strings.HasPrefix(name, "/"):
		return "it is absolute"
	case isAsset && name == "":
		return "no name follows asset:"
	case name != "" && checkSegments("/"+name) != "":
		return checkSegments("/" + name)
	}
	return ""
}

func checkOwner(s string) string {
	for part := range strings.SplitSeq(s, ":") {
		if n, err := strconv.ParseInt(part, 10, 64); err == nil && n >= math.MaxUint32 {
			return "a number is above 4294967294"
		}
	}
	return ""
}

func checkListener(s string) string {
	if file, ok := strings.CutPrefix(s, "unix:"); ok {
		return checkPath(file)
	}
	host, _, six := strings.Cut(strings.TrimPrefix(s, "["), "]:")
	if !six {
		host, _, _ = strings.Cut(s, ":")
	}
	if host == "*" {
		return ""
	}
	ip, err := netip.ParseAddr(host)
	switch {
	case err != nil:
		return "it has no IP address"
	case ip.Is4In6():
		return fmt.Sprintf("the address is written %s", ip.Unmap())
	case ip.String() != host:
		return fmt.Sprintf("the address is written %s", ip)
	case ip.Is6() != six:
		return "an IPv6 address is in brackets, and no other"
	}
	return ""
}

func checkDuration(s string) string {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return "" // the pattern says it, but for one that is too long
	case d < time.Millisecond:
		return "it is shorter than 1ms"
	}
	return ""
}

// transports are the prefixes of base references that are not in a registry.
var transports = []string{"oci:", "oci-archive:", "docker-archive:", "docker-daemon:", "standin:", "standin-live:"}

func checkReference(s string) string {
	for _, t := range transports {
		if rest, ok := strings.CutPrefix(s, t); ok {
			if rest == "" {
				return "nothing follows " + t
			}
			if strings.HasPrefix(t, "standin") && !slices.Contains(baseLines, rest) {
				return "a stand-in's line is A, B or C"
			}
			return ""
		}
	}
	if _, err := name.ParseReference(s); err != nil {
		return "it does not parse as one"
	}
	return ""
}
