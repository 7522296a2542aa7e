package cdp_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server/cdp"
)

// agent is a real agent-browser from npm, called as the server does.
type agent struct {
	program, node, dir string
	port               int
	flags              []string
}

func install(t *testing.T, c *chromium, version string, flags ...string) *agent {
	t.Helper()
	dir, err := os.MkdirTemp("", "ab") // short: sockets lie in it
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{dir: dir, program: need.AgentBrowser(t, version), node: filepath.Dir(need.Program(t, "node")), port: c.port, flags: flags}
	t.Cleanup(func() {
		a.killDaemons()
		os.RemoveAll(dir)
	})
	for _, d := range []string{"s", "w"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

// killDaemons kills all daemons.
func (a *agent) killDaemons() {
	for _, pid := range a.daemons() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// daemons returns the processes of agent-browser, by their environment: one that is still starting has no pid file.
func (a *agent) daemons() (pids []int) {
	environs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range environs {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if text, _ := os.ReadFile(f); err == nil && strings.Contains(string(text), "AGENT_BROWSER_SOCKET_DIR="+filepath.Join(a.dir, "s")+"\x00") {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (a *agent) kill(pidFile string) {
	b, _ := os.ReadFile(pidFile)
	if pid, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && pid > 1 {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	os.Remove(pidFile)
	os.Remove(strings.TrimSuffix(pidFile, ".pid") + ".sock")
}

func (a *agent) pin(t *testing.T, session string, tab *cdp.Tab) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(a.dir, "s", session+".target"), tab.TargetFile(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// run returns success, the data and the error text of one command.
func (a *agent) run(t *testing.T, session string, argv ...string) (bool, map[string]any, string) {
	t.Helper()
	cmd := exec.Command(a.program, append(append([]string{"--session", session, "--cdp", strconv.Itoa(a.port), "--json"}, a.flags...), argv...)...)
	cmd.Dir = filepath.Join(a.dir, "w")
	cmd.Env = []string{
		"PATH=" + a.node + ":/usr/bin:/bin", "HOME=" + a.dir, "TMPDIR=" + a.dir,
		"AGENT_BROWSER_SOCKET_DIR=" + filepath.Join(a.dir, "s"), "AGENT_BROWSER_NO_VERSION_CHECK=1",
	}
	out, _ := cmd.Output()
	var v struct {
		Success bool
		Data    map[string]any
		Error   string
		Code    string
	}
	if err := json.Unmarshal(out, &v); err != nil {
		t.Fatalf("%q: %s", argv, out)
	}
	return v.Success, v.Data, v.Code + " " + v.Error
}

// timeLimit matches the words of a command that failed for its time alone.
var timeLimit = regexp.MustCompile(`(?i)\btime(d )?out\b`)

// ok runs a command that must succeed. agent-browser waits only 5 s for a new daemon and connects 5 times, which is too short on a
// busy machine; it has done nothing then, and ok runs it again once the daemon listens, as the server does.
func (a *agent) ok(t *testing.T, session string, argv ...string) map[string]any {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		ok, data, e := a.run(t, session, argv...)
		if ok {
			return data
		}
		// A click before moved the page on or opened a dialog, or the page took more than the 10 s that agent-browser on Node gives it.
		again := (argv[0] != "click" || argv[1] == "#ask" || argv[1] == "#b") &&
			(strings.Contains(e, "Inspected target navigated or closed") || strings.Contains(e, "dialog is blocking the page") || timeLimit.MatchString(e))
		notSent := strings.Contains(e, "Daemon failed to start") || strings.Contains(e, "Failed to connect: ")
		if !again && !notSent || time.Now().After(deadline) {
			t.Fatalf("%q: %s", argv, e)
		}
		socket := filepath.Join(a.dir, "s", session+".sock")
		eventually(t, func() bool {
			_, err := os.Lstat(socket)
			return err == nil || len(a.daemons()) == 0 // one that has ended is started by the next command
		}, func() string { return fmt.Sprintf("%q: %s; the daemon has not opened %s", argv, e, socket) })
	}
}

// click clicks, and waits for what comes of it. One that failed for its time may have clicked, so it is made again only if nothing
// came.
func (a *agent) click(t *testing.T, session, selector string, came func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		ok, _, e := a.run(t, session, "click", selector)
		if ok {
			break
		}
		if !timeLimit.MatchString(e) || time.Now().After(deadline) {
			t.Fatalf("click %s: %s", selector, e)
		}
		if came() {
			return
		}
	}
	eventually(t, came, func() string { return "nothing comes of a click on " + selector })
}

// at checks where the tab is after one Sync, as the server does after a command.
func (c *chromium) at(t *testing.T, tab *cdp.Tab, path string) {
	t.Helper()
	sync_(t, tab)
	if got := tab.Pages()[0].URL; got != c.site.URL+path {
		t.Errorf("the tab is at %s, not %s", got, path)
	}
}

// comes waits until the tab is where a click sent it: no command waits for that.
func (c *chromium) comes(t *testing.T, tab *cdp.Tab, path string) {
	t.Helper()
	eventually(t, func() bool { sync_(t, tab); return tab.Pages()[0].URL == c.site.URL+path },
		func() string { return fmt.Sprint(tab.Pages()) })
}

func (c *chromium) sentCookie(path string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cookies[path]
}

func TestNativeSessionsAreApart(t *testing.T) {
	for _, version := range []string{"0.34.0", "0.41.2"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			c := start(t)
			a := install(t, c, version, "--pin-tab")
			b := c.dial(t)
			tabs := map[string]*cdp.Tab{"ann": c.tab(t, b), "bob": c.tab(t, b)}
			for who, tab := range tabs {
				a.pin(t, who, tab)
				a.ok(t, who, "open", c.site.URL+"/login?"+who)
				c.at(t, tab, "/login?"+who)
			}
			for who, tab := range tabs {
				a.ok(t, who, "open", c.site.URL+"/links?"+who)
				if got := c.sentCookie("/links"); got != "who="+who {
					t.Errorf("%s sent the cookie %q", who, got)
				}
				c.at(t, tab, "/links?"+who)
				a.click(t, who, "#pop", func() bool { sync_(t, tab); return len(tab.Pages()) == 2 })
				if got := a.ok(t, who, "get", "url")["url"]; got != c.site.URL+"/links?"+who {
					t.Errorf("after a popup %s is at %v", who, got)
				}
				a.ok(t, who, "click", "#next")
				sync_(t, tab)
				t.Logf("right after a click: %s", tab.Pages()[0].URL)
				a.ok(t, who, "snapshot")
				c.comes(t, tab, "/next")
			}
			// The daemon dies: the next one finds the same tab.
			a.kill(filepath.Join(a.dir, "s", "ann.pid"))
			if got := a.ok(t, "ann", "get", "url")["url"]; got != c.site.URL+"/next" {
				t.Errorf("a new daemon is at %v", got)
			}
			// The tab goes.
			if err := tabs["ann"].Close(within(t, patience)); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			ok, data, e := a.run(t, "ann", "get", "url")
			t.Logf("tab gone, after %v: %v %v %s", time.Since(began), ok, data, e)
			if ok || !strings.Contains(e, "tab_gone") {
				t.Errorf("without its tab: %v %v %s", ok, data, e)
			}
			if got := a.ok(t, "bob", "get", "url")["url"]; got != c.site.URL+"/next" {
				t.Errorf("the other session is at %v", got)
			}
			// A new tab for the session, its daemon ended before.
			a.kill(filepath.Join(a.dir, "s", "ann.pid"))
			tab := c.tab(t, b)
			a.pin(t, "ann", tab)
			a.ok(t, "ann", "open", c.site.URL+"/new")
			c.at(t, tab, "/new")
			if got := c.sentCookie("/new"); got != "" {
				t.Errorf("the new tab has the old one's cookie %q", got)
			}
			// Chromium goes.
			c.kill()
			<-b.Done()
			ok, data, e = a.run(t, "bob", "get", "url")
			t.Logf("Chromium gone: %v %v %s", ok, data, e)
			if ok {
				t.Error("works without Chromium")
			}
		})
	}
}

func TestNodeDrivesOurTab(t *testing.T) {
	c := start(t)
	a := install(t, c, "0.8.10")
	b := c.dial(t)
	old := c.tab(t, b) // and Chromium's own first tab
	tab := c.tab(t, b)
	alone := func() {
		t.Helper()
		if err := b.CloseOthers(within(t, patience), tab); err != nil {
			t.Fatal(err)
		}
	}
	alone()
	if old.Alive() {
		t.Error("the other tab lives")
	}
	hits := c.hits.Load()
	a.ok(t, "s", "open", c.site.URL+"/login?ann")
	c.at(t, tab, "/login?ann")
	if c.hits.Load() == hits {
		t.Error("the page came around the proxy")
	}
	a.ok(t, "s", "open", c.site.URL+"/links")
	popup := func() bool { sync_(t, tab); return len(tab.Pages()) == 2 }
	a.click(t, "s", "#pop", popup)
	alone()
	a.ok(t, "s", "open", c.site.URL+"/links")
	c.at(t, tab, "/links")
	a.click(t, "s", "#next", func() bool { sync_(t, tab); return tab.Pages()[0].URL == c.site.URL+"/next" })
	a.ok(t, "s", "snapshot")
	c.comes(t, tab, "/next")
	a.ok(t, "s", "open", c.site.URL+"/links")
	a.click(t, "s", "#pop", popup)
	// The daemon dies while there is a popup: without it the next one drives
	// the tab again.
	a.kill(filepath.Join(a.dir, "s", "s.pid"))
	alone()
	a.ok(t, "s", "open", c.site.URL+"/after")
	c.at(t, tab, "/after")
	if got := c.sentCookie("/after"); got != "who=ann" {
		t.Errorf("the cookie was %q", got)
	}
	// A person at the screen opens a tab.
	c.other(t, "").do("Target.createTarget", map[string]any{"url": c.site.URL + "/person"})
	eventually(t, func() bool { return tab.Sync(within(t, patience)) != nil && !tab.Alive() },
		func() string { return "not noticed that there is another tab" })
	// The next session: own cookies, though the daemon's name is the same.
	a.kill(filepath.Join(a.dir, "s", "s.pid"))
	if err := tab.Close(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	next := c.tab(t, b)
	if err := b.CloseOthers(within(t, patience), next); err != nil {
		t.Fatal(err)
	}
	a.ok(t, "s", "open", c.site.URL+"/next-session")
	c.at(t, next, "/next-session")
	if got := c.sentCookie("/next-session"); got != "" {
		t.Errorf("the next session has the cookie %q", got)
	}
}

func TestDialogsUnderAgentBrowser(t *testing.T) {
	for version, flags := range map[string][]string{"0.8.10": nil, "0.41.2": {"--pin-tab"}} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			c := start(t)
			a := install(t, c, version, flags...)
			b := c.dial(t)
			tab := c.tab(t, b)
			if flags != nil {
				a.pin(t, "s", tab)
			} else if err := b.CloseOthers(within(t, patience), tab); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				a.ok(t, "s", "open", c.site.URL+"/asks")
				a.ok(t, "s", "open", c.site.URL+"/confirm")
				a.ok(t, "s", "click", "#ask")
				if got, _ := a.ok(t, "s", "snapshot")["snapshot"].(string); !strings.Contains(got, "answer false") {
					t.Errorf("snapshot: %q", got)
				}
				a.ok(t, "s", "open", c.site.URL+"/before")
				a.ok(t, "s", "click", "#b")
			}
			a.ok(t, "s", "open", c.site.URL+"/next")
			c.at(t, tab, "/next")
		})
	}
}
