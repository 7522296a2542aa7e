package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/internal/need"
)

// neighbour is a page that leaves and reads what a browser keeps: a query "leave=TEXT" leaves TEXT everywhere, and its output
// is all that it finds.
const neighbour = `<!doctype html><title>neighbour</title><input id="in"><output id="out">reading</output>
<button id="other" onclick="out.textContent = 'window: ' + (w => { try { return w.location.href + w.document.title } catch (e) { return e.name } })(window.open('', 'shared'))">other</button>
<script>
const left = new URLSearchParams(location.search).get('leave'), out = document.getElementById('out'), heard = [];
const channel = new BroadcastChannel('shared');
channel.onmessage = e => { heard.push(e.data); show() };
addEventListener('storage', e => { heard.push(e.newValue); show() });
let stored = 'none';
const show = () => out.textContent = 'found: ' + [document.cookie, localStorage.shared, window.name, stored, ...heard].join(' | ');
if (left) {
	document.cookie = 'shared=' + left; localStorage.shared = left; window.name = 'shared';
	document.getElementById('in').value = left;
	setInterval(() => channel.postMessage(left), 50);
}
const open = indexedDB.open('shared');
open.onupgradeneeded = () => open.result.createObjectStore('s');
open.onsuccess = () => {
	const s = open.result.transaction('s', 'readwrite').objectStore('s');
	if (left) s.put(left, 'k');
	s.get('k').onsuccess = e => { stored = e.target.result || 'none'; show() };
};
</script>`

// TestNativeGeneration boots the small image, whose agent-browser is native and has several sessions in one Chromium, and tries
// from one session to read, drive or end another, by all that an agent can send.
func TestNativeGeneration(t *testing.T) {
	t.Parallel()
	need.Containers(t)
	need.Program(t, "mmdebstrap")
	w := newWorld(t)
	b := boot(t, w, build(t, "l1", "standin-live:B"), nil)
	b.healthy(t)
	b.closed(t)
	t.Run("login", func(t *testing.T) { testLogin(t, b) })
	site := &httptest.Server{Listener: w.listen(t, siteIP+":80"), Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, neighbour)
	})}}
	site.Start()
	defer site.Close()
	const secret, page = "annas-marmalade", "http://" + siteIP + "/"
	a := newAgent(t, w)
	read := func(who string) string {
		t.Helper()
		var text string
		await(t, need.Patience, "what "+who+" finds", func() error {
			if text = a.must(who, "snapshot"); strings.Contains(text, "reading") {
				return fmt.Errorf("%s", text)
			}
			return nil
		})
		return text
	}
	a.must("ann", "open", page+"?leave="+secret)
	if got := read("ann"); !strings.Contains(got, "found: shared="+secret+" | "+secret) {
		t.Fatalf("ann's page keeps nothing, so nothing is tried: %s", got)
	}
	// A client that starts again finds its page by its key and session_id (seed 002, 3.2).
	newAgentWithSession(t, w).must("cleo", "open", page+"?leave=cleos")
	if got := newAgentWithSession(t, w).must("cleo", "snapshot"); !strings.Contains(got, "cleos") {
		t.Errorf("after a start cleo finds %s", got)
	}
	a.must("cleo", "close")
	a.must("bob", "open", page)
	for _, step := range [][]string{nil, {"click", "#other"}, {"fill", "#in", "bobs"}} {
		if step != nil {
			a.must("bob", step...)
		}
		if got := read("bob"); strings.Contains(got, secret) {
			t.Errorf("after %q bob reads ann's: %s", step, got)
		}
	}

	// What ann copies bob doesn't paste.
	for _, argv := range [][]string{{"focus", "#in"}, {"press", "Control+a"}, {"press", "Control+c"}} {
		a.must("ann", argv...)
	}
	a.must("bob", "fill", "#in", "")
	a.must("bob", "focus", "#in")
	for _, keys := range []string{"Control+v", "Control+Shift+V", "Shift+Insert", "Meta+v", "Control+Insert"} {
		a.call("bob", "press", keys) // most of them are press.paste
	}
	if got := read("bob"); strings.Contains(got, secret) {
		t.Errorf("bob pastes what ann copied: %s", got)
	}

	// No word of bob's names ann's session, tab or daemon.
	for _, argv := range [][]string{
		{"snapshot", "--session", "ann"}, {"snapshot", "--namespace", "ann"}, {"snapshot", "--cdp", "9222"}, {"snapshot", "--pin-tab"}, {"snapshot", "--target", "1"},
		{"tab", "list"}, {"tab", "1"}, {"tab", "new"}, {"session", "list"}, {"connect", "9222"}, {"batch", "tab list"}, {"stream", "status"},
		{"cookies"}, {"storage", "local"}, {"clipboard", "read"}, {"state", "save", "x"}, {"window", "new"}, {"dialog", "accept"}, {"download", "#x", "y"},
		{"open", "chrome://inspect"}, {"open", "http://127.0.0.1:9222/json/list"}, {"open", "devtools://devtools/bundled/inspector.html"},
	} {
		if r := a.call("bob", argv...); r.ExitCode != 64 && r.ExitCode != 126 || strings.Contains(r.Stdout+r.Stderr, secret) {
			t.Errorf("bob: %q: %+v", argv, r)
		}
	}

	// What bob types and ends is his own, whoever's tab is in front.
	a.must("ann", "screenshot")
	a.must("bob", "fill", "#in", "bobs")
	a.must("bob", "close")
	if got := read("ann"); !strings.Contains(got, secret) || strings.Contains(got, "bobs") {
		t.Errorf("ann's page after bob: %s", got)
	}
	a.must("bob", "open", page)
	if got := read("bob"); strings.Contains(got, "bobs") || strings.Contains(got, secret) {
		t.Errorf("bob's next session: %s", got)
	}
	t.Run("refused system calls", func(t *testing.T) { testRefusals(t, b) })
	b.closed(t)
}
