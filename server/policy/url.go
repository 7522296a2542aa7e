package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	whatwg "github.com/nlnwa/whatwg-url/url"

	"github.com/slimctl/slimctl/internal/lazyregexp"
)

// Open limits the addresses for `open`.
type Open struct {
	AllowSchemes    []string `json:"allow_schemes" enum:"https,http" doc:"some of https and http"`
	AllowAboutBlank bool     `json:"allow_about_blank" doc:"whether about:blank may be opened, to leave a page"`
	AllowHosts      []string `json:"allow_hosts" pattern:"^(\\*|(\\*\\.)?[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*)$" must:"be a lower-case host name, *.NAME for the hosts below it, or * for any public host (no scheme, no port)" doc:"lower-case names; \"*.example.com\" is every host below example.com, \"*\" any public host; not empty"`
	// AllowHostSuffixes is part of a file only: Parse moves its entries to AllowHosts.
	AllowHostSuffixes []string `json:"allow_host_suffixes" pattern:"^(\\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)+$" must:"be a dot and a lower-case host name, for instance .example.com" doc:"another spelling for allow_hosts: \".example.com\" is \"*.example.com\""`
}

// addSuffixes moves each entry .NAME of AllowHostSuffixes to AllowHosts, as *.NAME.
func (o *Open) addSuffixes() {
	for _, s := range o.AllowHostSuffixes {
		if host := "*" + s; !slices.Contains(o.AllowHosts, host) {
			o.AllowHosts = append(o.AllowHosts, host)
		}
	}
	o.AllowHostSuffixes = []string{}
}

const (
	maxURL  = 8192 // bytes, as given and in canonical form
	maxHost = 253  // bytes of a name, RFC 1035 2.3.4 without the root's dot
)

var (
	urlScheme = lazyregexp.New(`^([A-Za-z][A-Za-z0-9+.-]*):`)
	// The authority is matched so narrowly that all URL parsers read the same host from it: no userinfo, no percent,
	// one colon at most.
	bareHost  = lazyregexp.New(`^([^\[\]/?#@%:]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$`)
	authority = lazyregexp.New(`^([^\[\]/?#@%:]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]*))?$`)
	hostLabel = lazyregexp.New(`^[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?$`)
	// remapped holds characters that IDNA maps to others since Unicode 15.1.
	remapped = &unicode.RangeTable{R16: []unicode.Range16{{0x1E9E, 0x1E9E, 1}}}
	numeric  = lazyregexp.New(`^(0[xX][0-9A-Fa-f]*|[0-9]+)$`)
)

// URL is an address that the policy admits.
type URL struct {
	Href string // canonical; pass this on instead of the input
	Host string // canonical name or address ("[v6]" in brackets), without a port; empty for about:blank
}

func trimBrackets(host string) string { return strings.Trim(host, "[]") }

// CheckURL checks an address for `open` and returns its canonical form (WHATWG URL Standard). Pass that on, so that
// agent-browser and Chromium can't interpret the input differently.
//
// It checks the text only. It is NOT a boundary: a name may resolve to an internal address, a page may redirect, and a
// click leads anywhere. The boundary is the egress proxy, which checks the address that it dials.
func (p *Policy) CheckURL(s string) (URL, *Refusal) {
	if strings.HasPrefix(s, "-") {
		return URL{}, blocked("url.characters", "the address begins with a dash")
	}
	if r := urlCharacters(s); r != nil {
		return URL{}, r
	}
	if s == "about:blank" && p.Open.AllowAboutBlank {
		return URL{Href: s}, nil
	}
	scheme, rest, r := splitScheme(s)
	if r != nil {
		return URL{}, r
	}
	if len(p.Open.AllowSchemes) == 0 {
		return URL{}, blocked("url.scheme", "the policy allows no scheme, so nothing can be opened")
	}
	if !slices.Contains(p.Open.AllowSchemes, scheme) {
		return URL{}, blocked("url.scheme", "the address must begin with %s", strings.Join(p.Open.AllowSchemes, ":// or ")+"://")
	}
	auth, tail := cutAuthority(rest)
	host, port, r := p.checkAuthority(auth)
	if r != nil {
		return URL{}, r
	}
	return joinURL(scheme, host, port, tail)
}

// cutAuthority splits the text after "//" before the path, the query or the fragment.
func cutAuthority(s string) (authority, tail string) {
	if i := strings.IndexAny(s, "/?#"); i >= 0 {
		return s[:i], s[i:]
	}
	return s, ""
}

func urlCharacters(s string) *Refusal {
	switch {
	case s == "":
		return blocked("url.empty", "the address is empty; give https://host/path")
	case len(s) > maxURL:
		return tooLong()
	case !utf8.ValidString(s):
		return blocked("url.characters", "the address is not clean UTF-8; percent-encode it")
	}
	for _, c := range s {
		if c == '\\' || c == utf8.RuneError || unicode.IsControl(c) || unicode.IsSpace(c) || unicode.In(c, unicode.Cf) {
			return blocked("url.characters", "the address holds a backslash, a blank or an invisible character; percent-encode it")
		}
	}
	return nil
}

func tooLong() *Refusal {
	return blocked("url.length", "the address is longer than %d bytes", maxURL)
}

// splitScheme returns the scheme in lower case and the text after "//". A host without a scheme, with or without port
// and path, gets https; any other address without a scheme is refused.
func splitScheme(s string) (scheme, rest string, r *Refusal) {
	if host, _ := cutAuthority(s); bareHost.MatchString(host) {
		return "https", s, nil
	}
	m := urlScheme.FindStringSubmatch(s)
	if m == nil {
		return "", "", blocked("url.scheme", "the address needs a scheme; write it out as https://host/path")
	}
	scheme = strings.ToLower(m[1])
	rest, ok := strings.CutPrefix(s[len(m[0]):], "//")
	if !ok && (scheme == "http" || scheme == "https") {
		return "", "", blocked("url.form", "the address must read %s://host/path", scheme)
	}
	return scheme, rest, nil
}

// checkAuthority checks host and port and returns them in canonical form; the port includes its colon.
func (p *Policy) checkAuthority(auth string) (host, port string, r *Refusal) {
	if strings.Contains(auth, "@") {
		return "", "", blocked("url.userinfo", "the address may not hold a user name or password")
	}
	m := authority.FindStringSubmatch(auth)
	if m == nil {
		return "", "", badHost()
	}
	host, r = p.CheckHost(m[1])
	if r != nil || m[2] == "" {
		return host, "", r
	}
	n, err := strconv.ParseUint(m[2], 10, 16)
	if err != nil || n == 0 {
		return "", "", blocked("url.port", "the port must lie between 1 and 65535")
	}
	return host, ":" + strconv.FormatUint(n, 10), nil
}

// joinURL joins checked parts. The URL library must read the same host from the result; otherwise the address is
// refused.
func joinURL(scheme, host, port, tail string) (URL, *Refusal) {
	u, err := whatwg.Parse(scheme + "://" + host + port + tail)
	if err != nil || u.Scheme() != scheme || u.Hostname() != host || u.Username()+u.Password() != "" {
		return URL{}, blocked("url.form", "the address is not a well-formed URL; write it as %s://host/path", scheme)
	}
	href := u.Href(false)
	if len(href) > maxURL {
		return URL{}, tooLong()
	}
	return URL{Href: href, Host: host}, nil
}

// CheckHost checks the host of an address, by its text and the policy's list of hosts. It returns the canonical form: a
// lower-case ASCII name (after IDNA) without a final dot, or an address ("[v6]" in brackets).
func (p *Policy) CheckHost(host string) (string, *Refusal) {
	if r := urlCharacters(host); r != nil {
		return "", r
	}
	if m := authority.FindStringSubmatch(host); m == nil || m[1] != host {
		return "", badHost()
	}
	if strings.HasPrefix(host, "[") {
		return p.checkLiteral(host)
	}
	if isAmbiguous(host) {
		return "", badHost()
	}
	u, err := whatwg.Parse("http://" + host + "/")
	if err != nil {
		if numeric.MatchString(lastLabel(host)) {
			return "", oddAddress()
		}
		return "", badHost()
	}
	if u.IsIPv4() || numeric.MatchString(lastLabel(u.Hostname())) {
		if host != u.Hostname() {
			return "", oddAddress()
		}
		return p.checkLiteral(host)
	}
	return p.checkName(strings.TrimSuffix(u.Hostname(), "."))
}

// isAmbiguous reports whether two IDNA implementations could convert a non-ASCII name to different ASCII names.
func isAmbiguous(host string) bool {
	ascii := true
	for _, c := range host {
		ascii = ascii && c < utf8.RuneSelf
		if unicode.In(c, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point, remapped) {
			return true
		}
	}
	// An xn-- label is ASCII; x/net/idna also decodes other labels.
	return !ascii && (strings.Contains(host, "--") || strings.ContainsAny(host, "\uFF0D\uFE63"))
}

func lastLabel(host string) string {
	host = strings.TrimSuffix(host, ".")
	return host[strings.LastIndexByte(host, '.')+1:]
}

func (p *Policy) checkName(name string) (string, *Refusal) {
	labels := strings.Split(name, ".")
	switch labels[len(labels)-1] {
	case "localhost", "localdomain", "localdomain6": // Chromium resolves localhost itself
		return "", blocked("url.loopback", "localhost is this machine; open a public site")
	}
	if len(labels) < 2 {
		return "", blocked("url.host", "the host has a single label; write the full name")
	}
	for _, l := range labels {
		if len(l) > 63 || len(name) > maxHost || !hostLabel.MatchString(l) {
			return "", badHost()
		}
	}
	return name, p.checkAllowed(name, false)
}

// checkLiteral admits a public address. Only one spelling of an IPv4 address is admitted; the others (decimal, octal,
// hex, short, inside IPv6) serve to fool filters.
func (p *Policy) checkLiteral(host string) (string, *Refusal) {
	a, err := netip.ParseAddr(trimBrackets(host))
	if err != nil || a.Zone() != "" || a.Is4() == strings.HasPrefix(host, "[") {
		return "", oddAddress()
	}
	switch {
	case a.Unmap().IsLoopback():
		return "", blocked("url.loopback", "the address is this machine; open a public site")
	case !Public(a):
		return "", notPublic()
	case a.Is4In6():
		return "", oddAddress()
	case a.Is6():
		host = "[" + a.String() + "]"
	}
	return host, p.checkAllowed(host, true)
}

func badHost() *Refusal {
	return blocked("url.host", "the host must be a plain public name or address: letters, digits, `-` and `.`, no percent-encoding")
}

func oddAddress() *Refusal {
	return blocked("url.address", "the host is an address in an unusual spelling; write it as a.b.c.d or [v6]")
}

// AnyHost is the entry of allow_hosts that admits any public host.
const AnyHost = "*"

// Hosts returns the policy's hosts in words, for a program's start message.
func (o Open) Hosts() string {
	if slices.Contains(o.AllowHosts, AnyHost) {
		return "any public host"
	}
	return strings.Join(o.AllowHosts, ", ")
}

// checkAllowed checks the host against allow_hosts; *.NAME matches names, not addresses.
func (p *Policy) checkAllowed(host string, address bool) *Refusal {
	for _, allowed := range p.Open.AllowHosts {
		parent, below := strings.CutPrefix(allowed, "*.")
		if allowed == AnyHost || allowed == host || below && !address && strings.HasSuffix(host, "."+parent) {
			return nil
		}
	}
	return blocked("url.host-not-allowed", "the policy does not allow this host; it allows %s", listHosts(p.Open.AllowHosts))
}

// listHosts lists up to ten hosts, and fewer long ones: a refusal has to fit into a header.
func listHosts(hosts []string) string {
	list, n := "", 0
	for n < min(len(hosts), 10) && len(list)+len(hosts[n]) <= 300 {
		if n > 0 {
			list += ", "
		}
		list += hosts[n]
		n++
	}
	if n == 0 {
		return fmt.Sprintf("%d others", len(hosts))
	}
	if n < len(hosts) {
		list += fmt.Sprintf(" and %d more", len(hosts)-n)
	}
	return list
}

// CheckPage checks whether a tab with this address, in Chromium's own spelling, may be read, by its text. It refuses the
// hosts of web pages and of their blob: URLs as CheckURL does and, as page.forbidden, everything that isn't a page of a
// site: files, data:, Chromium's own pages and others.
func (p *Policy) CheckPage(href string) *Refusal {
	if href == "about:blank" {
		return nil
	}
	web := strings.TrimPrefix(href, "blob:")
	scheme, rest, ok := strings.Cut(web, "://")
	if !ok || scheme != "http" && scheme != "https" {
		return blocked("page.forbidden", "the tab shows something that is no web page; open a public site")
	}
	host, _ := cutAuthority(rest) // the rest may have any length
	_, r := p.CheckURL(scheme + "://" + host + "/")
	return r
}
