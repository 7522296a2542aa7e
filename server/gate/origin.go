package gate

import (
	"net/http"
	"net/netip"
	"strings"

	"github.com/slimctl/slimctl/internal/lazyregexp"
)

// ownPage says whether a request may come from the page it comes from, if a page sent it: a browser tells the page's site
// in Origin. It must be the site of the Host that was asked. Where no key is asked for that is not enough: a page of any
// name has the same site when its name leads here for a moment (DNS rebinding). Then Host must be no such name.
// nginx tells both headers in X-Original-…, otherwise they are the request's own.
func (g *Gate) ownPage(r *http.Request) bool {
	origin, host := r.Header.Values("Origin"), []string{r.Host}
	original, asked := r.Header.Values("X-Original-Origin"), r.Header.Values("X-Original-Host")
	if len(original)+len(asked) > 0 {
		origin, host = original, asked
	}
	if len(origin) == 0 || len(origin) == 1 && origin[0] == "" {
		return true
	}
	if len(origin) != 1 || len(host) != 1 || host[0] == "" {
		return false
	}
	site, name := strings.ToLower(origin[0]), strings.ToLower(host[0])
	return (site == "http://"+name || site == "https://"+name) && (!g.anonymous || fixed(name))
}

// hostPort is a Host of lower case. A name has no dots.
var hostPort = lazyregexp.New(`^(?:\[([0-9a-f:.]+)\]|([0-9]+(?:\.[0-9]+){3})|[a-z0-9_-]+)(?::[0-9]{1,5})?$`)

// fixed says whether nobody outside can lead a Host elsewhere: an IP address, localhost, or a name without dots, such as
// containers have among themselves.
func fixed(host string) bool {
	m := hostPort.FindStringSubmatch(host)
	if m == nil {
		return false
	}
	if address := m[1] + m[2]; address != "" {
		a, err := netip.ParseAddr(address)
		return err == nil && a.Is6() == (m[1] != "")
	}
	return true
}
