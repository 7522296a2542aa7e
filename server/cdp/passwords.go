package cdp

import (
	"context"
	"errors"
	"fmt"
)

// passwordScript returns the content of password fields: in the page, in frames of its origin and in open shadow trees.
// It runs in a world of its own, which the page can't modify.
const passwordScript = `(() => {
	const found = [];
	const look = (root) => {
		for (const e of root.querySelectorAll('*')) {
			if (found.length >= 64) return;
			if (e.localName === 'input' && e.type === 'password' && e.value) found.push(e.value.slice(0, 1024));
			if (e.shadowRoot) look(e.shadowRoot);
			if (e.localName === 'iframe' || e.localName === 'frame') {
				try { if (e.contentDocument) look(e.contentDocument) } catch {}
			}
		}
	};
	look(document);
	return found;
})()`

// Passwords returns the values of the password fields of the tab's page: at most 64, each cut to 1,024 characters.
func (t *Tab) Passwords(ctx context.Context) ([]string, error) {
	for {
		values, err := t.passwords(ctx)
		if err == nil {
			return values, nil
		}
		if t.checkUsable() != nil || pause(ctx) != nil { // errors are usual while a page is replaced
			return nil, fmt.Errorf("the page's password fields cannot be read: %w", err)
		}
	}
}

func (t *Tab) passwords(ctx context.Context) ([]string, error) {
	var world struct {
		ID int `json:"executionContextId"`
	}
	params := map[string]any{"frameId": t.id, "worldName": "browser-shell"} // a page's main frame has its target's id
	if err := t.watch.call(ctx, t.watch.session, "Page.createIsolatedWorld", params, &world, nil); err != nil {
		return nil, err
	}
	var out struct {
		Result struct{ Value []string }
		Failed any `json:"exceptionDetails"`
	}
	params = map[string]any{"expression": passwordScript, "contextId": world.ID, "returnByValue": true}
	if err := t.watch.call(ctx, t.watch.session, "Runtime.evaluate", params, &out, nil); err != nil {
		return nil, err
	}
	if out.Failed != nil {
		return nil, errors.New("the script that reads them failed")
	}
	return out.Result.Value, nil
}
