package nginx

import (
	"slices"
	"strconv"
	"strings"

	"github.com/slimctl/slimctl/inspect/nginx/conf"
)

// authority splits a URL into host with port, and the rest. A variable directly after the host may continue it with a
// port or another host, unless its values begin with a slash.
func (b *builder) authority(url string) (address, uri string) {
	if _, rest, ok := strings.Cut(url, "://"); ok {
		url = rest
	}
	if socket, ok := strings.CutPrefix(url, "unix:"); ok {
		socket, uri, _ = strings.Cut(socket, ":")
		return "unix:" + socket, uri
	}
	end := len(url)
	segments, _ := split(url)
	for _, s := range segments {
		if i := strings.IndexAny(s.text, "/?"); i >= 0 {
			end = s.at + i
			break
		}
		if s.name == "request_uri" || !b.rewrites && (s.name == "uri" || s.name == "document_uri") {
			end = s.at
			break
		}
	}
	return url[:end], url[end:]
}

// passTo returns the target of a proxy_pass.
func (b *builder) passTo(st *conf.Statement, captures []string) Target {
	url := st.Arg(1)
	t := Target{Kind: Proxy, Value: url}
	urls := []string{url}
	if strings.Contains(url, "$") {
		address, _ := b.authority(url)
		if scheme, _, ok := strings.Cut(url, "://"); ok && strings.Contains(scheme, "$") {
			address = scheme + address
		}
		b.use(address, "address")
		t.Chosen, t.Free = b.parts(address, captures), b.free(address)
		if values, ok := b.expand(url); ok {
			urls = values
		}
	}
	add := func(addresses ...string) {
		for _, a := range addresses {
			if len(t.Addresses) == maxValues {
				b.Note(st, "the target has more than %d addresses; only these are listed", maxValues)
				return
			}
			if !slices.Contains(t.Addresses, a) {
				t.Addresses = append(t.Addresses, a)
			}
		}
	}
	for _, u := range urls {
		host, uri := b.authority(u)
		t.RawURI = t.RawURI || uri == "" || slices.Contains(names(uri), "request_uri")
		port := 80
		if strings.HasPrefix(strings.ToLower(u), "https://") {
			port = 443
		}
		if upstream, ok := b.upstreams[strings.ToLower(host)]; ok {
			add(upstream...)
			continue
		}
		add(withPort(host, port))
		if name, _, _ := strings.Cut(host, ":"); t.Free && strings.Contains(name, "$") { // the request may name an upstream
			add(b.everywhere...)
		}
	}
	return t
}

// withPort adds the default port to an address without one.
func withPort(address string, port int) string {
	if strings.HasPrefix(address, "unix:") || port == 0 || lastColon(address) >= 0 || strings.Contains(address, "$") {
		return address
	}
	return address + ":" + strconv.Itoa(port)
}

// rewriteTo returns the target of a redirect to another location.
func (b *builder) rewriteTo(uri string, captures []string) Target {
	t := Target{Kind: Rewrite, Value: uri}
	if strings.HasPrefix(uri, "http://") || strings.HasPrefix(uri, "https://") || strings.HasPrefix(uri, "$scheme") {
		return Target{Kind: Redirect, Value: uri, Status: 302}
	}
	if strings.Contains(uri, "$") {
		path, _, _ := strings.Cut(uri, "?")
		b.use(path, "location")
		t.Chosen = b.parts(path, captures)
		t.Free = b.free(path)
		if values, ok := b.expand(path); ok {
			t.Addresses = slices.DeleteFunc(values, func(v string) bool { return v == "" })
		}
	}
	return t
}
