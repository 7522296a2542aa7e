package egress

import (
	"bufio"
	"context"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/nlnwa/whatwg-url/url"

	"github.com/slimctl/slimctl/server/policy"
)

// everywhere resolves each name to one public address.
type everywhere struct{}

func (everywhere) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("127.77.0.1")}, nil
}

// FuzzTarget: what the proxy lets out goes to the host that a browser would
// read from the same text.
func FuzzTarget(f *testing.F) {
	for _, s := range []string{
		"http://site.test/", "http://site.test:8080/a?b", "site.test:443", "http://SITE.test./", "http://127.0.0.1/", "http://0x7f.1/",
		"http://a@b/", "http://a\\@b/", "http://a#@b/", "http://[::1]/", "http://8.8.8.8:53/x", "[2606:4700::1111]:443", "/", "*",
	} {
		f.Add(s, false)
		f.Add(s, true)
	}
	p := New(policy.Default(), policy.Network{Resolver: everywhere{}, Public: func(a netip.Addr) bool { return testPublic(a) || policy.Public(a) }}, nil, nil)
	f.Fuzz(func(t *testing.T, target string, connect bool) {
		method, prefix := "GET", ""
		if connect {
			method, prefix = "CONNECT", "https://"
		}
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(method + " " + target + " HTTP/1.1\r\nHost: other.test\r\n\r\n")))
		if err != nil {
			return
		}
		q := &request{Proxy: p}
		if q.checkTarget(r, policy.Default()) != nil {
			return
		}
		u, err := url.Parse(prefix + r.RequestURI)
		if err != nil {
			t.Fatalf("%q goes to %s; a browser does not read it: %v", target, q.Host, err)
		}
		port := u.Port()
		if port == "" {
			port = map[string]string{"http": "80", "https": "443"}[u.Scheme()]
		}
		if strings.TrimSuffix(u.Hostname(), ".") != q.Host || port != strconv.Itoa(q.Port) || len(q.addrs) == 0 {
			t.Errorf("%q goes to %s port %d, not to %s port %s", target, q.Host, q.Port, u.Hostname(), port)
		}
		for _, a := range q.addrs {
			if !testPublic(a) && !policy.Public(a) {
				t.Errorf("%q goes to %s", target, a)
			}
		}
	})
}
