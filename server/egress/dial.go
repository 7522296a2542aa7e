package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/slimctl/slimctl/server/policy"
)

// localTime is the time for which the list of this machine's networks is cached.
const localTime = 3 * time.Second

// A network of neighbours has at least so many bits in its prefix. A shorter one, which no link fills, stands for all
// that is beyond: a default route without a gateway, or a half of one.
const (
	leastBits4 = 8
	leastBits6 = 16
)

// local caches the addresses of this machine and of its neighbours: those that it reaches without a router, by its
// interfaces and its routes. They may look public, but what listens there is internal.
type local struct {
	mu    sync.Mutex
	read  time.Time
	own   []netip.Addr
	links []netip.Prefix
}

// find reports whether an address is this machine's own, and whether it is a neighbour's.
func (l *local) find(a netip.Addr) (own, near bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.read) > localTime {
		if err := l.readAll(); err != nil {
			return false, false, err
		}
		l.read = time.Now()
	}
	return slices.Contains(l.own, a), contains(l.links, a), nil
}

func (l *local) readAll() error {
	links, err := readRoutes()
	if err != nil {
		return err
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	l.own = nil
	for _, n := range all {
		if p, err := netip.ParsePrefix(n.String()); err == nil {
			a := p.Addr().WithZone("").Unmap()
			l.own, links = append(l.own, a), append(links, netip.PrefixFrom(a, p.Bits()))
		}
	}
	l.links = slices.DeleteFunc(links, isBeyond)
	return nil
}

func contains(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// isBeyond reports whether a prefix is too short for a network of neighbours, or loopback, which is no network.
func isBeyond(p netip.Prefix) bool {
	return p.Addr().IsLoopback() || p.Addr().Is4() && p.Bits() < leastBits4 || p.Addr().Is6() && p.Bits() < leastBits6
}

var (
	errOwn       = blocked("url.private", "the address is this machine's own; open a public site")
	errNeighbour = blocked("egress.neighbour", "the address is in a network that this machine is connected to, not on the public internet; open a public site, or ask the operator for egress.private_hosts")
)

// checkAddress returns why an address may not be dialled for the request, or nil: it must be public, and not this
// machine's or a neighbour's, or be allowed by the policy for the request's host, and not be this machine's.
func (q *request) checkAddress(a netip.Addr) *policy.Refusal {
	a = a.Unmap()
	if refusal := q.sites.Check(a); refusal != nil {
		return refusal
	}
	own, near, err := q.local.find(a)
	listen := q.listen.Load()
	switch {
	case contains(q.denied, a):
		return policy.Denied()
	case err != nil, own, listen != nil && *listen == a:
		return errOwn
	case near && !q.policy.Opens(q.Host, a):
		return errNeighbour
	}
	return nil
}

var errNotChecked = errors.New("egress: an address that was not checked")

// connect dials the checked addresses in order until one answers. It divides the time so that each later address gets
// its share. An outgoing proxy, if there is one, connects instead.
func (q *request) connect(ctx context.Context) (*siteConn, error) {
	if q.outgoing != nil {
		return q.dialOutgoing(ctx, true)
	}
	end := time.Now().Add(q.dial)
	err := errNotChecked
	for i, a := range q.addrs {
		within, cancel := context.WithTimeout(ctx, time.Until(end)/time.Duration(len(q.addrs)-i))
		var c net.Conn
		c, err = q.dialer(a).DialContext(within, "tcp", netip.AddrPortFrom(a, uint16(q.Port)).String())
		cancel()
		if err == nil {
			return q.watch(c, a), nil
		}
	}
	return nil, err
}

// dialer returns a dialer for one address only. It repeats the check on the socket immediately before connecting.
func (q *request) dialer(want netip.Addr) *net.Dialer {
	return &net.Dialer{ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
		ap, err := netip.ParseAddrPort(address)
		if err != nil || ap.Addr().Unmap() != want || int(ap.Port()) != q.Port || q.checkAddress(want) != nil {
			return errNotChecked
		}
		return nil
	}}
}

// siteConn is a connection to a site. It counts bytes, and ends the request if none pass for the idle time.
type siteConn struct {
	net.Conn // not *net.TCPConn, whose ReadFrom and WriteTo would go around the count
	addr     netip.Addr
	in, out  atomic.Int64
	last     atomic.Int64 // when a byte last passed, in nanoseconds since start
	start    time.Time
	timer    *time.Timer
}

func (q *request) watch(c net.Conn, a netip.Addr) *siteConn {
	s := &siteConn{Conn: c, addr: a, start: time.Now()}
	armed := make(chan struct{})
	s.timer = time.AfterFunc(q.idle, func() {
		<-armed
		if rest := q.idle - s.quiet(); rest > 0 {
			s.timer.Reset(rest)
			return
		}
		s.Close()
		q.cancel()
	})
	close(armed)
	q.conn.Store(s)
	return s
}

func (s *siteConn) quiet() time.Duration { return time.Since(s.start) - time.Duration(s.last.Load()) }

func (s *siteConn) passed(count *atomic.Int64, n int) {
	count.Add(int64(n))
	s.last.Store(int64(time.Since(s.start)))
}

func (s *siteConn) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	s.passed(&s.in, n)
	return n, err
}

func (s *siteConn) Write(b []byte) (int, error) {
	n, err := s.Conn.Write(b)
	s.passed(&s.out, n)
	return n, err
}

// CloseWrite sends the end of the stream to the site.
func (s *siteConn) CloseWrite() error { return s.Conn.(halfConn).CloseWrite() }

func (s *siteConn) Close() error {
	s.timer.Stop()
	return s.Conn.Close()
}
