//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"time"
)

// contestant is a measured server.
type contestant struct {
	name string
	argv []string

	starts            []time.Duration
	calls             []time.Duration
	processor         time.Duration // used by these calls
	idle, loaded      int64         // resident bytes
	before, after     state         // the parallel rounds
	parallelPerSecond float64
}

// client is a minimal MCP client of a running server.
type client struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	stderr bytes.Buffer

	mu      sync.Mutex
	last    int
	waiting map[int]chan answer
	ended   error
}

type answer struct {
	ID     *int            `json:"id"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

func start(ctx context.Context, c *contestant) (*client, error) {
	cl := &client{cmd: exec.CommandContext(ctx, c.argv[0], c.argv[1:]...), waiting: map[int]chan answer{}}
	cl.cmd.Stderr = &cl.stderr
	cl.cmd.WaitDelay = time.Second
	var err error
	if cl.in, err = cl.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cl.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cl.cmd.Start(); err != nil {
		return nil, err
	}
	go cl.read(bufio.NewReader(out))
	return cl, nil
}

func (c *client) read(r *bufio.Reader) {
	for {
		line, err := r.ReadBytes('\n')
		var a answer
		if err == nil {
			err = json.Unmarshal(line, &a)
		}
		c.mu.Lock()
		if err != nil {
			c.ended = err
			for _, w := range c.waiting {
				close(w)
			}
			c.waiting = nil
			c.mu.Unlock()
			return
		}
		if a.ID != nil && c.waiting[*a.ID] != nil {
			c.waiting[*a.ID] <- a
			delete(c.waiting, *a.ID)
		}
		c.mu.Unlock()
	}
}

func (c *client) send(id *int, method string, params any) error {
	line, err := json.Marshal(struct {
		Version string `json:"jsonrpc"`
		ID      *int   `json:"id,omitempty"`
		Method  string `json:"method"`
		Params  any    `json:"params,omitempty"`
	}{"2.0", id, method, params})
	if err != nil {
		return err
	}
	_, err = c.in.Write(append(line, '\n'))
	return err
}

// request sends a request and waits for its answer.
func (c *client) request(method string, params any) (json.RawMessage, error) {
	got := make(chan answer, 1)
	c.mu.Lock()
	if c.ended != nil {
		c.mu.Unlock()
		return nil, c.fault(c.ended)
	}
	c.last++
	id := c.last
	c.waiting[id] = got
	err := c.send(&id, method, params)
	c.mu.Unlock()
	if err != nil {
		return nil, c.fault(err)
	}
	select {
	case a, ok := <-got:
		if !ok {
			return nil, c.fault(errors.New("no answer"))
		}
		if len(a.Error) > 0 {
			return nil, c.fault(fmt.Errorf("%s: %s", method, a.Error))
		}
		return a.Result, nil
	case <-time.After(time.Minute):
		return nil, c.fault(fmt.Errorf("%s: no answer in a minute", method))
	}
}

func (c *client) fault(err error) error {
	return fmt.Errorf("%s: %w (its stderr: %s)", c.cmd.Path, err, c.stderr.Bytes())
}

func (c *client) initialize() error {
	_, err := c.request("initialize", map[string]any{
		"protocolVersion": "2025-06-18",
		"capabilities":    map[string]any{},
		"clientInfo":      map[string]any{"name": "bench", "version": "1"},
	})
	return err
}

// ready sends what a host sends before it leaves a server idle.
func (c *client) ready() error {
	if err := c.initialize(); err != nil {
		return err
	}
	if err := c.send(nil, "notifications/initialized", nil); err != nil {
		return err
	}
	_, err := c.request("tools/list", map[string]any{})
	return err
}

// call runs a command in a session, which must succeed.
func (c *client) call(session string, argv ...string) error {
	raw, err := c.request("tools/call", map[string]any{
		"name":      "browser-shell",
		"arguments": map[string]any{"session_id": session, "argv": argv},
	})
	if err != nil {
		return err
	}
	var res struct {
		IsError           bool `json:"isError"`
		StructuredContent struct {
			ExitCode *int `json:"exit_code"`
		} `json:"structuredContent"`
	}
	if err := json.Unmarshal(raw, &res); err != nil {
		return c.fault(err)
	}
	if code := res.StructuredContent.ExitCode; res.IsError || code == nil || *code != 0 {
		return c.fault(fmt.Errorf("the call was not done: %s", raw))
	}
	return nil
}

// stop ends the input, after which a server must exit cleanly.
func (c *client) stop() error {
	if err := c.in.Close(); err != nil {
		return err
	}
	late := time.AfterFunc(10*time.Second, func() { _ = c.cmd.Process.Kill() })
	defer late.Stop()
	if err := c.cmd.Wait(); err != nil {
		return c.fault(fmt.Errorf("at the end of input: %w", err))
	}
	return nil
}
