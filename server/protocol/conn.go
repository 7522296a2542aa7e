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
	// maxCalls bounds the requests that wait for their answer. Further ones are
	// refused, for which nothing is read while a client takes no answers.
	maxCalls = 128
	// lastAnswers is how long after the end of input a request that was
	// already read may take to be answered, before it is cancelled.
	lastAnswers = 100 * time.Millisecond
	// lastWrite is how long after that a client that doesn't read may hold up the end.
	lastWrite = time.Second
)

// errAbandoned is for what is still to be written when there is no more time.
var errAbandoned = errors.New("nobody reads the output")

// conn is an mcp.Connection over lines: what isn't a good frame never reaches
// go-sdk, which would end the session, and what must not be answered isn't.
type conn struct {
	lines <-chan line
	out   io.Writer
	turn  chan struct{} // holds one token while a line is being written

	reading, writing         context.Context
	stopReading, stopWriting context.CancelFunc

	mu    sync.Mutex
	calls map[jsonrpc.ID]bool // not yet answered; true: cancelled, so it won't be
}

var _ mcp.Connection = (*conn)(nil)

func newConn(ctx context.Context, in io.Reader, out io.Writer) *conn {
	c := &conn{out: out, turn: make(chan struct{}, 1), calls: map[jsonrpc.ID]bool{}}
	c.reading, c.stopReading = context.WithCancel(ctx)
	c.writing, c.stopWriting = context.WithCancel(context.WithoutCancel(ctx))
	c.lines = readLines(c.reading, in)
	return c
}

// Connect makes conn its own mcp.Transport.
func (c *conn) Connect(context.Context) (mcp.Connection, error) { return c, nil }

// SessionID is empty: there is one session.
func (c *conn) SessionID() string { return "" }

// Close ends Read.
func (c *conn) Close() error {
	c.stopReading()
	return nil
}

// Read gives the next frame that go-sdk has to see. The end of the context is
// the end of input to it: only that makes it cancel what runs.
func (c *conn) Read(context.Context) (jsonrpc.Message, error) {
	for {
		msg, err := c.next()
		if err != nil {
			time.AfterFunc(lastWrite, c.stopWriting)
			return nil, err
		}
		if msg != nil {
			return msg, nil
		}
	}
}

// next reads one line; it gives neither message nor error if the line is dealt with.
func (c *conn) next() (jsonrpc.Message, error) {
	var l line
	select {
	case l = <-c.lines:
	case <-c.reading.Done():
		return nil, io.EOF
	}
	if errors.Is(l.err, errTooLong) {
		return nil, c.refuse(tooLong())
	}
	if l.err != nil {
		c.awaitAnswers()
		return nil, l.err
	}
	msg, refused := parse(l.text)
	if refused == nil {
		refused = checkVersion(msg)
	}
	if refused == nil {
		msg, refused = c.admit(msg)
	}
	if refused != nil {
		return nil, c.refuse(refused)
	}
	return msg, nil
}

// admit keeps count of the calls in flight. A nil message needs no handling.
func (c *conn) admit(msg jsonrpc.Message) (jsonrpc.Message, *jsonrpc.Response) {
	req, ok := msg.(*jsonrpc.Request)
	if !ok {
		return msg, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !req.IsCall() {
		return c.notified(req), nil
	}
	if _, used := c.calls[req.ID]; used {
		return nil, invalid(req.ID, "the id belongs to a request that has not ended yet")
	}
	if len(c.calls) >= maxCalls {
		return nil, refuse(req.ID, jsonrpc.CodeInternalError, fmt.Sprintf("%d requests are in flight; wait for their answers", maxCalls))
	}
	c.calls[req.ID] = false
	return req, nil
}

// notified hands on the two notifications that mean something to a server of
// tools; go-sdk would queue the others without bound.
func (c *conn) notified(req *jsonrpc.Request) jsonrpc.Message {
	switch req.Method {
	case "notifications/initialized":
		return req
	case "notifications/cancelled":
		var params map[string]json.RawMessage   // a struct would take requestID too
		_ = json.Unmarshal(req.Params, &params) // not given: no id either
		id := makeID(params["requestId"])
		if _, runs := c.calls[id]; runs {
			c.calls[id] = true
			return req
		}
	}
	return nil
}

// refuse answers a bad frame, once, and never in the name of another request.
func (c *conn) refuse(refused *jsonrpc.Response) error {
	c.mu.Lock()
	if cancelled, used := c.calls[refused.ID]; used && !cancelled {
		refused.ID = noID
	}
	c.mu.Unlock()
	return c.send(c.reading, refused, always)
}

// Write writes a message of go-sdk as one line, but no answer to a call that
// the client cancelled (MCP 2026-07-28 basic/utilities/cancellation: MUST NOT).
func (c *conn) Write(_ context.Context, msg jsonrpc.Message) error {
	res, isAnswer := msg.(*jsonrpc.Response)
	if !isAnswer {
		return c.send(c.writing, msg, always)
	}
	return c.send(c.writing, plain(res), func() bool { return !c.end(res.ID) })
}

func always() bool { return true }

// send writes a message as one line when it is its turn, if it is still wanted
// then. It gives up when until is over, and its turn lasts on if the client
// doesn't read.
func (c *conn) send(until context.Context, msg jsonrpc.Message, wanted func() bool) error {
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

// end frees the id of a call and tells whether it was cancelled.
func (c *conn) end(id jsonrpc.ID) (cancelled bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cancelled = c.calls[id]
	delete(c.calls, id)
	return cancelled
}

func (c *conn) inFlight() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.calls)
}

// awaitAnswers lets short requests end at the end of input.
func (c *conn) awaitAnswers() {
	late := time.Now().Add(lastAnswers)
	for c.inFlight() > 0 && c.reading.Err() == nil && time.Now().Before(late) {
		time.Sleep(100 * time.Microsecond)
	}
}
