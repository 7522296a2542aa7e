package gate

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"
)

const (
	maxMessage   = 1 << 20  // bytes of a client's message; the largest is a clipboard
	chunk        = 64 << 10 // bytes that are on their way to a viewer
	clientBuffer = 4 << 10  // bytes that are on their way from it
	dialTime     = 5 * time.Second
)

// desktop is the bridge between a client's WebSocket and the VNC server's TCP. It holds a bounded part of each direction, so
// a side that doesn't read makes the other one wait.
type desktop struct {
	vnc       string
	places    places
	pingEvery time.Duration // nothing may happen on a screen for hours, so a client's life is seen only by its pongs
	pongTime  time.Duration // and a slow line may have megabytes to bring before the ping
	endTime   time.Duration // for both sides to take what is left
	leaveTime time.Duration // the same, while a newer desktop waits for the place
}

func newDesktop(vnc string) desktop {
	return desktop{
		vnc:       vnc,
		pingEvery: 30 * time.Second, pongTime: 90 * time.Second, endTime: 10 * time.Second, leaveTime: time.Second,
	}
}

// serve serves a client that may come in, until its ticket or other credential ends. Only with a ticket for input it may act.
// A page of another site may not come in, even then: Origin, if there is one, must name the Host of the request.
func (d *desktop) serve(w http.ResponseWriter, r *http.Request, e entry) {
	silent := &silent{ResponseWriter: w}
	ws, err := websocket.Accept(silent, r, &websocket.AcceptOptions{Subprotocols: []string{"binary"}})
	if err != nil {
		return // and answered
	}
	defer func() { _ = ws.CloseNow() }()
	ws.SetReadLimit(maxMessage)
	ctx, end := context.WithCancelCause(r.Context())
	defer end(nil)
	var ticket string
	if e.ticket != nil {
		ticket = e.ticket.id
		defer context.AfterFunc(e.ticket.ctx, func() { end(errTicketEnded) })()
	} else if !e.until.IsZero() {
		defer time.AfterFunc(time.Until(e.until), func() { end(errTicketEnded) }).Stop()
	}
	ctx, leave := d.places.take(ctx, ticket)
	defer leave()
	if ctx.Err() != nil {
		return
	}
	suffix, act := " (view only)", (func() error)(nil)
	if e.ticket != nil && e.ticket.input {
		suffix, act = "", e.ticket.act
	}
	d.bridge(ctx, ws, silent.conn, suffix, act)
}

// silent keeps the explanations of a refused handshake from the client, and the connection of an accepted one for us.
type silent struct {
	http.ResponseWriter
	conn net.Conn
}

func (s *silent) Write(p []byte) (int, error) { return len(p), nil }

// Hijack is http.Hijacker's.
func (s *silent) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(s.ResponseWriter).Hijack()
	s.conn = conn
	return conn, rw, err
}

// bridge runs until one side ends, or ctx; conn is what is below ws. The viewer gets 1000 when the VNC server ends the
// connection, 1001 when we do, 1002 for a message that is none of RFB, 1003 for text, 1008 when its ticket or token ends, 1009
// for a message that is too large, 1011 when the VNC server breaks off and 1013 when it doesn't answer. The viewer sees the
// desktop's name with suffix; see copyMessages for act.
func (d *desktop) bridge(ctx context.Context, ws *websocket.Conn, conn net.Conn, suffix string, act func() error) {
	end := func(code websocket.StatusCode) {
		force := time.AfterFunc(d.endTime, func() { conn.Close() }) // Close would wait for the rest of a frame for ever
		defer force.Stop()
		_ = ws.Close(code, "") // the client may be gone
	}
	defer d.hurry(ctx, conn)()
	dialer := net.Dialer{Timeout: dialTime}
	to, err := dialer.DialContext(ctx, "tcp", d.vnc)
	if err != nil {
		end(websocket.StatusTryAgainLater)
		return
	}
	defer to.Close()
	defer d.hurry(ctx, to)()
	vnc := to.(*net.TCPConn)
	init, err := greetServer(ctx, vnc)
	if err != nil {
		code := websocket.StatusInternalError
		if ctx.Err() != nil {
			code = websocket.StatusGoingAway
		}
		end(code)
		return
	}

	// A context that ends would break the socket off before a close code is out.
	whole, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	ended := make(chan websocket.StatusCode, 3)
	greeted := make(chan struct{})
	var running sync.WaitGroup
	for _, part := range []func() websocket.StatusCode{
		func() websocket.StatusCode {
			c := &client{ctx: whole, ws: ws}
			r := bufio.NewReaderSize(c, clientBuffer)
			err := greetViewer(r, c, rename(init, suffix))
			if err == nil {
				close(greeted)
				err = copyMessages(vnc, r, act)
			}
			return closeCode(err)
		},
		func() websocket.StatusCode {
			select {
			case <-greeted:
				return toClient(whole, ws, vnc)
			case <-whole.Done():
				return websocket.StatusGoingAway
			}
		},
		func() websocket.StatusCode { return d.watch(whole, ws) },
	} {
		running.Go(func() { ended <- part() })
	}
	code := websocket.StatusGoingAway
	select {
	case code = <-ended:
	case <-ctx.Done():
		if errors.Is(context.Cause(ctx), errTicketEnded) {
			code = websocket.StatusPolicyViolation
		}
	}

	// Closing at once could reset the connection, and the VNC server would lose what the client sent last.
	_ = vnc.SetDeadline(time.Now().Add(d.endTime)) // these two only fail on a connection that has ended
	_ = vnc.CloseWrite()
	end(code)
	cancel()
	running.Wait()
	_, _ = io.Copy(io.Discard, vnc)
}

// greetServer is openScreen with a bound on its time.
func greetServer(ctx context.Context, vnc net.Conn) ([]byte, error) {
	defer context.AfterFunc(ctx, func() { vnc.Close() })()
	if err := vnc.SetDeadline(time.Now().Add(dialTime)); err != nil {
		return nil, err
	}
	init, err := openScreen(vnc)
	if err != nil {
		return nil, err
	}
	return init, vnc.SetDeadline(time.Time{})
}

// hurry breaks c off, whatever goes on there, when a newer desktop waits for the place of ctx's.
func (d *desktop) hurry(ctx context.Context, c net.Conn) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), errReplaced) {
			time.AfterFunc(d.leaveTime, func() { c.Close() })
		}
	})
}

// client is the stream of a viewer's messages, which don't begin and end where the WebSocket's do.
type client struct {
	ctx  context.Context
	ws   *websocket.Conn
	part io.Reader // what is left of a WebSocket's message, or nil
}

// Read is io.Reader's. Its errors have a close code.
func (c *client) Read(p []byte) (int, error) {
	for {
		if c.part == nil {
			kind, part, err := c.ws.Reader(c.ctx)
			if err != nil {
				return 0, closing(websocket.StatusNormalClosure)
			}
			if kind != websocket.MessageBinary {
				return 0, closing(websocket.StatusUnsupportedData)
			}
			c.part = part
		}
		n, err := c.part.Read(p)
		if err != nil { // the end of the message; of the connection the next Reader tells
			c.part = nil
		}
		if n > 0 {
			return n, nil
		}
	}
}

// Write is io.Writer's.
func (c *client) Write(p []byte) (int, error) {
	if err := c.ws.Write(c.ctx, websocket.MessageBinary, p); err != nil {
		return 0, closing(websocket.StatusGoingAway)
	}
	return len(p), nil
}

// closing is an error that says with which code a viewer's connection ends.
type closing websocket.StatusCode

func (c closing) Error() string { return websocket.StatusCode(c).String() }

// closeCode returns the code for what ended copyMessages.
func closeCode(err error) websocket.StatusCode {
	var c closing
	switch {
	case errors.As(err, &c):
		return websocket.StatusCode(c)
	case errors.Is(err, errNotRFB):
		return websocket.StatusProtocolError
	case errors.Is(err, errTicketEnded):
		return websocket.StatusPolicyViolation
	}
	return websocket.StatusInternalError
}

func toClient(ctx context.Context, ws *websocket.Conn, vnc io.Reader) websocket.StatusCode {
	buf := make([]byte, chunk)
	for {
		n, err := vnc.Read(buf)
		if n > 0 && ws.Write(ctx, websocket.MessageBinary, buf[:n]) != nil {
			return websocket.StatusGoingAway
		}
		if errors.Is(err, io.EOF) {
			return websocket.StatusNormalClosure
		}
		if err != nil {
			return websocket.StatusInternalError
		}
	}
}

// watch returns when a client doesn't answer, which is also the end of one that doesn't read.
func (d *desktop) watch(ctx context.Context, ws *websocket.Conn) websocket.StatusCode {
	every := time.NewTicker(d.pingEvery)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return websocket.StatusGoingAway
		case <-every.C:
		}
		within, cancel := context.WithTimeout(ctx, d.pongTime)
		err := ws.Ping(within)
		cancel()
		if err != nil {
			return websocket.StatusGoingAway
		}
	}
}
