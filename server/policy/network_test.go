package policy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/internal/need"
)

// TestPublic: what is not the public internet, at both ends of each range, and
// the neighbours that are.
func TestPublic(t *testing.T) {
	for _, s := range []string{
		"0.0.0.0", "0.255.255.255", "10.0.0.0", "10.255.255.255", "100.64.0.0", "100.127.255.255", "127.0.0.1", "127.255.255.255",
		"169.254.0.0", "169.254.169.254", "169.254.255.255", "172.16.0.0", "172.31.255.255", "192.0.0.0", "192.0.0.192", "192.0.2.1", "192.88.99.1",
		"192.168.0.0", "192.168.255.255", "198.18.0.0", "198.19.255.255", "198.51.100.1", "203.0.113.255", "224.0.0.1", "239.255.255.255",
		"240.0.0.1", "255.255.255.255", "168.63.129.16", "100.100.100.200",

		"::", "::1", "::8.8.8.8", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:0:127.0.0.1", "::ffff:0:8.8.8.8",
		"64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::1", "100::1", "2001::1", "2001:0:7f00:1::", "2001:1ff::1", "2001:db8::1",
		"2002:7f00:1::", "2002:808:808::1", "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1",
		"4000::1", "1::1", "2a00:1450::5efe:a00:1", "2a00:1450:0:0:200:5efe:10.0.0.1", "2606:4700::1111%eth0",
	} {
		if Public(netip.MustParseAddr(s)) {
			t.Errorf("%s counts as public", s)
		}
	}
	for _, s := range []string{
		"1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.1", "169.253.0.1",
		"172.15.255.255", "172.32.0.0", "192.0.1.1", "192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0", "223.255.255.255",
		"168.63.129.15", "::ffff:8.8.8.8", "2606:4700::1111", "2001:200::1", "2001:4860:4860::8888", "2a00:1450::1", "2003::1", "3ffe::1",
	} {
		if !Public(netip.MustParseAddr(s)) {
			t.Errorf("%s does not count as public", s)
		}
	}
	if Public(netip.Addr{}) {
		t.Error("no address counts as public")
	}
}

// resolver is a fake one.
type resolver func(ctx context.Context, host string) ([]netip.Addr, error)

func (r resolver) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	if network != "ip" {
		return nil, errors.New("asked for " + network + " only")
	}
	return r(ctx, host)
}

func answers(addrs ...string) resolver {
	return func(context.Context, string) ([]netip.Addr, error) {
		var out []netip.Addr
		for _, a := range addrs {
			out = append(out, netip.MustParseAddr(a))
		}
		return out, nil
	}
}

func fails(err error) resolver {
	return func(context.Context, string) ([]netip.Addr, error) { return nil, err }
}

func TestLookup(t *testing.T) {
	thousand := make([]string, 1000)
	for i := range thousand {
		thousand[i] = netip.AddrFrom4([4]byte{8, 8, byte(i >> 8), byte(i)}).String()
	}
	for name, tt := range map[string]struct {
		host      string
		resolver  resolver
		want      []string
		rule      string
		retryable bool
	}{
		"public":                     {resolver: answers("8.8.8.8", "2606:4700::1111"), want: []string{"8.8.8.8", "2606:4700::1111"}},
		"mapped public":              {resolver: answers("::ffff:8.8.8.8"), want: []string{"8.8.8.8"}},
		"private":                    {resolver: answers("10.0.0.1"), rule: "url.private"},
		"public, then private":       {resolver: answers("8.8.8.8", "127.0.0.1"), rule: "url.private"},
		"private, then public":       {resolver: answers("127.0.0.1", "8.8.8.8"), rule: "url.private"},
		"public v4, private v6":      {resolver: answers("8.8.8.8", "::1"), rule: "url.private"},
		"mapped loopback":            {resolver: answers("::ffff:127.0.0.1"), rule: "url.private"},
		"NAT64 of loopback":          {resolver: answers("64:ff9b::7f00:1"), rule: "url.private"},
		"zone":                       {resolver: answers("fe80::1%eth0"), rule: "url.private"},
		"unspecified":                {resolver: answers("0.0.0.0"), rule: "url.private"},
		"nothing but a zero address": {resolver: func(context.Context, string) ([]netip.Addr, error) { return make([]netip.Addr, 1), nil }, rule: "url.private"},
		"a thousand":                 {resolver: answers(thousand...), want: thousand[:maxAddresses]},
		"a thousand, the last bad":   {resolver: answers(append(thousand[:999:999], "10.0.0.1")...), rule: "url.private"},
		"empty":                      {resolver: answers(), rule: "url.unresolved"},
		"NXDOMAIN":                   {resolver: fails(&net.DNSError{Err: "no such host", IsNotFound: true}), rule: "url.unresolved"},
		"SERVFAIL":                   {resolver: fails(&net.DNSError{Err: "server misbehaving", IsTemporary: true}), rule: "url.unresolved", retryable: true},
		"the resolver's own timeout": {resolver: fails(&net.DNSError{Err: "i/o timeout", IsTimeout: true}), rule: "url.unresolved", retryable: true},
		"another error":              {resolver: fails(errors.New("broken")), rule: "url.unresolved", retryable: true},
		"address":                    {host: "8.8.8.8", want: []string{"8.8.8.8"}},
		"v6 address":                 {host: "[2606:4700::1111]", want: []string{"2606:4700::1111"}},
		"private address":            {host: "10.0.0.1", rule: "url.private"},
		"private v6 address":         {host: "[::1]", rule: "url.private"},
		"no host":                    {host: "-", rule: "url.host"},
	} {
		t.Run(name, func(t *testing.T) {
			host := tt.host
			if host == "" {
				host = "site.example"
			}
			if host == "-" {
				host = ""
			}
			n := Network{Resolver: resolver(func(ctx context.Context, asked string) ([]netip.Addr, error) {
				if asked != "site.example." || tt.resolver == nil {
					t.Errorf("the resolver was asked for %q", asked)
					return nil, nil
				}
				if d, ok := ctx.Deadline(); !ok || time.Until(d) > resolveTime {
					t.Error("the resolver was given no deadline")
				}
				return tt.resolver(ctx, asked)
			})}
			addrs, r := n.Lookup(t.Context(), host)
			var got []string
			for _, a := range addrs {
				got = append(got, a.String())
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
			if ruleOf(r) != tt.rule {
				t.Errorf("got %v, want %q", r, tt.rule)
			}
			code := PolicyBlocked
			if tt.rule == "url.unresolved" {
				code = Unreachable // nothing forbids it
			}
			if r != nil && (r.Retryable != tt.retryable || r.Code != code) {
				t.Errorf("got %s, retryable %v", r.Code.Name(), r.Retryable)
			}
		})
	}
}

// TestLookupFlip: a name that was public a moment ago is looked up afresh, and
// the answers are the ones that were checked, not the resolver's slice.
func TestLookupFlip(t *testing.T) {
	given := []netip.Addr{netip.MustParseAddr("8.8.8.8")}
	n := Network{Resolver: resolver(func(context.Context, string) ([]netip.Addr, error) { return given, nil })}
	first, r := n.Lookup(t.Context(), "site.example")
	if r != nil {
		t.Fatal(r)
	}
	given[0] = netip.MustParseAddr("127.0.0.1")
	if first[0].String() != "8.8.8.8" {
		t.Errorf("the checked answer became %s", first[0])
	}
	if _, r := n.Lookup(t.Context(), "site.example"); ruleOf(r) != "url.private" {
		t.Errorf("got %v", r)
	}
}

// TestLookupDeadlines: a resolver that ignores its context holds nobody up.
func TestLookupDeadlines(t *testing.T) {
	for name, tt := range map[string]struct {
		within time.Duration // the caller's own deadline; 0: none
		rule   string
		took   time.Duration
	}{
		"ours":         {0, "url.unresolved", resolveTime},
		"the caller's": {time.Second, "timeout.resolve", time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hold := make(chan struct{})
				defer close(hold)
				n := Network{Resolver: resolver(func(context.Context, string) ([]netip.Addr, error) {
					<-hold
					return []netip.Addr{netip.MustParseAddr("8.8.8.8")}, nil
				})}
				ctx := t.Context()
				if tt.within != 0 {
					var cancel func()
					ctx, cancel = context.WithTimeout(ctx, tt.within)
					defer cancel()
				}
				begin := time.Now()
				_, r := n.Lookup(ctx, "site.example")
				if took := time.Since(begin); took != tt.took {
					t.Errorf("it took %s", took)
				}
				if ruleOf(r) != tt.rule || !r.Retryable {
					t.Errorf("got %v", r)
				}
			})
		})
	}
}

// TestLookupHostsFile: the real resolver reads the hosts file, where a
// public-looking name may have the address of this machine. It runs again in
// a mount namespace with a hosts file of its own.
func TestLookupHostsFile(t *testing.T) {
	const name = "public-looking.example"
	if os.Getenv("POLICY_TEST_HOSTS") == "1" {
		for _, host := range []string{name, "mapped.example"} {
			if _, r := (Network{}).Lookup(t.Context(), host); ruleOf(r) != "url.private" {
				t.Errorf("%s: got %v", host, r)
			}
		}
		if got, r := (Network{}).Lookup(t.Context(), "good.example"); r != nil || len(got) != 1 || got[0].String() != "8.8.8.8" {
			t.Errorf("got %v %v", got, r)
		}
		return
	}
	hosts := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(hosts, []byte("127.0.0.1 other "+name+"\n::ffff:10.0.0.1 mapped.example\n8.8.8.8 good.example\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	unshare := need.Program(t, "unshare")
	if out, err := exec.Command(unshare, "-rm", "mount", "--bind", hosts, "/etc/hosts").CombinedOutput(); err != nil {
		need.Missing(t, "no mount namespace here: %v\n%s", err, out)
	}
	cmd := exec.Command(unshare, "-rm", "sh", "-c", `mount --bind "$0" /etc/hosts && exec "$1" -test.run='^TestLookupHostsFile$' -test.v`, hosts, os.Args[0])
	cmd.Env = append(os.Environ(), "POLICY_TEST_HOSTS=1")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestLookupHostsFile") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestPublicSeam: a test's own idea of public is asked of literals and answers
// alike, never of a mapped address.
func TestPublicSeam(t *testing.T) {
	site := netip.MustParseAddr("127.0.0.9")
	n := Network{Resolver: answers("::ffff:127.0.0.9"), Public: func(a netip.Addr) bool { return a == site }}
	if got, r := n.Lookup(t.Context(), "site.example"); r != nil || got[0] != site {
		t.Errorf("got %v %v", got, r)
	}
	if _, r := n.Lookup(t.Context(), "8.8.8.8"); ruleOf(r) != "url.private" {
		t.Errorf("got %v", r)
	}
}
