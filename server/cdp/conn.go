package cdp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
)

const (
	maxMessage = 16 << 20         // bytes of one message from Chromium
	maxVersion = 64 << 10         // bytes of /json/version
	writeTime  = 2 * time.Second  // a browser that reads nothing for this time is given up
	callTime   = 30 * time.Second // limits calls without a deadline
)

// conn is a DevTools connection: numbered commands and answers, and events between them, in Chromium's order.
type conn struct {
	ws    *websocket.Conn
	addr  string
	event func(session, method string, params json.RawMessage) // called by the reader

	alive context.Context // ends with the connection; its cause is the reason
	stop  context.CancelCauseFunc

	mu      sync.Mutex
	last    int64
	pending map[int64]*pending
}

type pending struct {
	apply  func(json.RawMessage) error // called by the reader, between two events; may be nil
	result json.RawMessage
	err    error
	ready  chan struct{}
}

// dial connects to the browser's own WebSocket.
func dial(ctx context.Context, port int, event func(session, method string, params json.RawMessage)) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	ws, err := dialSocket(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("Chromium does not answer on %s: %w", addr, err) //nolint:staticcheck // a name
	}
	ws.SetReadLimit(maxMessage)
	c := &conn{ws: ws, addr: addr, event: event, pending: map[int64]*pending{}}
	c.alive, c.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	go func() {
		c.end(c.readMessages())
		_ = ws.CloseNow() // it may be closed already
	}()
	return c, nil
}

// dialSocket uses only the path of the port's answer, so that the answer can't redirect us to another host.
func dialSocket(ctx context.Context, addr string) (*websocket.Conn, error) {
	client := &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true}, // no proxy
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return errors.New("the answer is a redirect, which Chromium never sends")
		},
	}
	path, err := socketPath(ctx, client, addr)
	if err != nil {
		return nil, err
	}
	// Without an Origin header: Chromium since 111 refuses unknown ones.
	ws, _, err := websocket.Dial(ctx, "ws://"+addr+path, &websocket.DialOptions{HTTPClient: client}) //nolint:bodyclose // websocket closes it
	return ws, err
}

func socketPath(ctx context.Context, client *http.Client, addr string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/json/version", nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var version struct {
		URL string `json:"webSocketDebuggerUrl"`
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxVersion))
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK || json.Unmarshal(b, &version) != nil {
		return "", fmt.Errorf("the answer to /json/version is not a browser's (HTTP status %d)", resp.StatusCode)
	}
	u, err := url.Parse(version.URL)
	if err != nil || !strings.HasPrefix(u.EscapedPath(), "/devtools/browser") {
		return "", errors.New("the answer to /json/version names no browser WebSocket")
	}
	return u.EscapedPath(), nil
}

// command is a message to Chromium; session identifies an attached tab.
type command struct {
	ID      int64  `json:"id"`
	Session string `json:"sessionId,omitempty"`
	Method  string `json:"method"`
	Params  any    `json:"params,omitempty"`
}

// call sends a command and waits for its answer, which it decodes into result if that isn't nil. apply, if not nil,
// receives the answer before any later event.
func (c *conn) call(ctx context.Context, session, method string, params, result any, apply func(json.RawMessage) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	return c.callUnlimited(ctx, session, method, params, result, apply)
}

// callUnlimited is call for as long as ctx and the connection last.
func (c *conn) callUnlimited(ctx context.Context, session, method string, params, result any, apply func(json.RawMessage) error) error {
	p := &pending{apply: apply, ready: make(chan struct{})}
	id := c.expect(p)
	defer c.takePending(id)
	err := ctx.Err()
	if err == nil {
		go c.send(command{id, session, method, params}) // may take longer than ctx
		err = c.await(ctx, p)
	}
	if err == nil && result != nil {
		err = json.Unmarshal(p.result, result)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	return nil
}

func (c *conn) send(cmd command) {
	msg, _ := json.Marshal(cmd) // texts, bools, and maps of them: can't fail
	// Not a caller's context: its end would close the connection of all callers.
	within, stop := context.WithTimeout(c.alive, writeTime)
	defer stop()
	if c.ws.Write(within, websocket.MessageText, msg) != nil {
		c.end(nil)
	}
}

func (c *conn) await(ctx context.Context, p *pending) error {
	select {
	case <-p.ready:
		return p.err
	case <-c.alive.Done():
		return c.endReason()
	case <-ctx.Done():
		return fmt.Errorf("no answer from Chromium in time: %w", ctx.Err())
	}
}

func (c *conn) expect(p *pending) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	c.pending[c.last] = p
	return c.last
}

// takePending returns the pending call with this id, once.
func (c *conn) takePending(id int64) *pending {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pending[id]
	delete(c.pending, id)
	return p
}

// message is an answer, or an event if it has no id.
type message struct {
	ID      int64           `json:"id"`
	Session string          `json:"sessionId"`
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params"`
	Result  json.RawMessage `json:"result"`
	Error   *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// readMessages processes messages until the connection ends. It returns the reason, or nil if there is none worth
// reporting.
func (c *conn) readMessages() error {
	for {
		_, b, err := c.ws.Read(c.alive)
		if errors.Is(err, websocket.ErrMessageTooBig) {
			return fmt.Errorf("a message has more than %d bytes", maxMessage)
		}
		if err != nil {
			return nil
		}
		var m message
		if err := json.Unmarshal(b, &m); err != nil {
			return fmt.Errorf("a message is not JSON: %w", err)
		}
		if m.ID == 0 {
			c.event(m.Session, m.Method, m.Params)
		} else if p := c.takePending(m.ID); p != nil {
			p.answer(m)
		}
	}
}

func (p *pending) answer(m message) {
	p.result = m.Result
	if m.Error != nil {
		p.err = fmt.Errorf("refused by Chromium: %.200q", m.Error.Message)
	} else if p.apply != nil {
		p.err = p.apply(m.Result)
	}
	close(p.ready)
}

// end ends the connection. The first reason, which may be nil, is kept.
func (c *conn) end(reason error) {
	err := fmt.Errorf("the connection to Chromium on %s has ended", c.addr)
	if reason != nil {
		err = fmt.Errorf("%w: %w", err, reason)
	}
	c.stop(err)
}

// endReason returns the reason for the connection's end, or nil if it has not ended.
func (c *conn) endReason() error { return context.Cause(c.alive) }

// pause waits for one interval of poll, or until ctx ends.
func pause(ctx context.Context) error {
	select {
	case <-time.After(poll):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
