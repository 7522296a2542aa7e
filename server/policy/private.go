package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// private lists the ranges within which egress.private_hosts may name addresses: RFC 1918, RFC 6598 and RFC 4193.
var private = prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")

// never lists the ranges among the private ones that no policy opens: there clouds serve a machine's credentials
// (Alibaba's 100.100.100.200, AWS's fd00:ec2::254, Google's fd20:ce::254). The others, such as 169.254.169.254, are
// link-local.
var never = prefixes("100.100.100.0/24", "fd00:ec2::/32", "fd20:ce::/32")

// NetworkFor returns n, with the private addresses that egress.private_hosts allows for a canonical host counted as
// public. Both must match: the name and the range.
func (p *Policy) NetworkFor(n Network, host string) Network {
	var ranges []netip.Prefix
	for _, entry := range p.Egress.PrivateHosts {
		name, text, _ := strings.Cut(entry, "=")
		if r, err := netip.ParsePrefix(text); err == nil && name == host {
			ranges = append(ranges, r)
		}
	}
	if ranges == nil {
		return n
	}
	public := n.IsPublic
	n.Public = func(a netip.Addr) bool { return public(a) || isPrivate(a) && contain(ranges, a) }
	return n
}

// PrivateRange is a private range that a policy opens, but for the ranges within it that no policy opens.
type PrivateRange struct {
	Range  netip.Prefix
	Except []netip.Prefix
}

// PrivateRanges returns the ranges of egress.private_hosts, each once.
func (p *Policy) PrivateRanges() []PrivateRange {
	var all []PrivateRange
	for _, entry := range p.Egress.PrivateHosts {
		_, text, _ := strings.Cut(entry, "=")
		r, err := netip.ParsePrefix(text)
		if err != nil || slices.ContainsFunc(all, func(o PrivateRange) bool { return o.Range == r }) {
			continue
		}
		except := slices.DeleteFunc(slices.Clone(never), func(n netip.Prefix) bool { return !r.Overlaps(n) })
		all = append(all, PrivateRange{r, except})
	}
	return all
}

// isPrivate reports whether a policy may open an address.
func isPrivate(a netip.Addr) bool {
	return a.Zone() == "" && contain(private, a) && !contain(never, a) && (a.Is4() || !isISATAP(a))
}

func contain(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
}

// validatePrivate checks one entry of egress.private_hosts.
func (p *Policy) validatePrivate(entry string) error {
	host, text, _ := strings.Cut(entry, "=")
	r, err := netip.ParsePrefix(text)
	within := func(ranges []netip.Prefix) bool {
		return slices.ContainsFunc(ranges, func(o netip.Prefix) bool { return o.Bits() <= r.Bits() && o.Contains(r.Addr()) })
	}
	switch {
	case err != nil:
		return fmt.Errorf("has no range after the =: %q; write for instance 10.1.2.0/24", text)
	case r != r.Masked():
		return fmt.Errorf("has bits beyond its prefix; write %s=%s", host, r.Masked())
	case !within(private) || within(never):
		return fmt.Errorf("has a range that is never opened: %s; it must lie in 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 100.64.0.0/10 or fc00::/7, and not within a metadata service's addresses", r)
	}
	canonical, refusal := p.CheckHost(host)
	switch _, err := netip.ParseAddr(host); {
	case err == nil:
		return errors.New("must begin with a host's name, not an address")
	case refusal != nil && refusal.Rule == "url.host-not-allowed":
		return fmt.Errorf("names a host that open.allow_hosts doesn't allow; add %q there", host)
	case refusal != nil:
		return fmt.Errorf("names a host that can't be opened: %s", refusal.Message)
	case canonical != host:
		return fmt.Errorf("must name the host as %q", canonical)
	}
	return nil
}
