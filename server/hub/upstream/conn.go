package upstream

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// maxCalls bounds the requests of a server that wait for their answer;
	// further ones are refused.
	maxCalls = 128
	// maxNotes bounds its notifications that wait to be handled; go-sdk's queues
	// have no bound.
	maxNotes = 1024
	// fenceTime is how long they may hold up what comes after them; then further
	// ones are dropped until they are handled.
	fenceTime = time.Second
	// maxRefusals bounds the refusals that wait to be written.
	maxRefusals = 16
)

// errStuck is for a program that leaves its stdin unread.
var errStuck = errors.New("it does not read its stdin")

// notes are the notifications that go-sdk's client knows.
var notes = []string{
	"notifications/cancelled", "notifications/elicitation/complete", "notifications/message",
	"notifications/progress", "notifications/prompts/list_changed", "notifications/resources/list_changed",
	"notifications/resources/updated", "notifications/subscriptions/acknowledged", "notifications/tools/list_changed",
}

// conn is an mcp.Connection over a program's pipes that no line of the program
// can end.
type conn struct {
	lines scanner
	out   *os.File
	times *times
	fuse  *fuse

	read  chan []jsonrpc.Message
	queue []jsonrpc.Message // Read's: what is left of a batch

	// Read's: notifications since the last fence, whether that is still on its
	// way, and whether it has been waited for in vain.
	notes        int
	fenced, slow bool

	mark    string        // of a fence; no program can know it
	passed  chan struct{} // holds one when the fence was handled
	tooMany sync.Once

	ended  chan struct{} // there is nothing more to read
	closed chan struct{}
	close  sync.Once

	turn     chan struct{} // holds one token while a line is being written
	refusals chan struct{} // holds one for each that waits

	mu    sync.Mutex
	calls map[jsonrpc.ID]bool // the program's, not answered yet
	taps  map[jsonrpc.ID]*Tap // of ours, not answered yet
	probe jsonrpc.ID          // ours for server/discover, not answered yet
	late  *time.Timer         // when it is given up
}

var _ mcp.Connection = (*conn)(nil)

// newConn reads until the end of in, or Close and one more line.
func newConn(in io.Reader, out *os.File, log io.Writer, t *times, f *fuse) *conn {
	c := &conn{
		lines: scanner{bufio.NewReaderSize(in, 16<<10), log}, out: out, times: t, fuse: f,
		read: make(chan []jsonrpc.Message), ended: make(chan struct{}), closed: make(chan struct{}),
		turn: make(chan struct{}, 1), refusals: make(chan struct{}, maxRefusals), calls: map[jsonrpc.ID]bool{}, taps: map[jsonrpc.ID]*Tap{},
		mark: rand.Text(), passed: make(chan struct{}, 1),
	}
	go c.scan()
	return c
}

// Connect makes conn its own mcp.Transport.
func (c *conn) Connect(context.Context) (mcp.Connection, error) { return c, nil }

// SessionID is empty: there is one session.
func (c *conn) SessionID() string { return "" }

// Close ends Read and Write. The pipes are not conn's to close.
func (c *conn) Close() error {
	c.close.Do(func() { close(c.closed) })
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.late != nil {
		c.late.Stop()
	}
	return nil
}

func (c *conn) scan() {
	defer close(c.ended)
	defer c.fuse.rescue("its lines", nil)
	for {
		msgs, err := c.lines.next()
		if err != nil || !c.hand(msgs) {
			return
		}
	}
}

// hand gives messages to Read.
func (c *conn) hand(msgs []jsonrpc.Message) bool {
	select {
	case c.read <- msgs:
		return true
	case <-c.closed:
		return false
	}
}

// Read gives the next message that go-sdk has to see.
func (c *conn) Read(ctx context.Context) (_ jsonrpc.Message, err error) {
	defer c.fuse.rescue("reading", &err)
	for {
		for len(c.queue) > 0 {
			msg := c.queue[0]
			if c.fenced {
				c.pass(ctx)
			} else if _, answer := msg.(*jsonrpc.Response); c.notes == maxNotes || answer && c.notes > 0 {
				return c.newFence(), nil
			}
			c.queue = c.queue[1:]
			if c.admit(msg) {
				return msg, nil
			}
		}
		select {
		case c.queue = <-c.read:
		case <-c.ended:
			return nil, io.EOF
		case <-c.closed:
			return nil, io.EOF
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// admit tells whether go-sdk has to see a message, and keeps count.
func (c *conn) admit(msg jsonrpc.Message) bool {
	req, ok := msg.(*jsonrpc.Request)
	if !ok {
		res := msg.(*jsonrpc.Response)
		c.answered(res.ID)
		c.tapped(res)
		return true
	}
	if !req.IsCall() {
		return c.admitNote(req.Method)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.calls) >= maxCalls || c.calls[req.ID] {
		go c.refuse(req.ID)
		return false
	}
	c.calls[req.ID] = true
	return true
}

func (c *conn) admitNote(method string) bool {
	if !slices.Contains(notes, method) {
		return false
	}
	if c.fenced {
		c.tooMany.Do(func() {
			fmt.Fprintf(c.lines.log, "hub: its notifications are not handled within %s; some are dropped\n", fenceTime)
		})
		return false
	}
	c.notes++
	return true
}

// newFence gives a notification of our own. go-sdk hands an answer on at once
// but notifications one by one in another goroutine: when the fence is handled,
// those before it have been, and the answer that waits may follow.
func (c *conn) newFence() jsonrpc.Message {
	c.notes, c.fenced, c.slow = 0, true, false
	params, _ := json.Marshal(map[string]any{"progressToken": c.mark, "progress": 0}) // it encodes
	return &jsonrpc.Request{Method: "notifications/progress", Params: params}
}

// pass waits until the fence is handled, but not for ever.
func (c *conn) pass(ctx context.Context) {
	most := fenceTime
	if c.slow {
		most = 0
	}
	late := time.NewTimer(most)
	defer late.Stop()
	select {
	case <-c.passed:
		c.fenced = false
	case <-late.C:
		c.slow = true
	case <-c.closed:
	case <-ctx.Done():
	}
}

// handled is a middleware that sees the fences.
func (c *conn) handled(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if p, ok := req.GetParams().(*mcp.ProgressNotificationParams); ok && p.ProgressToken == c.mark {
			c.passed <- struct{}{} // there is one fence at a time
			return nil, nil
		}
		return next(ctx, method, req)
	}
}

// refuse answers a request that is one too many.
func (c *conn) refuse(id jsonrpc.ID) {
	select {
	case c.refusals <- struct{}{}:
		defer func() { <-c.refusals }()
		_ = c.send(context.Background(), &jsonrpc.Response{ID: id, Error: &jsonrpc.Error{
			Code: jsonrpc.CodeInternalError, Message: fmt.Sprintf("%d requests are in flight; wait for their answers", maxCalls),
		}})
	default: // it doesn't read the ones before
	}
}

// Write writes a message of go-sdk as one line.
func (c *conn) Write(ctx context.Context, msg jsonrpc.Message) (err error) {
	defer c.fuse.rescue("writing", &err)
	switch m := msg.(type) {
	case *jsonrpc.Response:
		c.mu.Lock()
		delete(c.calls, m.ID)
		c.mu.Unlock()
	case *jsonrpc.Request:
		if m.Method == "server/discover" {
			c.mu.Lock()
			c.probe = m.ID
			c.late = time.AfterFunc(c.times.probe, func() { c.giveUp(m.ID) })
			c.mu.Unlock()
		}
		if tap, ok := ctx.Value(tapKey{}).(*Tap); ok && m.IsCall() {
			c.tap(m.ID, tap)
		}
	}
	return c.send(ctx, msg)
}

// giveUp answers the probe of a program that knows no server/discover and
// ignores what it doesn't know, so that initialize comes next.
func (c *conn) giveUp(id jsonrpc.ID) {
	if c.answered(id) {
		c.hand([]jsonrpc.Message{&jsonrpc.Response{ID: id, Error: &jsonrpc.Error{
			Code: jsonrpc.CodeMethodNotFound, Message: "no answer to server/discover",
		}}})
	}
}

// answered tells whether an answer is the first to the probe.
func (c *conn) answered(id jsonrpc.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	is := id.IsValid() && id == c.probe
	if is {
		c.probe = jsonrpc.ID{}
		c.late.Stop()
	}
	return is
}

// send writes a line when it is its turn. The caller doesn't wait longer than
// ctx, but the line is always written whole, or the connection is over.
func (c *conn) send(ctx context.Context, msg jsonrpc.Message) error {
	data, err := jsonrpc.EncodeMessage(msg)
	if err != nil {
		return err
	}
	select {
	case c.turn <- struct{}{}:
	case <-c.closed:
		return io.ErrClosedPipe
	case <-ctx.Done():
		return ctx.Err()
	}
	done := make(chan error, 1)
	go func() {
		done <- c.write(append(data, '\n'))
		<-c.turn
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *conn) write(line []byte) error {
	_ = c.out.SetWriteDeadline(time.Now().Add(c.times.write)) // pipes have deadlines
	_, err := c.out.Write(line)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = errStuck
	}
	if err != nil {
		fmt.Fprintf(c.lines.log, "hub: nothing more can be written to it: %s\n", err)
		c.Close()
	}
	return err
}
