package policy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"
)

// resolveTime limits the resolution of one name; maxAddresses limits the kept addresses.
const (
	resolveTime  = 5 * time.Second
	maxAddresses = 16
)

// system is Go's own resolver, the same in every build. It also reads the hosts file, with or without the final dot. So
// a name in it (with a dot inside; CheckHost returns no other) has the addresses of that file.
var system = &net.Resolver{PreferGo: true}

// special lists the address ranges outside the public internet: loopback, private, link-local, shared, documentation,
// benchmark, translated and reserved ones (IANA special-purpose registries), and Azure's WireServer.
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

// global is the range that IANA assigns as IPv6 global unicast; the rest is special or unused.
var global = netip.MustParsePrefix("2000::/3")

// Public reports whether an address is on the public internet.
func Public(a netip.Addr) bool {
	plain := a.Unmap()
	return a.Zone() == "" && plain.IsGlobalUnicast() && (plain.Is4() || global.Contains(plain) && !isISATAP(plain)) &&
		!slices.ContainsFunc(special, func(p netip.Prefix) bool { return p.Contains(plain) })
}

// isISATAP reports whether the interface part of an IPv6 address contains an IPv4 address (RFC 5214 6.1), to which an
// ISATAP router delivers.
func isISATAP(a netip.Addr) bool {
	b := a.As16()
	return b[8]&^0x03 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe
}

// Resolver resolves names to addresses; *net.Resolver implements it.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Network is the network outside: it resolves names and classifies addresses. The zero Network is the real one. No
// policy file changes it: other values are for tests (a local site as a public one) and for `explain`, which contacts
// no resolver.
type Network struct {
	Resolver Resolver              // nil: the system's
	Public   func(netip.Addr) bool // nil: Public
	// Refuse returns why an address is not contacted although it is public or allowed. It may be nil, and return nil.
	Refuse func(netip.Addr) *Refusal
	// Remote states that an outgoing proxy resolves names and checks the addresses, since nothing here can.
	Remote bool
}

// IsPublic reports whether an address is public in this network.
func (n Network) IsPublic(a netip.Addr) bool {
	if n.Public != nil {
		return n.Public(a.Unmap())
	}
	return Public(a)
}

// Check returns why an address is not contacted, or nil.
func (n Network) Check(a netip.Addr) *Refusal {
	switch {
	case !n.IsPublic(a):
		return notPublic()
	case n.Refuse != nil:
		return n.Refuse(a.Unmap())
	}
	return nil
}

// Lookup returns the addresses of a canonical host (URL.Host or CheckHost's result), sixteen at most. It refuses the
// name if one of the addresses is refused by Check, if there is none, on an error, and after 5 seconds. The next lookup may
// differ, so connect to the returned addresses. For a name that is resolved remotely it returns none.
func (n Network) Lookup(ctx context.Context, host string) ([]netip.Addr, *Refusal) {
	if a, err := netip.ParseAddr(trimBrackets(host)); err == nil {
		if r := n.Check(a); r != nil {
			return nil, r
		}
		return []netip.Addr{a.Unmap()}, nil
	}
	if host == "" {
		return nil, badHost()
	}
	if n.Remote {
		return nil, nil
	}
	found, err := n.resolveHost(ctx, host)
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
		if r := n.Check(a); r != nil {
			return nil, r
		}
		addrs[i] = a.Unmap()
	}
	return addrs[:min(len(addrs), maxAddresses)], nil
}

// resolveHost calls the resolver, and returns at the deadline even if the resolver ignores it.
func (n Network) resolveHost(ctx context.Context, host string) ([]netip.Addr, error) {
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
		// The dot disables the system's search list.
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
