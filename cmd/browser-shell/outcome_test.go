package main_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/slimctl/slimctl/internal/need"
)

const outcomes = `<!doctype html><title>Here</title><h1>Hello</h1>
<a id="tab" target="_blank" href="/missing?a=1&b=2">tab</a> <button id="slow" onclick="window.open('/slow')">slow</button>
<a id="dead" href="%s">dead</a> <button id="ask" onclick="this.textContent = confirm('Delete it?')">ask</button>`

// TestOutcomes: what went wrong out there is told as such, the same for http
// and https and in both generations, and never looks like a page; what a site
// answered and what a click opened is told too.
func TestOutcomes(t *testing.T) {
	for _, version := range []string{"0.8.10", "0.41.2"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			l.realBrowser(t, version)
			closed := fmt.Sprintf("site.test:%d/", need.FreePort(t))
			held := make(chan struct{})
			defer close(held)
			base := site(t, func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/":
					w.Header().Set("Content-Type", "text/html")
					fmt.Fprintf(w, outcomes, "http://"+closed)
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
			s := l.connect(t)
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
				if a := s.do(t, "snapshot"); strings.Contains(a.Stdout, "POLICY_BLOCKED") || strings.Contains(a.Stdout, "UNREACHABLE") {
					t.Errorf("%s: the proxy's words are a page: %s", tt.url, a.Stdout)
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
			do("click", "#dead")
			if a := s.do(t, "snapshot"); strings.Contains(a.Stdout, "UNREACHABLE") {
				t.Errorf("after a click the proxy's words are a page: %s", a.Stdout)
			}
		})
	}
}
