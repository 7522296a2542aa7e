package protocol

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// maxCalls limits the unanswered requests. Further ones are refused; while a client doesn't read answers, nothing
	// is read for refusals.
	maxCalls = 128
	// lastAnswers is the time after the end of input for answering a request that was already read; then it is
	// cancelled.
	lastAnswers = 100 * time.Millisecond
	// lastWrite is the time after that for which a client that doesn't read may delay the end.
	lastWrite = time.Second
)

// errAbandoned reports a write after that time.
var errAbandoned = errors.New("nobody reads the output")

// conn is an mcp.Connection over lines. Only valid frames reach go-sdk, which would end the session otherwise, and
// messages that need no answer get none.
type conn struct {
	lines <-chan line
	out   io.Writer
	turn  chan struct{} // contains a token while a line is being written

	reading, writing         context.Context
	stopReading, stopWriting context.CancelFunc

	mu    sync.Mutex
	calls map[jsonrpc.ID]bool // unanswered; true: cancelled, so it gets no answer
}

var _ mcp.Connection = (*conn)(nil)

func newConn(ctx context.Context, in io.Reader, out io.Writer) *conn {
	c := &conn{out: out, turn: make(chan struct{}, 1), calls: map[jsonrpc.ID]bool{}}
	c.reading, c.stopReading = context.WithCancel(ctx)
	c.writing, c.stopWriting = context.WithCancel(context.WithoutCancel(ctx))
	c.lines = readLines(c.reading, in)
	return c
}

// Connect implements mcp.Transport: conn is its own transport.
func (c *conn) Connect(context.Context) (mcp.Connection, error) { return c, nil }

// SessionID returns "": there is only one session.
func (c *conn) SessionID() string { return "" }

// Close ends Read.
func (c *conn) Close() error {
	c.stopReading()
	return nil
}

// Read returns the next frame for go-sdk. The end of the context counts as the end of input: only that makes go-sdk
// cancel running calls.
func (c *conn) Read(context.Context) (jsonrpc.Message, error) {
	for {
		msg, err := c.readFrame()
		if err != nil {
			time.AfterFunc(lastWrite, c.stopWriting)
			return nil, err
		}
		if msg != nil {
			return msg, nil
		}
	}
}

// readFrame reads one line. It returns neither message nor error if the line needs no further handling.
func (c *conn) readFrame() (jsonrpc.Message, error) {
	var l line
	select {
	case l = <-c.lines:
	case <-c.reading.Done():
		return nil, io.EOF
	}
	if errors.Is(l.err, errTooLong) {
		return nil, c.refuseFrame(tooLong())
	}
	if l.err != nil {
		c.awaitAnswers()
		return nil, l.err
	}
	msg, refused := parseFrame(l.text)
	if refused == nil {
		refused = checkVersion(msg)
	}
	if refused == nil {
		msg, refused = c.admitCall(msg)
	}
	if refused != nil {
		return nil, c.refuseFrame(refused)
	}
	return msg, nil
}

// admitCall updates the calls in flight. A nil message needs no handling.
func (c *conn) admitCall(msg jsonrpc.Message) (jsonrpc.Message, *jsonrpc.Response) {
	req, ok := msg.(*jsonrpc.Request)
	if !ok {
		return msg, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !req.IsCall() {
		return c.filterNotification(req), nil
	}
	if _, used := c.calls[req.ID]; used {
		return nil, invalid(req.ID, "the id belongs to a request that has not ended yet")
	}
	if len(c.calls) >= maxCalls {
		refusal := refuse(req.ID, CodeTooMany, fmt.Sprintf("%d requests are in flight; wait for their answers", maxCalls))
		refusal.Error.(*jsonrpc.Error).Data = json.RawMessage(TooMany)
		return nil, refusal
	}
	c.calls[req.ID] = false
	return req, nil
}

// filterNotification forwards the two notifications that matter to a server of tools; go-sdk would queue the others
// without limit.
func (c *conn) filterNotification(req *jsonrpc.Request) jsonrpc.Message {
	switch req.Method {
	case "notifications/initialized":
		return req
	case "notifications/cancelled":
		var params map[string]json.RawMessage   // a struct would accept requestID, too
		_ = json.Unmarshal(req.Params, &params) // invalid params have no id
		id := makeID(params["requestId"])
		if _, runs := c.calls[id]; runs {
			c.calls[id] = true
			return req
		}
	}
	return nil
}

// refuseFrame answers a bad frame, once, and never with the id of another request.
func (c *conn) refuseFrame(refused *jsonrpc.Response) error {
	c.mu.Lock()
	if cancelled, used := c.calls[refused.ID]; used && !cancelled {
		refused.ID = noID
	}
	c.mu.Unlock()
	return c.sendLine(c.reading, refused, always)
}

// Write writes a message of go-sdk as one line. It drops the answer to a call that the client cancelled (MCP 2026-07-28
// basic/utilities/cancellation: MUST NOT).
func (c *conn) Write(_ context.Context, msg jsonrpc.Message) error {
	res, isAnswer := msg.(*jsonrpc.Response)
	if !isAnswer {
		return c.sendLine(c.writing, msg, always)
	}
	return c.sendLine(c.writing, plainAnswer(res), func() bool { return !c.endCall(res.ID) })
}

func always() bool { return true }

// sendLine writes a message as one line when it is its turn, if it is still wanted then. It gives up when until ends;
// the turn isn't released while the client doesn't read.
func (c *conn) sendLine(until context.Context, msg jsonrpc.Message, wanted func() bool) error {
	data, err := jsonrpc.EncodeMessage(msg)
	if err != nil {
		return err
	}
	select {
	case c.turn <- struct{}{}:
	case <-until.Done():
		return errAbandoned
	}
	if !wanted() {
		<-c.turn
		return nil
	}
	done := make(chan error, 1)
	go func() {
		_, err := c.out.Write(append(data, '\n'))
		<-c.turn
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-until.Done():
		return errAbandoned
	}
}

// endCall frees the id of a call and reports whether it was cancelled.
func (c *conn) endCall(id jsonrpc.ID) (cancelled bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cancelled = c.calls[id]
	delete(c.calls, id)
	return cancelled
}

func (c *conn) countCalls() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.calls)
}

// awaitAnswers lets short requests finish at the end of input.
func (c *conn) awaitAnswers() {
	late := time.Now().Add(lastAnswers)
	for c.countCalls() > 0 && c.reading.Err() == nil && time.Now().Before(late) {
		time.Sleep(100 * time.Microsecond)
	}
}
