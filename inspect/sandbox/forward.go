package sandbox

import (
	"cmp"
	"context"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slimctl/slimctl/internal/tether"
)

// dialTimeout limits connecting to the container, which is on this machine.
const dialTimeout = 10 * time.Second

// forward forwards TCP connections from an address of the host into a container, without firewall rules.
type forward struct {
	Publication
	listener net.Listener
	open     *forwarded
	dial     func(context.Context) (net.Conn, error)
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup
}

func newForward(p Publication, open *forwarded, dial func(context.Context) (net.Conn, error)) (*forward, error) {
	l, err := net.Listen("tcp", p.Host.String())
	if err != nil {
		return nil, err
	}
	p.Host = netip.AddrPortFrom(p.Host.Addr(), uint16(l.Addr().(*net.TCPAddr).Port)) //nolint:forcetypeassert // it is a TCP listener
	f := &forward{Publication: p, listener: l, open: open, dial: dial}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.wg.Go(f.serve)
	return f, nil
}

func (f *forward) serve() {
	for {
		conn, err := f.listener.Accept()
		if f.ctx.Err() != nil {
			return
		}
		if err != nil { // may be temporary, for instance too many open files
			time.Sleep(10 * time.Millisecond)
			continue
		}
		f.wg.Go(func() { f.connect(conn) })
	}
}

func (f *forward) connect(outer net.Conn) {
	defer outer.Close()
	life, end := context.WithCancel(f.ctx)
	defer end()
	link := f.open.addLink(outer, end)
	defer f.open.removeLink(link)
	ctx, cancel := context.WithTimeout(life, dialTimeout)
	inner, err := f.dial(ctx)
	cancel()
	if err != nil {
		if tcp, ok := outer.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a reset, as if nothing listened
		}
		return
	}
	defer inner.Close()
	stop := context.AfterFunc(life, func() {
		outer.Close()
		inner.Close()
	})
	defer stop()
	link.Conn = inner
	tether.Pump(link, outer)
}

func (f *forward) close() {
	if f.listener == nil { // the engine's own
		return
	}
	f.cancel()
	f.listener.Close()
	f.wg.Wait()
}

// maxForwarded limits the connections into a container at a time, for all its ports. Its tether supports more.
const maxForwarded = 384

// forwarded holds the connections into a container.
type forwarded struct {
	mu  sync.Mutex
	all map[*link]struct{}
}

// link is the container's side of a forwarded connection.
type link struct {
	net.Conn
	from   netip.Addr
	end    func()
	begun  time.Time
	last   atomic.Int64 // when a byte last passed, in nanoseconds since begun
	hungUp atomic.Bool  // by the container, while the other end is open
}

// addLink adds a connection. Beyond the limit it ends another, of the address with the most: one that the container has
// ended, or the longest idle one. So a client that only holds connections loses them.
func (o *forwarded) addLink(outer net.Conn, end func()) *link {
	l := &link{end: end, begun: time.Now()}
	if a, err := netip.ParseAddrPort(outer.RemoteAddr().String()); err == nil {
		l.from = a.Addr().Unmap()
		if l.from.Is6() { // the owner of one address has its network
			l.from = netip.PrefixFrom(l.from, 64).Masked().Addr()
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.all) >= maxForwarded {
		last := o.leastWanted()
		delete(o.all, last)
		last.end()
	}
	if o.all == nil {
		o.all = map[*link]struct{}{}
	}
	o.all[l] = struct{}{}
	return l
}

func (o *forwarded) leastWanted() *link {
	count := map[netip.Addr]int{}
	for l := range o.all {
		count[l.from]++
	}
	return slices.MinFunc(slices.Collect(maps.Keys(o.all)), func(a, b *link) int {
		return cmp.Or(count[b.from]-count[a.from], a.lastByte().Compare(b.lastByte()))
	})
}

func (o *forwarded) removeLink(l *link) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.all, l)
}

// lastByte returns the time of the last byte, or the zero time if the container has ended its side.
func (l *link) lastByte() time.Time {
	if l.hungUp.Load() {
		return time.Time{}
	}
	return l.begun.Add(time.Duration(l.last.Load()))
}

func (l *link) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	l.last.Store(int64(time.Since(l.begun)))
	if err != nil {
		l.hungUp.Store(true)
	}
	return n, err
}

func (l *link) Write(b []byte) (int, error) {
	n, err := l.Conn.Write(b)
	l.last.Store(int64(time.Since(l.begun)))
	return n, err
}

// CloseWrite ends what is sent to the container.
func (l *link) CloseWrite() error {
	if half, ok := l.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
