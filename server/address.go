package server

import (
	"context"

	"github.com/slimctl/slimctl/server/policy"
)

// address resolves the host of `open` and requires each of its addresses to be public. This saves an agent a useless
// page. The boundary is the egress proxy, which resolves again and connects to the address that it checked.
type address struct {
	pass
	policy  *policy.Policy
	network policy.Network
}

func (a address) OnBefore(ctx context.Context, c Call) (Call, Decision) {
	if c.Command.Name != "open" || c.denied { // a refused call must cause no DNS query
		return c, Decision{}
	}
	u, r := a.policy.CheckURL(c.Command.Args[0])
	if r == nil && u.Host != "" {
		_, r = a.policy.NetworkFor(a.network, u.Host).Lookup(ctx, u.Host)
	}
	return c, deny(r)
}
