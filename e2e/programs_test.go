package e2e

import (
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync/atomic"
	"testing"
)

// starters are what a page may try so that a program is started for it. Each is done when #try is clicked, the
// empty one by #link.
var starters = map[string]string{
	"mail by window.open":         `window.open('mailto:a@b.c')`,
	"telephone by location":       `location = 'tel:1'`,
	"an unknown scheme":           `location = 'slimctl-e2e:x'`,
	"an unknown scheme, a window": `window.open('slimctl-e2e:x')`,
	"a frame":                     `document.body.appendChild(document.createElement('iframe')).src = 'mailto:a@b.c'`,
	"a form":                      `(f => { f.action = 'mailto:a@b.c'; f.submit() })(document.body.appendChild(document.createElement('form')))`,
	"a redirect":                  `location = '/to-mail'`,
	"a protocol handler":          `navigator.registerProtocolHandler && navigator.registerProtocolHandler('mailto', '/handle?%s'); location = 'mailto:a@b.c'`,
	"view-source":                 `window.open('view-source:http://example.com/')`,
	"a file":                      `window.open('file:///etc/passwd')`,
	"settings":                    `window.open('chrome://settings')`,
	"an intent":                   `location = 'intent://x#Intent;scheme=slimctl;end'`,
	"a link":                      "",
}

// testStarters: a page that is opened, and clicked by an agent, starts no program (boot watches), and afterwards the agent's
// clicks still reach a page.
func testStarters(t *testing.T, b *box) {
	var clicks atomic.Int64
	try := atomic.Pointer[string]{}
	site := &httptest.Server{Listener: b.w.listen(t, siteIP+":80"), Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/to-mail":
			w.Header().Set("Location", "mailto:a@b.c")
			w.WriteHeader(http.StatusFound)
		case "/clicked":
			clicks.Add(1)
		case "/attack":
			fmt.Fprintf(w, `<!doctype html><title>attack</title><button id="try" onclick="%s">Try</button><a id="link" href="mailto:a@b.c">Link</a>
<button id="count" onclick="fetch('/clicked')">Count</button>`, *try.Load())
		default:
			_, _ = io.WriteString(w, `<!doctype html><title>fine</title><button id="count" onclick="fetch('/clicked')">Count</button>`)
		}
	})}}
	site.Start()
	defer site.Close()
	a := newAgent(t, b.w)
	for name, script := range starters {
		t.Run(name, func(t *testing.T) {
			a := &agent{t, a.session}
			try.Store(&script)
			a.must("s", "open", "http://"+siteIP+"/attack")
			selector := "#try"
			if script == "" {
				selector = "#link"
			}
			a.call("s", "click", selector) // page.forbidden, or the page stays
			before := clicks.Load()
			// The first call after a tab went where it may not go says so.
			if r := a.call("s", "open", "http://"+siteIP+"/"); r.Rule != "page.forbidden" && r.ExitCode != 0 && !timeLimit.MatchString(r.Stderr) {
				t.Fatalf("open: %+v", r)
			} else if r.ExitCode != 0 {
				a.must("s", "open", "http://"+siteIP+"/")
			}
			a.click("s", "#count", "the click", func() error {
				if clicks.Load() == before {
					return fmt.Errorf("the page was not clicked")
				}
				return nil
			})
		})
	}
	a.must("s", "close")
	for _, p := range b.find(t, func(p string, info fs.FileInfo) bool {
		base := path.Base(p)
		opens := strings.HasPrefix(base, "xdg-") || strings.HasSuffix(base, "www-browser") || base == "sensible-browser"
		return opens && !info.IsDir() && (info.Mode()&0o111 != 0 || info.Mode()&fs.ModeSymlink != 0) && !strings.HasPrefix(p, "/var/lib/dpkg/")
	}) {
		t.Errorf("%s opens addresses", p)
	}
}
