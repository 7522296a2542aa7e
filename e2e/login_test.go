package e2e

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/internal/need"
)

// testLogin: a page that asks for a name and a password by HTTP (RFC 7617) is shown to the agent as it answers; no dialog of Chromium's lies
// over the tab.
func testLogin(t *testing.T, b *box) {
	site := &httptest.Server{Listener: b.w.listen(t, siteIP+":80"), Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			_, _ = io.WriteString(w, `<!doctype html><title>fine</title><a id="link" href="/login">Link</a><a id="fetch" href="#" onclick="fetch('/login').then(r => this.textContent = 'got ' + r.status)">Fetch</a>`)
			return
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="e2e"`)
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `<!doctype html><title>who are you</title>who are you?`)
	})}}
	site.Start()
	defer site.Close()
	a := newAgent(t, b.w)
	if got := a.must("s", "open", "http://"+siteIP+"/login"); !strings.Contains(got, `"status":401`) {
		t.Errorf("open: %s", got)
	}
	shows := func(text string) func() error {
		return func() error {
			if got := a.must("s", "snapshot"); !strings.Contains(got, text) {
				return errors.New(got)
			}
			return nil
		}
	}
	await(t, need.Patience, "the site's answer", shows("who are you?"))
	a.must("s", "open", "http://"+siteIP+"/")
	a.click("s", "#fetch", "the status for the script", shows("got 401"))
	a.click("s", "#link", "the site's answer", shows("who are you?"))
	a.must("s", "close")
}
