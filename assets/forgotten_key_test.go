package assets_test

import (
	"bytes"
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
	real, err := realgate.New(realgate.Config{APIKeySHA256: strings.Repeat("0", 64), TicketTTL: time.Minute}, "127.0.0.1:5900")
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
