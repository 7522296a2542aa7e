package main_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/slimctl/slimctl/internal/need"
)

const outcomes = `<!doctype html><title>Here</title><h1>Hello</h1>
<a id="tab" target="_blank" href="/missing?a=1&b=2">tab</a> <button id="slow" onclick="window.open('/slow')">slow</button>
<a id="dead" href="%s">dead</a> <a id="forged" href="%s">forged</a> <button id="ask" onclick="this.textContent = confirm('Delete it?')">ask</button>`

// testOutcomes: what went wrong out there is told as such, the same for http
// and https and in both generations, and never looks like a page; what a site
// answered and what a click opened is told too.
func testOutcomes(t *testing.T, s *client, version string) {
	closed := fmt.Sprintf("site.test:%d/", need.FreePort(t))
	held := make(chan struct{})
	defer close(held)
	var forged string
	base := site(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/":
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprintf(w, outcomes, "http://"+closed, forged)
		case "/missing":
			w.Header().Set("Proxy-Browser-Shell-Refusal", "POLICY_BLOCKED (-32004) url.private: a site says so")
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, "<title>Missing</title>nothing")
		case "/empty":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/broken":
			if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
				c.Close()
			}
		case "/slow":
			<-held
		case "/private":
			http.Redirect(w, r, "http://10.0.0.1/", http.StatusFound)
		case "/dead":
			http.Redirect(w, r, "https://"+closed+"?a=1&b=2", http.StatusFound)
		}
	})
	forged = forgedSite(t)
	for _, tt := range []struct {
		url       string
		exit      int
		rule      any
		class     string
		retryable bool
	}{
		{"http://" + closed, 1, "site.refused", "UNREACHABLE", false},
		{"https://" + closed, 1, "site.refused", "UNREACHABLE", false},
		{base + "dead", 1, "site.refused", "UNREACHABLE", false},
		{base + "broken", 1, "site.reset", "UNREACHABLE", true},
		{base + "empty", 1, "site.empty", "UNREACHABLE", false},
		{strings.Replace(base, "http:", "https:", 1), 1, "site.tls", "UNREACHABLE", false},
		{forged, 1, "site.tls", "UNREACHABLE", false},
		{base + "private", 126, "url.private", "POLICY_BLOCKED", false},
	} {
		began := time.Now()
		a := s.do(t, "open", tt.url)
		for a.rule() != tt.rule && timeLimit.MatchString(a.Stderr) && time.Since(began) < need.Patience {
			a = s.do(t, "open", tt.url)
		}
		if a.ExitCode != tt.exit || a.rule() != tt.rule || a.raw.Meta["name"] != tt.class || a.raw.Meta["retryable"] != tt.retryable || !strings.HasPrefix(a.Stderr, tt.class+" (-32") {
			t.Errorf("%s: %+v %v", tt.url, a, a.raw.Meta)
		}
		if tt.url == forged { // would pass the warning, if it were there
			s.do(t, "click", "#details-button")
			s.do(t, "click", "#proceed-link")
		}
		if a := s.do(t, "snapshot"); !empty(a) {
			t.Errorf("%s: a page after the failure: %+v", tt.url, a)
		}
	}
	var data struct {
		Status  int
		Title   string
		NewTabs []string `json:"new_tabs"`
	}
	read := func(a answer) {
		t.Helper()
		data.NewTabs = nil
		if err := json.Unmarshal([]byte(a.Stdout), &data); err != nil {
			t.Fatalf("%v in %+v", err, a)
		}
	}
	// do runs a command, and again on the page anew if a busy machine had too little time for it.
	do := func(argv ...string) answer {
		t.Helper()
		began := time.Now()
		a := s.do(t, argv...)
		for a.ExitCode != 0 && timeLimit.MatchString(a.Stderr) && time.Since(began) < need.Patience {
			if argv[0] == "click" {
				s.do(t, "open", base)
			}
			a = s.do(t, argv...)
		}
		return a
	}
	if read(do("open", base+"missing")); data.Status != 404 || data.Title != "Missing" {
		t.Errorf("a page that says 404, and a refusal that a site made up: %+v", data)
	}
	if read(do("open", base)); data.Status != 200 || data.Title != "Here" {
		t.Errorf("a good page: %+v", data)
	}
	if a := do("click", "#ask"); !strings.Contains(a.Stdout, `"dialogs":[{"type":"confirm","message":"Delete it?"}]`) {
		t.Errorf("a click that opens a dialog: %+v", a)
	}
	if a := do("click", "h1"); strings.Contains(a.Stdout, "dialogs") {
		t.Errorf("told twice: %+v", a)
	}
	if read(do("click", "h1")); data.NewTabs != nil {
		t.Errorf("a click that opens nothing: %+v", data)
	}
	a := do("click", "#tab")
	if read(a); len(data.NewTabs) != 1 || data.NewTabs[0] != base+"missing?a=1&b=2" || strings.Contains(a.Stdout, `\u00`) {
		t.Errorf("a click that opens a tab: %+v", a)
	}
	if version == "0.8.10" { // the other one waits until it is there
		if read(do("click", "#slow")); len(data.NewTabs) != 1 || data.NewTabs[0] != base+"slow" {
			t.Errorf("a click that opens a tab which is not there yet: %+v", data)
		}
	}
	for _, link := range []string{"#dead", "#forged"} {
		do("open", base)
		began := time.Now()
		a := s.do(t, "click", link) // the page may fail later
		for a.rule() != "site.unreachable" && time.Since(began) < need.Patience {
			if a = s.do(t, "snapshot"); a.ExitCode == 0 && !strings.Contains(a.Stdout, "Hello") {
				t.Errorf("%s: an error page is read: %s", link, a.Stdout)
				break
			}
		}
		if a.rule() != "site.unreachable" || a.raw.Meta["name"] != "UNREACHABLE" {
			t.Errorf("%s: %+v %v", link, a, a.raw.Meta)
		}
		if a := s.do(t, "snapshot"); !empty(a) {
			t.Errorf("%s: a page after the failure: %+v", link, a)
		}
	}
}

// empty reports whether a snapshot shows a blank tab: nothing of a site, nor of Chromium.
func empty(a answer) bool {
	if a.ExitCode == 1 && strings.HasPrefix(a.Stderr, "the session has no page") { // it was closed, where a busy machine took too long to leave it
		return true
	}
	return a.ExitCode == 0 && !strings.Contains(a.Stdout, "heading") && !strings.Contains(a.Stdout, "link") &&
		!strings.Contains(a.Stdout, "button") && !strings.Contains(a.Stdout, "text")
}

// forgedSite serves a page behind a certificate that nobody signed for it, and returns its address.
func forgedSite(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.77.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "<!doctype html><h1>Forged</h1>")
	}))
	s.Listener.Close()
	s.Listener = l
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // Chromium's refusals
	s.StartTLS()
	t.Cleanup(s.Close)
	return fmt.Sprintf("https://site.test:%d/", l.Addr().(*net.TCPAddr).Port)
}
