package assets_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slimctl/slimctl/internal/need"
	realgate "github.com/slimctl/slimctl/server/gate"
)

// TestForgottenKey connects the official TypeScript SDKs without a key, as clients that know OAuth and as others: what a
// client shows names the header.
func TestForgottenKey(t *testing.T) {
	client := need.SDKClient(t, filepath.Join("..", "e2e", "testdata", "client"))
	node := need.Program(t, "node")
	s := place(t, "nginx.conf", false)
	real, err := realgate.New(realgate.Config{APIKeySHA256: strings.Repeat("0", 64), TicketTTL: time.Minute}, "127.0.0.1:5900", nil)
	if err != nil {
		t.Fatal(err)
	}
	s.gate.Config.Handler = real
	s.start(t)
	url := "http://" + onTCP(t, s.addr) + "/mcp"
	res, err := http.Post(url, "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	if res.StatusCode != 401 || res.Header.Get("Content-Type") != "application/json" || strings.Contains(res.Header.Get("WWW-Authenticate"), "Bearer") {
		t.Errorf("%d %v %s", res.StatusCode, res.Header, body)
	}
	key := []string{"X-AIO-API-Key", "SANDBOX_API_KEY"}
	for _, tc := range []struct {
		name, sdk, era, oauth string
		want                  []string
	}{
		{"sdk 1", "1", "legacy", "", key},
		{"sdk 1 with OAuth", "1", "legacy", "1", key},
		{"sdk 2, older era", "2", "legacy", "", key},
		{"sdk 2", "2", "modern", "", []string{"requires authorization (HTTP 401)"}}, // it keeps the body to itself
		{"sdk 2 with OAuth", "2", "modern", "1", key},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), node, client, url, "", tc.era, tc.sdk)
			cmd.Env = append(os.Environ(), "OAUTH="+tc.oauth)
			var said bytes.Buffer
			cmd.Stderr = &said
			if err := cmd.Run(); err == nil {
				t.Fatal("it connected")
			}
			for _, want := range tc.want {
				if !strings.Contains(said.String(), want) {
					t.Errorf("the client shows no %q: %s", want, said.String())
				}
			}
		})
	}
}

// TestRealGate has the real gate behind nginx: what a request for a ticket says reaches it, a ticket is revoked, and two keys are
// none however nginx joins them.
func TestRealGate(t *testing.T) {
	const key = "0123456789abcdef"
	s := place(t, "nginx.conf", false)
	real, err := realgate.New(realgate.Config{APIKeySHA256: fmt.Sprintf("%x", sha256.Sum256([]byte(key))), TicketTTL: time.Minute}, "127.0.0.1:5900",
		func(realgate.Event) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	s.gate.Config.Handler = real
	s.start(t)
	ask := func(line, body string, header ...string) (int, string) {
		t.Helper()
		res := s.send(t, request{line: line, body: body, header: header}.raw())
		got, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(got)
	}
	with := "X-AIO-API-Key: " + key
	if code, body := ask("POST /tickets", `{"inputs":true}`, with); code != 400 || !strings.Contains(body, `unknown key \"inputs\"`) {
		t.Errorf("a wrong body: %d %s", code, body)
	}
	code, body := ask("POST /tickets", `{"input":true}`, with)
	var got struct {
		Ticket string
		Input  bool
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil || code != 200 || !got.Input {
		t.Fatalf("a ticket for input: %d %s", code, body)
	}
	page := "GET /vnc/?ticket=" + got.Ticket
	if code, _ := ask(page, ""); code != 200 {
		t.Errorf("with the ticket: %d", code)
	}
	if code, _ := ask("DELETE /tickets?ticket="+got.Ticket, ""); code != 401 {
		t.Errorf("the ticket is revoked without a key: %d", code)
	}
	if code, body := ask("DELETE /tickets?ticket="+got.Ticket, "", with); code != 204 || body != "" {
		t.Errorf("the ticket isn't revoked: %d %s", code, body)
	}
	if code, _ := ask(page, ""); code != 401 {
		t.Errorf("with the revoked ticket: %d", code)
	}
	for _, line := range []string{"POST /tickets", "POST /mcp", "GET /vnc/", "DELETE /tickets?ticket=" + someTicket} {
		for _, second := range []string{"X-AIO-API-Key: wrong", "x-aio-api-key: " + key, "Authorization: Bearer wrong", "Authorization: Bearer " + key} {
			for _, header := range [][]string{{with, second}, {second, with}} {
				if code, _ := ask(line, "", header...); code != 401 {
					t.Errorf("%s with %q: %d", line, header, code)
				}
			}
		}
	}
}

// onTCP makes a unix socket reachable by an address.
func onTCP(t *testing.T, socket string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer in.Close()
				out, err := net.Dial("unix", socket)
				if err != nil {
					return
				}
				defer out.Close()
				go func() { _, _ = io.Copy(out, in); out.Close() }()
				_, _ = io.Copy(in, out)
			}()
		}
	}()
	return l.Addr().String()
}
