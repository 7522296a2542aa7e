package nginx

import (
	"errors"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Public reports whether a listener of the server is not on loopback.
func (s *Server) Public() bool {
	for _, l := range s.Listen {
		if !l.Loopback {
			return true
		}
	}
	return false
}

// key identifies the socket: listeners with the same key share it.
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

// normalAddress formats an address like Listen.Address.
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

// Path returns modifier and pattern: "= /mcp", "/v1", "@name".
func (l *Location) Path() string {
	if l.Modifier == "" || l.Modifier == "@" {
		return l.Pattern
	}
	return l.Modifier + " " + l.Pattern
}

// Match returns the location for a path that is decoded and normalised like nginx does (see Normalise): exact, then the
// longest prefix unless it is ^~, then the first regular expression in order, nested locations included. It returns nil
// if there is none. For "/x" it may return a location "/x/" that passes requests on: nginx answers with a redirect to
// it. A regular expression that is not understood (a Note reports it) matches nothing.
func (s *Server) Match(path string) *Location { return matcher{}.find(s.Locations, path) }

// matcher matches locations, and caches compiled regular expressions.
type matcher map[string]*regexp.Regexp

func (m matcher) find(locations []Location, path string) *Location {
	l, _ := m.match(locations, path)
	return l
}

func (m matcher) matches(l *Location, path string) bool {
	re, ok := m[l.Path()]
	if !ok {
		re, _ = compile(l.Pattern, l.Modifier == "~*")
		m[l.Path()] = re
	}
	return re != nil && re.MatchString(path)
}

// maxPattern limits a regular expression, in bytes.
const maxPattern = 2000

// compile compiles a regular expression of PCRE as one of Go's. An expression that Go doesn't support is an error.
func compile(expr string, caseless bool) (*regexp.Regexp, error) {
	if len(expr) > maxPattern {
		return nil, errors.New("too long")
	}
	if caseless {
		expr = "(?i)" + expr
	}
	return regexp.Compile(expr)
}

// match implements ngx_http_core_find_location. final is true if no regular expression of an outer level is tried any
// more.
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
