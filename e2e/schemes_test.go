package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/slimctl/slimctl/internal/need"
)

// Keys by their X11 keysyms.
const (
	keyShift  = 0xffe1
	keyAlt    = 0xffe9
	keyEscape = 0xff1b
	keyDelete = 0xffff
	keyF12    = 0xffc9
)

// shortcuts are keys of Chromium's that open DevTools, the source of a page, a page of its own, or a dialog.
var shortcuts = map[string][]uint32{
	"DevTools":              {keyF12},
	"DevTools, elements":    {keyControl, keyShift, 'i'},
	"DevTools, console":     {keyControl, keyShift, 'j'},
	"DevTools, pick":        {keyControl, keyShift, 'c'},
	"DevTools, source":      {keyControl, 'u'},
	"open a file":           {keyControl, 'o'},
	"save the page":         {keyControl, 's'},
	"print":                 {keyControl, 'p'},
	"print by the system":   {keyControl, keyShift, 'p'},
	"feedback":              {keyAlt, keyShift, 'i'},
	"history":               {keyControl, 'h'},
	"downloads":             {keyControl, 'j'},
	"bookmarks":             {keyControl, keyShift, 'o'},
	"clear browsing data":   {keyControl, keyShift, keyDelete},
	"new tab":               {keyControl, 't'},
	"new window, incognito": {keyControl, keyShift, 'n'},
}

// addresses are what a person may type beside those of the web, and where Chromium takes it.
var addresses = map[string]string{
	"chrome://settings":                          "chrome://settings/",
	"chrome://inspect":                           "chrome://inspect/",
	"chrome://policy":                            "chrome://policy/",
	"about:flags":                                "chrome://flags/",
	"chrome-untrusted://print":                   "chrome-untrusted://print/",
	"devtools://devtools/bundled/inspector.html": "devtools://devtools/bundled/inspector.html",
	"view-source:http://" + siteIP:               "view-source:http://" + siteIP + "/",
	"view-source:file:///etc/passwd":             "view-source:file:///etc/passwd",
	"file:///etc/passwd":                         "file:///etc/passwd",
	"/etc/passwd":                                "file:///etc/passwd",
}

// closedTo matches addresses that a person is never shown; the address bar's own list of suggestions is of them.
var closedTo = regexp.MustCompile(`^(chrome|chrome-untrusted|chrome-extension|devtools|view-source|file|filesystem):`)

const suggestions = "chrome://omnibox-popup.top-chrome/"

// desk is a person with a ticket for input, and what the browser has open before him.
type desk struct {
	*rfb
	tools devTools
	tab   target // that stays open
	acted inputs // keys, each as the page's query, - and the key
}

// look returns what is open, each with its document's address and whether it has the focus, and fails for what a person may
// not come to.
func (d *desk) look(t *testing.T) (open map[target]string, focused bool, err error) {
	list, err := d.tools.tabs()
	if err != nil {
		return nil, false, err
	}
	open = map[target]string{}
	for _, tab := range list {
		if tab.Type == "browser_ui" && strings.HasPrefix(tab.URL, suggestions) {
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), need.Patience)
		conn, _, err := websocket.Dial(ctx, tab.WebSocketDebuggerURL, &websocket.DialOptions{HTTPClient: d.tools.client()})
		cancel()
		if err != nil {
			return nil, false, err // it is gone
		}
		p := &page{conn: conn}
		at, err := p.eval(t.Context(), "[location.href, document.hasFocus()].join()")
		_ = conn.CloseNow()
		if err != nil {
			return nil, false, err
		}
		href, focus, _ := strings.Cut(fmt.Sprint(at), ",")
		focused = focused || focus == "true"
		if open[tab] = href; closedTo.MatchString(href) {
			t.Fatalf("%s %s is open", tab.Type, href)
		}
	}
	return open, focused, nil
}

// visit has the one tab that stays show a page of the site, and makes sure that the page gets the person's keys.
func (d *desk) visit(t *testing.T, query string) {
	t.Helper()
	await(t, need.Patience, "one tab alone", func() error {
		open, _, err := d.look(t)
		for tab := range open {
			if tab.ID == d.tab.ID {
				continue
			}
			err = fmt.Errorf("%s is open", tab.URL)
			if res, err := d.tools.client().Get("http://127.0.0.1/json/close/" + tab.ID); err == nil {
				res.Body.Close()
			}
		}
		return err
	})
	p := d.tools.attach(t, func(tab target) bool { return tab.ID == d.tab.ID })
	defer p.conn.CloseNow()
	if _, err := p.call(t.Context(), "Page.navigate", map[string]any{"url": "http://" + siteIP + "/?" + query}); err != nil {
		t.Fatal(err)
	}
	await(t, need.Patience, "a key on the page", func() error {
		d.click(t, d.Width/2, d.Height/2)
		return d.reaches(t, query)
	})
}

// reaches reports whether a key comes to a page.
func (d *desk) reaches(t *testing.T, query string) error {
	d.press(t, 'z')
	got := d.acted.take()
	if !slices.Contains(got, query+"-z") {
		return fmt.Errorf("the site got %q", got)
	}
	return nil
}

// enter types an address, once the address bar has the focus.
func (d *desk) enter(t *testing.T, address string) {
	t.Helper()
	await(t, need.Patience, "the focus on the address bar", func() error {
		d.click(t, d.Width/3, 62)
		if _, focused, err := d.look(t); err != nil || focused {
			return errors.Join(err, errors.New("the page has it"))
		}
		return nil
	})
	d.press(t, keyControl, 'a')
	d.write(t, address)
}

// enterUntil types an address, and again what a browser that is busy didn't take, until a tab shows what it should.
func (d *desk) enterUntil(t *testing.T, address string, shown func(tab target, href string) bool) {
	t.Helper()
	await(t, 2*need.Patience, "what is shown for "+address, func() error {
		d.enter(t, address)
		var open map[target]string
		for range 20 {
			var err error
			open, _, err = d.look(t)
			for tab, href := range open {
				if shown(tab, href) {
					return err
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
		return fmt.Errorf("tabs: %v", open)
	})
}

// testSchemes: a person with a ticket for input comes, by keys and by addresses, to no page of Chromium's own, to no DevTools, to
// no source and no file, and no dialog takes the keys from the page.
func testSchemes(t *testing.T, b *box) {
	d := &desk{tools: b.devTools()}
	var ran atomic.Bool
	site := &httptest.Server{Listener: b.w.listen(t, siteIP+":80"), Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/acted":
			d.acted.record(r.URL.RawQuery)
			return
		case "/ran":
			ran.Store(true)
			return
		}
		_, _ = io.WriteString(w, `<!doctype html><title>fine</title><script>onkeydown = e => { fetch('/acted' + location.search + '-' + e.key) }</script>`)
	})}}
	site.Start()
	defer site.Close()
	good, _ := orderTicket(t, b.w, `{"input": true}`, "X-AIO-API-Key", key)
	var err error
	if d.rfb, err = openRFB(dialWith(t, b.w, "/websockify", good)); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, d.conn) }() // answers pings
	await(t, need.Patience, "one tab", func() error {  // browser-shell may just be trying an idle Chromium
		list, err := d.tools.tabs()
		list = slices.DeleteFunc(list, func(tab target) bool { return tab.Type != "page" })
		if err != nil || len(list) != 1 {
			return fmt.Errorf("tabs: %v %v", list, err)
		}
		d.tab = list[0]
		return nil
	})

	n := 0
	for name, keys := range shortcuts {
		n++
		t.Run(name, func(t *testing.T) {
			query := fmt.Sprint("page", n)
			d.visit(t, query)
			d.press(t, keyControl) // and what was pressed before is over
			await(t, need.Patience, "the last key before", func() error {
				if got := d.acted.take(); !slices.Contains(got, query+"-Control") {
					return fmt.Errorf("the site got %q", got)
				}
				return nil
			})
			d.press(t, keys...)
			if strings.HasPrefix(name, "DevTools") { // "DevTools not allowed on this page", says a dialog
				await(t, need.Patience, "a refusal over the page", func() error {
					if _, focused, err := d.look(t); err != nil || focused {
						return errors.Join(err, errors.New("the page has the focus"))
					}
					return nil
				})
				d.press(t, keyEscape)
			}
			await(t, need.Patience, "a key on the page, or a page that is refused", func() error {
				none := d.reaches(t, query)
				open, _, err := d.look(t)
				if err != nil {
					return err
				}
				for tab, href := range open {
					if closedTo.MatchString(tab.URL) && !strings.HasPrefix(href, "chrome-error:") {
						return fmt.Errorf("%s shows %s", tab.URL, href)
					} else if tab.ID != d.tab.ID {
						none = nil
					}
				}
				return none
			})
		})
	}
	for address, to := range addresses {
		t.Run(address, func(t *testing.T) {
			d.visit(t, "typed")
			d.enterUntil(t, address, func(tab target, href string) bool {
				return strings.HasPrefix(tab.URL, to) && strings.HasPrefix(href, "chrome-error:")
			})
		})
	}
	t.Run("javascript:", func(t *testing.T) {
		d.visit(t, "script")
		d.enter(t, `javascript:fetch('/ran')`)
		d.visit(t, "after")
		if ran.Load() {
			t.Error("an address ran a script in the page")
		}
	})
}
