package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"

	"github.com/slimctl/slimctl/internal/need"
)

// page is a tab of a second, headless Chromium: a person's, who looks on from outside.
type page struct {
	conn *websocket.Conn
	id   int
}

// openPage starts a Chromium in the world and opens an address.
func openPage(t *testing.T, w *world, address string) *page {
	t.Helper()
	dir, err := os.MkdirTemp("", "slimctl-e2e-chromium-") // Chromium's children may still write when it has ended
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 20 {
			if os.RemoveAll(dir) == nil {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	cmd := w.command(t.Context(), need.Program(t, "chromium"), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1300,900",
		"--user-data-dir="+dir, "--remote-debugging-port=0", "about:blank")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	if err := need.Start(t, cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	var port string
	await(t, need.Patience, "Chromium's debugging port", func() error {
		text, err := os.ReadFile(filepath.Join(dir, "DevToolsActivePort"))
		port, _, _ = strings.Cut(string(text), "\n")
		if err == nil && port == "" {
			err = fmt.Errorf("DevToolsActivePort is empty")
		}
		return err
	})
	tools := devTools{func(ctx context.Context, network, _ string) (net.Conn, error) {
		return w.dial(ctx, network, "127.0.0.1:"+port)
	}}
	p := tools.attach(t, func(tab target) bool { return tab.Type == "page" })
	if _, err := p.call(t.Context(), "Page.navigate", map[string]any{"url": address}); err != nil {
		t.Fatal(err)
	}
	return p
}

// devTools are those of a Chromium.
type devTools struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// devTools are those of the container's Chromium.
func (b *box) devTools() devTools {
	return devTools{func(ctx context.Context, network, _ string) (net.Conn, error) {
		return b.w.dialInside(ctx, network, "127.0.0.1:9222")
	}}
}

// target is what DevTools list: a page, a frame of another site, a worker.
type target struct{ ID, Type, Title, URL, WebSocketDebuggerURL string }

func (d devTools) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: d.dial}}
}

func (d devTools) tabs() (list []target, err error) {
	res, err := d.client().Get("http://127.0.0.1/json")
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	return list, json.NewDecoder(res.Body).Decode(&list)
}

// attach connects to the first target that is wanted, once there is one.
func (d devTools) attach(t *testing.T, wanted func(target) bool) *page {
	t.Helper()
	var found target
	await(t, need.Patience, "a tab", func() error {
		list, err := d.tabs()
		if err != nil {
			return err
		}
		i := slices.IndexFunc(list, wanted)
		if i < 0 {
			return fmt.Errorf("tabs: %v", list)
		}
		found = list[i]
		return nil
	})
	conn, _, err := websocket.Dial(t.Context(), found.WebSocketDebuggerURL, &websocket.DialOptions{HTTPClient: d.client()})
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(64 << 20)
	t.Cleanup(func() { _ = conn.CloseNow() })
	return &page{conn: conn}
}

// call makes one call of the DevTools protocol.
func (p *page) call(ctx context.Context, method string, params any) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, need.Patience)
	defer cancel()
	p.id++
	if err := wsjson.Write(ctx, p.conn, map[string]any{"id": p.id, "method": method, "params": params}); err != nil {
		return nil, err
	}
	for {
		var m struct {
			ID     int
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		if err := wsjson.Read(ctx, p.conn, &m); err != nil {
			return nil, fmt.Errorf("%s: %w", method, err)
		}
		if m.ID != p.id {
			continue
		}
		if m.Error != nil {
			return nil, fmt.Errorf("%s: %s", method, m.Error.Message)
		}
		return m.Result, nil
	}
}

// eval returns the value of an expression.
func (p *page) eval(ctx context.Context, expression string) (any, error) {
	text, err := p.call(ctx, "Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true})
	if err != nil {
		return nil, err
	}
	var r struct{ Result struct{ Value any } }
	err = json.Unmarshal(text, &r)
	return r.Result.Value, err
}

// must is eval, for what has to work.
func (p *page) must(t *testing.T, expression string) any {
	t.Helper()
	v, err := p.eval(t.Context(), expression)
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// screenshot returns the page as PNG.
func (p *page) screenshot(ctx context.Context) ([]byte, error) {
	text, err := p.call(ctx, "Page.captureScreenshot", map[string]any{"format": "png"})
	if err != nil {
		return nil, err
	}
	var r struct{ Data string }
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, err
	}
	return base64.StdEncoding.DecodeString(r.Data)
}

// await calls f until it gives no error, less and less often: what is awaited needs the processor, too.
func await(t *testing.T, most time.Duration, what string, f func() error) {
	t.Helper()
	var err error
	pause := 20 * time.Millisecond
	for deadline := time.Now().Add(most); time.Now().Before(deadline); time.Sleep(pause) {
		if err = f(); err == nil {
			return
		}
		pause = min(pause*3/2, 500*time.Millisecond)
	}
	t.Fatalf("%s did not come within %s: %v", what, most, err)
}
