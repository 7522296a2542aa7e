package cdp

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"sync/atomic"
)

// watch has a session on every page of one tab and dismisses dialogs, which would block the page and agent-browser. It
// has a connection of its own, since a page can make its session's events long and many: that must end its own tab
// only.
type watch struct {
	*conn
	tab     *Tab
	session string // of the tab's own page
	dialogs chan dialog

	navigation atomic.Pointer[navigation] // set while a navigation is watched

	opened struct {
		sync.Mutex
		urls    []string
		dialogs []Dialog
	}
}

// Dialog is a dialog that a page opened. It was dismissed; a beforeunload dialog was accepted, so that the page could
// be left.
type Dialog struct {
	Type    string `json:"type"` // alert, confirm, prompt or beforeunload
	Message string `json:"message"`
}

// maxDialog limits the message of a Dialog, in bytes.
const maxDialog = 200

type dialog struct{ session, kind string }

// dialWatch connects for one tab. The watch ends with the browser's own connection.
func dialWatch(ctx context.Context, t *Tab) (*watch, error) {
	w := &watch{tab: t, dialogs: make(chan dialog, maxPages)}
	var err error
	if w.conn, err = dial(ctx, t.b.port, w.handleEvent); err != nil {
		return nil, err
	}
	go w.dismissDialogs(t.b.conn)
	return w, nil
}

// watchPage watches a page and returns its session.
func (w *watch) watchPage(ctx context.Context, id string) (session string, err error) {
	var s struct {
		ID string `json:"sessionId"`
	}
	if err := w.call(ctx, "", "Target.attachToTarget", map[string]any{"targetId": id, "flatten": true}, &s, nil); err != nil {
		return "", err
	}
	if err := w.call(ctx, s.ID, "Page.enable", nil, nil, nil); err != nil {
		return "", err
	}
	return s.ID, w.denySecurityKeys(ctx, s.ID)
}

// denySecurityKeys gives a page two virtual authenticators that recognize nobody, unless it has them, so that a request for
// one fails immediately. Otherwise a dialog covers the tab, which no policy or flag prevents. Chromium takes them from the
// page whenever another client, such as the agent-browser of any session, leaves it: also between two of these commands.
func (w *watch) denySecurityKeys(ctx context.Context, session string) error {
	add := func(transport string) error {
		return w.call(ctx, session, "WebAuthn.addVirtualAuthenticator", map[string]any{"options": map[string]any{
			"protocol": "ctap2", "transport": transport, "automaticPresenceSimulation": true, "hasUserVerification": true, "isUserVerified": false,
		}}, nil, nil)
	}
	for {
		err := add("internal")
		if err == nil {
			err = add("usb")
		}
		switch {
		case err == nil, strings.Contains(err.Error(), "only supports one internal authenticator"):
			return nil
		case !strings.Contains(err.Error(), "has not been enabled"):
			return err
		}
		if err := w.call(ctx, session, "WebAuthn.enable", nil, nil, nil); err != nil {
			return err
		}
	}
}

// watchPopup watches a page that may be gone already, or hang.
func (w *watch) watchPopup(id string) {
	_ = callBounded(func(ctx context.Context) error {
		_, err := w.watchPage(ctx, id)
		return err
	})
}

func (w *watch) handleEvent(session, method string, params json.RawMessage) {
	if n := w.navigation.Load(); n != nil && session == n.session && n.handleEvent(method, params) {
		go func() {
			_ = callBounded(func(ctx context.Context) error { return w.call(ctx, session, "Network.disable", nil, nil, nil) })
		}()
	}
	switch method {
	case "Page.windowOpen":
		w.recordOpening(params)
	case "Page.frameNavigated":
		w.tab.recordDocument(params)
	}
	if method != "Page.javascriptDialogOpening" {
		return
	}
	var p Dialog
	_ = json.Unmarshal(params, &p) // an unknown type is dismissed
	w.recordDialog(p)
	select {
	case w.dialogs <- dialog{session, p.Type}:
	default: // only a page that opens dialogs endlessly fills the queue
	}
}

// recordDialog records a dialog. It keeps the first ones, which show what the page wanted.
func (w *watch) recordDialog(d Dialog) {
	w.opened.Lock()
	defer w.opened.Unlock()
	if len(w.opened.dialogs) < maxOpened {
		d.Message = strings.ToValidUTF8(strings.Clone(d.Message[:min(len(d.Message), maxDialog)]), "")
		w.opened.dialogs = append(w.opened.dialogs, d)
	}
}

// Dialogs returns the dialogs that the tab's pages have opened since the last call, ten at most.
func (t *Tab) Dialogs() []Dialog { return takeNoted(t.watch, &t.watch.opened.dialogs) }

// takeNoted returns a list of watch.opened and empties it.
func takeNoted[T any](w *watch, list *[]T) []T {
	w.opened.Lock()
	defer w.opened.Unlock()
	out := *list
	*list = nil
	return out
}

// dismissDialogs closes the dialogs one after the other, at most 50 a second: a page may open them endlessly. It
// accepts leaving a page.
func (w *watch) dismissDialogs(browser *conn) {
	for {
		select {
		case <-browser.alive.Done():
			w.end(nil)
			return
		case <-w.alive.Done():
			return
		case d := <-w.dialogs:
			_ = callBounded(func(ctx context.Context) error { // agent-browser may have closed it
				err := w.call(ctx, d.session, "Page.handleJavaScriptDialog", map[string]any{"accept": d.kind == "beforeunload"}, nil, nil)
				_ = pause(ctx)
				return err
			})
		}
	}
}
