//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"
)

// browser replaces Chromium with empty pages. It answers the commands of the DevTools protocol that successful calls of
// browser-shell need.
type browser struct {
	listener net.Listener
	server   *http.Server

	mu    sync.Mutex
	last  int
	pages map[string]page
}

type page struct {
	ID      string `json:"targetId"`
	Type    string `json:"type"`
	URL     string `json:"url"`
	Context string `json:"browserContextId"`
}

func startBrowser() (*browser, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := &browser{listener: l, pages: map[string]page{}}
	mux := http.NewServeMux()
	mux.HandleFunc("/json/version", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"webSocketDebuggerUrl":"ws://%s/devtools/browser/1"}`, l.Addr())
	})
	mux.HandleFunc("/devtools/browser/1", b.serve)
	b.server = &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() { _ = b.server.Serve(l) }() // until stop
	return b, nil
}

func (b *browser) port() int { return b.listener.Addr().(*net.TCPAddr).Port }
func (b *browser) stop()     { _ = b.server.Close() }

func (b *browser) serve(w http.ResponseWriter, r *http.Request) {
	ws, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer ws.CloseNow()
	ctx := context.Background()
	for {
		var command struct {
			ID     int    `json:"id"`
			Method string `json:"method"`
			Params page   `json:"params"`
		}
		if wsjson.Read(ctx, ws, &command) != nil {
			return
		}
		result, created := b.do(command.Method, command.Params)
		if created != nil && wsjson.Write(ctx, ws, map[string]any{
			"method": "Target.targetCreated", "params": map[string]any{"targetInfo": created},
		}) != nil {
			return
		}
		if wsjson.Write(ctx, ws, map[string]any{"id": command.ID, "result": result}) != nil {
			return
		}
	}
}

// do executes a command and returns the page that it created, if any. Unknown commands succeed without effect.
func (b *browser) do(method string, p page) (result any, created *page) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch method {
	case "Target.createBrowserContext":
		b.last++
		return map[string]any{"browserContextId": fmt.Sprintf("C%d", b.last)}, nil
	case "Target.createTarget":
		b.last++
		p.ID, p.Type = fmt.Sprintf("T%d", b.last), "page"
		b.pages[p.ID] = p
		return map[string]any{"targetId": p.ID}, &p
	case "Target.closeTarget":
		delete(b.pages, p.ID)
		return map[string]any{"success": true}, nil
	case "Target.disposeBrowserContext":
		for id, one := range b.pages {
			if one.Context == p.Context {
				delete(b.pages, id)
			}
		}
	case "Target.getTargets":
		all := []page{}
		for _, one := range b.pages {
			all = append(all, one)
		}
		return map[string][]page{"targetInfos": all}, nil
	}
	return json.RawMessage("{}"), nil
}
