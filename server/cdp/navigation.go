package cdp

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
)

// Navigation is how the tab's page was loaded.
type Navigation struct {
	URL    string // last asked for, after redirects
	Status int    // of the HTTP answer; 0 if there was none
	Error  string // Chromium's, for instance net::ERR_CONNECTION_RESET; empty when it was loaded

	Header map[string]string // of the answer, names in lower case
}

// maxHeaders bounds what is kept of an answer's headers, in bytes.
const maxHeaders = 256 << 10

// navigation gathers a Navigation from the events of the tab's own session,
// until the page has an answer.
type navigation struct {
	session, frame, href string

	mu      sync.Mutex
	request string // of the page itself
	seen    Navigation
	done    bool
}

// WatchNavigation watches how the page at href is loaded in the tab from now on,
// until stop, which gives what was seen: nothing if it was not asked for. The
// tab may go elsewhere meanwhile, for instance load again what failed before.
// Chromium tells of every request meanwhile, in
// messages that the page may make large: so stop soon.
func (t *Tab) WatchNavigation(ctx context.Context, href string) (stop func(context.Context) Navigation, err error) {
	href, _, _ = strings.Cut(href, "#")
	n := &navigation{session: t.watch.session, frame: t.id, href: href}
	t.watch.navigation.Store(n)
	err = t.watch.call(ctx, t.watch.session, "Network.enable", map[string]any{
		"maxTotalBufferSize": 0, "maxResourceBufferSize": 0, "maxPostDataSize": 0,
	}, nil, nil)
	if err != nil {
		t.watch.navigation.Store(nil)
		return nil, err
	}
	return func(ctx context.Context) Navigation {
		// Its answer comes after all events before it.
		_ = t.watch.call(ctx, t.watch.session, "Network.disable", nil, nil, nil)
		t.watch.navigation.Store(nil)
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.seen
	}, nil
}

// event takes one event; it tells whether the page has its answer.
func (n *navigation) event(method string, params json.RawMessage) (answered bool) {
	switch method {
	case "Network.requestWillBeSent", "Network.responseReceived", "Network.loadingFailed":
	default:
		return false
	}
	var p struct {
		RequestID string `json:"requestId"`
		Frame     string `json:"frameId"`
		Type      string `json:"type"`
		Request   struct {
			URL string `json:"url"`
		} `json:"request"`
		Response struct {
			Status  int               `json:"status"`
			Headers map[string]string `json:"headers"`
		} `json:"response"`
		Error string `json:"errorText"`
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.done || json.Unmarshal(params, &p) != nil || p.Type != "Document" {
		return false
	}
	switch {
	case method == "Network.requestWillBeSent" && p.Frame == n.frame && (p.RequestID == n.request || n.request == "" && p.Request.URL == n.href):
		n.request, n.seen = p.RequestID, Navigation{URL: strings.Clone(p.Request.URL[:min(len(p.Request.URL), maxURL)])}
		return false
	case n.request == "" || p.RequestID != n.request:
		return false
	case method == "Network.responseReceived":
		n.seen.Status, n.seen.Header = p.Response.Status, map[string]string{}
		size := 0
		for name, value := range p.Response.Headers {
			if size += len(name) + len(value); size > maxHeaders {
				break
			}
			n.seen.Header[strings.ToLower(name)] = value
		}
		n.done = p.Response.Status < 400 // an error without a page fails after this
	case method == "Network.loadingFailed":
		n.seen.Error, n.done = p.Error, true
	}
	return n.done
}

// opening notes a page that one of the tab's pages opens: Chromium tells its address
// only later, when it has an answer.
func (w *watch) opening(params json.RawMessage) {
	var p struct {
		URL string `json:"url"`
	}
	if json.Unmarshal(params, &p) != nil {
		return
	}
	w.opened.Lock()
	defer w.opened.Unlock()
	if len(w.opened.urls) < maxOpened {
		w.opened.urls = append(w.opened.urls, strings.Clone(p.URL[:min(len(p.URL), maxURL)]))
	}
}

// maxOpened bounds the addresses that are kept of pages opened in one command,
// and the dialogs.
const maxOpened = 10

// Opened returns the addresses of the pages that the tab's pages opened since
// Opened was last called, ten at most.
func (t *Tab) Opened() []string { return takeNoted(t.watch, &t.watch.opened.urls) }
