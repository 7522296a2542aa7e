package cdp

import (
	"context"
	"errors"
	"fmt"
)

// passwordScript gives what stands in password fields: of the page, of frames of its origin and of open shadow trees. It runs
// in a world of its own, where the page has changed nothing.
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

// Passwords gives the values of the password fields of the tab's page, at most 64 and of each the first 1,024 characters.
func (t *Tab) Passwords(ctx context.Context) ([]string, error) {
	for {
		values, err := t.passwords(ctx)
		if err == nil {
			return values, nil
		}
		if t.usable() != nil || pause(ctx) != nil { // an error is usual while one page replaces the other
			return nil, fmt.Errorf("the page's password fields: %w", err)
		}
	}
}

func (t *Tab) passwords(ctx context.Context) ([]string, error) {
	var world struct {
		ID int `json:"executionContextId"`
	}
	params := map[string]any{"frameId": t.id, "worldName": "browser-shell"} // a page's first frame has its target's id
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
		return nil, errors.New("the script failed")
	}
	return out.Result.Value, nil
}
