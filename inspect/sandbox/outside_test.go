//go:build linux

package sandbox

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/slimctl/slimctl/inspect/sandbox/sandboxtest"
	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server/egress"
	"github.com/slimctl/slimctl/server/policy"
)

// TestEgress: a container reaches public addresses through its tether, what slimctl serves itself, and nothing else.
func TestEgress(t *testing.T) {
	t.Parallel()
	testEgress(t, runcEngineUnderTest(t))
}

// resolver returns fixed addresses; a name that it doesn't have doesn't exist.
type resolver map[string]string

func (r resolver) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	if a, ok := r[strings.TrimSuffix(host, ".")]; ok {
		return []netip.Addr{netip.MustParseAddr(a)}, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

func testEgress(t *testing.T, e engineUnderTest) {
	site := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "from outside "+r.Host)
	}))
	// On every address of loopback: one of them stands for a public one, and the others are private.
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	site.Listener.Close()
	site.Listener = l
	site.Start()
	defer site.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	e.World.Public = func(a netip.Addr) bool { return a == netip.MustParseAddr("127.77.0.1") }
	e.World.Resolver = resolver{"site.example": "127.77.0.1", "private.example": "10.0.0.1", "loop.example": "127.0.0.1"}
	e.Sites = map[string]http.Handler{"slimctl.example": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "from slimctl")
	})}
	cases := map[string]string{ // what is asked for, and what is in the answer
		"GET|http://site.example:" + port + "/":           "from outside site.example",
		"GET|http://slimctl.example/":                     "from slimctl",
		"CONNECT|site.example:" + port:                    "200 Connection established",
		"GET|http://127.0.0.1:" + port + "/":              "403 Forbidden",
		"CONNECT|127.0.0.1:" + port:                       "403 Forbidden",
		"CONNECT|[::1]:" + port:                           "403 Forbidden",
		"CONNECT|[::ffff:127.0.0.1]:" + port:              "403 Forbidden",
		"CONNECT|10.0.0.1:443":                            "url.private",
		"CONNECT|169.254.169.254:80":                      "url.private",
		"CONNECT|private.example:443":                     "url.private",
		"CONNECT|loop.example:" + port:                    "url.private",
		"CONNECT|nowhere.example:443":                     "url.unresolved",
		"CONNECT|" + strings.Repeat("a", 100_000) + ":80": "431",
		"NONSENSE": "400",
	}
	var asks []string
	for a := range cases {
		asks = append(asks, a)
	}
	// 1.1.1.1 and this machine are out of every program's reach: there is no route.
	sb := e.start(tetheredImage(t), tetheredSettings("ask 127.77.0.1:"+port+" "+strings.Join(asks, " ")))
	need.Eventually(t, says(sb, "asked all"), func() string { return string(sb.Logs()) })
	logs := string(sb.Logs())
	if !strings.Contains(logs, "dialled: dial tcp 127.77.0.1:"+port+": connect: connection refused") {
		t.Errorf("a program of the container reaches what it dials itself:\n%.300s", logs)
	}
	for a, want := range cases {
		_, rest, ok := strings.Cut(logs, "asked "+a+": ")
		got, _, _ := strings.Cut(rest, "\n")
		if !ok || !strings.Contains(got, want) {
			t.Errorf("%.60s: %.200s, want %s", a, got, want)
		}
	}
}

// TestNetworkNone: with network none the tether leads in, not out.
func TestNetworkNone(t *testing.T) {
	t.Parallel()
	testNetworkNone(t, runcEngineUnderTest(t))
}

func testNetworkNone(t *testing.T, e engineUnderTest) {
	s := tetheredSettings("ask 1.1.1.1:80 GET|http://example.com/ CONNECT|example.com:443")
	s.Network = NetworkNone
	e.Sites = map[string]http.Handler{"example.com": http.NotFoundHandler()}
	sb := e.start(tetheredImage(t), s)
	until(t, "it has asked", says(sb, "asked all"))
	logs := string(sb.Logs())
	if strings.Count(logs, "egress.network") < 2 || !strings.Contains(logs, "dialled: dial tcp 1.1.1.1:80: connect: network is unreachable") {
		t.Errorf("%s", logs)
	}
}

// TestHostileTether: what isn't a tether, and what opens connections without end, ends the container and nothing more.
func TestHostileTether(t *testing.T) {
	t.Parallel()
	testHostileTether(t, runcEngineUnderTest(t))
}

func testHostileTether(t *testing.T, e engineUnderTest) {
	for line, want := range map[string]string{
		"garbage": "tether", "garbage Traceback(most-recent-call-last)": "is no tether: it begins with", "streams": "tether",
	} {
		t.Run(line, func(t *testing.T) {
			sb, err := e.Start(t.Context(), tetheredImage(t), tetheredSettings(line))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
			defer cancel()
			_, err = sb.Wait(ctx)
			if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
			nothingLeft(t, sb.run)
		})
	}
}

// TestOutgoing: everything goes out through the proxy that the user names, and the evidence doesn't hold its password.
func TestOutgoing(t *testing.T) {
	t.Parallel()
	e := runcEngineUnderTest(t)
	var mu sync.Mutex
	var asked []string
	company := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, r.Method+" "+r.Host+" "+r.Header.Get("Proxy-Authorization"))
	}))
	defer company.Close()
	e.Outgoing = &egress.Outgoing{Proxy: strings.Replace(company.URL, "http://", "http://me:s3cret@", 1)}
	sb := e.start(tetheredImage(t), tetheredSettings("ask 1.1.1.1:80 CONNECT|site.example:443 CONNECT|10.0.0.1:443"))
	need.Eventually(t, says(sb, "asked all"), func() string { return string(sb.Logs()) })
	mu.Lock()
	got := strings.Join(asked, "\n")
	mu.Unlock()
	if want := "CONNECT site.example:443 Basic " + base64.StdEncoding.EncodeToString([]byte("me:s3cret")); got != want {
		t.Errorf("the proxy was asked %q, want %q", got, want)
	}
	var evidence bytes.Buffer
	if err := sb.Evidence().Write(&evidence); err != nil || strings.Contains(evidence.String(), "s3cret") {
		t.Errorf("%v: %s", err, evidence.String())
	}
	s := tetheredSettings("exit 0")
	s.Network = NetworkNone
	if _, err := e.Start(t.Context(), tetheredImage(t), s); err == nil || !strings.Contains(err.Error(), "want network egress") {
		t.Errorf("with network none: %v", err)
	}
}

// privateSite serves at a private address that isn't one of this machine's interfaces, and returns its port.
func privateSite(t *testing.T, address string) string {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	_, dst, err := net.ParseCIDR(address + "/32")
	if err != nil {
		t.Fatal(err)
	}
	route := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: dst, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST}
	if err := netlink.RouteReplace(route); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.RouteDel(route) })
	l, err := net.Listen("tcp", address+":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() { //nolint:gosec // a test's
		_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "private "+r.Host) }))
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// TestPolicyFile: a private address is reached when the user's own policy file names it, and only then; the image's doesn't
// count. The file's hosts hold outside, too, and it is in the container with the Chromium policy that fits.
func TestPolicyFile(t *testing.T) {
	t.Parallel()
	testPolicyFile(t, runcEngineUnderTest(t))
}

func testPolicyFile(t *testing.T, e engineUnderTest) {
	private := fmt.Sprintf("10.213.%d.%d", rand.IntN(256), rand.IntN(256)) // that of no other test beside this
	port := privateSite(t, private)
	e.World.Resolver = resolver{
		"wiki.example": private, "other.example": private, "loop.example": "127.0.0.1", "meta.example": "169.254.169.254", "not.example": "1.1.1.1",
	}
	file := filepath.Join(t.TempDir(), "policy.json")
	text := `{"open": {"allow_hosts": ["wiki.example", "other.example", "loop.example", "meta.example"]},
		"egress": {"private_hosts": ["wiki.example=10.213.0.0/16", "loop.example=10.0.0.0/8", "meta.example=10.0.0.0/8"]}}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	wiki := "GET|http://wiki.example:" + port + "/"
	for _, tt := range []struct {
		policy string
		want   map[string]string
	}{
		{"", map[string]string{wiki: "url.private"}},
		{file, map[string]string{
			wiki: "private wiki.example", "CONNECT|wiki.example:" + port: "200 Connection established",
			"CONNECT|other.example:" + port: "url.private", "CONNECT|" + private + ":" + port: "403 Forbidden",
			"CONNECT|loop.example:" + port: "url.private", "CONNECT|meta.example:80": "url.private",
			"CONNECT|not.example:443": "url.host-not-allowed",
		}},
	} {
		s := tetheredSettings("ask 1.1.1.1:80 " + strings.Join(slices.Collect(maps.Keys(tt.want)), " "))
		s.Policy = tt.policy
		sb := e.start(tetheredImage(t), s)
		need.Eventually(t, says(sb, "asked all"), func() string { return string(sb.Logs()) })
		for a, want := range tt.want {
			_, rest, ok := strings.Cut(string(sb.Logs()), "asked "+a+": ")
			got, _, _ := strings.Cut(rest, "\n")
			if !ok || !strings.Contains(got, want) {
				t.Errorf("policy %q: %s: %.200s, want %s", tt.policy, a, got, want)
			}
		}
		if tt.policy == "" {
			continue
		}
		for path, want := range map[string]string{policy.DefaultPath: text, managedPolicy: `"http://.wiki.example"`} {
			out, err := sb.Exec(t.Context(), []string{"/guest", "cat", path}, ExecOptions{})
			if err != nil || !strings.Contains(string(out.Stdout), want) {
				t.Errorf("%s: %v, %.300s%s", path, err, out.Stdout, out.Stderr)
			}
		}
	}
	s := settings("exit", "0")
	s.Policy = file
	if _, err := e.Start(t.Context(), build(t, sandboxtest.Guest, sandboxtest.GuestLayer(t)), s); err == nil || !strings.Contains(err.Error(), "only an image that slimctl built") {
		t.Errorf("another image: %v", err)
	}
}
