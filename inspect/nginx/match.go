package nginx

import (
	"bytes"
	"errors"
	"net/netip"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
)

// Public is true when a listener of the server is not on loopback.
func (s *Server) Public() bool {
	for _, l := range s.Listen {
		if !l.Loopback {
			return true
		}
	}
	return false
}

// key names the socket: two listeners with the same key share it.
func (l *Listen) key() string {
	key := strings.ToLower(l.Address)
	switch {
	case strings.HasPrefix(key, "unix:"):
		return l.Address
	case key == "localhost":
		key = "127.0.0.1"
	}
	if l.Port == 0 {
		key += ":" + l.Value
	} else {
		key += ":" + strconv.Itoa(l.Port)
	}
	if slices.Contains(l.Options, "udp") || slices.Contains(l.Options, "quic") {
		key += " udp"
	}
	return key
}

// Server finds the server that answers on the listener at address:port for the Host given (nginx's order: exact name,
// longest wildcard before, longest wildcard after, first regular expression, default server). The address may be one that a
// client connects to: where no listener has it, the wildcard's servers answer. nil is no server, or a Host that nginx
// refuses with 400. An empty host is a request without one.
func (c *Config) Server(address string, port int, host string) *Server {
	host, ok := cleanHost(host)
	if !ok {
		return nil
	}
	at := c.socket(normalAddress(address), port)
	if at == "" {
		return nil
	}
	var byName, before, after, byRegexp, byDefault *Server
	longBefore, longAfter := 0, 0
	for i := range c.Servers {
		s := &c.Servers[i]
		if s.Protocol != "" {
			continue
		}
		for j := range s.Listen {
			l := &s.Listen[j]
			if l.key() != at {
				continue
			}
			if l.Default {
				byDefault = s
			}
			names := s.Names
			if len(names) == 0 {
				names = []string{""}
			}
			for _, name := range names {
				if pattern, ok := strings.CutPrefix(name, "~"); ok {
					if byRegexp == nil && host != "" && serverRegexp(pattern, host) {
						byRegexp = s
					}
					continue
				}
				name = strings.ToLower(name)
				suffix, isSuffix := strings.CutPrefix(name, "*.")
				bare := false
				if !isSuffix {
					suffix, isSuffix = strings.CutPrefix(name, ".")
					bare = isSuffix
				}
				prefix, isPrefix := strings.CutSuffix(name, ".*")
				switch {
				case isSuffix:
					if bare && host == suffix && byName == nil {
						byName = s
					}
					if strings.HasSuffix(host, "."+suffix) && len(suffix) > longBefore {
						before, longBefore = s, len(suffix)
					}
				case isPrefix:
					if strings.HasPrefix(host, prefix+".") && len(prefix) > longAfter {
						after, longAfter = s, len(prefix)
					}
				case name == host && byName == nil:
					byName = s
				}
			}
		}
	}
	for _, s := range []*Server{byName, before, after, byRegexp, byDefault} {
		if s != nil {
			return s
		}
	}
	return nil
}

// socket finds the key of the listener that takes connections to address:port.
func (c *Config) socket(address string, port int) string {
	exact := (&Listen{Address: address, Port: port}).key()
	wildcard := ""
	for i := range c.Servers {
		if c.Servers[i].Protocol != "" {
			continue
		}
		for j := range c.Servers[i].Listen {
			l := &c.Servers[i].Listen[j]
			six := strings.HasPrefix(address, "[")
			switch {
			case l.key() == exact:
				return exact
			case l.Port != port || port == 0:
			case l.Address == "*" && !six, l.Address == "[::]" && (six || wildcard == "" && slices.Contains(l.Options, "ipv6only=off")):
				wildcard = l.key()
			}
		}
	}
	return wildcard
}

// cleanHost does what ngx_http_validate_host does: without port and last dot, in lower case; false for a bad one.
func cleanHost(host string) (string, bool) {
	if host == "" {
		return "", true
	}
	dot, end, literal, rest := -2, len(host), false, false
	for i := range len(host) {
		switch c := host[i]; {
		case c == '.':
			if dot == i-1 {
				return "", false
			}
			dot = i
		case c == ':' && !literal && !rest:
			end, rest = i, true
		case c == '[' && i == 0:
			literal = true
		case c == ']' && literal:
			end, literal, rest = i+1, false, true
		case c == '/' || c <= ' ' || c == 0x7f:
			return "", false
		}
	}
	if dot == end-1 {
		end--
	}
	return strings.ToLower(host[:end]), end > 0
}

func serverRegexp(pattern, host string) bool {
	re, err := compile(pattern, strings.ContainsAny(pattern, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
	return err == nil && re.match(host)
}

// normalAddress writes an address as Listen.Address does.
func normalAddress(address string) string {
	ip, err := netip.ParseAddr(strings.Trim(address, "[]"))
	switch {
	case address == "" || address == "0.0.0.0":
		return "*"
	case err != nil:
		return address
	case ip.Is6():
		return "[" + ip.String() + "]"
	}
	return ip.String()
}

func (l *Location) isRegexp() bool { return l.Modifier == "~" || l.Modifier == "~*" }

// Path is modifier and pattern: "= /mcp", "/v1", "@name".
func (l *Location) Path() string {
	if l.Modifier == "" || l.Modifier == "@" {
		return l.Pattern
	}
	return l.Modifier + " " + l.Pattern
}

// Match finds the location for a path that is decoded and normalised as nginx does it (see Normalise): exact, then the
// longest prefix unless it is ^~, then the first regular expression in order, nested locations included. nil when none is
// there. For "/x" it may be a location "/x/" that passes requests on: nginx answers with a redirect to it. A regular
// expression that is not understood (a Note says so) matches nothing.
func (s *Server) Match(path string) *Location { return matcher{}.find(s.Locations, path) }

// MatchURI is Match for a path as a client writes it, with query; false when nginx answers 400.
func (s *Server) MatchURI(uri string) (*Location, bool) {
	path, ok := Normalise(uri, !s.KeepSlashes)
	if !ok {
		return nil, false
	}
	return s.Match(path), true
}

// matcher finds locations, and keeps the regular expressions that it compiles.
type matcher map[string]*regex

func (m matcher) find(locations []Location, path string) *Location {
	l, _ := m.match(locations, path)
	return l
}

func (m matcher) matches(l *Location, path string) bool {
	re, ok := m[l.Path()]
	if !ok {
		if compiled, err := compile(l.Pattern, l.Modifier == "~*"); err == nil {
			re = &compiled
		}
		m[l.Path()] = re
	}
	return re != nil && re.match(path)
}

// match is ngx_http_core_find_location. final is true when no regular expression of an outer level is asked any more.
func (m matcher) match(locations []Location, path string) (found *Location, final bool) {
	var prefix, slash *Location
	for i := range locations {
		l := &locations[i]
		if l.Modifier != "" && l.Modifier != "=" && l.Modifier != "^~" {
			continue
		}
		switch {
		case l.Modifier == "=" && l.Pattern == path:
			return l, true
		case l.SlashRedirect && l.Pattern == path+"/" && (slash == nil || l.Modifier == "="):
			slash = l
		case l.Modifier != "=" && strings.HasPrefix(path, l.Pattern) && (prefix == nil || len(l.Pattern) > len(prefix.Pattern)):
			prefix = l
		}
	}
	if slash != nil && (prefix == nil || prefix.Pattern != path) {
		return slash, true
	}
	if prefix != nil {
		found = prefix
		if inner, final := m.match(prefix.Locations, path); final {
			return inner, true
		} else if inner != nil {
			found = inner
		}
	}
	if prefix != nil && prefix.Modifier == "^~" {
		return found, false
	}
	for i := range locations {
		if l := &locations[i]; l.isRegexp() && m.matches(l, path) {
			if inner, _ := m.match(l.Locations, path); inner != nil {
				return inner, true
			}
			return l, true
		}
	}
	return found, false
}

// Normalise gives the path of a request's target as nginx matches it (ngx_http_parse_complex_uri): without query and
// fragment, percent decoded, with "." and ".." resolved and slashes merged if asked for. false is what nginx answers with
// 400.
func Normalise(target string, mergeSlashes bool) (string, bool) {
	if !strings.HasPrefix(target, "/") {
		return "", false
	}
	var out []byte
	for i := 0; ; i++ {
		// The end of the path ends a segment as a slash does, but leaves none.
		c, ended, literal := byte('/'), i == len(target), false
		if !ended {
			c = target[i]
			switch {
			case c <= ' ' || c == 0x7f:
				return "", false
			case c == '?' || c == '#':
				ended = true
			case c == '%':
				if i+2 >= len(target) {
					return "", false
				}
				v, err := strconv.ParseUint(target[i+1:i+3], 16, 8)
				if err != nil || v == 0 {
					return "", false
				}
				c, literal = byte(v), v == '%' || v == '#' || v == '?'
				i += 2
			}
		}
		if !ended && (c != '/' || literal) {
			out = append(out, c)
			continue
		}
		start := bytes.LastIndexByte(out, '/')
		switch string(out[start+1:]) {
		case ".":
			out = out[:start+1]
		case "..":
			if start <= 0 {
				return "", false
			}
			out = out[:bytes.LastIndexByte(out[:start], '/')+1]
		default:
			if !ended && (start < len(out)-1 || !mergeSlashes || len(out) == 0) {
				out = append(out, '/')
			}
		}
		if ended {
			return string(out), true
		}
	}
}

// regex is a regular expression as PCRE has it, over bytes.
type regex struct{ re *regexp.Regexp }

func (p regex) match(s string) bool {
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

// compile translates a regular expression of PCRE into one of Go, where that can be done exactly.
func compile(expr string, caseless bool) (regex, error) {
	if len(expr) > maxPattern {
		return regex{}, errors.New("it is too long")
	}
	translated, err := translate(bytesAsRunes(expr))
	if err != nil {
		return regex{}, err
	}
	if caseless {
		translated = "(?i)" + translated
	}
	tree, err := syntax.Parse(translated, syntax.Perl)
	if err != nil {
		return regex{}, err
	}
	if weigh(tree) > maxProgram {
		return regex{}, errors.New("it is too large")
	}
	re, err := regexp.Compile(translated)
	return regex{re}, err
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
			case e < 0x80 && !isNameByte(e) || e == '_':
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
