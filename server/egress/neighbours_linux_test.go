package egress

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server/policy"
)

// TestNeighbours: what is on this machine's own networks isn't the public internet, whatever its address looks like. It
// runs itself again in a network namespace of its own, with a router and sites beyond it in another one.
func TestNeighbours(t *testing.T) {
	const inside = "EGRESS_TEST_NEIGHBOURS"
	if os.Getenv(inside) != "" {
		testNeighbours(t)
		return
	}
	if os.Geteuid() != 0 {
		need.Missing(t, "network namespaces need root")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestNeighbours$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func testNeighbours(t *testing.T) {
	startRouter(t)
	pol, err := policy.Parse([]byte(`{"open": {"allow_hosts": ["*"]}, "egress": {
		"private_hosts": ["wiki.corp.example=11.22.33.0/24", "nas.corp.example=10.1.2.0/24", "denied.corp.example=10.9.9.0/24"],
		"deny_ranges": ["23.45.99.0/24", "2606:2800:99::/48", "10.9.9.0/24"]}}`))
	if err != nil {
		t.Fatal(err)
	}
	resolver := &names{turns: map[string][]string{}}
	proxy := New(pol, policy.Network{Resolver: resolver}, nil, func(Decision) error { return nil })
	for target, want := range map[string]string{
		// The world, by a default route with a router.
		"23.45.67.89": "", "[2606:2800::1]": "", "8.8.8.8": "", "[2a00:1450:1:3::1]": "",
		// The link's network: the router, a neighbour, this machine.
		"11.22.33.1": "egress.neighbour", "11.22.33.77": "egress.neighbour", "11.22.33.2": "url.private",
		"[2a00:1450:1:2::1]": "egress.neighbour", "[2a00:1450:1:2:1:2:3:4]": "egress.neighbour", "[2a00:1450:1:2::2]": "url.private",
		// Routes without a router, and addresses that this machine takes for its own.
		"45.67.1.1": "egress.neighbour", "[2a00:1450:9::5]": "egress.neighbour", "66.77.1.1": "egress.neighbour",
		// A tunnel's own network, and what is behind the tunnel.
		"78.89.0.2": "egress.neighbour", "79.1.2.3": "", "130.1.2.3": "",
		// Through a router that is on the link.
		"46.1.2.3": "",
		// Names that lead there.
		"site.example=23.45.67.89": "", "site.example=23.45.67.89 11.22.33.77": "egress.neighbour", "site.example=2a00:1450:1:2::1": "egress.neighbour",
		// What the policy file names, for that host alone and never this machine.
		"wiki.corp.example=11.22.33.77": "", "wiki.corp.example=11.22.33.2": "url.private", "other.corp.example=11.22.33.77": "egress.neighbour",
		"nas.corp.example=10.1.2.9": "", "nas.corp.example=10.1.2.3": "url.private", "nas.corp.example=11.22.33.77": "egress.neighbour",
		// What it denies.
		"23.45.99.1": "url.denied", "[2606:2800:99::1]": "url.denied", "denied.corp.example=10.9.9.9": "url.denied", "site.example=23.45.67.89 23.45.99.9": "url.denied",
	} {
		host, answer, isName := strings.Cut(target, "=")
		if isName {
			resolver.turns[host], resolver.asked = []string{answer}, nil
		}
		q := &request{Proxy: proxy}
		got := ""
		if r := q.checkTarget(httptest.NewRequest("GET", "http://"+host+"/", nil), pol); r != nil {
			got = r.Rule
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", target, got, want)
		}
	}

	// And for real: the site is read, the router is not.
	l := newLabWith(t, nil, func(p *Proxy) { p.network = policy.Network{} })
	for host, want := range map[string]string{
		"23.45.67.89": "200 SECRET", "[2606:2800::1]": "200 SECRET", "11.22.33.1": "403 egress.neighbour", "[2a00:1450:1:2::1]": "403 egress.neighbour",
	} {
		res, body := l.raw(t, get("http://"+host+":8088/"))
		if r := policy.ParseRefusal(res.Header.Get(policy.RefusalHeader)); r != nil {
			body = r.Rule
		}
		if got := fmt.Sprint(res.StatusCode, " ", body); got != want {
			t.Errorf("%s: got %s, want %s", host, got, want)
		}
	}
}

// startRouter makes the networks: in this namespace eth0 with a router at the other end, and tun0 as a VPN has it.
func startRouter(t *testing.T) {
	t.Helper()
	do := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	link := func(name string, addresses ...string) netlink.Link {
		t.Helper()
		l, err := netlink.LinkByName(name)
		do(name, err)
		for _, text := range addresses {
			a, err := netlink.ParseAddr(text)
			do(text, err)
			a.Flags = unix.IFA_F_NODAD // usable at once
			do(text, netlink.AddrAdd(l, a))
		}
		do(name, netlink.LinkSetUp(l))
		return l
	}
	own, err := netns.Get()
	do("own namespace", err)
	ready := make(chan struct{})
	go func() {
		defer close(ready)
		runtime.LockOSThread() // for ever: the thread stays in the router's namespace
		_, err := netns.New()
		do("a namespace", err)
		do("a cable", netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "r0"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(own)}))
		link("lo", "23.45.67.89/32", "2606:2800::1/128")
		link("r0", "11.22.33.1/24", "2a00:1450:1:2::1/64")
		for _, address := range []string{"0.0.0.0:8088", "[::]:8088"} {
			network := "tcp4"
			if address[0] == '[' {
				network = "tcp6"
			}
			l, err := net.Listen(network, address)
			do(address, err)
			go func() {
				_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "SECRET") })) //nolint:gosec // a test's
			}()
		}
	}()
	<-ready
	if t.Failed() {
		t.FailNow()
	}
	lo := link("lo")
	eth := link("eth0", "11.22.33.2/24", "2a00:1450:1:2::2/64", "10.1.2.3/24")
	do("tun0", netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tun0"}, Mode: netlink.TUNTAP_MODE_TUN}))
	tun := link("tun0", "78.89.0.1/24")
	for _, r := range []struct {
		to, via string
		on      netlink.Link
	}{
		{"0.0.0.0/0", "11.22.33.1", eth}, {"::/0", "2a00:1450:1:2::1", eth}, {"46.0.0.0/8", "11.22.33.1", eth},
		{"45.67.0.0/16", "", eth}, {"2a00:1450:9::/48", "", eth}, {"66.77.0.0/16", "local", lo},
		{"128.0.0.0/1", "", tun}, {"79.0.0.0/8", "", tun},
	} {
		to := netip.MustParsePrefix(r.to)
		route := &netlink.Route{LinkIndex: r.on.Attrs().Index, Dst: &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())}}
		switch r.via {
		case "":
			route.Scope = netlink.SCOPE_LINK
		case "local":
			route.Table, route.Type, route.Scope = unix.RT_TABLE_LOCAL, unix.RTN_LOCAL, netlink.SCOPE_HOST
		default:
			route.Gw = net.ParseIP(r.via)
		}
		do(r.to, netlink.RouteReplace(route))
	}
}
