package policy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"
)

// resolveTime bounds the resolution of one name; maxAddresses what is kept.
const (
	resolveTime  = 5 * time.Second
	maxAddresses = 16
)

// system is Go's own resolver, the same in every build. It reads the hosts
// file too, with a final dot as without, so a name that is there (a name with a
// dot in it; CheckHost gives no other) has the addresses that are there.
var system = &net.Resolver{PreferGo: true}

// special are the address ranges that are not the public internet: loopback,
// private, link-local, shared, documentation, benchmark, translated and
// reserved ones, and Azure's WireServer. (IANA special-purpose registries.)
var special = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
	"198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "168.63.129.16/32",
	"::/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32",
	"2002::/16", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
)

func prefixes(all ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range all {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// global is what IANA gives out of IPv6 as global unicast; the rest of the
// space is special or not in use.
var global = netip.MustParsePrefix("2000::/3")

// Public tells whether an address is on the public internet.
func Public(a netip.Addr) bool {
	plain := a.Unmap()
	return a.Zone() == "" && plain.IsGlobalUnicast() && (plain.Is4() || global.Contains(plain) && !isatap(plain)) &&
		!slices.ContainsFunc(special, func(p netip.Prefix) bool { return p.Contains(plain) })
}

// isatap tells whether an IPv6 address has an IPv4 one in its interface part
// (RFC 5214 6.1): a router of that kind delivers to the latter.
func isatap(a netip.Addr) bool {
	b := a.As16()
	return b[8]&^0x03 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe
}

// Resolver turns a name into addresses; *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Network is what lies outside: how names become addresses, and which of them
// are public. The zero Network is the real one. No policy file reaches it:
// other values are for tests (a local site that stands for a public one) and
// for `explain`, which asks no resolver.
type Network struct {
	Resolver Resolver              // nil: the system's
	Public   func(netip.Addr) bool // nil: Public
	// Remote means that an outgoing proxy resolves names, and checks what they resolve to: nothing here can.
	Remote bool
}

// IsPublic tells whether an address counts as public here.
func (n Network) IsPublic(a netip.Addr) bool {
	if n.Public != nil {
		return n.Public(a.Unmap())
	}
	return Public(a)
}

// Lookup gives the addresses of a canonical host (URL.Host, or what CheckHost
// gave), sixteen at most. All that the resolver gave are public: one answer
// that is not refuses the name, as do no answer, an error and silence for 5
// seconds. What was looked up may be another answer the next time: who
// connects must connect to these addresses. Of a name that is resolved remotely
// it gives none.
func (n Network) Lookup(ctx context.Context, host string) ([]netip.Addr, *Refusal) {
	if a, err := netip.ParseAddr(trimBrackets(host)); err == nil {
		if !n.IsPublic(a) {
			return nil, notPublic()
		}
		return []netip.Addr{a.Unmap()}, nil
	}
	if host == "" {
		return nil, badHost()
	}
	if n.Remote {
		return nil, nil
	}
	found, err := n.resolve(ctx, host)
	switch {
	case ctx.Err() != nil:
		r := refuse(Timeout, "timeout.resolve", "the name was not resolved in time; nothing was done: send the call again")
		r.Retryable = true
		return nil, r
	case err != nil:
		return nil, unresolved(err)
	case len(found) == 0:
		return nil, refuse(Unreachable, "url.unresolved", "the host has no address; check its spelling")
	}
	addrs := make([]netip.Addr, len(found))
	for i, a := range found {
		if !n.IsPublic(a) {
			return nil, notPublic()
		}
		addrs[i] = a.Unmap()
	}
	return addrs[:min(len(addrs), maxAddresses)], nil
}

// resolve asks the resolver, and does not wait for one that ignores its
// deadline.
func (n Network) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	var resolver Resolver = system
	if n.Resolver != nil {
		resolver = n.Resolver
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTime)
	defer cancel()
	type answer struct {
		addrs []netip.Addr
		err   error
	}
	answered := make(chan answer, 1)
	go func() {
		// The dot keeps the system's search list out.
		addrs, err := resolver.LookupNetIP(ctx, "ip", host+".")
		answered <- answer{addrs, err}
	}()
	select {
	case a := <-answered:
		return a.addrs, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func notPublic() *Refusal {
	return blocked("url.private", "the address is not on the public internet; open a public site")
}

func unresolved(err error) *Refusal {
	var d *net.DNSError
	if errors.As(err, &d) && d.IsNotFound {
		return refuse(Unreachable, "url.unresolved", "the host does not exist; check its spelling")
	}
	r := refuse(Unreachable, "url.unresolved", "the host cannot be resolved now; try again later or open another site")
	r.Retryable = true
	return r
}
