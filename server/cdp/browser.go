// Package cdp implements the part of the Chrome DevTools Protocol that browser-shell uses: a tab in a BrowserContext of
// its own for each session, and the addresses of that context's pages. It runs no script in a page's world.
//
// Protocol: https://chromedevtools.github.io/devtools-protocol/tot/Target/
package cdp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// poll is the interval between checks that a closing page is gone.
const poll = 20 * time.Millisecond

// askEvery is the time after which a page that did not close is asked again.
const askEvery = time.Second

// Browser is a connection to a running Chromium. When it ends, for whatever reason, Chromium disposes all
// BrowserContexts made over it, with their tabs, cookies and storage.
type Browser struct {
	conn *conn
	port int

	mu    sync.Mutex
	tabs  map[string]*Tab // by BrowserContext id
	sole  *Tab            // the tab that CloseOthers kept
	stays *Tab            // the same, already while it closes others
}

// target holds the used fields of the protocol's TargetInfo.
type target struct {
	ID      string `json:"targetId"`
	Type    string `json:"type"`
	URL     string `json:"url"`
	Context string `json:"browserContextId"`
}

// filter excludes targets that are not pages: workers, frames, parts of the browser's own window.
var filter = []map[string]any{{"type": "page"}}

// Dial connects to the Chromium with its DevTools port on 127.0.0.1:port.
func Dial(ctx context.Context, port int) (*Browser, error) {
	b := &Browser{port: port, tabs: map[string]*Tab{}}
	var err error
	if b.conn, err = dial(ctx, port, b.handleEvent); err != nil {
		return nil, err
	}
	discover := map[string]any{"discover": true, "filter": append(filter, map[string]any{"type": "iframe"})}
	if err := b.call(ctx, "Target.setDiscoverTargets", discover, nil); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// Done returns a channel that is closed when Chromium has ended or closed the connection, or Close was called. All tabs
// are gone then.
func (b *Browser) Done() <-chan struct{} { return b.conn.alive.Done() }

// Close ends the connection and all tabs. A Chromium with a window ends if its last tab was ours, so close tabs first.
func (b *Browser) Close() { b.conn.end(nil) }

// End asks Chromium to end, and waits until it has or ctx ends.
func (b *Browser) End(ctx context.Context) {
	_ = b.call(ctx, "Browser.close", nil, nil) // it may end before it answers
	select {
	case <-b.Done():
	case <-ctx.Done():
	}
}

// responds reports whether any other tab answers within 1 s, or the browser itself if there is none.
func (b *Browser) responds(ctx context.Context, except *Tab) bool {
	b.mu.Lock()
	var others []*Tab
	for _, t := range b.tabs {
		if t != except && t.ready {
			others = append(others, t)
		}
	}
	b.mu.Unlock()
	if len(others) == 0 {
		ctx, cancel := context.WithTimeout(ctx, respondTime)
		defer cancel()
		_, err := b.fetchTargets(ctx)
		return err == nil
	}
	answers := make(chan bool, len(others))
	for _, t := range others {
		go func() { answers <- t.Responds(ctx) }()
	}
	for range others {
		if <-answers {
			return true
		}
	}
	return false
}

func (b *Browser) call(ctx context.Context, method string, params, result any) error {
	return b.conn.call(ctx, "", method, params, result, nil)
}

// handleEvent updates the tabs' pages.
func (b *Browser) handleEvent(_, method string, params json.RawMessage) {
	var p struct {
		Info   target `json:"targetInfo"`
		ID     string `json:"targetId"`
		Status string `json:"status"`
	}
	if json.Unmarshal(params, &p) != nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch method {
	case "Target.targetCreated", "Target.targetInfoChanged":
		if p.Info.Type == "page" {
			b.recordPage(p.Info)
		} else if t := b.tabs[p.Info.Context]; t != nil { // a frame
			if t.frames[p.Info.ID] = true; len(t.frames) > maxFrames {
				t.fail(errCrowded)
			}
		}
	case "Target.targetDestroyed", "Target.targetCrashed":
		for _, t := range b.tabs {
			if method == "Target.targetDestroyed" {
				delete(t.pages, p.ID)
				delete(t.frames, p.ID)
			}
			if t.id == p.ID {
				if p.Status == "failed to launch" {
					t.failed(ErrNoProcess)
				}
				t.fail(errGone)
			}
		}
	}
}

// recordPage records the address of a page. If it belongs to another context, it ends the tab that CloseOthers kept.
// The caller holds b.mu.
func (b *Browser) recordPage(info target) {
	if b.sole != nil && b.sole.context != info.Context {
		b.sole.fail(errNotAlone)
	}
	if t := b.tabs[info.Context]; t != nil {
		t.recordPage(info)
	}
}

// fetchTargets fetches all pages and updates the state of every tab.
func (b *Browser) fetchTargets(ctx context.Context) ([]target, error) {
	var pages []target
	err := b.conn.call(ctx, "", "Target.getTargets", map[string]any{"filter": filter}, nil, func(result json.RawMessage) error {
		var all struct {
			Infos []target `json:"targetInfos"`
		}
		if err := json.Unmarshal(result, &all); err != nil {
			return err
		}
		pages = slices.DeleteFunc(all.Infos, func(t target) bool { return t.Type != "page" })
		b.replacePages(pages)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return pages, nil
}

// replacePages replaces the pages of all tabs.
func (b *Browser) replacePages(pages []target) {
	b.mu.Lock()
	defer b.mu.Unlock()
	open := map[string]bool{}
	for _, p := range pages {
		open[p.ID] = true
	}
	for _, t := range b.tabs {
		maps.DeleteFunc(t.pages, func(id, _ string) bool { return !open[id] })
	}
	for _, p := range pages {
		b.recordPage(p)
	}
}

// NewTab opens an empty tab in a BrowserContext of its own: separate cookies and storage, every request (to loopback
// too) through proxy ("host:port"), no downloads, no dialogs. The tab has its own window, so no other tab hides it.
func (b *Browser) NewTab(ctx context.Context, proxy string) (*Tab, error) {
	if proxy == "" {
		return nil, errors.New("open a tab: there has to be a proxy, or pages could reach this machine's own ports")
	}
	t := newTab(b)
	opened := make(chan error)
	go func() {
		err := t.open(ctx, proxy)
		if err != nil {
			_ = callBounded(t.Close)
		}
		select {
		case opened <- err:
		case <-ctx.Done(): // the caller has left
			_ = t.close()
		}
	}()
	var err error
	select {
	case err = <-opened:
	case <-ctx.Done():
		err = fmt.Errorf("no answer from Chromium in time: %w", ctx.Err())
	}
	if err != nil {
		return nil, fmt.Errorf("open a tab: %w", err)
	}
	return t, nil
}

// CloseOthers closes every page of Chromium except keep's own tab, whoever owns it, and waits until they are gone.
// agent-browser 0.8 to 0.19 uses the first tab that it finds when its daemon starts; since 0.10 it switches to any new
// one. From then on a page that somebody else opens makes keep unusable, so that nothing of that page is shown.
func (b *Browser) CloseOthers(ctx context.Context, keep *Tab) error {
	b.mu.Lock()
	b.stays = keep
	b.mu.Unlock()
	if err := b.closeAll(ctx, func(p target) bool { return p.ID != keep.id }); err != nil {
		return err
	}
	b.mu.Lock()
	b.sole = keep
	b.mu.Unlock()
	return keep.Sync(ctx) // includes events that arrived meanwhile
}

func (b *Browser) closeAll(ctx context.Context, which func(target) bool) error {
	asked := map[string]time.Time{}
	for {
		pages, err := b.fetchTargets(ctx)
		if err != nil {
			return fmt.Errorf("close tabs: %w", err)
		}
		open := false
		for _, p := range pages {
			if !which(p) {
				continue
			}
			open = true
			if time.Since(asked[p.ID]) > askEvery { // a page that is navigating may miss the order
				asked[p.ID] = time.Now()
				_ = b.call(ctx, "Target.closeTarget", map[string]any{"targetId": p.ID}, nil) // gone meanwhile, or asked again
			}
		}
		if !open {
			return nil
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("a tab does not close: %w", err)
		}
	}
}

// keepOne makes sure that a page stays when closing is gone: one outside all sessions, or the one that CloseOthers kept. A
// Chromium with a window ends with its last tab.
func (b *Browser) keepOne(ctx context.Context, closing *Tab) error {
	pages, err := b.fetchTargets(ctx)
	if err != nil {
		return err
	}
	b.mu.Lock()
	kept := b.stays
	b.mu.Unlock()
	stays := func(p target) bool {
		t := b.tab(p.Context)
		return t == nil || t == kept && t != closing
	}
	if slices.ContainsFunc(pages, stays) {
		return nil
	}
	return b.call(ctx, "Target.createTarget", map[string]any{"url": blank}, nil)
}

func (b *Browser) tab(context string) *Tab {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tabs[context]
}
