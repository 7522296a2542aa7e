package bridge

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/inspect/sandbox"
)

// box is one container of the client, from the call that boots it to its end.
type box struct {
	bridge *Bridge

	ready chan struct{} // closed when the tool answers, or never will
	over  chan struct{} // closed when nothing of the container is left

	// These are set before ready is closed.
	container Container
	client    *client
	failed    error // why the tool never will

	// These are set before over is closed.
	status sandbox.Status
	err    error // what could not be cleaned up

	mu      sync.Mutex
	running int // calls
	idle    *time.Timer
	closing bool // no call enters any more
}

// enter gives the container for a call, and boots one when none runs.
func (b *Bridge) enter() *box {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.box == nil || !b.box.enter() {
		b.box = &box{bridge: b, ready: make(chan struct{}), over: make(chan struct{}), running: 1}
		b.boxes.Go(b.box.live)
	}
	return b.box
}

// enter counts a call in; false when the container is ending.
func (x *box) enter() bool {
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

// leave counts a call out. The container ends when no other one comes for a while.
func (x *box) leave() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.running--
	if x.running == 0 && x.bridge.conf.Idle > 0 {
		x.idle = time.AfterFunc(x.bridge.conf.Idle, x.rest)
	}
}

// rest ends a container without calls.
func (x *box) rest() {
	if x.close(func() bool { return x.running == 0 }) {
		x.bridge.conf.Say("no call for %s: the container is ended; the next call boots another", x.bridge.conf.Idle)
		<-x.ready
		x.stop()
	}
}

// close lets no call enter any more, if that may be, and reports whether it is the first to do so.
func (x *box) close(may func() bool) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closing || !may() {
		return false
	}
	x.closing = true
	return true
}

// stop ends the container. How it ended is what Wait says.
func (x *box) stop() {
	x.close(func() bool { return true })
	if x.container != nil {
		_, _ = x.container.Stop(context.WithoutCancel(x.bridge.ctx))
	}
}

// live is the life of a container.
func (x *box) live() {
	defer close(x.over)
	key := rand.Text()
	c, err := x.bridge.conf.Boot(x.bridge.ctx, key)
	if err != nil {
		x.fail(err)
		return
	}
	x.container, x.client = c, newClient(c.Dial, key)
	defer x.client.close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		x.status, x.err = c.Wait(context.WithoutCancel(x.bridge.ctx))
	}()
	if err := x.await(ended); err != nil {
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
		x.stop() // no call enters
	}
	if x.err != nil {
		x.bridge.conf.Say("the container's end: %v", x.err)
	}
	if dir := c.Directory(); dir != "" {
		x.bridge.conf.Say("evidence, screenshots and audit: %s", dir)
	}
}

// fail is for a container whose tool never answered.
func (x *box) fail(err error) {
	x.stop()
	if x.failed = err; x.bridge.ctx.Err() == nil {
		x.bridge.conf.Say("the image did not start: %v", err)
	}
	close(x.ready)
}

// poll is the interval at which a container is asked whether its tool is there.
const poll = 50 * time.Millisecond

// await waits until the tool answers, and has clients see it as it is.
func (x *box) await(ended <-chan struct{}) error {
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
				continue // to say how
			default:
			}
			if x.bridge.ctx.Err() != nil {
				return errors.New("the client has gone")
			}
			return fmt.Errorf("its tool did not answer within %s: %w", x.bridge.conf.health, last)
		}
	}
}

// found compares what the image says with what its files said.
func (b *Bridge) found(tools []*mcp.Tool) {
	select {
	case <-b.described:
	case <-b.ctx.Done():
		return
	}
	if b.offer(tools) {
		b.conf.Say("the tools of the image are not as its files had them; clients are told")
	}
}

// lastLine is the end of what a container printed, fit for a sentence.
func lastLine(log []byte) string {
	text := strings.TrimSpace(string(log[max(0, len(log)-4096):]))
	text = strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, ""))
	if text == "" {
		return ""
	}
	return fmt.Sprintf(": %.300s", text)
}
