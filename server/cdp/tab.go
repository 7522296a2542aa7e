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
	maxFrames = 50              // of one context and of other sites: each is a process
	maxURL    = 64 << 10        // bytes kept of a URL
	leaveTime = 2 * time.Second // limits the delay that a hanging page causes

	respondTime = time.Second
	hangTries   = 3 // of Tab.Hangs

	blank = "about:blank"
)

// ErrNoProcess means that Chromium could not start a process for a page.
var ErrNoProcess = errors.New("Chromium cannot start a process for a page") //nolint:staticcheck // a name

var (
	errGone     = errors.New("the tab is gone: it was closed or has crashed")
	errCrowded  = fmt.Errorf("the page opened more than %d others, or %d frames of other sites", maxPages, maxFrames)
	errNotAlone = errors.New("another client opened a page in this Chromium, and this version of agent-browser would use it")
)

// Page is a page of a tab's BrowserContext: the tab itself or a popup. The page chooses its URL; only the first 64 KiB
// of it are kept.
type Page struct{ ID, URL string }

// Tab is a tab in a BrowserContext of its own.
type Tab struct {
	b           *Browser
	id, context string
	close       func() error // runs once
	watch       *watch

	// Guarded by b.mu.
	pages  map[string]string // id -> URL
	unsure map[string]bool   // ids of pages whose current URL is unknown
	frames map[string]bool   // ids of frames with a process of their own
	shown  document
	ready  bool                    // it was opened
	err    error                   // why the tab is unusable
	failed context.CancelCauseFunc // ends the opening of the tab
}

// document is what the tab shows, as Page.frameNavigated reports it.
type document struct {
	Frame  string `json:"id"`
	Loader string `json:"loaderId"` // each load of a page has another one
	Failed string `json:"unreachableUrl"`
}

func newTab(b *Browser) *Tab {
	t := &Tab{b: b, pages: map[string]string{}, unsure: map[string]bool{}, frames: map[string]bool{}}
	t.close = sync.OnceValue(t.dispose)
	return t
}

// open creates the context, which allows no downloads, and the tab itself.
func (t *Tab) open(ctx context.Context, proxy string) (err error) {
	ctx, t.failed = context.WithCancelCause(ctx)
	defer t.failed(nil)
	defer func() {
		if errors.Is(context.Cause(ctx), ErrNoProcess) {
			err = ErrNoProcess
		}
	}()
	if t.watch, err = dialWatch(ctx, t); err != nil {
		return err
	}
	if err := t.makeContext(ctx, proxy); err != nil {
		return err
	}
	err = t.b.call(ctx, "Browser.setDownloadBehavior", map[string]any{"behavior": "deny", "browserContextId": t.context}, nil)
	if err != nil {
		return err
	}
	err = t.b.conn.call(ctx, "", "Target.createTarget", map[string]any{"url": blank, "browserContextId": t.context, "newWindow": true}, nil, t.setID)
	if err != nil {
		return err
	}
	if t.watch.session, err = t.watch.watchPage(ctx, t.id); err != nil {
		return err
	}
	if err := t.Sync(ctx); err != nil {
		return err
	}
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	t.ready = true
	return nil
}

// setID reads the tab's id, before the event that its process did not start.
func (t *Tab) setID(result json.RawMessage) error {
	var made target
	if err := json.Unmarshal(result, &made); err != nil {
		return err
	}
	if made.ID == "" {
		return errors.New("no target from Chromium")
	}
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	t.id = made.ID
	return nil
}

// makeContext waits for a slow Chromium without a limit: the context is disposed when it is there, also if ctx has ended.
func (t *Tab) makeContext(ctx context.Context, proxy string) error {
	var made target
	err := t.b.conn.callUnlimited(context.WithoutCancel(ctx), "", "Target.createBrowserContext", map[string]any{
		"disposeOnDetach": true, "proxyServer": proxy, "proxyBypassList": "<-loopback>",
	}, &made, nil)
	if err != nil {
		return err
	}
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	t.context = made.Context
	t.b.tabs[t.context] = t
	return nil
}

// fail makes the tab unusable and closes it, since it takes memory from others until its session notices. The caller
// holds b.mu.
func (t *Tab) fail(err error) {
	if t.err == nil {
		t.err = err
		go t.close() //nolint:errcheck // its session closes it again
	}
}

// recordPage records the address of a page. The URL is empty for a popup that shows nothing yet, and briefly for a page
// that moves to another process; the latter's address must be fetched again. The caller holds b.mu.
func (t *Tab) recordPage(info target) {
	url := strings.Clone(info.URL[:min(len(info.URL), maxURL)])
	old, known := t.pages[info.ID]
	if !known && len(t.pages) >= maxPages {
		t.fail(errCrowded)
		return
	}
	if !known && t.id != "" && info.ID != t.id {
		go t.watch.watchPopup(info.ID)
	}
	delete(t.unsure, info.ID)
	if url == "" && (old != "" || info.ID == t.id) {
		url, t.unsure[info.ID] = old, true
	}
	t.pages[info.ID] = url
}

// recordDocument records what the tab shows.
func (t *Tab) recordDocument(params json.RawMessage) {
	var p struct{ Frame document }
	if json.Unmarshal(params, &p) != nil {
		return
	}
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	if p.Frame.Frame == t.id { // not a frame within the page, nor a popup
		p.Frame.Failed = strings.Clone(p.Frame.Failed[:min(len(p.Frame.Failed), maxURL)])
		t.shown = p.Frame
	}
}

// Document returns the id of the document in the tab; each load of a page has another one. If the tab shows Chromium's
// error page, failed is the address that could not be loaded: by Pages it looks like a page of that site.
func (t *Tab) Document() (id, failed string) {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	return t.shown.Loader, t.shown.Failed
}

// visiblePage returns a Page for callers: one that shows nothing yet is about:blank.
func visiblePage(id, url string) Page {
	if url == "" {
		url = blank
	}
	return Page{id, url}
}

// ID returns the tab's target id.
func (t *Tab) ID() string { return t.id }

// TargetFile returns the content of SESSION.target, the file that pins agent-browser to the tab (with --pin-tab). It is
// an internal format of the native versions, tried with 0.34.0 and 0.41.2.
func (t *Tab) TargetFile() []byte {
	b, _ := json.Marshal(struct { // strings and a bool: can't fail
		ID     string `json:"targetId"`
		URL    string `json:"url"`
		Pinned bool   `json:"pinned"`
	}{t.id, blank, true})
	return b
}

// Alive reports whether the tab is usable, from the last event. It sends nothing.
func (t *Tab) Alive() bool { return t.checkUsable() == nil }

func (t *Tab) checkUsable() error {
	ended := cmp.Or(t.b.conn.endReason(), t.watch.endReason())
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	if _, open := t.pages[t.id]; t.err == nil && ended == nil && (!open || t.b.tabs[t.context] != t) {
		return errGone
	}
	return cmp.Or(t.err, ended)
}

// Pages returns all pages of the tab's BrowserContext, from the last events: the tab first, then popups. It sends
// nothing.
func (t *Tab) Pages() []Page {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	var out []Page
	if url, open := t.pages[t.id]; open {
		out = append(out, visiblePage(t.id, url))
	}
	for _, id := range slices.Sorted(maps.Keys(t.pages)) {
		if id != t.id {
			out = append(out, visiblePage(id, t.pages[id]))
		}
	}
	return out
}

// Sync updates the state and keeps security keys away, in two round trips (a few more while a page moves to another process). ctx limits it. An error
// means that the addresses of the pages are unknown, or that the tab is unusable.
func (t *Tab) Sync(ctx context.Context) error {
	for {
		if err := t.checkUsable(); err != nil {
			return err
		}
		if _, err := t.b.fetchTargets(ctx); err != nil {
			return err
		}
		if !t.moving() {
			// The answer comes after all earlier events of the watch. A page that hangs does not delay it.
			err := t.watch.denySecurityKeys(ctx, t.watch.session)
			return cmp.Or(t.checkUsable(), err)
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("read a page's address: %w", err)
		}
	}
}

// DenySecurityKeys renews what Sync does for each tab, since a client of all tabs has left. It doesn't wait.
func (b *Browser) DenySecurityKeys() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.tabs {
		if t.ready {
			go callBounded(func(ctx context.Context) error { return t.watch.denySecurityKeys(ctx, t.watch.session) }) //nolint:errcheck // Sync does it again
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

// Front brings the tab to the front: a hidden one paints late or never.
func (t *Tab) Front(ctx context.Context) error {
	return t.b.call(ctx, "Target.activateTarget", map[string]any{"targetId": t.id}, nil)
}

// Leave makes a page of the tab's BrowserContext leave its address, within 4 s. It closes a popup; it sends the tab
// itself to about:blank and clears its history. It closes a tab that hangs, and returns an error. After an error the
// session must end.
func (t *Tab) Leave(ctx context.Context, pageID string) error {
	return t.leave(ctx, pageID, leaveTime)
}

// LeaveError is Leave for Chromium's error page. It takes up to 16 s: no script runs there, so only the machine is slow.
func (t *Tab) LeaveError(ctx context.Context) error { return t.leave(ctx, t.id, 4*leaveTime) }

func (t *Tab) leave(ctx context.Context, pageID string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, 2*limit)
	defer cancel()
	if pageID != t.id {
		return t.closePage(ctx, pageID)
	}
	within, stop := context.WithTimeout(ctx, limit)
	defer stop()
	if err := t.goBlank(within); err != nil {
		if err := t.closePage(ctx, t.id); err != nil {
			return err
		}
		return fmt.Errorf("the page cannot be left (%w), so its tab was closed", err)
	}
	return nil
}

func (t *Tab) closePage(ctx context.Context, id string) error {
	return t.b.closeAll(ctx, func(p target) bool { return p.ID == id && p.Context == t.context })
}

// goBlank navigates the tab to about:blank until it shows that: a page can navigate at the same time, and win.
func (t *Tab) goBlank(ctx context.Context) error {
	for {
		before, _ := t.Document()
		var to struct{ LoaderID, ErrorText string }
		// Errors are usual while a page is replaced. The answer comes before the new page is there.
		err := t.watch.call(ctx, t.watch.session, "Page.navigate", map[string]any{"url": blank}, &to, nil)
		for id := before; err == nil && id == before && to.ErrorText == ""; id, _ = t.Document() {
			err = pause(ctx)
		}
		if err := t.Sync(ctx); err != nil {
			return err
		}
		pages := t.Pages()
		if id, _ := t.Document(); err == nil && id == to.LoaderID && len(pages) > 0 && pages[0] == (Page{t.id, blank}) {
			if err = t.watch.call(ctx, t.watch.session, "Page.resetNavigationHistory", nil, nil, nil); err == nil {
				return nil
			}
		}
		if pause(ctx) != nil {
			return fmt.Errorf("the page does not answer: %w", cmp.Or(err, ctx.Err()))
		}
	}
}

// Responds reports whether the tab's renderer answers within 1 s. One that runs an endless script, or opens dialog
// after dialog, doesn't.
func (t *Tab) Responds(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, respondTime)
	defer cancel()
	for t.Alive() {
		// Errors are usual while a page is replaced.
		if t.watch.call(ctx, t.watch.session, "Page.getLayoutMetrics", nil, nil, nil) == nil {
			return true
		}
		if pause(ctx) != nil {
			return false
		}
	}
	return false
}

// Hangs reports whether the tab's renderer does not answer although Chromium does: three times in a row another tab
// answers, or the browser itself if there is none, and the tab doesn't. If all are slow, the machine is.
func (t *Tab) Hangs(ctx context.Context) bool {
	for range hangTries {
		if t.Responds(ctx) || !t.b.responds(ctx, t) {
			return false
		}
	}
	return true
}

// Close closes the tab and all its popups and deletes its cookies and storage. If ctx ends earlier, Close returns an
// error, and the tab is closed as soon as Chromium answers. A second Close does nothing.
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
	_ = callBounded(func(ctx context.Context) error { return t.b.keepOne(ctx, t) })
	err := t.b.conn.callUnlimited(context.Background(), "", "Target.disposeBrowserContext", map[string]any{"browserContextId": t.context}, nil, nil)
	t.b.mu.Lock()
	delete(t.b.tabs, t.context)
	if t.b.stays == t {
		t.b.sole, t.b.stays = nil, nil
	}
	t.b.mu.Unlock()
	if t.b.conn.endReason() != nil {
		return nil
	}
	return err
}

func callBounded(f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	return f(ctx)
}
