package nginx

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/inspect/nginx/conf"
)

// listeners reads the listen directives; the default is *:80.
func (b *builder) listeners(s *Server, st *conf.Statement) {
	for _, l := range conf.Only(st.Block, "listen") {
		s.Listen = append(s.Listen, b.listen(l)...)
	}
	if s.Listen == nil && b.protocol == "" {
		s.Listen = []Listen{{Value: "*:80", Address: "*", Port: 80, Place: b.Place(st)}}
	} else if s.Listen == nil {
		b.Note(st, "no \"listen\" is defined for the server: nginx would not start")
	}
}

// Limits for the listeners of a range of ports, and in total.
const (
	maxPorts   = 64
	maxListens = 5000
)

// listen reads one listen directive, possibly with a range of ports.
func (b *builder) listen(st *conf.Statement) []Listen {
	l := Listen{Value: st.Arg(1), Place: b.Place(st), Options: slices.Clone(st.Words[min(2, len(st.Words)):])}
	l.Options = slices.DeleteFunc(l.Options, func(o string) bool {
		isDefault := o == "default_server" || o == "default"
		l.Default = l.Default || isDefault
		return isDefault
	})
	if len(l.Options) == 0 {
		l.Options = nil
	}
	if strings.HasPrefix(l.Value, "unix:") {
		l.Address, l.Loopback = l.Value, true
		return []Listen{l}
	}
	host, port := l.Value, "80"
	if b.protocol != "" {
		port = ""
	}
	switch colon := lastColon(l.Value); {
	case colon >= 0:
		host, port = l.Value[:colon], l.Value[colon+1:]
	case isPorts(l.Value) || strings.HasPrefix(l.Value, "${"):
		host, port = "*", l.Value
	}
	l.Address = normalAddress(host)
	l.Loopback = loopback(l.Address)
	first, last, isRange := strings.Cut(port, "-")
	from, to := number(first), number(first)
	if isRange {
		to = number(last)
	}
	switch {
	case from < 1 || from > 65535 || to < from || to > 65535:
		if !b.isPlaceholder(port) {
			b.Note(st, "invalid port in %q: nginx would not start", conf.Cut(l.Value))
		}
		return []Listen{l}
	case host == "" || strings.Contains(host, "$") && !b.isPlaceholder(host):
		b.Note(st, "no host in %q: nginx would not start", conf.Cut(l.Value))
	case to-from >= maxPorts:
		b.Note(st, "the range has %d ports; only the first %d are listed", to-from+1, maxPorts)
		to = from + maxPorts - 1
	}
	var out []Listen
	for l.Port = from; l.Port <= to; l.Port++ {
		if b.listens++; b.listens > maxListens {
			b.Note(st, "there are more than %d listeners: only these are listed", maxListens)
			break
		}
		out = append(out, l)
	}
	return out
}

// isPlaceholder reports whether word is an unknown placeholder.
func (b *builder) isPlaceholder(word string) bool {
	for _, name := range names(word) {
		if b.unfilled[name] {
			return true
		}
	}
	return false
}

// lastColon returns the position of the colon before a port; -1 if there is none.
func lastColon(address string) int {
	colon := strings.LastIndexByte(address, ':')
	if strings.HasSuffix(address, "]") || colon < strings.LastIndexByte(address, ']') {
		return -1
	}
	return colon
}

func isPorts(s string) bool { return s != "" && strings.Trim(s, "0123456789-") == "" }

func loopback(address string) bool {
	ip, err := netip.ParseAddr(strings.Trim(address, "[]"))
	return err == nil && ip.Unmap().IsLoopback() || strings.EqualFold(address, "localhost")
}
