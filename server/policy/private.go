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

// NetworkFor returns n as the policy narrows and widens it for a canonical host: without the addresses of
// egress.deny_ranges, and with the private ones that egress.private_hosts allows.
func (p *Policy) NetworkFor(n Network, host string) Network {
	if len(p.Egress.PrivateHosts) > 0 {
		public := n.IsPublic
		n.Public = func(a netip.Addr) bool { return public(a) || p.Opens(host, a) }
	}
	if len(p.Egress.DenyRanges) > 0 {
		n.Refuse = func(a netip.Addr) *Refusal {
			if contain(parseRanges(p.Egress.DenyRanges), a) {
				return Denied()
			}
			return nil
		}
	}
	return n
}

// Opens reports whether egress.private_hosts names an address for a canonical host. Both must match: the name and the
// range.
func (p *Policy) Opens(host string, a netip.Addr) bool {
	for _, entry := range p.Egress.PrivateHosts {
		name, text, _ := strings.Cut(entry, "=")
		if r, err := netip.ParsePrefix(text); err == nil && name == host && r.Contains(a.Unmap()) {
			return isPrivate(a.Unmap()) || Public(a)
		}
	}
	return false
}

// Denied returns the refusal of an address in egress.deny_ranges.
func Denied() *Refusal {
	return blocked("url.denied", "the policy denies this address; open another site")
}

func parseRanges(texts []string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range texts {
		if r, err := netip.ParsePrefix(text); err == nil {
			all = append(all, r)
		}
	}
	return all
}

// PrivateRange is a range that a policy opens, but for the ranges within it that no policy opens.
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

// publicRange reports whether a range lies on the public internet.
func publicRange(r netip.Prefix) bool {
	return Public(r.Addr()) && (r.Addr().Is4() || r.Bits() >= global.Bits()) && !slices.ContainsFunc(special, r.Overlaps)
}

// maxDenied limits the ranges of egress.deny_ranges, which the proxy sends with each request to slimctl's.
const maxDenied = 256

// validateDenied checks egress.deny_ranges.
func validateDenied(texts []string) error {
	const key = "egress.deny_ranges"
	if len(texts) > maxDenied {
		return newKeyError(key, "has %d ranges; at most %d are possible", len(texts), maxDenied)
	}
	for i, text := range texts {
		r, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
			err = fmt.Errorf("is no range: %q; write for instance 11.22.0.0/16", text)
		case r.Addr().Is4In6():
			err = fmt.Errorf("is an IPv4 range inside IPv6; write it as a.b.c.d/n: %q", text)
		case r != r.Masked():
			err = fmt.Errorf("has bits beyond its prefix; write %s", r.Masked())
		}
		if err != nil {
			return newKeyError(fmt.Sprintf("%s[%d]", key, i), "%s", err)
		}
	}
	return nil
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
	case !within(private) && !publicRange(r) || within(never):
		return fmt.Errorf("has a range that is never opened: %s; it must lie in 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 100.64.0.0/10 or fc00::/7, and not within a metadata service's addresses, or be public", r)
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
