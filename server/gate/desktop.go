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
	chunk        = 64 << 10 // bytes in flight to a viewer
	clientBuffer = 4 << 10  // bytes in flight from it
	dialTime     = 5 * time.Second
)

// desktop connects a client's WebSocket to the VNC server. Its buffers are limited, so a side that doesn't read makes
// the other one wait.
type desktop struct {
	vnc       string
	places    places
	pingEvery time.Duration // a screen may be still for hours, so only pongs show that a client is alive
	pongTime  time.Duration // a slow connection may have to transfer megabytes before the ping
	endTime   time.Duration // for both sides to read the remaining data
	leaveTime time.Duration // the same, while a newer desktop waits for the place
}

func newDesktop(vnc string) desktop {
	return desktop{
		vnc:       vnc,
		pingEvery: 30 * time.Second, pongTime: 90 * time.Second, endTime: 10 * time.Second, leaveTime: time.Second,
	}
}

// serve connects a permitted client to the desktop until its ticket or other credential ends. Only a ticket with input
// may send input. A page of another site is always refused: Origin, if present, must name the Host of the request.
func (d *desktop) serve(w http.ResponseWriter, r *http.Request, e entry) {
	silent := &hiddenErrors{ResponseWriter: w}
	ws, err := websocket.Accept(silent, r, &websocket.AcceptOptions{Subprotocols: []string{"binary"}})
	if err != nil {
		return // already answered
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
	ctx, leave := d.places.takePlace(ctx, ticket)
	defer leave()
	if ctx.Err() != nil {
		return
	}
	suffix, act := " (view only)", (func() error)(nil)
	if e.ticket != nil && e.ticket.input {
		suffix, act = "", e.ticket.countInput
	}
	d.bridge(ctx, ws, silent.conn, suffix, act)
}

// hiddenErrors hides the error text of a refused handshake from the client, and keeps the connection of an accepted one
// for us.
type hiddenErrors struct {
	http.ResponseWriter
	conn net.Conn
}

func (s *hiddenErrors) Write(p []byte) (int, error) { return len(p), nil }

// Hijack is http.Hijacker's.
func (s *hiddenErrors) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(s.ResponseWriter).Hijack()
	s.conn = conn
	return conn, rw, err
}

// bridge copies messages until one side or ctx ends; conn is the connection below ws. The viewer's close code is 1000
// when the VNC server ends the connection, 1001 when we do, 1002 for a message that isn't RFB, 1003 for text, 1008 when
// its ticket or token ends, 1009 for a message that is too large, 1011 when the VNC server fails and 1013 when it
// doesn't answer. suffix is appended to the desktop's name; see copyMessages for act.
func (d *desktop) bridge(ctx context.Context, ws *websocket.Conn, conn net.Conn, suffix string, act func() error) {
	end := func(code websocket.StatusCode) {
		force := time.AfterFunc(d.endTime, func() { conn.Close() }) // Close would wait forever for the rest of a frame
		defer force.Stop()
		_ = ws.Close(code, "") // the client may have left
	}
	defer d.closeIfReplaced(ctx, conn)()
	dialer := net.Dialer{Timeout: dialTime}
	to, err := dialer.DialContext(ctx, "tcp", d.vnc)
	if err != nil {
		end(websocket.StatusTryAgainLater)
		return
	}
	defer to.Close()
	defer d.closeIfReplaced(ctx, to)()
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

	// The end of ctx would break the connection before a close code is sent.
	whole, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	ended := make(chan websocket.StatusCode, 3)
	greeted := make(chan struct{})
	var running sync.WaitGroup
	for _, part := range []func() websocket.StatusCode{
		func() websocket.StatusCode {
			c := &client{ctx: whole, ws: ws}
			r := bufio.NewReaderSize(c, clientBuffer)
			err := greetViewer(r, c, renameScreen(init, suffix))
			if err == nil {
				close(greeted)
				err = copyMessages(vnc, r, act)
			}
			return closeCode(err)
		},
		func() websocket.StatusCode {
			select {
			case <-greeted:
				return copyToViewer(whole, ws, vnc)
			case <-whole.Done():
				return websocket.StatusGoingAway
			}
		},
		func() websocket.StatusCode { return d.pingViewer(whole, ws) },
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

	// Closing immediately could reset the connection, and the VNC server would lose the client's last messages.
	_ = vnc.SetDeadline(time.Now().Add(d.endTime)) // fails only on a connection that has ended
	_ = vnc.CloseWrite()
	end(code)
	cancel()
	running.Wait()
	_, _ = io.Copy(io.Discard, vnc)
}

// greetServer calls openScreen with a time limit.
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

// closeIfReplaced closes c immediately when a newer desktop waits for the place of ctx's.
func (d *desktop) closeIfReplaced(ctx context.Context, c net.Conn) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), errReplaced) {
			time.AfterFunc(d.leaveTime, func() { c.Close() })
		}
	})
}

// client reads the stream of a viewer's messages, whose boundaries differ from those of the WebSocket.
type client struct {
	ctx  context.Context
	ws   *websocket.Conn
	part io.Reader // rest of a WebSocket message, or nil
}

// Read implements io.Reader. Its errors carry a close code.
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
		if err != nil { // the end of the message; the next Reader reports that of the connection
			c.part = nil
		}
		if n > 0 {
			return n, nil
		}
	}
}

// Write implements io.Writer.
func (c *client) Write(p []byte) (int, error) {
	if err := c.ws.Write(c.ctx, websocket.MessageBinary, p); err != nil {
		return 0, closing(websocket.StatusGoingAway)
	}
	return len(p), nil
}

// closing is an error with the close code for a viewer's connection.
type closing websocket.StatusCode

func (c closing) Error() string { return websocket.StatusCode(c).String() }

// closeCode returns the close code for an error of copyMessages.
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

func copyToViewer(ctx context.Context, ws *websocket.Conn, vnc io.Reader) websocket.StatusCode {
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

// pingViewer pings a client and returns when it doesn't answer, as a client that doesn't read.
func (d *desktop) pingViewer(ctx context.Context, ws *websocket.Conn) websocket.StatusCode {
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
