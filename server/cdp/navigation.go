package cdp

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
)

// Navigation is the result of loading the tab's page.
type Navigation struct {
	URL    string // last request, after redirects
	Status int    // of the HTTP answer; 0 without one
	Error  string // Chromium's, for instance net::ERR_CONNECTION_RESET; empty if the page was loaded

	Header map[string]string // of the answer, with lower-case names
}

// maxHeaders limits the size of an answer's kept headers, in bytes.
const maxHeaders = 256 << 10

// navigation collects a Navigation from the events of the tab's own session, until the page has an answer.
type navigation struct {
	session, frame, href string

	mu      sync.Mutex
	request string // id of the page's own request
	seen    Navigation
	done    bool
}

// WatchNavigation watches the loading of the page at href in the tab. stop ends it and returns the result, which is
// empty if the page was not requested. The tab may load other pages meanwhile, for instance repeat a failed request.
// Chromium reports every request meanwhile, in messages that the page can make large, so call stop soon.
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
		// The answer comes after all earlier events.
		_ = t.watch.call(ctx, t.watch.session, "Network.disable", nil, nil, nil)
		t.watch.navigation.Store(nil)
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.seen
	}, nil
}

// handleEvent processes one event. It reports whether the page has its answer.
func (n *navigation) handleEvent(method string, params json.RawMessage) (answered bool) {
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
		n.done = p.Response.Status < 400 // an error status without a page reports a failure later
	case method == "Network.loadingFailed":
		n.seen.Error, n.done = p.Error, true
	}
	return n.done
}

// recordOpening records the address of a page that one of the tab's pages opens. Chromium reports the address of such a
// page only when it has an answer.
func (w *watch) recordOpening(params json.RawMessage) {
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

// maxOpened limits the recorded addresses of pages opened in one command, and the dialogs.
const maxOpened = 10

// Opened returns the addresses of the pages that the tab's pages have opened since the last call, ten at most.
func (t *Tab) Opened() []string { return takeNoted(t.watch, &t.watch.opened.urls) }
