// Package cdp is the part of the Chrome DevTools Protocol that browser-shell
// itself speaks: a tab in a BrowserContext of its own for each session, and
// where the pages of that context are. It runs no script and reads no page.
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

// poll is how often it is looked whether a page that closes is gone.
const poll = 20 * time.Millisecond

// askEvery is the time after which a page that did not close is told to again.
const askEvery = time.Second

// Browser is a connection to a running Chromium. All BrowserContexts made over
// it, with their tabs, cookies and storage, are gone when it ends, however it
// ends: Chromium disposes them.
type Browser struct {
	conn *conn
	port int

	mu   sync.Mutex
	tabs map[string]*Tab // by BrowserContext id
	sole *Tab            // the one that CloseOthers left
}

// target is the protocol's TargetInfo, as far as it is used.
type target struct {
	ID      string `json:"targetId"`
	Type    string `json:"type"`
	URL     string `json:"url"`
	Context string `json:"browserContextId"`
}

// filter keeps targets that are not pages (workers, frames, parts of the
// browser's own window) from being told of.
var filter = []map[string]any{{"type": "page"}}

// Dial connects to the Chromium whose DevTools listen on 127.0.0.1:port.
func Dial(ctx context.Context, port int) (*Browser, error) {
	b := &Browser{port: port, tabs: map[string]*Tab{}}
	var err error
	if b.conn, err = dial(ctx, port, b.event); err != nil {
		return nil, err
	}
	if err := b.call(ctx, "Target.setDiscoverTargets", map[string]any{"discover": true, "filter": filter}, nil); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// Done is closed as soon as Chromium has ended or closed the connection, or
// Close was called. Then all tabs are gone.
func (b *Browser) Done() <-chan struct{} { return b.conn.alive.Done() }

// Close ends the connection and with it all tabs. Chromium lives on, but for
// one with a window whose last tab was ours: close tabs first.
func (b *Browser) Close() { b.conn.end(nil) }

func (b *Browser) call(ctx context.Context, method string, params, result any) error {
	return b.conn.call(ctx, "", method, params, result, nil)
}

// event keeps the tabs' pages current.
func (b *Browser) event(_, method string, params json.RawMessage) {
	var p struct {
		Info target `json:"targetInfo"`
		ID   string `json:"targetId"`
	}
	if json.Unmarshal(params, &p) != nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch method {
	case "Target.targetCreated", "Target.targetInfoChanged":
		if p.Info.Type == "page" {
			b.put(p.Info)
		}
	case "Target.targetDestroyed":
		for _, t := range b.tabs {
			delete(t.pages, p.ID)
		}
	case "Target.targetCrashed":
		for _, t := range b.tabs {
			t.crashed = t.crashed || t.id == p.ID
		}
	}
}

// put notes where a page is. One of another context ends the tab that has to be
// the only one. The caller holds b.mu.
func (b *Browser) put(info target) {
	if b.sole != nil && b.sole.context != info.Context {
		b.sole.err = errNotAlone
	}
	if t := b.tabs[info.Context]; t != nil {
		t.put(info)
	}
}

// targets asks for all pages there are and makes every tab's state current.
func (b *Browser) targets(ctx context.Context) ([]target, error) {
	var pages []target
	err := b.conn.call(ctx, "", "Target.getTargets", map[string]any{"filter": filter}, nil, func(result json.RawMessage) error {
		var all struct {
			Infos []target `json:"targetInfos"`
		}
		if err := json.Unmarshal(result, &all); err != nil {
			return err
		}
		pages = slices.DeleteFunc(all.Infos, func(t target) bool { return t.Type != "page" })
		b.replace(pages)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return pages, nil
}

// replace takes pages for all there are.
func (b *Browser) replace(pages []target) {
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
		b.put(p)
	}
}

// NewTab opens an empty tab in a BrowserContext of its own: own cookies and
// storage, every request (to loopback too) through proxy ("host:port"), no
// downloads, no dialogs. The tab has its own window, so it is never hidden
// behind another.
func (b *Browser) NewTab(ctx context.Context, proxy string) (*Tab, error) {
	if proxy == "" {
		return nil, errors.New("open a tab: there has to be a proxy, or pages could reach this machine's own ports")
	}
	t := newTab(b)
	opened := make(chan error)
	go func() {
		err := t.open(ctx, proxy)
		if err != nil {
			_ = t.close()
		}
		select {
		case opened <- err:
		case <-ctx.Done(): // nobody wants it any more
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

// CloseOthers closes every page of Chromium but keep's own tab, whoever's they
// are, and waits until they are gone: agent-browser 0.8 to 0.19 drives the
// first tab that it finds when its daemon starts, and since 0.10 goes on to any
// that is opened. From then on a page that somebody else opens makes keep
// unusable, so that nothing of that page is shown.
func (b *Browser) CloseOthers(ctx context.Context, keep *Tab) error {
	if err := b.closeAll(ctx, func(p target) bool { return p.ID != keep.id }); err != nil {
		return err
	}
	b.mu.Lock()
	b.sole = keep
	b.mu.Unlock()
	return keep.Sync(ctx) // what came meanwhile
}

func (b *Browser) closeAll(ctx context.Context, which func(target) bool) error {
	asked := map[string]time.Time{}
	for {
		pages, err := b.targets(ctx)
		if err != nil {
			return fmt.Errorf("close tabs: %w", err)
		}
		open := false
		for _, p := range pages {
			if !which(p) {
				continue
			}
			open = true
			if time.Since(asked[p.ID]) > askEvery { // a page that is just leaving for another place may stay
				asked[p.ID] = time.Now()
				_ = b.call(ctx, "Target.closeTarget", map[string]any{"targetId": p.ID}, nil) // gone meanwhile, or seen next time
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

// keepOne sees to it that there is a page that is no session's: a Chromium
// with a window ends with its last tab.
func (b *Browser) keepOne(ctx context.Context) error {
	pages, err := b.targets(ctx)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(pages, func(p target) bool { return b.tab(p.Context) == nil }) {
		return nil
	}
	return b.call(ctx, "Target.createTarget", map[string]any{"url": blank}, nil)
}

func (b *Browser) tab(context string) *Tab {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tabs[context]
}
