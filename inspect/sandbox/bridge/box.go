package bridge

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/internal/rawname"
)

// box is one container of the client, from the call that boots it to its end.
type box struct {
	bridge *Bridge

	ready chan struct{} // closed when the tool answers, or has failed
	over  chan struct{} // closed when the container is completely removed

	// These are set before ready is closed.
	container Container
	client    *client
	failed    error // why the tool failed

	// These are set before over is closed.
	status sandbox.Status
	err    error // failures of cleaning up

	mu      sync.Mutex
	running int // calls
	idle    *time.Timer
	closing bool // no call can enter any more
}

// enter returns the container for a call, and boots one if none runs.
func (b *Bridge) enter() *box {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.box == nil || !b.box.beginCall() {
		b.box = &box{bridge: b, ready: make(chan struct{}), over: make(chan struct{}), running: 1}
		b.boxes.Go(b.box.runLife)
	}
	return b.box
}

// beginCall counts a starting call; it returns false if the container is ending.
func (x *box) beginCall() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closing {
		return false
	}
	x.running++
	if x.idle != nil {
		x.idle.Stop()
	}
	return true
}

// endCall counts the end of a call. After an idle time without calls the container ends.
func (x *box) endCall() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.running--
	if x.running == 0 && x.bridge.conf.Idle > 0 {
		x.idle = time.AfterFunc(x.bridge.conf.Idle, x.endIdle)
	}
}

// endIdle ends a container without calls.
func (x *box) endIdle() {
	if x.close(func() bool { return x.running == 0 }) {
		x.bridge.conf.Say("no call for %s: the container is ended; the next call boots another", x.bridge.conf.Idle)
		<-x.ready
		x.stop()
	}
}

// close prevents further calls, if that is possible, and reports whether it is the first to do so.
func (x *box) close(may func() bool) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closing || !may() {
		return false
	}
	x.closing = true
	return true
}

// stop ends the container; Wait returns the result.
func (x *box) stop() {
	x.close(func() bool { return true })
	if x.container != nil {
		_, _ = x.container.Stop(context.WithoutCancel(x.bridge.ctx))
	}
}

// runLife runs the life of a container.
func (x *box) runLife() {
	defer close(x.over)
	key := rand.Text()
	c, err := x.bridge.conf.Boot(x.bridge.ctx, key)
	if err != nil {
		x.fail(err)
		return
	}
	if dir := c.Directory(); dir != "" {
		x.bridge.conf.Say("evidence, screenshots and audit: %s", dir)
	}
	x.container, x.client = c, newClient(c.Dial, key)
	defer x.client.close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		x.status, x.err = c.Wait(context.WithoutCancel(x.bridge.ctx))
	}()
	if err := x.awaitTool(ended); err != nil {
		x.stop()
		<-ended
		x.fail(err)
	} else {
		close(x.ready)
		select {
		case <-ended:
		case <-x.bridge.ctx.Done():
			x.stop()
			<-ended
		}
		x.stop() // no call can enter
	}
	if x.err != nil {
		x.bridge.conf.Say("the container's end: %v", x.err)
	}
}

// fail ends a container whose tool never answered.
func (x *box) fail(err error) {
	x.stop()
	if x.failed = err; x.bridge.ctx.Err() == nil {
		x.bridge.conf.Say("the image did not start: %v", err)
	}
	close(x.ready)
}

// poll is the interval of checking whether a container's tool answers.
const poll = 50 * time.Millisecond

// awaitTool waits until the tool answers, and updates the tool that clients see.
func (x *box) awaitTool(ended <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(x.bridge.ctx, x.bridge.conf.health)
	defer cancel()
	go func() {
		select {
		case <-ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	var last error
	for {
		tools, err := x.client.tools(ctx)
		if err == nil {
			x.bridge.found(tools)
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ended:
			return fmt.Errorf("the container ended with exit status %d while it started%s", x.status.ExitCode, lastLine(x.container.Logs()))
		case <-time.After(poll):
		case <-ctx.Done():
			select {
			case <-ended:
				continue // the next round returns the reason
			default:
			}
			if x.bridge.ctx.Err() != nil {
				return errors.New("the client has disconnected")
			}
			return fmt.Errorf("the image's tool did not answer within %s: %w", x.bridge.conf.health, last)
		}
	}
}

// found compares the running image's tools with those described by its files.
func (b *Bridge) found(tools []*mcp.Tool) {
	select {
	case <-b.described:
	case <-b.ctx.Done():
		return
	}
	if b.setTools(tools) {
		b.conf.Say("the tools of the image are not as its files had them; clients are told")
	}
}

// lastLine returns the end of a container's output, for a sentence.
func lastLine(log []byte) string {
	text := strings.TrimSpace(string(log[max(0, len(log)-4096):]))
	text = strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
	if text == "" {
		return ""
	}
	return fmt.Sprintf(": %.300s", rawname.Line(text))
}
