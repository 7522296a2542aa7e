// Package tether carries the connections of a container without network over its standard input and output: streams,
// multiplexed by yamux, between slimctl (Open) and the container's first process (Hold).
//
// A stream that slimctl opens goes to the container's one port. A stream that the container opens carries an HTTP proxy
// request to the outside. Streams need no header, because their direction decides.
//
// Slimctl trusts nothing from the container: it checks frames before yamux reads them, and counts streams.
package tether

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/yamux"
)

// Limits on concurrent streams. One end opens at most maxDials and then waits. It ends the tether when the other end
// has maxOpen streams open, or when both have maxStreams, counting streams that the other end doesn't close.
const (
	maxDials   = 512
	maxOpen    = 1024
	maxStreams = 2048
)

// writeTime limits how long the other end may leave a frame unread. A busy machine needs far less.
var writeTime = time.Minute

// closeTime limits how long a stream stays half-open after one end has closed it.
const closeTime = time.Minute

var errFlood = fmt.Errorf("the container holds more than %d connections open", maxOpen)

// Tether is one end of the connection.
type Tether struct {
	session *yamux.Session
	frames  *frameReader
	slots   chan struct{} // streams of Dial that aren't closed

	mu    sync.Mutex
	cause error
}

func config() *yamux.Config {
	c := yamux.DefaultConfig()
	c.EnableKeepAlive = false // the end of a pipe is noticed at once, and a busy machine isn't dead
	c.StreamOpenTimeout = 0   // for the same reason; it would end the session
	c.ConnectionWriteTimeout = writeTime
	c.StreamCloseTimeout = closeTime
	c.LogOutput, c.Logger = nil, log.New(io.Discard, "", 0) // it quotes the other end
	return c
}

// Open opens slimctl's end. conn ends with the container.
func Open(conn io.ReadWriteCloser) *Tether {
	return newTether(conn, func(c io.ReadWriteCloser) (*yamux.Session, error) { return yamux.Client(c, config()) }, 0)
}

func newTether(conn io.ReadWriteCloser, start func(io.ReadWriteCloser) (*yamux.Session, error), parity uint32) *Tether {
	t := &Tether{slots: make(chan struct{}, maxDials)}
	t.frames = &frameReader{from: conn, parity: parity, open: map[uint32]bool{}}
	session, err := start(struct {
		io.Reader
		io.Writer
		io.Closer
	}{t.frames, conn, conn})
	if err != nil { // only for an invalid configuration
		panic(err)
	}
	t.session = session
	return t
}

// Dial opens a stream to the other end. It waits while maxDials are open.
func (t *Tether) Dial(ctx context.Context) (net.Conn, error) {
	select {
	case t.slots <- struct{}{}:
	case <-t.Done():
		return nil, t.explain(yamux.ErrSessionShutdown)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	type result struct {
		conn net.Conn
		err  error
	}
	opened := make(chan result, 1)
	go func() { // yamux ignores the context and waits for an end that accepts nothing
		s, err := t.session.OpenStream()
		if err != nil {
			<-t.slots
			opened <- result{nil, t.explain(err)}
			return
		}
		opened <- result{&stream{Stream: s, closed: sync.OnceFunc(func() { <-t.slots })}, nil}
	}()
	select {
	case r := <-opened:
		return r.conn, r.err
	case <-ctx.Done():
		go func() {
			if r := <-opened; r.err == nil {
				r.conn.Close()
			}
		}()
		return nil, context.Cause(ctx)
	}
}

// Accept waits for a stream of the other end. It makes a Tether a net.Listener. An error means that the tether has
// ended.
func (t *Tether) Accept() (net.Conn, error) {
	s, err := t.session.AcceptStream()
	for range maxStreams { // the error of an accepted stream says only that the session has ended, not why
		if !errors.Is(err, yamux.ErrSessionShutdown) {
			break
		}
		s, err = t.session.AcceptStream()
	}
	if err != nil {
		t.end(err)
		return nil, t.explain(err)
	}
	if t.session.NumStreams() > maxStreams {
		t.end(errFlood)
		return nil, errFlood
	}
	return &stream{Stream: s, closed: func() {}}, nil
}

// Addr implements net.Listener.
func (t *Tether) Addr() net.Addr { return addr{} }

// Done returns a channel that is closed when the tether ends.
func (t *Tether) Done() <-chan struct{} { return t.session.CloseChan() }

// Err returns the error of the other end that ended the tether, or nil if it just closed.
func (t *Tether) Err() error { return t.explain(nil) }

// Close ends the tether and all its streams.
func (t *Tether) Close() error { return t.session.Close() }

func (t *Tether) end(cause error) {
	t.mu.Lock()
	gone := slices.ContainsFunc([]error{yamux.ErrSessionShutdown, io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, os.ErrClosed, net.ErrClosed,
		os.ErrDeadlineExceeded, syscall.EPIPE}, func(e error) bool { return errors.Is(cause, e) })
	if t.cause == nil && !gone {
		t.cause = fmt.Errorf("tether: %w", cause)
	}
	t.mu.Unlock()
	_ = t.session.Close() // never an error
}

// explain returns the reason for refusing a frame, if any, because yamux's error only says that reading failed.
func (t *Tether) explain(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if why := t.frames.refused(); why != nil {
		return why
	}
	if t.cause != nil {
		return t.cause
	}
	return err
}

// addr is the address of both ends.
type addr struct{}

func (addr) Network() string { return "tether" }
func (addr) String() string  { return "tether" }

// stream is a net.Conn whose two directions end separately, like TCP's.
type stream struct {
	*yamux.Stream
	closed func()
}

// CloseWrite ends the sending direction.
func (s *stream) CloseWrite() error { return s.Stream.Close() }

// Close ends both directions. Data that still arrives is not read; the stream is reset after closeTime.
func (s *stream) Close() error {
	err := s.Stream.Close()
	_ = s.SetReadDeadline(time.Unix(1, 0)) // never an error
	s.closed()
	return err
}

// LocalAddr implements net.Conn.
func (s *stream) LocalAddr() net.Addr { return addr{} }

// RemoteAddr implements net.Conn.
func (s *stream) RemoteAddr() net.Addr { return addr{} }

// Pump copies between two connections in both directions until both have ended. It passes the end of one direction on
// and leaves the other open; an error ends both. It closes neither connection.
func Pump(a, b net.Conn) {
	var both sync.WaitGroup
	both.Go(func() { copyOneWay(a, b) })
	both.Go(func() { copyOneWay(b, a) })
	both.Wait()
}

func copyOneWay(to, from net.Conn) {
	if _, err := io.Copy(to, from); err != nil {
		to.Close()
		from.Close()
		return
	}
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // it fails if the direction is already closed
	}
}

// Hold serves the container's end on standard input and output until the input ends. Streams from slimctl go to port;
// connections that l accepts go to slimctl.
func Hold(ctx context.Context, in, out *os.File, port string, l net.Listener) error {
	conn := &pair{in, out}
	t := newTether(conn, func(c io.ReadWriteCloser) (*yamux.Session, error) { return yamux.Server(c, config()) }, 1)
	stop := context.AfterFunc(ctx, func() { t.Close() })
	defer stop()
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				if errors.Is(err, net.ErrClosed) {
					return
				}
				time.Sleep(10 * time.Millisecond) // such as too many open files
				continue
			}
			go join(c, t.Dial)
		}
	}()
	for {
		s, err := t.Accept()
		if err != nil {
			return err
		}
		go join(s, func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "tcp", port) })
	}
}

func join(c net.Conn, dial func(context.Context) (net.Conn, error)) {
	defer c.Close()
	other, err := dial(context.Background())
	if err != nil {
		return
	}
	defer other.Close()
	Pump(c, other)
}

// pair is a connection made of two files.
type pair struct{ in, out *os.File }

func (p *pair) Read(b []byte) (int, error)  { return p.in.Read(b) }
func (p *pair) Write(b []byte) (int, error) { return p.out.Write(b) }
func (p *pair) Close() error                { return errors.Join(p.in.Close(), p.out.Close()) }
