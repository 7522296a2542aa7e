package policy

import (
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Open says where `open` may go.
type Open struct {
	AllowSchemes      []string `json:"allow_schemes"`       // some of https, http
	AllowAboutBlank   bool     `json:"allow_about_blank"`   // about:blank, to leave a page
	AllowHosts        []string `json:"allow_hosts"`         // exact names; empty with no suffixes: any
	AllowHostSuffixes []string `json:"allow_host_suffixes"` // "example.com" admits it and what ends in ".example.com"
}

const maxURL = 8192

var (
	urlScheme = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9+.-]*):`)
	// The authority is held so narrow that no two URL parsers can read a
	// different host from it: no userinfo, no percent, no Unicode.
	authority = regexp.MustCompile(`^([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?$`)
	hostLabel = regexp.MustCompile(`^[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?$`)
	numeric   = regexp.MustCompile(`^(0x[0-9a-f]*|[0-9]+)$`)
)

// special are the address ranges that are not the public internet: loopback,
// private, link-local, shared, documentation, benchmark, translated and
// reserved ones, and Azure's WireServer. (IANA special-purpose registries.)
var special = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
	"198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "168.63.129.16/32",
	"::/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32",
	"2002::/16", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
)

func prefixes(all ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range all {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// CheckURL reads an address for `open` and gives its canonical form, which is
// what must be passed on.
//
// It looks at the text only. It is NOT a boundary: a name may resolve to an
// internal address, a page may redirect, and a click goes anywhere. The
// boundary is the egress proxy, which checks the address it dials.
func (p *Policy) CheckURL(s string) (string, *Refusal) {
	if r := urlCharacters(s); r != nil {
		return "", r
	}
	if s == "about:blank" && p.Open.AllowAboutBlank {
		return s, nil
	}
	scheme, rest := "https", s
	if !authority.MatchString(s) { // a bare host or host:port is https
		m := urlScheme.FindStringSubmatch(s)
		if m == nil {
			return "", blocked("url.scheme", "the address needs a scheme; write it out as https://host/path")
		}
		scheme = strings.ToLower(m[1])
		if rest = s[len(m[0]):]; scheme == "http" || scheme == "https" {
			if !strings.HasPrefix(rest, "//") {
				return "", blocked("url.form", "the address must read %s://host/path", scheme)
			}
			rest = rest[2:]
		}
	}
	if !slices.Contains(p.Open.AllowSchemes, scheme) {
		return "", blocked("url.scheme", "the address must begin with %s", strings.Join(p.Open.AllowSchemes, ":// or ")+"://")
	}
	auth, tail := rest, ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		auth, tail = rest[:i], rest[i:]
	}
	if strings.Contains(auth, "@") {
		return "", blocked("url.userinfo", "the address may not hold a user name or password")
	}
	host, r := p.checkAuthority(auth)
	if r != nil {
		return "", r
	}
	if !strings.HasPrefix(tail, "/") {
		tail = "/" + tail
	}
	return scheme + "://" + host + tail, nil
}

func urlCharacters(s string) *Refusal {
	switch {
	case s == "":
		return blocked("url.empty", "the address is empty; give https://host/path")
	case len(s) > maxURL:
		return blocked("url.length", "the address is longer than %d bytes", maxURL)
	case strings.HasPrefix(s, "-"):
		return blocked("url.characters", "the address begins with a dash")
	}
	for _, c := range s {
		if c == '\\' || unicode.IsControl(c) || unicode.IsSpace(c) || unicode.In(c, unicode.Cf) {
			return blocked("url.characters", "the address holds a backslash, a blank or an invisible character; percent-encode it")
		}
	}
	return nil
}

// checkAuthority checks host and port and gives them in canonical form.
func (p *Policy) checkAuthority(auth string) (string, *Refusal) {
	m := authority.FindStringSubmatch(auth)
	if m == nil {
		return "", blocked("url.host", "the host must be a plain name or address (a name with other letters in its xn-- form)")
	}
	host, r := p.checkHost(strings.ToLower(m[1]))
	if r != nil {
		return "", r
	}
	if m[2] == "" {
		return host, nil
	}
	port, _ := strconv.Atoi(m[2]) // the pattern admits digits only
	if port < 1 || port > 65535 {
		return "", blocked("url.port", "the port must lie between 1 and 65535")
	}
	return host + ":" + strconv.Itoa(port), nil
}

func (p *Policy) checkHost(host string) (string, *Refusal) {
	name := strings.TrimSuffix(host, ".")
	labels := strings.Split(name, ".")
	if strings.HasPrefix(host, "[") || numeric.MatchString(labels[len(labels)-1]) {
		addr, r := checkLiteral(host)
		if r != nil {
			return "", r
		}
		return addr, p.checkAllowed(addr)
	}
	if labels[len(labels)-1] == "localhost" {
		return "", blocked("url.loopback", "localhost is this machine; open a public site")
	}
	if len(labels) < 2 {
		return "", blocked("url.host", "the host has a single label; write the full name")
	}
	for _, l := range labels {
		if len(l) > 63 || !hostLabel.MatchString(l) {
			return "", blocked("url.host", "the host is not a well-formed name")
		}
	}
	return name, p.checkAllowed(name)
}

// checkLiteral admits a public address in its one canonical spelling; the odd
// ones (decimal, octal, hex, short) are how filters are fooled.
func checkLiteral(host string) (string, *Refusal) {
	a, err := netip.ParseAddr(strings.Trim(host, "[]"))
	if err != nil || a.Zone() != "" || a.Is4() == strings.HasPrefix(host, "[") {
		return "", blocked("url.address", "the host is an address in an unusual spelling; write it as a.b.c.d or [v6]")
	}
	plain := a.Unmap()
	if plain.IsLoopback() {
		return "", blocked("url.loopback", "the address is this machine; open a public site")
	}
	if !plain.IsGlobalUnicast() || slices.ContainsFunc(special, func(p netip.Prefix) bool { return p.Contains(plain) }) {
		return "", blocked("url.private", "the address is not on the public internet; open a public site")
	}
	if a.Is6() {
		return "[" + a.String() + "]", nil
	}
	return a.String(), nil
}

func (p *Policy) checkAllowed(host string) *Refusal {
	o := p.Open
	if len(o.AllowHosts) == 0 && len(o.AllowHostSuffixes) == 0 || slices.Contains(o.AllowHosts, host) {
		return nil
	}
	for _, s := range o.AllowHostSuffixes {
		if host == s || strings.HasSuffix(host, "."+s) {
			return nil
		}
	}
	return blocked("url.host-not-allowed", "the policy does not allow this host")
}
