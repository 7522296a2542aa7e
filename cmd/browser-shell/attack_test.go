package main_test

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slimctl/slimctl/internal/need"
)

// canary notes who reaches this machine's loopback.
type canary struct {
	mu   sync.Mutex
	hits []string
	port int
}

func newCanary(t *testing.T) *canary {
	t.Helper()
	c := &canary{}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.hit(r.Method + " " + r.URL.Path)
		w.Header().Set("Access-Control-Allow-Origin", "*")
		fmt.Fprint(w, "<title>canary</title>the canary sings")
	}))
	s.Config.ConnState = func(_ net.Conn, st http.ConnState) {
		if st == http.StateNew {
			c.hit("a connection")
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	c.port = s.Listener.Addr().(*net.TCPAddr).Port
	return c
}

func (c *canary) hit(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hits = append(c.hits, what)
}

// take returns what reached the canary since the last time.
func (c *canary) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	hits := c.hits
	c.hits = nil
	return hits
}

// attacks are pages of a public site that try to get at an internal one, at ADDRESS. Each leaves its page or needs a click.
var attacks = map[string]string{
	"redirect":     "", // 302, see attackSite
	"meta refresh": `<meta http-equiv=refresh content="0;url=ADDRESS">`,
	"script":       `<script>location="ADDRESS"</script>`,
	"late script":  `<script>setTimeout(()=>location="ADDRESS",150)</script>`,
	"form":         `<form method=post action="ADDRESS"></form><script>document.forms[0].submit()</script>`,
	"popup":        `<script>open("ADDRESS")</script>`,
	"link":         `<a id=go href="ADDRESS">go</a>`,
	"blank link":   `<a id=go target=_blank href="ADDRESS">go</a>`,
}

// parts are attacks that leave the page as it is. One page has them all, for every target.
const parts = `<iframe src="ADDRESSiframe"></iframe>
<script>fetch("ADDRESSfetch",{mode:"no-cors"}).catch(()=>{})</script>
<img src="ADDRESSimage"><link rel=stylesheet href="ADDRESSstylesheet"><script src="ADDRESSscript"></script>
<script>navigator.sendBeacon("ADDRESSbeacon","x")</script>
<script>new WebSocket("ADDRESSwebsocket".replace("http","ws"))</script>
<link rel=preconnect href="ADDRESS"><link rel=prefetch href="ADDRESSprefetch"><link rel=dns-prefetch href="ADDRESS">`

func attackSite(targets map[string]string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		target := targets[q.Get("to")]
		if q.Get("how") == "redirect" {
			http.Redirect(w, r, target, http.StatusFound)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<title>public</title><h1>public page</h1>"+strings.ReplaceAll(attacks[q.Get("how")], "ADDRESS", target))
		if q.Get("how") == "parts" {
			for _, target := range targets {
				fmt.Fprint(w, strings.ReplaceAll(parts, "ADDRESS", target))
			}
		}
	}
}

// TestAttacks: whatever a public page does, nothing reaches this machine's
// loopback and nothing of it is shown.
func TestAttacks(t *testing.T) {
	for _, version := range []string{"0.8.10", "0.41.2"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			c := newCanary(t)
			targets := map[string]string{
				"literal": fmt.Sprintf("http://127.0.0.1:%d/", c.port),
				"decimal": fmt.Sprintf("http://2130706433:%d/", c.port),
				"v6":      fmt.Sprintf("http://[::ffff:127.0.0.1]:%d/", c.port),
				"name":    fmt.Sprintf("http://localhost:%d/", c.port),
				"flip":    fmt.Sprintf("http://flip.test:%d/", c.port),
			}
			l := newLab(t)
			l.realBrowser(t, version, "--disable-site-isolation-trials", "--renderer-process-limit=1") // no weaker attacks, and a third of the time
			s := l.start(t, os.Stderr)
			base := site(t, attackSite(targets))
			attack(t, s, "parts", base+"?how=parts", c)
			// Chromium chooses the proxy by the host alone, whatever leads there, so each way is tried with one target, and each
			// target with all parts. server/egress tries the proxy with more of both.
			to := slices.Sorted(maps.Keys(targets))
			for i, how := range slices.Sorted(maps.Keys(attacks)) {
				attack(t, s, how, base+"?how="+strings.ReplaceAll(how, " ", "+")+"&to="+to[(i+len(version))%len(to)], c)
			}
			if hits := c.take(); len(hits) > 0 {
				t.Errorf("the canary was reached at the end: %q", hits)
			}
			log, err := os.ReadFile(filepath.Join(l.state, "egress.jsonl"))
			if err != nil || !strings.Contains(string(log), "MCP_NETWORK_BLOCKED") {
				t.Errorf("the proxy's log does not tell: %v", err)
			}
		})
	}
}

// attack opens a page, gives it time, clicks what it offers and looks at it.
func attack(t *testing.T, s *client, how, url string, c *canary) {
	t.Helper()
	answers := []answer{s.do(t, "open", url)}
	if strings.Contains(how, "link") && answers[0].ExitCode == 0 {
		answers = append(answers, s.do(t, "click", "#go"))
	}
	time.Sleep(200 * time.Millisecond)
	answers = append(answers, s.do(t, "snapshot"))
	for _, a := range answers {
		if strings.Contains(a.Stdout+a.Stderr, "canary") {
			t.Errorf("%s: the canary is shown: %+v", how, a)
		}
	}
	began := time.Now()
	a := s.do(t, "open", strings.Split(url, "?")[0])
	for a.ExitCode != 0 && time.Since(began) < need.Patience { // on a busy machine the page may go where it wanted only now, or the time is short
		a = s.do(t, "open", strings.Split(url, "?")[0])
	}
	if a.ExitCode != 0 {
		t.Errorf("%s: the session does not go on: %+v", how, a)
	}
	if hits := c.take(); len(hits) > 0 {
		t.Errorf("%s, %s: the canary was reached: %q", how, url, hits)
	}
}
