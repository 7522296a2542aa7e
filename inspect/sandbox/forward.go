package sandbox

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/slimctl/slimctl/internal/tether"
)

// dialTimeout is how long a connection to the container may take; it is on this machine.
const dialTimeout = 10 * time.Second

// forward leads TCP connections to an address of the host into a container, without any firewall rule.
type forward struct {
	Publication
	listener net.Listener
	dial     func(context.Context) (net.Conn, error)
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup
}

func newForward(p Publication, dial func(context.Context) (net.Conn, error)) (*forward, error) {
	l, err := net.Listen("tcp", p.Host.String())
	if err != nil {
		return nil, err
	}
	p.Host = netip.AddrPortFrom(p.Host.Addr(), uint16(l.Addr().(*net.TCPAddr).Port)) //nolint:forcetypeassert // of a TCP listener
	f := &forward{Publication: p, listener: l, dial: dial}
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
		if err != nil { // too many open files, say: it may pass
			time.Sleep(10 * time.Millisecond)
			continue
		}
		f.wg.Go(func() { f.connect(conn) })
	}
}

func (f *forward) connect(outer net.Conn) {
	defer outer.Close()
	ctx, cancel := context.WithTimeout(f.ctx, dialTimeout)
	inner, err := f.dial(ctx)
	cancel()
	if err != nil {
		if tcp, ok := outer.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a reset, as if nothing listened
		}
		return
	}
	defer inner.Close()
	stop := context.AfterFunc(f.ctx, func() {
		outer.Close()
		inner.Close()
	})
	defer stop()
	tether.Pump(inner, outer)
}

func (f *forward) close() {
	if f.listener == nil { // the engine's own
		return
	}
	f.cancel()
	f.listener.Close()
	f.wg.Wait()
}
