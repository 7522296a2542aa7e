package cdp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	maxPages  = 100             // of one context; a page may open popups
	maxSeen   = 1000            // places the pages of one context went to in one command
	maxURL    = 64 << 10        // bytes kept of a URL
	leaveTime = 2 * time.Second // bounds what a hanging page can delay

	respondTime = time.Second

	blank = "about:blank"
)

var (
	errGone     = errors.New("the tab is gone: it was closed or has crashed")
	errCrowded  = fmt.Errorf("the page opened more than %d others", maxPages)
	errNotAlone = errors.New("somebody else opened a page in this Chromium, which this version of agent-browser would go to")
	errRestless = fmt.Errorf("the page went to more than %d places at once", maxSeen)
)

// Page is a page of a tab's BrowserContext: the tab itself or a popup. The URL
// is the page's own choice; of a longer one the first 64 KiB are kept.
type Page struct{ ID, URL string }

// Tab is a tab in a BrowserContext of its own.
type Tab struct {
	b           *Browser
	id, context string
	close       func() error // closes it once
	watch       *watch

	// Under b.mu.
	pages   map[string]string // id -> URL
	unsure  map[string]bool   // ids of pages whose URL is the last one known
	seen    []Page
	crashed bool
	err     error // why the tab may not be used any more
}

func newTab(b *Browser) *Tab {
	t := &Tab{b: b, pages: map[string]string{}, unsure: map[string]bool{}}
	t.close = sync.OnceValue(t.dispose)
	return t
}

// open makes the context, which allows no downloads, and the tab itself.
func (t *Tab) open(ctx context.Context, proxy string) (err error) {
	if t.watch, err = dialWatch(ctx, t.b.port, t.b.conn); err != nil {
		return err
	}
	if err := t.makeContext(ctx, proxy); err != nil {
		return err
	}
	err = t.b.call(ctx, "Browser.setDownloadBehavior", map[string]any{"behavior": "deny", "browserContextId": t.context}, nil)
	if err != nil {
		return err
	}
	var made target
	err = t.b.call(ctx, "Target.createTarget", map[string]any{"url": blank, "browserContextId": t.context, "newWindow": true}, &made)
	if err != nil {
		return err
	}
	if made.ID == "" {
		return errors.New("no target from Chromium")
	}
	if t.watch.session, err = t.watch.page(ctx, made.ID); err != nil {
		return err
	}
	t.b.mu.Lock()
	t.id = made.ID
	t.b.mu.Unlock()
	return t.Sync(ctx)
}

// makeContext does not end with ctx: one made later would be nobody's.
func (t *Tab) makeContext(ctx context.Context, proxy string) error {
	var made target
	err := t.b.call(context.WithoutCancel(ctx), "Target.createBrowserContext", map[string]any{
		"disposeOnDetach": true, "proxyServer": proxy, "proxyBypassList": "<-loopback>",
	}, &made)
	if errors.Is(err, context.DeadlineExceeded) {
		t.b.conn.end(err)
	}
	if err != nil {
		return err
	}
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	t.context = made.Context
	t.b.tabs[t.context] = t
	return nil
}

// put notes where a page is. No URL at all is said of a popup that has nothing
// to show yet, and for a moment of a page that moves to another process: where
// that one is has to be asked again. The caller holds b.mu.
func (t *Tab) put(info target) {
	url := strings.Clone(info.URL[:min(len(info.URL), maxURL)])
	old, known := t.pages[info.ID]
	if !known && len(t.pages) >= maxPages {
		t.err = errCrowded
		return
	}
	if !known && t.id != "" && info.ID != t.id {
		go t.watch.popup(info.ID)
	}
	delete(t.unsure, info.ID)
	if url == "" && (old != "" || info.ID == t.id) {
		url, t.unsure[info.ID] = old, true
	}
	t.pages[info.ID] = url
	switch {
	case known && old == url:
	case len(t.seen) >= maxSeen:
		t.err = errRestless
	default:
		t.seen = append(t.seen, page(info.ID, url))
	}
}

// page is what a caller gets: a page that has nothing to show yet is blank.
func page(id, url string) Page {
	if url == "" {
		url = blank
	}
	return Page{id, url}
}

// ID is the tab's target id; ContextID that of its BrowserContext.
func (t *Tab) ID() string        { return t.id }
func (t *Tab) ContextID() string { return t.context }

// TargetFile is the file SESSION.target that holds agent-browser to the tab
// (with --pin-tab): an internal format of the native versions, tried with
// 0.34.0 and 0.41.2.
func (t *Tab) TargetFile() []byte {
	b, _ := json.Marshal(struct { // strings and a bool: cannot fail
		ID     string `json:"targetId"`
		URL    string `json:"url"`
		Pinned bool   `json:"pinned"`
	}{t.id, blank, true})
	return b
}

// Alive says, at no cost, whether the tab can be used, as last heard.
func (t *Tab) Alive() bool { return t.usable() == nil }

func (t *Tab) usable() error {
	if err := cmp.Or(t.b.conn.ended(), t.watch.ended()); err != nil {
		return err
	}
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	if t.err != nil {
		return t.err
	}
	if _, open := t.pages[t.id]; !open || t.crashed || t.b.tabs[t.context] != t {
		return errGone
	}
	return nil
}

// Pages gives all pages of the tab's BrowserContext as last heard, at no cost:
// the tab first, then popups.
func (t *Tab) Pages() []Page {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	var out []Page
	if url, open := t.pages[t.id]; open {
		out = append(out, page(t.id, url))
	}
	for _, id := range slices.Sorted(maps.Keys(t.pages)) {
		if id != t.id {
			out = append(out, page(id, t.pages[id]))
		}
	}
	return out
}

// Seen gives every place that a page of the tab's BrowserContext went to since
// Seen was last called, in order. A page may go to a forbidden place, be read
// there, and be back when it is asked where it is: Pages does not show that.
func (t *Tab) Seen() []Page {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	out := t.seen
	t.seen = nil
	return out
}

// Sync makes the state current, in one round trip (a few while a page moves to
// another process; 2 s at most). An error means that where
// the pages are is not known, or that the tab is not usable any more.
func (t *Tab) Sync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, leaveTime)
	defer cancel()
	for {
		if err := t.usable(); err != nil {
			return err
		}
		if _, err := t.b.targets(ctx); err != nil {
			return err
		}
		if !t.moving() {
			return t.usable()
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("where a page is: %w", err)
		}
	}
}

func (t *Tab) moving() bool {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	for id := range t.unsure {
		if _, open := t.pages[id]; open {
			return true
		}
	}
	return false
}

// Front brings the tab to front: a hidden one paints late or never.
func (t *Tab) Front(ctx context.Context) error {
	return t.b.call(ctx, "Target.activateTarget", map[string]any{"targetId": t.id}, nil)
}

// Leave makes a page of the tab's BrowserContext leave where it is, within
// 4 s: a popup is closed, the tab itself goes to about:blank and
// forgets where it was. A tab that hangs is closed, which is an error. After an
// error the session has to end.
func (t *Tab) Leave(ctx context.Context, pageID string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*leaveTime)
	defer cancel()
	if pageID != t.id {
		return t.closePage(ctx, pageID)
	}
	within, stop := context.WithTimeout(ctx, leaveTime)
	defer stop()
	if err := t.goBlank(within); err != nil {
		if err := t.closePage(ctx, t.id); err != nil {
			return err
		}
		return fmt.Errorf("the page does not leave (%w), so its tab was closed", err)
	}
	return nil
}

func (t *Tab) closePage(ctx context.Context, id string) error {
	return t.b.closeAll(ctx, func(p target) bool { return p.ID == id && p.Context == t.context })
}

// goBlank sends the tab to about:blank and sees that it is there.
func (t *Tab) goBlank(ctx context.Context) error {
	if err := t.watch.call(ctx, t.watch.session, "Page.navigate", map[string]any{"url": blank}, nil, nil); err != nil {
		return err
	}
	// It is answered before the new page is there, and from then on TargetInfo
	// has the new URL; only the history tells which page is shown.
	for !t.atBlank(ctx) {
		if err := pause(ctx); err != nil {
			return fmt.Errorf("it does not answer: %w", err)
		}
	}
	if err := t.watch.call(ctx, t.watch.session, "Page.resetNavigationHistory", nil, nil, nil); err != nil {
		return err
	}
	return t.Sync(ctx)
}

func (t *Tab) atBlank(ctx context.Context) bool {
	var h struct {
		Index   int                    `json:"currentIndex"`
		Entries []struct{ URL string } `json:"entries"`
	}
	// An error is usual while one page replaces the other.
	err := t.watch.call(ctx, t.watch.session, "Page.getNavigationHistory", nil, &h, nil)
	return err == nil && h.Index >= 0 && h.Index < len(h.Entries) && h.Entries[h.Index].URL == blank
}

// Responds tells whether the tab's renderer answers within 1 s: false for one
// that runs a script without end, or opens dialog after dialog.
func (t *Tab) Responds(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, respondTime)
	defer cancel()
	for t.Alive() {
		// An error is usual while one page replaces the other.
		if t.watch.call(ctx, t.watch.session, "Page.getLayoutMetrics", nil, nil, nil) == nil {
			return true
		}
		if pause(ctx) != nil {
			return false
		}
	}
	return false
}

// Close closes the tab and all its popups and forgets its cookies and storage,
// within 4 s, and goes on to do so if ctx ends before. If Chromium does not do
// it in time, the connection is closed, so that it does when it wakes; that is
// an error, and all other tabs are gone too. A second Close does nothing more.
func (t *Tab) Close(ctx context.Context) error {
	closed := make(chan error, 1)
	go func() { closed <- t.close() }()
	select {
	case err := <-closed:
		return err
	case <-ctx.Done():
		return fmt.Errorf("close a tab: Chromium did not answer in time: %w", ctx.Err())
	}
}

func (t *Tab) dispose() error {
	if t.watch != nil {
		defer t.watch.end(nil)
	}
	if t.context == "" {
		return nil
	}
	_ = bounded(t.b.keepOne) // without it a Chromium with a window ends, and is started again
	err := bounded(func(ctx context.Context) error {
		return t.b.call(ctx, "Target.disposeBrowserContext", map[string]any{"browserContextId": t.context}, nil)
	})
	t.b.mu.Lock()
	delete(t.b.tabs, t.context)
	if t.b.sole == t {
		t.b.sole = nil
	}
	t.b.mu.Unlock()
	if err == nil || t.b.conn.ended() != nil {
		return nil
	}
	err = fmt.Errorf("a tab could not be closed (%w), so all were", err)
	t.b.conn.end(err)
	return err
}

func bounded(f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	return f(ctx)
}
