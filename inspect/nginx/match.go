package nginx

import (
	"bytes"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/slimctl/slimctl/inspect/nginx/pcre"
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
	re, err := pcre.Compile(pattern, strings.ContainsAny(pattern, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
	return err == nil && re.Match(host)
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
type matcher map[string]*pcre.Regexp

func (m matcher) find(locations []Location, path string) *Location {
	l, _ := m.match(locations, path)
	return l
}

func (m matcher) matches(l *Location, path string) bool {
	re, ok := m[l.Path()]
	if !ok {
		if compiled, err := pcre.Compile(l.Pattern, l.Modifier == "~*"); err == nil {
			re = &compiled
		}
		m[l.Path()] = re
	}
	return re != nil && re.Match(path)
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
