package report

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/slimctl/slimctl/internal/need"
)

// tab is a page of a real browser.
type tab struct {
	t       *testing.T
	ws      *websocket.Conn
	session string

	mu      sync.Mutex
	last    int
	answers map[int]chan json.RawMessage
	// requests are the URLs that the page asked for; troubles are exceptions, console errors and violations of its policy.
	requests, troubles []string
	loaded             chan struct{}
}

// newTab starts Chromium, which ends with the test.
func newTab(t *testing.T) *tab {
	t.Helper()
	program := need.Chromium(t)
	profile, err := os.MkdirTemp("", "report-chromium-")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--remote-debugging-port=0", "--user-data-dir="+profile, "about:blank")
	cmd.Env = append(os.Environ(), "TMPDIR="+profile) // killed, it leaves its socket's directory behind
	if err := need.Start(t, cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		need.Kill(cmd)
		for range 40 { // its children may still be writing
			if os.RemoveAll(profile) == nil {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	var port, path string
	need.Eventually(t, func() bool {
		b, err := os.ReadFile(filepath.Join(profile, "DevToolsActivePort"))
		port, path, _ = strings.Cut(string(b), "\n")
		return err == nil && path != ""
	}, func() string { return "Chromium doesn't listen" })
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	ws, _, err := websocket.Dial(ctx, "ws://127.0.0.1:"+port+strings.TrimSpace(path), nil)
	if err != nil {
		t.Fatal(err)
	}
	ws.SetReadLimit(256 << 20)
	b := &tab{t: t, ws: ws, answers: map[int]chan json.RawMessage{}, loaded: make(chan struct{}, 1)}
	go b.read(ctx)
	var target struct {
		ID string `json:"targetId"`
	}
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct {
		ID string `json:"sessionId"`
	}
	b.call("Target.attachToTarget", map[string]any{"targetId": target.ID, "flatten": true}, &attached)
	b.session = attached.ID
	for _, domain := range []string{"Page", "Runtime", "Network", "Log"} {
		b.call(domain+".enable", nil, nil)
	}
	return b
}

func (b *tab) read(ctx context.Context) {
	for {
		_, data, err := b.ws.Read(ctx)
		if err != nil {
			return
		}
		var m struct {
			ID             int
			Method         string
			Params, Result json.RawMessage
			Error          *struct{ Message string }
		}
		if json.Unmarshal(data, &m) != nil {
			continue
		}
		b.mu.Lock()
		if answer := b.answers[m.ID]; m.ID > 0 && answer != nil {
			if m.Error != nil {
				b.troubles = append(b.troubles, "DevTools: "+m.Error.Message)
			}
			answer <- m.Result
			delete(b.answers, m.ID)
		}
		switch m.Method {
		case "Page.loadEventFired":
			select {
			case b.loaded <- struct{}{}:
			default:
			}
		case "Network.requestWillBeSent":
			var p struct{ Request struct{ URL string } }
			_ = json.Unmarshal(m.Params, &p)
			b.requests = append(b.requests, p.Request.URL)
		case "Runtime.exceptionThrown", "Page.javascriptDialogOpening", "Log.entryAdded", "Runtime.consoleAPICalled":
			b.troubles = append(b.troubles, m.Method+" "+string(m.Params))
		}
		b.mu.Unlock()
	}
}

// call calls a method of the DevTools protocol.
func (b *tab) call(method string, params any, result any) {
	b.t.Helper()
	answer := make(chan json.RawMessage, 1)
	b.mu.Lock()
	b.last++
	id := b.last
	b.answers[id] = answer
	b.mu.Unlock()
	m := map[string]any{"id": id, "method": method}
	if params != nil {
		m["params"] = params
	}
	if b.session != "" {
		m["sessionId"] = b.session
	}
	data, err := json.Marshal(m)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), need.Patience)
	defer cancel()
	if err := b.ws.Write(ctx, websocket.MessageText, data); err != nil {
		b.t.Fatal(err)
	}
	select {
	case got := <-answer:
		if result != nil {
			if err := json.Unmarshal(got, result); err != nil {
				b.t.Fatalf("%s: %v", method, err)
			}
		}
	case <-ctx.Done():
		b.t.Fatalf("%s: no answer", method)
	}
}

// open loads a file from disk and forgets what was before.
func (b *tab) open(file string) {
	b.t.Helper()
	b.mu.Lock()
	b.requests, b.troubles = nil, nil
	b.mu.Unlock()
	b.call("Page.navigate", map[string]any{"url": "file://" + file}, nil)
	select {
	case <-b.loaded:
	case <-time.After(need.Patience):
		b.t.Fatalf("%s doesn't load", file)
	}
}

// eval returns what a JavaScript expression says.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	var out struct {
		Result struct{ Value T }
		Thrown json.RawMessage `json:"exceptionDetails"`
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &out)
	if out.Thrown != nil {
		b.t.Fatalf("%s: %s", expression, out.Thrown)
	}
	return out.Result.Value
}

// until waits for a JavaScript expression to be true.
func (b *tab) until(expression string) {
	b.t.Helper()
	need.Eventually(b.t, func() bool { return eval[bool](b, expression) }, func() string { return expression })
}

// press presses a key.
func (b *tab) press(key, text string) {
	b.t.Helper()
	b.call("Input.dispatchKeyEvent", map[string]any{"type": "keyDown", "key": key, "text": text}, nil)
	b.call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key}, nil)
}

// look makes the window so wide and high, light or dark.
func (b *tab) look(width, height int, dark bool) {
	b.t.Helper()
	scheme := map[bool]string{true: "dark", false: "light"}[dark]
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// shot keeps a picture where ARTIFACTS says, if it does.
func (b *tab) shot(name string) {
	b.t.Helper()
	dir := os.Getenv("ARTIFACTS")
	if dir == "" {
		return
	}
	var png struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{"format": "png"}, &png)
	data, err := base64.StdEncoding.DecodeString(png.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("report-%s.png", name)), data, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// quiet fails when anything went wrong in the page, or when it asked for anything but the file itself.
func (b *tab) quiet(file string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.troubles {
		b.t.Errorf("trouble in the page: %.500s", s)
	}
	for _, u := range b.requests {
		if u, _, _ = strings.Cut(u, "#"); u != "file://"+file {
			b.t.Errorf("the page asked for %.200s", u)
		}
	}
	if len(b.requests) == 0 {
		b.t.Error("not even the page was asked for: this test sees nothing")
	}
}
