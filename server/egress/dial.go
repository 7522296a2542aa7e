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
)

// localTime is the time for which the list of this machine's addresses is cached.
const localTime = 3 * time.Second

// localAddresses caches the addresses of this machine's interfaces. One may look public, but its listeners are
// internal.
type localAddresses struct {
	mu    sync.Mutex
	read  time.Time
	addrs []netip.Addr
}

func (l *localAddresses) contains(a netip.Addr) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.read) > localTime {
		all, err := net.InterfaceAddrs()
		if err != nil {
			return false, err
		}
		l.addrs, l.read = nil, time.Now()
		for _, n := range all {
			if prefix, err := netip.ParsePrefix(n.String()); err == nil {
				l.addrs = append(l.addrs, prefix.Addr().WithZone("").Unmap())
			}
		}
	}
	return slices.Contains(l.addrs, a), nil
}

// mayDial reports whether an address is public, or allowed by the policy for the request's host, and not one of this
// machine's.
func (q *request) mayDial(a netip.Addr) bool {
	a = a.Unmap()
	if own := q.listen.Load(); own != nil && *own == a {
		return false
	}
	here, err := q.local.contains(a)
	return err == nil && !here && q.sites.IsPublic(a)
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
		if err != nil || ap.Addr().Unmap() != want || int(ap.Port()) != q.Port || !q.mayDial(want) {
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
