package main

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server/hub/admin"
	"github.com/slimctl/slimctl/server/hub/upstream"
)

// oneServer is a hub with one server, whose words try to reach the terminal.
type oneServer struct{ down error }

func (h oneServer) Servers() []upstream.Status {
	s, _ := h.Server("files")
	return []upstream.Status{s}
}

func (oneServer) Server(name string) (upstream.Status, bool) {
	return upstream.Status{
		Name: "files", State: upstream.Error, Transport: "stdio", Since: time.Now().Add(-time.Minute), Attempt: 2, NextRetry: time.Now().Add(time.Hour),
		LastError: "ended with 1\x1b[2J", Restarts: 7, Server: "files \u202e1.0", Tools: 2,
	}, name == "files"
}

func (oneServer) Log(string) []byte                     { return []byte("first\n\x1b]0;title\x07\tsecond\r\n") }
func (oneServer) Start(string) error                    { return nil }
func (oneServer) Stop(context.Context, string) error    { return errors.New("it does not end") }
func (oneServer) Restart(context.Context, string) error { return nil }
func (oneServer) Tools() []admin.Tool {
	return []admin.Tool{{Name: "read", Server: "files", Description: "Reads\x1b[31m " + strings.Repeat("é", 100) + "\nmore"}, {Name: "write", Server: "files", Blocked: true}}
}
func (oneServer) Reload() error  { return errors.New("mcp-hub.json:1:1: not JSON") }
func (h oneServer) Ready() error { return h.down }

func ctlSocket(t *testing.T, h admin.Hub) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hub.sock")
	l, err := admin.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- admin.Serve(ctx, l, h, admin.NewMetrics(), "") }()
	t.Cleanup(func() {
		stop()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(need.Patience):
			t.Error("the API does not end")
		}
	})
	return path
}

var blanks = regexp.MustCompile(` +`)

func TestHubCtl(t *testing.T) {
	up := ctlSocket(t, oneServer{})
	down := ctlSocket(t, oneServer{down: errors.New("server files is error")})
	nobody := filepath.Join(t.TempDir(), "none.sock")
	for _, tt := range []struct {
		socket, args string
		code         int
		out          string // is in stdout, with single blanks
		err          string // is in stderr
	}{
		{up, "servers", 0, " ago stdio - 2 7 2 in ", ""},
		{up, "server files", 0, "last error: ended with 1\ufffd[2J\nlog:\n first\n \ufffd]0;title\ufffd second\n", ""},
		{up, "server files", 0, "server: files \ufffd1.0\n", ""},
		{up, "server none", 1, "", "no server of this name"},
		{up, "start files", 0, "NAME ", ""},
		{up, "restart files", 0, "NAME ", ""},
		{up, "stop files", 1, "", "stop files: it does not end"},
		{up, "tools", 0, "read files - Reads\ufffd[31m ééé", ""},
		{up, "tools", 0, "write files blocked", ""},
		{up, "health", 0, "ok\nNAME ", ""},
		{down, "health", 1, "down\nserver files is error\nNAME ", "the hub is down"},
		{down, "health --json", 1, ` "reason": "server files is error"`, "the hub is down"},
		{up, "metrics", 0, `mcp_hub_server_restarts_total{server="files"} 7`, ""},
		{up, "metrics --json", 0, `# TYPE mcp_hub_server_state gauge`, ""},
		{up, "reload", 1, "", "not reloaded, what was before stays: mcp-hub.json:1:1: not JSON"},
		{nobody, "servers", 1, "", "no hub answers on " + nobody},
		{up, "", 2, "", "usage: browser-shell hub ctl"},
		{up, "nothing", 2, "", "usage:"},
		{up, "servers files", 2, "", "usage:"},
		{up, "server", 2, "", "usage:"},
		{up, "stop a b", 2, "", "usage:"},
		{up, "servers --no-such-flag", 2, "", "usage:"},
		{up, "-h", 0, "", "usage:"},
	} {
		var out, errs strings.Builder
		args := append(strings.Fields(tt.args), "--socket", tt.socket)
		code := reportExit(runHubCtl(t.Context(), args, stdio{nil, &out, &errs}), &errs)
		if code != tt.code || !strings.Contains(blanks.ReplaceAllString(out.String(), " "), tt.out) || !strings.Contains(errs.String(), tt.err) {
			t.Errorf("%s: exit code %d\nstdout: %s\nstderr: %s", tt.args, code, out.String(), errs.String())
		}
		if strings.ContainsAny(out.String(), "\x1b\x07\r") || !strings.Contains(tt.args, "--json") && strings.Contains(out.String(), "\u202e") {
			t.Errorf("%s: %q reaches the terminal", tt.args, out.String())
		}
	}
}

func TestHubCtlJSON(t *testing.T) {
	socket := ctlSocket(t, oneServer{})
	for _, args := range []string{"servers", "server files", "start files", "tools", "health"} {
		var out, errs strings.Builder
		// Flags may stand before too.
		err := runHubCtl(t.Context(), append([]string{"--json", "--socket", socket}, strings.Fields(args)...), stdio{nil, &out, &errs})
		if err != nil || !json.Valid([]byte(out.String())) || strings.ContainsRune(out.String(), 0x1b) {
			t.Errorf("%s: %v %s%s", args, err, out.String(), errs.String())
		}
	}
}
