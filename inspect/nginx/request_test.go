package nginx

// What follows a request through a configuration as nginx does, for tests.

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
)

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
	return err == nil && re.MatchString(host)
}

// MatchURI is Match for a path as a client writes it, with query; false when nginx answers 400.
func (s *Server) MatchURI(uri string) (*Location, bool) {
	path, ok := Normalise(uri, !s.KeepSlashes)
	if !ok {
		return nil, false
	}
	return s.Match(path), true
}

// Normalise returns the path of a request's target as nginx matches it (ngx_http_parse_complex_uri): without query and
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

// Outcomes follows what the location l does to its end. What can't be told counts as an answer.
func (s *Server) Outcomes(l *Location) []Outcome { return newFollower(s).outcomes(l) }

// Socket is an address and port, with the servers that share it: which one answers is the Host header's choice.
type Socket struct {
	Listen
	// Servers are those that listen there, in order.
	Servers []*Server
}

// Sockets lists the sockets of HTTP servers, in the order in which they are met.
func (c *Config) Sockets() []Socket {
	var out []Socket
	at := map[string]int{}
	for i := range c.Servers {
		s := &c.Servers[i]
		if s.Protocol != "" {
			continue
		}
		for j := range s.Listen {
			key := s.Listen[j].key()
			n, ok := at[key]
			if !ok {
				n = len(out)
				at[key] = n
				out = append(out, Socket{Listen: s.Listen[j]})
			}
			if !slices.Contains(out[n].Servers, s) {
				out[n].Servers = append(out[n].Servers, s)
			}
		}
	}
	return out
}

// Answering lists the routes that answer on a listener that is not on loopback.
func (c *Config) Answering() []Route {
	return slices.DeleteFunc(c.Routes(), func(r Route) bool { return !r.Public || !r.Answers })
}
