//go:build !linux

package egress

import "net/netip"

// readRoutes returns nothing: there the prefixes of the interfaces tell of the neighbours.
func readRoutes() ([]netip.Prefix, error) { return nil, nil }
