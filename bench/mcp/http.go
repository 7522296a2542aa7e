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
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// http measures what runs in the closed image besides the desktop: MCP over HTTP with gate and proxy, in one process.
func (b *bench) http(ctx context.Context) (err error) {
	dir := filepath.Dir(b.policy)
	for name, content := range map[string]any{
		"gate.json": map[string]any{"ticket_ttl": 30 * time.Second, "anonymous": true},
	} {
		text, err := json.Marshal(content)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, b.program, "serve", "--policy", b.policy, "--listen", "127.0.0.1:0",
		"--gate", filepath.Join(dir, "gate.json"), "--gate-listen", "127.0.0.1:0", "--egress")
	said, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		err = errors.Join(err, cmd.Wait())
	}()
	var log bytes.Buffer
	lines := bufio.NewScanner(io.TeeReader(said, &log))
	url, ok := "", false
	for !ok && lines.Scan() {
		url, ok = strings.CutPrefix(lines.Text(), "browser-shell: serving ")
	}
	if !ok {
		return fmt.Errorf("it does not serve: %s", &log)
	}
	go io.Copy(io.Discard, said)
	for range 10 { // clients that have disconnected
		if err := list(ctx, url); err != nil {
			return err
		}
	}
	time.Sleep(settle)
	b.httpIdle, err = resident(cmd.Process.Pid)
	return err
}

// list lists the tools, of which there must be one.
func list(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if !bytes.Contains(body, []byte(`"name":"browser-shell"`)) {
		return fmt.Errorf("there is no tool: %s", body)
	}
	return nil
}
