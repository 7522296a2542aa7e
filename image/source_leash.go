package image

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
)

// mostRedirects limits the redirects after one request.
const mostRedirects = 10

// leashError is a request that a registry demands and that is refused.
type leashError struct{ error }

// leash checks the target of every request for one registry. It is the lowest transport, below everything that follows
// the registry's answers (redirects, token servers, upload locations, a layer's URLs), so none of them bypasses it.
type leash struct {
	inner    http.RoundTripper
	registry name.Registry
	plain    bool // plain HTTP is allowed after TLS
}

func (t leash) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := t.checkRequest(req); err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, leashError{err}
	}
	return t.inner.RoundTrip(req)
}

func (t leash) checkRequest(req *http.Request) error {
	first, n := req, 0
	for ; first.Response != nil && first.Response.Request != nil; n++ {
		first = first.Response.Request
	}
	host := t.registry.RegistryStr()
	switch {
	case n > mostRedirects:
		return fmt.Errorf("registry %s: more than %d redirects", host, mostRedirects)
	case req.URL.Scheme == "http" && (first.URL.Scheme == "https" || t.registry.Scheme() == "https") && !t.plain:
		return fmt.Errorf("registry %s redirects from TLS to plain HTTP at %s: refused; --insecure allows it", host, req.URL.Host)
	}
	own, err := url.Parse("//" + host)
	if err != nil {
		return err
	}
	if err := checkHost(req.URL.Hostname()); err != nil && req.URL.Hostname() != own.Hostname() {
		return fmt.Errorf("registry %s redirects to %s: refused: %w", host, req.URL.Host, err)
	}
	return nil
}

// inside lists address ranges outside the public internet that netip doesn't know: shared, translated and reserved
// ones, and Azure's WireServer (IANA special-purpose registries).
var inside = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("168.63.129.16/32"),
	netip.MustParsePrefix("2001::/23"), netip.MustParsePrefix("2002::/16"), // they embed an IPv4 address, which may be private
}

// globalIPv6 is the range that IANA assigns. Outside it are the other prefixes that embed an IPv4 address (RFC 6052,
// RFC 8215, RFC 4291).
var globalIPv6 = netip.MustParsePrefix("2000::/3")

// checkHost refuses a host inside our own network that a registry redirects to. It doesn't resolve names: if the
// operator's DNS has a private address for one, it belongs to his own registry.
func checkHost(host string) error {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	ip, err := netip.ParseAddr(host)
	if err != nil {
		labels := strings.Split(host, ".")
		last := labels[len(labels)-1]
		switch {
		case last == "localhost":
			return errors.New("it is this machine")
		case host == "metadata.google.internal":
			return errors.New("it gives out a machine's credentials")
		case last != "" && last[0] >= '0' && last[0] <= '9': // 127.1, 0x7f000001: an address to some resolvers
			return errors.New("it is neither a name nor a full address")
		}
		return nil
	}
	ip = ip.WithZone("").Unmap()
	within := func(p netip.Prefix) bool { return p.Contains(ip) }
	if !ip.IsGlobalUnicast() || ip.IsPrivate() || ip.Is6() && !globalIPv6.Contains(ip) || slices.ContainsFunc(inside, within) {
		return errors.New("its address is private")
	}
	return nil
}
