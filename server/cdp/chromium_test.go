package cdp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server/cdp"
)

// chromium is a real browser, and a site that it reaches through a proxy only.
type chromium struct {
	port    int
	cmd     *exec.Cmd
	profile string

	site  *httptest.Server
	proxy *httptest.Server
	hits  atomic.Int64 // requests that came through the proxy

	mu      sync.Mutex
	cookies map[string]string // path -> what the browser sent
}

const hang = `<script>setTimeout(()=>{while(1);},200)</script>`

// common is the Chromium of all tests that neither harm nor count what it has.
var common *chromium

func TestMain(m *testing.M) {
	code := m.Run()
	if common != nil {
		common.end()
	}
	os.Exit(code)
}

// share returns the common Chromium, with a site and a proxy of the test's own. What it opens there is closed with it: by the
// connection that dial gives.
func share(t testing.TB) *chromium {
	t.Helper()
	program := need.Chromium(t)
	if common == nil {
		c := &chromium{}
		if err := c.launch(program); err != nil {
			c.end()
			t.Fatal(err)
		}
		common = c
	}
	c := &chromium{port: common.port}
	c.surround(t)
	return c
}

// start returns a Chromium of the test's own.
func start(t testing.TB) *chromium {
	t.Helper()
	program := need.Chromium(t)
	c := &chromium{}
	c.surround(t)
	t.Cleanup(c.end)
	if err := c.launch(program); err != nil {
		t.Fatal(err)
	}
	return c
}

// surround gives it a site, and the proxy that leads there.
func (c *chromium) surround(t testing.TB) {
	c.cookies = map[string]string{}
	c.site = httptest.NewServer(http.HandlerFunc(c.serve))
	t.Cleanup(c.site.Close)
	c.proxy = httptest.NewServer(http.HandlerFunc(c.forward))
	t.Cleanup(c.proxy.Close)
}

func (c *chromium) launch(program string) (err error) {
	if c.profile, err = os.MkdirTemp("", "cdp-chromium-"); err != nil {
		return err
	}
	cmd := exec.Command(program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync",
		"--remote-debugging-port=0", "--disable-back-forward-cache", "--user-data-dir="+c.profile, "about:blank")
	cmd.Env = append(os.Environ(), "TMPDIR="+c.profile) // killed, it leaves its socket's directory behind
	if err := need.StartShared(cmd); err != nil {
		return err
	}
	c.cmd = cmd
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		b, err := os.ReadFile(filepath.Join(c.profile, "DevToolsActivePort"))
		if line, _, ok := strings.Cut(string(b), "\n"); err == nil && ok {
			c.port, err = strconv.Atoi(line)
			return err
		}
	}
	return fmt.Errorf("Chromium did not say its DevTools port within %s", patience)
}

// end kills it and removes its profile.
func (c *chromium) end() {
	if c.cmd != nil {
		c.kill()
	}
	for range 40 { // its children may still be writing
		if os.RemoveAll(c.profile) == nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (c *chromium) kill() { need.Kill(c.cmd) }

func (c *chromium) serve(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.cookies[r.URL.Path] = r.Header.Get("Cookie")
	c.mu.Unlock()
	w.Header().Set("Content-Type", "text/html")
	switch r.URL.Path {
	case "/login":
		http.SetCookie(w, &http.Cookie{Name: "who", Value: r.URL.RawQuery})
	case "/tunnel":
		w.Header().Set("Location", "https://closed.test/")
		w.WriteHeader(http.StatusFound)
	case "/file":
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Disposition", "attachment; filename=canary.bin")
	case "/hang":
		io.WriteString(w, hang)
	case "/stay":
		io.WriteString(w, `<script>onbeforeunload=e=>{e.preventDefault();return "no"};setInterval(()=>{location='/stay?'+Math.random()},5)</script>`)
	case "/slow":
		<-r.Context().Done() // for as long as anyone waits
	case "/confirm":
		io.WriteString(w, `<button id=ask onclick="out.textContent='answer '+confirm('x')">ask</button><p id=out></p>`)
	case "/storm":
		io.WriteString(w, `<script>setTimeout(()=>{for(;;)alert(1)},50)</script>`)
	case "/before":
		io.WriteString(w, `<button id=b>b</button><script>onbeforeunload=e=>{e.preventDefault();return 'x'}</script>`)
	case "/asks":
		io.WriteString(w, `<script>document.title=confirm(1)+','+prompt(2)+','+alert(3)</script>`)
	case "/links":
		io.WriteString(w, `<a id=pop href=/pop target=_blank>pop</a> <a id=next href=/next>next</a>`)
	case "/frames":
		io.WriteString(w, `<iframe src=http://a.test/></iframe><iframe src=http://b.test/nest></iframe><iframe src=/mine></iframe>`)
	case "/nest":
		io.WriteString(w, `<iframe src=http://c.test/></iframe>`)
	case "/fields":
		io.WriteString(w, `<input type=password value=one-secret><input value=shown><input type=PassWord value=two><div id=d></div>
<iframe srcdoc="<input type=password value=in-a-frame>"></iframe><script>
d.attachShadow({mode:'open'}).innerHTML='<input type=password value=in-shadow>';
Object.defineProperty(HTMLInputElement.prototype,'value',{get(){return 'lie'}});document.querySelectorAll=()=>[];
</script>`)
	}
	io.WriteString(w, "<!doctype html><title>"+r.URL.Path+"</title><p>here")
}

func (c *chromium) forward(w http.ResponseWriter, r *http.Request) {
	c.hits.Add(1)
	r.RequestURI = ""
	if strings.HasSuffix(r.Host, ".test") {
		r.URL.Host = c.site.Listener.Addr().String()
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	for k, v := range resp.Header {
		w.Header()[k] = v
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body)
}

func (c *chromium) dial(t testing.TB) *cdp.Browser {
	t.Helper()
	b, err := cdp.Dial(within(t, patience), c.port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func (c *chromium) tab(t testing.TB, b *cdp.Browser) *cdp.Tab {
	t.Helper()
	var tab *cdp.Tab
	var err error
	eventually(t, func() bool { // a busy Chromium doesn't answer in a call's own time
		tab, err = b.NewTab(within(t, patience), c.proxy.Listener.Addr().String())
		return err == nil
	}, func() string { return err.Error() })
	return tab
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// other is a second DevTools client, as agent-browser is one.
type other struct {
	t  testing.TB
	ws *websocket.Conn
	id int
}

func (c *chromium) other(t testing.TB, path string) *other {
	t.Helper()
	if path == "" {
		resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/json/version", c.port))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var v struct{ WebSocketDebuggerURL string }
		if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
			t.Fatal(err)
		}
		path = v.WebSocketDebuggerURL[strings.Index(v.WebSocketDebuggerURL, "/devtools"):]
	}
	ws, _, err := websocket.Dial(within(t, patience), fmt.Sprintf("ws://127.0.0.1:%d%s", c.port, path), nil)
	if err != nil {
		t.Fatal(err)
	}
	ws.SetReadLimit(-1)
	t.Cleanup(func() { ws.CloseNow() })
	return &other{t: t, ws: ws}
}

// ask sends a command and gives its result or error as they are.
func (o *other) ask(method string, params map[string]any) string {
	o.t.Helper()
	result, failed := o.send(method, params)
	return fmt.Sprint(result, failed)
}

// do sends a command and gives its result.
func (o *other) do(method string, params map[string]any) map[string]any {
	o.t.Helper()
	result, failed := o.send(method, params)
	if failed != nil {
		o.t.Fatalf("%s: %v", method, failed)
	}
	return result
}

func (o *other) send(method string, params map[string]any) (result map[string]any, failed any) {
	o.t.Helper()
	o.id++
	b, _ := json.Marshal(map[string]any{"id": o.id, "method": method, "params": params})
	if err := o.ws.Write(within(o.t, patience), websocket.MessageText, b); err != nil {
		o.t.Fatal(err)
	}
	for {
		_, b, err := o.ws.Read(within(o.t, patience))
		if err != nil {
			o.t.Fatalf("%s: %v", method, err)
		}
		var m struct {
			ID     int
			Result map[string]any
			Error  any
		}
		if err := json.Unmarshal(b, &m); err != nil {
			o.t.Fatal(err)
		}
		if m.ID == o.id {
			return m.Result, m.Error
		}
	}
}

// open navigates a tab as agent-browser would and waits until it is there.
func (c *chromium) open(t testing.TB, tab *cdp.Tab, path string) *other {
	t.Helper()
	o := c.other(t, "/devtools/page/"+tab.ID())
	o.do("Page.navigate", map[string]any{"url": c.site.URL + path})
	return o
}

func (o *other) eval(js string) any {
	o.t.Helper()
	r := o.do("Runtime.evaluate", map[string]any{"expression": js, "userGesture": true, "returnByValue": true})
	v, _ := r["result"].(map[string]any)
	return v["value"]
}

func urls(pages []cdp.Page) (out []string) {
	for _, p := range pages {
		out = append(out, p.URL)
	}
	return out
}

// sync_ is patient with a busy machine.
func sync_(t testing.TB, tab *cdp.Tab) {
	t.Helper()
	var err error
	for began := time.Now(); time.Since(began) < patience; {
		if err = tab.Sync(within(t, patience)); !errors.Is(err, context.DeadlineExceeded) {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestTabsAreApart(t *testing.T) {
	c := share(t)
	b := c.dial(t)
	one, two := c.tab(t, b), c.tab(t, b)
	o1 := c.open(t, one, "/login?ann")
	o2 := c.open(t, two, "/login?bob")
	if got := o1.eval("localStorage.x='ann';document.cookie"); got != "who=ann" {
		t.Errorf("cookie of the first: %v", got)
	}
	if got := o2.eval("document.cookie+localStorage.x"); got != "who=bobundefined" {
		t.Errorf("cookie and storage of the second: %v", got)
	}
	c.open(t, one, "/again")
	c.mu.Lock()
	defer c.mu.Unlock()
	if got := c.cookies["/again"]; got != "who=ann" {
		t.Errorf("the first sent %q", got)
	}
}

// What stands in password fields is found without labels, whatever the page did to its own script.
func TestPasswords(t *testing.T) {
	c := share(t)
	tab := c.tab(t, c.dial(t))
	c.open(t, tab, "/fields")
	want := []string{"in-a-frame", "in-shadow", "one-secret", "two"}
	var got []string
	need.Eventually(t, func() bool { // the frame loads by itself
		var err error
		if got, err = tab.Passwords(t.Context()); err != nil {
			t.Fatal(err)
		}
		slices.Sort(got)
		return slices.Equal(got, want)
	}, func() string { return fmt.Sprint(got) })
}

// The site is on loopback, which Chromium never sends through a proxy unless
// told to.
func TestEveryRequestThroughTheProxy(t *testing.T) {
	c := share(t)
	b := c.dial(t)
	tab := c.tab(t, b)
	o := c.open(t, tab, "/")
	if c.hits.Load() == 0 {
		t.Error("the page came around the proxy")
	}
	c.proxy.CloseClientConnections()
	c.proxy.Close()
	if got := o.do("Page.navigate", map[string]any{"url": c.site.URL + "/more"})["errorText"]; got != "net::ERR_PROXY_CONNECTION_FAILED" {
		t.Errorf("with the proxy gone: %v", got)
	}
	sync_(t, tab)
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.cookies["/more"]; ok {
		t.Error("the request was sent without a proxy")
	}
}

func TestDownloadsAreDenied(t *testing.T) {
	c := share(t)
	tab := c.tab(t, c.dial(t))
	o := c.open(t, tab, "/")
	o.do("Page.enable", nil)
	o.eval("location='/file'")
	eventually(t, func() bool { return c.sent("/file") }, func() string { return "the file was never asked for: the test shows nothing" })
	time.Sleep(500 * time.Millisecond)
	for _, dir := range []string{".", os.Getenv("HOME"), filepath.Join(os.Getenv("HOME"), "Downloads"), os.TempDir()} {
		if _, err := os.Stat(filepath.Join(dir, "canary.bin")); err == nil {
			t.Errorf("a file was downloaded to %s", dir)
		}
	}
}

func (c *chromium) sent(path string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.cookies[path]
	return ok
}

func TestPopupsArePages(t *testing.T) {
	c := share(t)
	tab := c.tab(t, c.dial(t))
	o := c.open(t, tab, "/")
	o.eval("open('/pop','_blank','noopener')||1")
	eventually(t, func() bool {
		sync_(t, tab)
		return slices.Equal(urls(tab.Pages()), []string{c.site.URL + "/", c.site.URL + "/pop"})
	}, func() string { return fmt.Sprint(tab.Pages()) })
	if got := tab.Pages()[0].ID; got != tab.ID() {
		t.Errorf("the first page is %s, not the tab", got)
	}
	if err := tab.Leave(within(t, patience), tab.Pages()[1].ID); err != nil {
		t.Fatal(err)
	}
	if got := urls(tab.Pages()); len(got) != 1 || !tab.Alive() {
		t.Errorf("after leaving the popup: %q", got)
	}
}

// TestFramesOfOtherSites: Chromium reports each frame that has a process of its own, and its end.
func TestFramesOfOtherSites(t *testing.T) {
	c := share(t)
	tab := c.tab(t, c.dial(t))
	for _, path := range []string{"/frames", "/frames?again", "/"} { // with a back-forward cache the first one's would stay
		want := 3
		if path == "/" {
			want = 0
		}
		c.open(t, tab, path)
		eventually(t, func() bool { return tab.Frames() == want }, func() string { return fmt.Sprintf("%d frames, want %d", tab.Frames(), want) })
	}
}

var eventually = need.Eventually

func TestLeave(t *testing.T) {
	c := share(t)
	for _, tc := range []struct {
		path   string
		within time.Duration
	}{{"/", time.Second}, {"/stay", 3 * time.Second}, {"/hang", 3 * time.Second}} {
		t.Run(tc.path, func(t *testing.T) {
			need.Within(t, tc.within, func() time.Duration {
				b := c.dial(t)
				defer b.Close() // and so the tab
				tab := c.tab(t, b)
				c.open(t, tab, tc.path)
				time.Sleep(400 * time.Millisecond) // the script runs
				began := time.Now()
				err := tab.Leave(within(t, patience), tab.ID())
				took := time.Since(began)
				t.Logf("left in %v: %v", took, err)
				sync := tab.Sync(within(t, patience))
				if err == nil && !slices.Equal(urls(tab.Pages()), []string{"about:blank"}) {
					t.Errorf("left to %q (%v)", tab.Pages(), sync)
				}
				if err != nil { // a busy Chromium may close it only after Leave has given up
					eventually(t, func() bool { return !tab.Alive() && len(tab.Pages()) == 0 },
						func() string { return fmt.Sprintf("neither left nor closed: %v, %v", err, tab.Pages()) })
				}
				return took
			})
		})
	}
}

// TestLeaveError: a tab whose navigation has just failed becomes blank and stays usable, also before its error page is there.
func TestLeaveError(t *testing.T) {
	c := share(t)
	tab := c.tab(t, c.dial(t))
	for _, address := range []string{c.site.URL + "/tunnel", "https://a.test/", c.site.URL + "/tunnel", "http://127.0.0.1:1/", "https://a.test/", c.site.URL + "/", "https://b.test/"} {
		o := c.other(t, "/devtools/page/"+tab.ID())
		o.do("Page.navigate", map[string]any{"url": address})
		began := time.Now()
		if err := tab.LeaveError(within(t, patience)); err != nil {
			t.Fatalf("%s, after %s: %v", address, time.Since(began), err)
		}
		t.Logf("%s: left in %s", address, time.Since(began))
		if _, failed := tab.Document(); failed != "" || !slices.Equal(urls(tab.Pages()), []string{"about:blank"}) {
			t.Errorf("%s: left to %q, %q", address, urls(tab.Pages()), failed)
		}
	}
}

func TestCloseOfHangingPage(t *testing.T) {
	c := start(t)
	b := c.dial(t)
	tab := c.tab(t, b)
	c.open(t, tab, "/hang")
	eventually(t, func() bool { return !tab.Responds(within(t, patience)) }, func() string { return "it does not hang" })
	began := time.Now()
	if err := tab.Close(within(t, patience)); err != nil {
		t.Error(err)
	}
	t.Logf("closed in %v", time.Since(began))
	o := c.other(t, "")
	eventually(t, func() bool { return len(o.do("Target.getBrowserContexts", nil)["browserContextIds"].([]any)) == 0 },
		func() string { return "the context stays" })
}

// TestSecurityKeys: no other client's leaving, however often, gives a page back the dialog for security keys, nor does it fail
// what looks after the tab meanwhile.
func TestSecurityKeys(t *testing.T) {
	c := share(t)
	tab := c.tab(t, c.dial(t))
	page := "/devtools/page/" + tab.ID()
	stays := c.other(t, page)
	add := func() string {
		return stays.ask("WebAuthn.addVirtualAuthenticator", map[string]any{"options": map[string]any{"protocol": "ctap2", "transport": "internal"}})
	}
	if got := add(); !strings.Contains(got, "one internal") {
		t.Fatalf("a new tab has none: %s", got)
	}
	c.other(t, page).ws.CloseNow()
	eventually(t, func() bool { return strings.Contains(add(), "not been enabled") }, func() string { return "Chromium keeps them, so this is needed no more" })
	sync_(t, tab)
	if got := add(); !strings.Contains(got, "one internal") {
		t.Errorf("after Sync: %s", got)
	}
	left := make(chan bool)
	go func() {
		defer close(left)
		for range 50 {
			ws, _, err := websocket.Dial(within(t, patience), fmt.Sprintf("ws://127.0.0.1:%d%s", c.port, page), nil)
			if err == nil {
				ws.CloseNow()
			}
		}
	}()
	for leaving := true; leaving; {
		select {
		case <-left:
			leaving = false
		default:
			sync_(t, tab)
		}
	}
}

// A navigation that has not been answered yet shows nothing of its page, and
// must not hide where the tab still is.
func TestPendingNavigation(t *testing.T) {
	c := share(t)
	tab := c.tab(t, c.dial(t))
	o := c.open(t, tab, "/first")
	o.eval("location='/slow'")
	eventually(t, func() bool { return c.sent("/slow") }, func() string { return "it does not navigate" })
	sync_(t, tab)
	t.Logf("script navigation pending: %q", urls(tab.Pages()))
	if got := tab.Pages()[0].URL; got != c.site.URL+"/first" {
		t.Errorf("while it is pending: %q", got)
	}
	// As open does it: the browser's own navigation.
	b, _ := json.Marshal(map[string]any{"id": 999, "method": "Page.navigate", "params": map[string]any{"url": c.site.URL + "/slow?2"}})
	if err := o.ws.Write(within(t, patience), websocket.MessageText, b); err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond)
	sync_(t, tab)
	t.Logf("browser navigation pending: %q", urls(tab.Pages()))
}

func TestKilledChromium(t *testing.T) {
	c := start(t)
	b := c.dial(t)
	tab := c.tab(t, b)
	began := time.Now()
	_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
	select {
	case <-b.Done():
	case <-time.After(patience):
		t.Fatal("not noticed")
	}
	t.Logf("noticed after %v", time.Since(began))
	if err := tab.Sync(context.Background()); err == nil || tab.Alive() {
		t.Errorf("the tab lives: %v", err)
	}
}

// stop freezes Chromium until the function it gives is called.
func (c *chromium) stop(t *testing.T) (wake func()) {
	t.Helper()
	if err := syscall.Kill(-c.cmd.Process.Pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	return func() { _ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGCONT) }
}

func (o *other) contexts() int {
	return len(o.do("Target.getBrowserContexts", nil)["browserContextIds"].([]any))
}

func TestFrozenChromium(t *testing.T) {
	c := start(t)
	b := c.dial(t)
	tab := c.tab(t, b)
	c.open(t, tab, "/login?ann")
	wake := c.stop(t)
	defer wake()
	routines := runtime.NumGoroutine()
	for name, do := range map[string]func(context.Context) error{
		"Dial":        func(ctx context.Context) error { _, err := cdp.Dial(ctx, c.port); return err },
		"NewTab":      func(ctx context.Context) error { _, err := b.NewTab(ctx, "127.0.0.1:1"); return err },
		"CloseOthers": func(ctx context.Context) error { return b.CloseOthers(ctx, tab) },
		"Sync":        tab.Sync,
		"Front":       tab.Front,
		"Leave":       func(ctx context.Context) error { return tab.Leave(ctx, tab.ID()) },
		"Responds": func(ctx context.Context) error {
			if tab.Responds(ctx) {
				return errors.New("responds")
			}
			return ctx.Err()
		},
	} {
		need.Within(t, 600*time.Millisecond, func() time.Duration {
			began := time.Now()
			if err := do(within(t, 300*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, err)
			}
			return time.Since(began)
		})
	}
	eventually(t, func() bool { return runtime.NumGoroutine() <= routines }, func() string {
		return fmt.Sprintf("%d goroutines, %d before", runtime.NumGoroutine(), routines)
	})
	wake()
	eventually(t, func() bool { return tab.Sync(within(t, patience)) == nil }, func() string { return "does not come back" })
	o := c.other(t, "")
	eventually(t, func() bool { return o.contexts() == 1 }, func() string { return "a tab that nobody has stays" })
}

func TestCloseWhileFrozen(t *testing.T) {
	c := start(t)
	o := c.other(t, "")
	b := c.dial(t)
	tab, neighbour := c.tab(t, b), c.tab(t, b)
	c.open(t, tab, "/login?ann")
	wake := c.stop(t)
	defer wake()
	if err := tab.Close(within(t, 300*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close: %v", err)
	}
	wake()
	eventually(t, func() bool { return o.contexts() == 1 }, func() string { return "the context stays" })
	if err := neighbour.Sync(within(t, patience)); err != nil {
		t.Errorf("the neighbour: %v", err)
	}
	infos := o.do("Target.getTargets", map[string]any{"filter": []any{map[string]any{"type": "page"}}})["targetInfos"].([]any)
	for _, i := range infos {
		if strings.Contains(fmt.Sprint(i), c.site.URL) {
			t.Errorf("the page stays: %v", i)
		}
	}
	again := c.tab(t, c.dial(t))
	c.open(t, again, "/again")
	if got := c.sentCookie("/again"); got != "" {
		t.Errorf("its cookie %q lives", got)
	}
}

func TestResponding(t *testing.T) {
	c := share(t)
	for path, want := range map[string]bool{"/": true, "/stay": true, "/hang": false, "/storm": false, "/asks": true} {
		b := c.dial(t)
		tab := c.tab(t, b)
		c.open(t, tab, path)
		time.Sleep(400 * time.Millisecond) // the script runs, or will
		eventually(t, func() bool { return tab.Responds(within(t, patience)) == want }, func() string { return fmt.Sprintf("%s: %v", path, !want) })
		b.Close() // and so the tab
	}
}

func TestDialogsAreDismissed(t *testing.T) {
	c := share(t)
	tab := c.tab(t, c.dial(t))
	o := c.open(t, tab, "/asks")
	eventually(t, func() bool { return o.eval("document.title") == "false,null,undefined" }, func() string { return fmt.Sprint(o.eval("document.title")) })
	if got := o.eval("[confirm(1),prompt(2),alert(3)].join()"); got != "false,," {
		t.Errorf("answers: %v", got)
	}
	// A prompt is as long as the page likes: it ends its own tab at most.
	o.eval("setTimeout(()=>prompt('x'.repeat(20<<20),'y'.repeat(20<<20)),0)&&1")
	time.Sleep(500 * time.Millisecond)
	t.Logf("a long prompt: alive %v", tab.Alive())
	if err := tab.Close(within(t, patience)); err != nil {
		t.Error(err)
	}
}

func TestPopupDialogs(t *testing.T) {
	c := share(t)
	tab := c.tab(t, c.dial(t))
	o := c.open(t, tab, "/")
	began := time.Now()
	o.eval("w=open('/asks');1")
	t.Logf("opened in %v", time.Since(began))
	o.eval("v=open('');setTimeout(()=>{v.document.title='z'+v.confirm(1)},300);1")
	eventually(t, func() bool { return o.eval("w.document.title+v.document.title") == "false,null,undefinedzfalse" }, func() string { return fmt.Sprint(o.eval("document.title")) })
}

func TestContextsDoNotLeak(t *testing.T) {
	c := start(t)
	b := c.dial(t)
	o := c.other(t, "")
	contexts := func() int { return len(o.do("Target.getBrowserContexts", nil)["browserContextIds"].([]any)) }
	const n = 8
	began := time.Now()
	for range n {
		if err := c.tab(t, b).Close(within(t, patience)); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("NewTab and Close: %v each", time.Since(began)/n)
	if got := contexts(); got != 0 {
		t.Errorf("%d contexts stay", got)
	}
	tab := c.tab(t, b)
	c.open(t, tab, "/") // a second client on the tab, as agent-browser's daemon
	if got := contexts(); got != 1 {
		t.Errorf("%d contexts", got)
	}
	b.Close()
	began = time.Now()
	eventually(t, func() bool { return contexts() == 0 }, func() string { return "the context stays when the connection is gone" })
	t.Logf("gone %v after the connection", time.Since(began))
}

// BenchmarkSync is what a look at where a tab is costs, with 4 tabs.
func BenchmarkSync(b *testing.B) {
	c := start(b)
	browser := c.dial(b)
	var tab *cdp.Tab
	for range 4 {
		tab = c.tab(b, browser)
		c.open(b, tab, "/")
	}
	for b.Loop() {
		sync_(b, tab)
	}
}

func TestCloseOthers(t *testing.T) {
	c := start(t)
	b := c.dial(t)
	stays := c.tab(t, b)
	c.open(t, stays, "/stay")
	tab := c.tab(t, b)
	c.open(t, tab, "/").eval("open('/pop')&&1")
	began := time.Now()
	if err := b.CloseOthers(within(t, patience), tab); err != nil {
		t.Fatal(err)
	}
	t.Logf("took %v", time.Since(began))
	if !tab.Alive() || stays.Alive() || len(tab.Pages()) != 1 {
		t.Errorf("alive: %v %v, pages %v", tab.Alive(), stays.Alive(), tab.Pages())
	}
	o := c.other(t, "")
	if err := tab.Close(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	infos := o.do("Target.getTargets", map[string]any{"filter": []any{map[string]any{"type": "page"}}})["targetInfos"].([]any)
	if len(infos) != 1 {
		t.Errorf("a page has to stay, or a Chromium with a window ends: %v", infos)
	}
}
