package gate

import (
	"net/http"
	"net/netip"
	"strings"

	"github.com/slimctl/slimctl/internal/lazyregexp"
)

// isOwnPage reports whether the page that sent the request, if one did, may do so. The browser names the page's site in
// Origin, which must be the site of the requested Host. Without a key that isn't enough: a page of any name has the
// same site if its name temporarily resolves here (DNS rebinding). Then Host must not be such a name. nginx passes both
// headers as X-Original-…; otherwise they are the request's own.
func (g *Gate) isOwnPage(r *http.Request) bool {
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
	return (site == "http://"+name || site == "https://"+name) && (!g.anonymous || isFixedHost(name))
}

// hostPort matches a Host in lower case whose name has no dots.
var hostPort = lazyregexp.New(`^(?:\[([0-9a-f:.]+)\]|([0-9]+(?:\.[0-9]+){3})|[a-z0-9_-]+)(?::[0-9]{1,5})?$`)

// isFixedHost reports whether nobody outside can make a Host resolve elsewhere: an IP address, localhost, or a name
// without dots, as used between containers.
func isFixedHost(host string) bool {
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
