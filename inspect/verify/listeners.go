package verify

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/slimctl/slimctl/image/tree"
)

var listenerRules = []rule{
	{Rule: Rule{
		ID: "listener-unknown", Title: "Every listener is the profile's", Severity: Error, Holes: []string{"m"},
		Why: "On line A eight services listen on 0.0.0.0 beside nginx, so that no rule about routes means anything to them. One on loopback is open to every program of the container, and to the browser's pages.",
		Fix: "Bind it to loopback or remove the program. Name the address in expect.listeners only if your profile adds it on purpose.",
	}, each: listenersUnknown},
}

// address formats an address like expect.Expect.Listeners: "*:8080", "[::1]:8080", "unix:/run/x.sock".
func address(host string, port int) string {
	if strings.HasPrefix(host, "unix:") {
		return host
	}
	host = strings.Trim(host, "[]")
	switch host {
	case "", "0.0.0.0":
		host = "*"
	case "localhost":
		host = "127.0.0.1"
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.Unmap().String()
		if ip.Unmap().Is6() {
			host = "[" + host + "]"
		}
	}
	return host + ":" + strconv.Itoa(port)
}

// canonical converts a complete address to the form of address.
func canonical(a string) string {
	a = strings.TrimPrefix(strings.TrimPrefix(a, "http://"), "https://")
	if file, ok := strings.CutPrefix(a, "unix:"); ok {
		return "unix:" + strings.TrimSuffix(file, ":")
	}
	i := strings.LastIndex(a, ":")
	if i < 0 || strings.HasSuffix(a, "]") {
		return address(a, 80)
	}
	port, err := strconv.Atoi(a[i+1:])
	if err != nil {
		return a
	}
	return address(a[:i], port)
}

// hasAddress reports whether a list of the profile has that address.
func hasAddress(list []string, a string) bool {
	a = canonical(a)
	return slices.ContainsFunc(list, func(l string) bool { return canonical(l) == a })
}

func listenersUnknown(h *held) {
	for _, l := range h.Surface.Listeners {
		a := address(l.Address, l.Port)
		if hasAddress(h.want.Listeners, a) {
			continue
		}
		who := "everybody who reaches the container"
		if l.Loopback {
			who = "every program of the container"
		}
		h.reportFinding(a, []tree.Place{l.Place}, "%s listens on %s, for %s", l.By, a, who)
	}
}
