package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server/policy"
)

// In these tests 127.77.0.0/16 is the public internet, and the rest of
// loopback is what must not be reached.
const (
	publicIP = "127.77.0.1"
	canaryIP = "127.0.0.2"
)

func testPublic(a netip.Addr) bool { return netip.MustParsePrefix("127.77.0.0/16").Contains(a) }

// names is a resolver. A name may have several answers, given in turn; the
// last one stays.
type names struct {
	mu    sync.Mutex
	turns map[string][]string // each a list of addresses, with blanks between
	asked map[string]int
}

func (n *names) LookupNetIP(ctx context.Context, _, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	name := strings.TrimSuffix(host, ".")
	if n.asked == nil {
		n.asked = map[string]int{}
	}
	turn := n.asked[name]
	n.asked[name]++
	turns := n.turns[name]
	n.mu.Unlock()
	if len(turns) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	answer := turns[min(turn, len(turns)-1)]
	switch answer {
	case "TIMEOUT":
		<-ctx.Done()
		return nil, ctx.Err()
	case "SERVFAIL":
		return nil, &net.DNSError{Err: "server misbehaving", Name: name, IsTemporary: true}
	}
	var out []netip.Addr
	for _, a := range strings.Fields(answer) {
		out = append(out, netip.MustParseAddr(a))
	}
	return out, nil
}

// samePort listens on a free port, which is the same on all the addresses.
func samePort(t testing.TB, ips ...string) []net.Listener {
	t.Helper()
	var err error
	for range 100 { // the port that is free on the first may be taken on the others
		port, ls := "0", []net.Listener(nil)
		for _, ip := range ips {
			var l net.Listener
			if l, err = net.Listen("tcp", net.JoinHostPort(ip, port)); err != nil {
				break
			}
			ls = append(ls, l)
			_, port, _ = net.SplitHostPort(l.Addr().String())
		}
		if err == nil {
			return ls
		}
		for _, l := range ls {
			l.Close()
		}
	}
	t.Fatal(err)
	return nil
}

// canary counts every connection made to it.
type canary struct {
	net.Listener
	hits atomic.Int64
}

func newCanary(t testing.TB, ip string) *canary {
	t.Helper()
	return canaryOn(t, samePort(t, ip)[0])
}

func canaryOn(t testing.TB, l net.Listener) *canary {
	t.Helper()
	c := &canary{Listener: l}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		_, _ = io.WriteString(w, "SECRET")
	}), ConnState: func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			c.hits.Add(1)
		}
	}}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { srv.Close() })
	return c
}

func (c *canary) port() string {
	_, port, _ := net.SplitHostPort(c.Addr().String())
	return port
}

// lab is a proxy with a "public" site and canaries.
type lab struct {
	*Proxy
	names  *names
	addr   string // of the proxy
	stop   context.CancelFunc
	ended  chan error
	fail   atomic.Bool // the audit cannot be written
	mu     sync.Mutex
	events []Decision
}

func newLab(t testing.TB, change func(*policy.Policy)) *lab {
	t.Helper()
	return newLabWith(t, change, func(*Proxy) {})
}

func newLabWith(t testing.TB, change func(*policy.Policy), tune func(*Proxy)) *lab {
	t.Helper()
	pol := policy.Default()
	if change != nil {
		change(pol)
	}
	l := &lab{names: &names{turns: map[string][]string{"site.test": {publicIP}, "other.test": {"127.77.0.2"}}}, ended: make(chan error, 1)}
	l.Proxy = New(pol, policy.Network{Resolver: l.names, Public: testPublic}, nil, func(d Decision) error {
		if l.fail.Load() {
			return io.ErrShortWrite
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.events = append(l.events, d)
		return nil
	})
	l.dial, l.header = need.Patience, need.Patience // a busy machine takes longer than a person would wait
	tune(l.Proxy)
	listener, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.addr = listener.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	go func() { l.ended <- l.Serve(ctx, listener); close(l.ended) }()
	t.Cleanup(func() {
		stop()
		if err := <-l.ended; err != nil {
			t.Error(err)
		}
	})
	return l
}

func (l *lab) decisions() []Decision {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.events)
}

// last waits for the decision that ends a request.
func (l *lab) last(t testing.TB) Decision {
	t.Helper()
	var last Decision
	need.Eventually(t, func() bool {
		if all := l.decisions(); len(all) > 0 {
			last = all[len(all)-1]
		}
		return last.Done || last.Rule != "" && !last.Allowed
	}, func() string { return fmt.Sprintf("no end was recorded in %+v", l.decisions()) })
	return last
}

// serve starts a site on a "public" address and gives its port.
func serve(t testing.TB, ip string, h http.HandlerFunc) (port string) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Listener.Close()
	var err error
	if s.Listener, err = net.Listen("tcp", ip+":0"); err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(s.Close)
	_, port, _ = net.SplitHostPort(s.Listener.Addr().String())
	return port
}

func serveTLS(t testing.TB, ip string, h http.HandlerFunc) (port string, roots *x509.CertPool) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Listener.Close()
	var err error
	if s.Listener, err = net.Listen("tcp", ip+":0"); err != nil {
		t.Fatal(err)
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	roots = x509.NewCertPool()
	roots.AddCert(s.Certificate())
	_, port, _ = net.SplitHostPort(s.Listener.Addr().String())
	return port, roots
}

// client goes through the proxy and takes any certificate of the test site.
func (l *lab) client(roots *x509.CertPool) *http.Client {
	u := &url.URL{Scheme: "http", Host: l.addr}
	return &http.Client{
		Timeout:   need.Patience,
		Transport: &http.Transport{Proxy: http.ProxyURL(u), TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "example.com"}},
	}
}

// raw sends text and gives the answer, with its body.
func (l *lab) raw(t testing.TB, text string) (*http.Response, string) {
	t.Helper()
	c, err := net.Dial("tcp", l.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(need.Patience))
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("%.100q: %v", text, err)
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusOK && strings.HasPrefix(text, "CONNECT") {
		return res, ""
	}
	b, _ := io.ReadAll(res.Body)
	if number := res.Header.Get(policy.RefusalHeader); number != "" && !strings.HasPrefix(text, "CONNECT") {
		if policy.ParseRefusal(number) != nil {
			t.Errorf("%.100q: a page could read %q", text, number)
		}
		if r := Why(t.Context(), l.addr, number); r != nil {
			res.Header.Set(policy.RefusalHeader, r.Header())
		}
	}
	return res, string(b)
}

func get(target string) string {
	return fmt.Sprintf("GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", target)
}

func connect(target string) string {
	return fmt.Sprintf("CONNECT %s HTTP/1.1\r\nHost: x\r\n\r\n", target)
}
