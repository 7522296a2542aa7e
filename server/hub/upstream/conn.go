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
	// maxCalls limits the unanswered requests of a server; further ones are refused.
	maxCalls = 128
	// maxNotes limits its unhandled notifications; go-sdk's queues have no limit.
	maxNotes = 1024
	// fenceTime limits the wait for a fence; afterwards notifications are dropped until it is handled.
	fenceTime = time.Second
	// maxRefusals limits the refusals that wait to be written.
	maxRefusals = 16
)

// errStuck reports a program that doesn't read its stdin.
var errStuck = errors.New("the program does not read its stdin")

// notes lists the notifications that go-sdk's client handles.
var notes = []string{
	"notifications/cancelled", "notifications/elicitation/complete", "notifications/message",
	"notifications/progress", "notifications/prompts/list_changed", "notifications/resources/list_changed",
	"notifications/resources/updated", "notifications/subscriptions/acknowledged", "notifications/tools/list_changed",
}

// conn is an mcp.Connection over a program's pipes. No line of the program can end it.
type conn struct {
	lines scanner
	out   *os.File
	times *times
	fuse  *fuse

	read  chan []jsonrpc.Message
	queue []jsonrpc.Message // Read's: the rest of a batch

	// Read's: the number of notifications since the last fence, whether that fence is still pending, and whether a wait
	// for it has timed out.
	notes        int
	fenced, slow bool

	mark    string        // of a fence; no program can know it
	passed  chan struct{} // receives a value when the fence was handled
	tooMany sync.Once

	ended  chan struct{} // closed when nothing more can be read
	huge   bool          // valid after ended: a message was too long
	closed chan struct{}
	close  sync.Once

	turn     chan struct{} // contains a token while a line is being written
	refusals chan struct{} // contains a token for each that waits

	mu    sync.Mutex
	calls map[jsonrpc.ID]bool // the program's unanswered calls
	taps  map[jsonrpc.ID]*Tap // of our unanswered calls
	probe jsonrpc.ID          // our unanswered server/discover
	late  *time.Timer         // gives it up
}

var _ mcp.Connection = (*conn)(nil)

// newConn returns a conn that reads until the end of in, or until Close and one more line.
func newConn(in io.Reader, out *os.File, log io.Writer, t *times, f *fuse) *conn {
	c := &conn{
		lines: scanner{bufio.NewReaderSize(in, 16<<10), log}, out: out, times: t, fuse: f,
		read: make(chan []jsonrpc.Message), ended: make(chan struct{}), closed: make(chan struct{}),
		turn: make(chan struct{}, 1), refusals: make(chan struct{}, maxRefusals), calls: map[jsonrpc.ID]bool{}, taps: map[jsonrpc.ID]*Tap{},
		mark: rand.Text(), passed: make(chan struct{}, 1),
	}
	go c.readLines()
	return c
}

// Connect implements mcp.Transport: conn is its own transport.
func (c *conn) Connect(context.Context) (mcp.Connection, error) { return c, nil }

// SessionID returns "": there is only one session.
func (c *conn) SessionID() string { return "" }

// Close ends Read and Write. It doesn't close the pipes.
func (c *conn) Close() error {
	c.close.Do(func() { close(c.closed) })
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.late != nil {
		c.late.Stop()
	}
	return nil
}

func (c *conn) readLines() {
	defer close(c.ended)
	defer c.fuse.rescue("its lines", nil)
	for {
		msgs, err := c.lines.readMessages()
		if err != nil || !c.handMessages(msgs) {
			c.huge = errors.Is(err, errHuge)
			return
		}
	}
}

// handMessages passes messages to Read.
func (c *conn) handMessages(msgs []jsonrpc.Message) bool {
	select {
	case c.read <- msgs:
		return true
	case <-c.closed:
		return false
	}
}

// Read returns the next message for go-sdk.
func (c *conn) Read(ctx context.Context) (_ jsonrpc.Message, err error) {
	defer c.fuse.rescue("reading", &err)
	for {
		for len(c.queue) > 0 {
			msg := c.queue[0]
			if c.fenced {
				c.awaitFence(ctx)
			} else if _, answer := msg.(*jsonrpc.Response); c.notes == maxNotes || answer && c.notes > 0 {
				return c.newFence(), nil
			}
			c.queue = c.queue[1:]
			if c.admitMessage(msg) {
				return msg, nil
			}
		}
		select {
		case c.queue = <-c.read:
		case <-c.ended:
			if c.huge {
				return nil, errHuge // the error of the running calls
			}
			return nil, io.EOF
		case <-c.closed:
			return nil, io.EOF
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// admitMessage reports whether go-sdk needs a message, and updates the counts.
func (c *conn) admitMessage(msg jsonrpc.Message) bool {
	req, ok := msg.(*jsonrpc.Request)
	if !ok {
		res := msg.(*jsonrpc.Response)
		c.answersProbe(res.ID)
		c.fillTap(res)
		return true
	}
	if !req.IsCall() {
		return c.admitNote(req.Method)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.calls) >= maxCalls || c.calls[req.ID] {
		go c.refuseCall(req.ID)
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

// newFence returns a notification of our own. go-sdk delivers an answer immediately, but notifications one by one in
// another goroutine. Once the fence is handled, so are the notifications before it, and the waiting answer may follow.
func (c *conn) newFence() jsonrpc.Message {
	c.notes, c.fenced, c.slow = 0, true, false
	params, _ := json.Marshal(map[string]any{"progressToken": c.mark, "progress": 0}) // always encodes
	return &jsonrpc.Request{Method: "notifications/progress", Params: params}
}

// awaitFence waits until the fence is handled, at most fenceTime.
func (c *conn) awaitFence(ctx context.Context) {
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

// detectFences is middleware that detects the fences.
func (c *conn) detectFences(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if p, ok := req.GetParams().(*mcp.ProgressNotificationParams); ok && p.ProgressToken == c.mark {
			c.passed <- struct{}{} // there is only one fence at a time
			return nil, nil
		}
		return next(ctx, method, req)
	}
}

// refuseCall answers a request beyond the limit.
func (c *conn) refuseCall(id jsonrpc.ID) {
	select {
	case c.refusals <- struct{}{}:
		defer func() { <-c.refusals }()
		_ = c.sendLine(context.Background(), &jsonrpc.Response{ID: id, Error: &jsonrpc.Error{
			Code: jsonrpc.CodeInternalError, Message: fmt.Sprintf("%d requests are in flight; wait for their answers", maxCalls),
		}})
	default: // the program doesn't read the earlier ones
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
			c.late = time.AfterFunc(c.times.probe, func() { c.giveUpProbe(m.ID) })
			c.mu.Unlock()
		}
		if tap, ok := ctx.Value(tapKey{}).(*Tap); ok && m.IsCall() {
			c.addTap(m.ID, tap)
		}
	}
	return c.sendLine(ctx, msg)
}

// giveUpProbe answers the probe for a program that ignores server/discover, so that initialize follows.
func (c *conn) giveUpProbe(id jsonrpc.ID) {
	if c.answersProbe(id) {
		c.handMessages([]jsonrpc.Message{&jsonrpc.Response{ID: id, Error: &jsonrpc.Error{
			Code: jsonrpc.CodeMethodNotFound, Message: "no answer to server/discover",
		}}})
	}
}

// answersProbe reports whether an answer is the first one to the probe.
func (c *conn) answersProbe(id jsonrpc.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	is := id.IsValid() && id == c.probe
	if is {
		c.probe = jsonrpc.ID{}
		c.late.Stop()
	}
	return is
}

// sendLine writes a line when it is its turn. It waits for the turn until ctx ends. A line is always written
// completely, or the connection ends.
func (c *conn) sendLine(ctx context.Context, msg jsonrpc.Message) error {
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
		done <- c.writeLine(append(data, '\n'))
		<-c.turn
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *conn) writeLine(line []byte) error {
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
