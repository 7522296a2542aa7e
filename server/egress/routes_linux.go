package egress

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"syscall"
)

// Route attributes that package syscall lacks (linux/rtnetlink.h).
const rtaVia = 18

// readRoutes returns the destinations that this machine reaches without a router, by the kernel's routes of all tables:
// those on a link, and those that it delivers to itself. On a point-to-point interface such as a tunnel's the other end is
// the router, so only the route that the kernel made for the interface's own address counts.
func readRoutes() (links []netip.Prefix, err error) {
	raw, err := syscall.NetlinkRIB(syscall.RTM_GETROUTE, syscall.AF_UNSPEC)
	if err != nil {
		return nil, fmt.Errorf("read the routes: %w", err)
	}
	messages, err := syscall.ParseNetlinkMessage(raw)
	if err != nil {
		return nil, fmt.Errorf("read the routes: %w", err)
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	tunnels := map[int]bool{}
	for _, i := range interfaces {
		tunnels[i.Index] = i.Flags&net.FlagPointToPoint != 0
	}
	for _, m := range messages {
		if m.Header.Type != syscall.RTM_NEWROUTE || len(m.Data) < syscall.SizeofRtMsg {
			continue
		}
		attributes, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			return nil, fmt.Errorf("read the routes: %w", err)
		}
		if r := newRoute(m.Data, attributes); r.isOnLink(tunnels[r.device]) {
			links = append(links, r.to)
		}
	}
	return links, nil
}

// route is a route of the kernel's.
type route struct {
	to          netip.Prefix // invalid for another protocol than IP
	kind, maker byte
	device      int
	routed      bool // by one or several routers
}

// newRoute parses a message: struct rtmsg, then the attributes.
func newRoute(header []byte, attributes []syscall.NetlinkRouteAttr) route {
	family, bits := header[0], int(header[1])
	r := route{maker: header[5], kind: header[7]}
	to := netip.IPv4Unspecified() // without RTA_DST it is a default route
	if family == syscall.AF_INET6 {
		to = netip.IPv6Unspecified()
	}
	for _, a := range attributes {
		switch a.Attr.Type {
		case syscall.RTA_DST:
			to, _ = netip.AddrFromSlice(a.Value)
		case syscall.RTA_OIF:
			if len(a.Value) == 4 {
				r.device = int(binary.NativeEndian.Uint32(a.Value))
			}
		case syscall.RTA_GATEWAY, syscall.RTA_MULTIPATH, rtaVia:
			r.routed = true
		}
	}
	if family == syscall.AF_INET || family == syscall.AF_INET6 {
		r.to, _ = to.Prefix(bits)
	}
	return r
}

func (r route) isOnLink(tunnel bool) bool {
	switch {
	case !r.to.IsValid() || r.routed:
		return false
	case r.kind == syscall.RTN_UNICAST:
		return r.device != 0 && (!tunnel || r.maker == syscall.RTPROT_KERNEL)
	}
	return r.kind == syscall.RTN_LOCAL
}
