package policy

import (
	"net/netip"
	"strings"
	"testing"
)

// TestPrivateHosts: a private address counts only for the host that is named
// with its range, and never one that serves a machine or its credentials.
func TestPrivateHosts(t *testing.T) {
	p := Default()
	p.Open.AllowHosts = []string{"wiki.corp.example", "*.lab.example"}
	p.Egress.PrivateHosts = []string{
		"wiki.corp.example=10.1.2.0/24", "wiki.corp.example=fd12::/16", "a.lab.example=100.64.0.0/10", "b.lab.example=fc00::/7",
		// As if they had been written: no file can.
		"c.lab.example=0.0.0.0/0", "c.lab.example=::/0",
	}
	for _, tt := range []struct {
		host, address string
		want          bool
	}{
		{"wiki.corp.example", "10.1.2.3", true},
		{"wiki.corp.example", "::ffff:10.1.2.3", true}, // the same address
		{"wiki.corp.example", "fd12::1", true},
		{"wiki.corp.example", "8.8.8.8", true},
		{"wiki.corp.example", "10.1.3.3", false},
		{"wiki.corp.example", "192.168.1.1", false},
		{"wiki.corp.example", "fd12::5efe:7f00:1", false}, // ISATAP: a router may deliver to 127.0.0.1
		{"x.lab.example", "10.1.2.3", false},
		{"corp.example", "10.1.2.3", false},
		{"a.lab.example", "100.64.1.1", true},
		{"a.lab.example", "100.100.100.200", false},
		{"b.lab.example", "fd00::1", true},
		{"b.lab.example", "fd00:ec2::254", false},
		{"b.lab.example", "fd20:ce::254", false},
		{"c.lab.example", "10.9.9.9", true},
		{"c.lab.example", "127.0.0.1", false},
		{"c.lab.example", "::1", false},
		{"c.lab.example", "::ffff:127.0.0.1", false},
		{"c.lab.example", "0.0.0.0", false},
		{"c.lab.example", "169.254.169.254", false},
		{"c.lab.example", "::ffff:169.254.169.254", false},
		{"c.lab.example", "fe80::1", false},
		{"c.lab.example", "fe80::1%eth0", false},
		{"c.lab.example", "fd00::1%eth0", false},
		{"c.lab.example", "224.0.0.1", false},
		{"c.lab.example", "168.63.129.16", false},
		{"c.lab.example", "64:ff9b::a01:203", false}, // NAT64 of 10.1.2.3
		{"c.lab.example", "fec0::1", false},
	} {
		if got := p.NetworkFor(Network{}, tt.host).IsPublic(netip.MustParseAddr(tt.address)); got != tt.want {
			t.Errorf("%s at %s: got %v, want %v", tt.host, tt.address, got, tt.want)
		}
	}
}

func TestPrivateHostsRefused(t *testing.T) {
	for entry, want := range map[string]string{
		"wiki.corp.example":                     "must be NAME=RANGE",
		"wiki.corp.example=10.1.2.3":            "must be NAME=RANGE",
		"*.corp.example=10.1.2.0/24":            "must be NAME=RANGE",
		"wiki.corp.example=10.1.2.0/33":         "has no range after the =",
		"wiki.corp.example=10.1.2.3/24":         "write wiki.corp.example=10.1.2.0/24",
		"wiki.corp.example=0.0.0.0/0":           "never opened",
		"wiki.corp.example=192.0.0.0/8":         "never opened",
		"wiki.corp.example=127.0.0.0/8":         "never opened",
		"wiki.corp.example=169.254.169.254/32":  "never opened",
		"wiki.corp.example=100.100.100.200/32":  "never opened",
		"wiki.corp.example=fe80::/10":           "never opened",
		"wiki.corp.example=::1/128":             "never opened",
		"wiki.corp.example=fd00:ec2::254/128":   "never opened",
		"wiki.corp.example=fc00::/6":            "never opened",
		"wiki.corp.example=::ffff:10.1.2.0/120": "never opened",
		"10.1.2.3=10.1.2.0/24":                  "name, not an address|can't be opened",
		"wiki=10.1.2.0/24":                      "can't be opened",
		"x.localhost=10.1.2.0/24":               "can't be opened",
		"other.example=10.1.2.0/24":             `add "other.example" there`,
	} {
		_, err := Parse([]byte(`{"open":{"allow_hosts":["*.corp.example"]},"egress":{"private_hosts":["` + entry + `"]}}`))
		ok := false
		for w := range strings.SplitSeq(want, "|") {
			ok = ok || err != nil && strings.Contains(err.Error(), "egress.private_hosts[0] ") && strings.Contains(err.Error(), w)
		}
		if !ok {
			t.Errorf("%s: got %v, want %q", entry, err, want)
		}
	}
	if _, err := Parse([]byte(`{"open":{"allow_hosts":["*.corp.example"]},"egress":{"private_hosts":["wiki.corp.example=10.1.2.0/24","wiki.corp.example=fd12::/16"]}}`)); err != nil {
		t.Error(err)
	}
}
