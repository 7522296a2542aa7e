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
	maxMessage = 1 << 20  // bytes of a client's message; the largest is a clipboard
	chunk      = 64 << 10 // bytes that are on their way in one direction
	dialTime   = 5 * time.Second
)

// desktop is the bridge between a client's WebSocket and the VNC server's TCP. It holds one chunk in each direction, so a
// side that doesn't read makes the other one wait.
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

// serve serves a client that may come in, by ticket if that is not empty. A page of another site may not, even then:
// Origin, if there is one, must name the Host of the request.
func (d *desktop) serve(w http.ResponseWriter, r *http.Request, ticket string) {
	silent := &silent{ResponseWriter: w}
	ws, err := websocket.Accept(silent, r, &websocket.AcceptOptions{Subprotocols: []string{"binary"}})
	if err != nil {
		return // and answered
	}
	defer func() { _ = ws.CloseNow() }()
	ws.SetReadLimit(maxMessage)
	ctx, leave := d.places.take(r.Context(), ticket)
	defer leave()
	if ctx.Err() == nil {
		d.bridge(ctx, ws, silent.conn)
	}
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

// bridge runs until one side ends, or ctx; conn is what is below ws. The client gets 1000 when the VNC server ends the
// connection, 1001 when we do, 1003 for text, 1009 for a message that is too large, 1011 when the VNC server breaks off
// and 1013 when it doesn't answer.
func (d *desktop) bridge(ctx context.Context, ws *websocket.Conn, conn net.Conn) {
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

	// A context that ends would break the socket off before a close code is out.
	whole, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	ended := make(chan websocket.StatusCode, 3)
	var running sync.WaitGroup
	for _, part := range []func() websocket.StatusCode{
		func() websocket.StatusCode { return fromClient(whole, ws, vnc) },
		func() websocket.StatusCode { return toClient(whole, ws, vnc) },
		func() websocket.StatusCode { return d.watch(whole, ws) },
	} {
		running.Go(func() { ended <- part() })
	}
	code := websocket.StatusGoingAway
	select {
	case code = <-ended:
	case <-ctx.Done():
	}

	// Closing at once could reset the connection, and the VNC server would lose what the client sent last.
	_ = vnc.SetDeadline(time.Now().Add(d.endTime)) // these two only fail on a connection that has ended
	_ = vnc.CloseWrite()
	end(code)
	cancel()
	running.Wait()
	_, _ = io.Copy(io.Discard, vnc)
}

// hurry breaks c off, whatever goes on there, when a newer desktop waits for the place of ctx's.
func (d *desktop) hurry(ctx context.Context, c net.Conn) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), errReplaced) {
			time.AfterFunc(d.leaveTime, func() { c.Close() })
		}
	})
}

func fromClient(ctx context.Context, ws *websocket.Conn, vnc io.Writer) websocket.StatusCode {
	buf := make([]byte, chunk)
	for {
		kind, message, err := ws.Reader(ctx)
		if err != nil {
			return websocket.StatusNormalClosure
		}
		if kind != websocket.MessageBinary {
			return websocket.StatusUnsupportedData
		}
		// Without its ReadFrom, which would take a buffer of its own for each message.
		if _, err := io.CopyBuffer(struct{ io.Writer }{vnc}, message, buf); err != nil {
			return websocket.StatusInternalError
		}
	}
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
