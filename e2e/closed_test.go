package e2e

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"image/color"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/inspect/acceptance"
	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/internal/need"
)

const key = "e2e-key-0123456789abcdef"

// programs are what runs in the closed image, on every line.
var programs = []string{"browser", "browser-shell", "nginx", "openbox", "tigervnc"}

// inside is what listens in the closed image, all but the first on loopback.
var inside = []string{"*:8080", "127.0.0.1:5900", "127.0.0.1:8118", "127.0.0.1:9222", "::1:5900"}

// box is a running closed image.
type box struct {
	*sandbox.Sandbox
	w    *world
	keep map[string][]byte // files to lay beside the evidence at the end
}

// boot runs an image in a container whose cable leads to the world. Its evidence is kept where ARTIFACTS says, if it does.
func boot(t *testing.T, w *world, ref string, change func(*sandbox.Settings)) *box {
	t.Helper()
	settings := sandbox.Default()
	settings.Network, settings.Timeout = w.sandbox, time.Hour
	settings.CPUs = 2
	settings.Env = map[string]string{"SANDBOX_API_KEY": key, "TICKET_TTL_SECONDS": "600"} // a slow machine's browser takes its time
	settings.Output = os.Getenv("ARTIFACTS")
	if settings.Output == "" {
		settings.Output = t.TempDir()
	}
	if change != nil {
		change(&settings)
	}
	src, err := image.Open(t.Context(), ref, image.Options{})
	if err != nil {
		t.Fatal(err)
	}
	img, err := sandbox.From(src)
	if err != nil {
		t.Fatal(err)
	}
	s, err := sandbox.Runner{Runtime: sandbox.Runc, Watch: true}.Start(context.WithoutCancel(t.Context()), img, settings)
	if err != nil {
		t.Fatal(err)
	}
	b := &box{s, w, map[string][]byte{}}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), need.Patience)
		defer cancel()
		if t.Failed() {
			t.Logf("%s", b.Logs())
			for _, program := range []string{"browser-shell", "browser", "nginx", "tigervnc"} {
				if r, err := s.Exec(ctx, []string{"/usr/local/bin/browser-shell", "logs", program}, sandbox.ExecOptions{}); err == nil {
					t.Logf("%s:\n%s%s", program, r.Stdout[max(0, len(r.Stdout)-4000):], r.Stderr)
				}
			}
		}
		if _, err := s.Stop(ctx); err != nil {
			t.Errorf("cleaning up: %v", err)
		}
		b.startsNothing(t)
		for name, data := range b.keep {
			if err := os.WriteFile(filepath.Join(settings.Output, s.ID, name), data, 0o644); err != nil {
				t.Error(err)
			}
		}
	})
	return b
}

// startsNothing checks, when all is over, that nothing was executed in a closed image but its programs and what they start.
func (b *box) startsNothing(t *testing.T) {
	t.Helper()
	executed, err := b.Executed()
	if err != nil || len(executed) == 0 {
		t.Errorf("what was executed is not known: %v", err)
	}
	for _, e := range acceptance.Strangers(executed) {
		t.Errorf("%s was executed, by %s, %d times", e.File, e.By, e.Times)
	}
}

// healthy waits until the image's own health check passes.
func (b *box) healthy(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), need.Patience)
	defer cancel()
	if err := b.AwaitHealthy(ctx); err != nil {
		t.Fatal(err)
	}
	return time.Since(began)
}

// status is what supervisord says of a program.
type status struct {
	state string
	pid   int // inside; 0 if it has no process
}

// supervised returns the status of supervisord's programs. It asks the control socket itself, because each supervisorctl
// starts a Python.
func (b *box) supervised(t *testing.T) (map[string]status, error) {
	t.Helper()
	socket := fmt.Sprintf("/proc/%d/root/run/supervisor/sock", b.first(t).PID)
	client := http.Client{Timeout: need.Patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}}
	r, err := client.Post("http://supervisor:supervisor@localhost/RPC2", "text/xml",
		strings.NewReader("<methodCall><methodName>supervisor.getAllProcessInfo</methodName></methodCall>"))
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	var answer struct {
		Programs []struct {
			Members []struct {
				Name string `xml:"name"`
				Text string `xml:"value>string"`
				Int  int    `xml:"value>int"`
			} `xml:"member"`
		} `xml:"params>param>value>array>data>value>struct"`
	}
	if err := xml.NewDecoder(r.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("supervisord: %s: %w", r.Status, err)
	}
	all := map[string]status{}
	for _, p := range answer.Programs {
		name, s := "", status{}
		for _, m := range p.Members {
			switch m.Name {
			case "name":
				name = m.Text
			case "statename":
				s.state = m.Text
			case "pid":
				s.pid = m.Int
			}
		}
		all[name] = s
	}
	return all, nil
}

// listening are the sockets of the container, an address that means all of them as "*".
func (b *box) listening(t *testing.T) []string {
	t.Helper()
	sockets, err := b.Sockets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, s := range sockets {
		host := s.Address.Addr().Unmap().String()
		if s.Address.Addr().IsUnspecified() {
			host = "*"
		}
		if strings.HasPrefix(s.Network, "udp") { // Chromium's multicast sockets and the like are named too
			host = s.Network + " " + host
		}
		out = append(out, host+":"+strconv.Itoa(int(s.Address.Port())))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// closed checks what every boot of a closed image has to hold.
func (b *box) closed(t *testing.T) {
	t.Helper()
	// One that came up before the display was there is started again.
	await(t, need.Patience, "all programs and sockets", func() error {
		if got := b.listening(t); !slices.Equal(got, inside) {
			return fmt.Errorf("sockets: %v, want %v", got, inside)
		}
		all, err := b.supervised(t)
		maps.DeleteFunc(all, func(_ string, s status) bool { return s.state != "RUNNING" })
		if got := slices.Sorted(maps.Keys(all)); err == nil && !slices.Equal(got, programs) {
			err = fmt.Errorf("programs: %v, want %v", got, programs)
		}
		return err
	})
	for p, want := range map[string]int{"/": 403, "/json/version": 403, "/v1/shell": 403, "/mcp": 401, "/tickets": 405} {
		if a := b.w.raw(t, "GET", get(p)); a.Status != want && (p != "/tickets" || a.Status != 403) {
			t.Errorf("GET %s: %d, want %d", p, a.Status, want)
		}
	}
}

// TestClosed boots the closed image of each line and tries all that it is for, and all that it must not do. An agent works on
// each line, with one of the SDKs, whose differences meet the same hub everywhere. A and C have every variable that opens a base
// at run time, and nothing is other than on B, which has none.
func TestClosed(t *testing.T) {
	t.Parallel()
	for line, sdk := range map[string]sdk{"A": {"1", "legacy", "2025-11-25"}, "B": {"2", "legacy", "2025-11-25"}, "C": {"2", "modern", "2026-07-28"}} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			ref, routes := "", 2_000
			if line == "C" { // nothing depends on what a base brings beside what the image needs
				routes = 10_000 // nginx and its configuration are the same on each line
				ref = buildL0(t, grown(t, line))
			} else {
				ref = buildL0(t, "standin-live:"+line)
			}
			w := newWorld(t)
			b := boot(t, w, ref, func(s *sandbox.Settings) {
				if line != "B" {
					setHostile(s)
				}
			})
			ready := b.healthy(t)
			b.closed(t)
			own, whole := b.resident(t)
			t.Logf("line %s: ready after %s; %d MiB, of which browser-shell %d MiB", line, ready.Round(10*time.Millisecond), whole>>20, own>>20)
			if line == "B" { // on each line b.closed compares all sockets that listen with those of B
				t.Run("ports", func(t *testing.T) { testPorts(t, w) })
			}
			t.Run("holes", func(t *testing.T) { testHoles(t, w) })
			t.Run("tickets", func(t *testing.T) { testTickets(t, w) })
			t.Run("takeover", func(t *testing.T) { testTakeover(t, b) })
			t.Run("cage", func(t *testing.T) { testCage(t, b) })
			t.Run("health", func(t *testing.T) { testHealth(t, b) })
			t.Run("crowd", func(t *testing.T) { testCrowd(t, w) })
			t.Run("ticket holder", func(t *testing.T) { testTicketHolder(t, b) })
			t.Run("agent", func(t *testing.T) { testAgent(t, b, sdk, line != "C") })
			t.Run("routes", func(t *testing.T) { testRoutes(t, w, routes, "") })
			t.Run("routes with a key", func(t *testing.T) { testRoutes(t, w, 2_000, key) })
			t.Run("refused system calls", func(t *testing.T) { testRefusals(t, b) })
			b.closed(t)
			b.obeysNothing(t)
		})
	}
}

// resident returns resident bytes: of browser-shell's processes, and of the whole container as its cgroup counts them.
func (b *box) resident(t *testing.T) (own, whole int64) {
	t.Helper()
	procs, err := b.Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		if p.Name == "browser-shell" && !slices.Contains(p.Args, "start") { // supervisors of cages are the programs' matter
			own += p.RSS
		}
	}
	m, err := b.Memory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return own, m.RSS
}

// ticket buys one.
func ticket(t *testing.T, w *world, header, value string) (string, int) {
	t.Helper()
	return orderTicket(t, w, "", header, value)
}

// orderTicket buys one of the kind that a body asks for.
func orderTicket(t *testing.T, w *world, order, header, value string) (string, int) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+public+"/tickets", strings.NewReader(order))
	if err != nil {
		t.Fatal(err)
	}
	if header != "" {
		req.Header.Set(header, value)
	}
	res, err := w.client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var body struct {
		Ticket  string
		Expires int `json:"expires_in"`
	}
	if res.StatusCode == http.StatusOK {
		if err := json.NewDecoder(res.Body).Decode(&body); err != nil || body.Expires != 600 {
			t.Errorf("ticket: %+v %v", body, err)
		}
	}
	return body.Ticket, res.StatusCode
}

func testTickets(t *testing.T, w *world) {
	good, status := ticket(t, w, "X-AIO-API-Key", key)
	if status != 200 || good == "" {
		t.Fatalf("a ticket with the key: %d", status)
	}
	if _, status := ticket(t, w, "Authorization", "Bearer "+key); status != 200 {
		t.Errorf("with the key as Bearer: %d", status)
	}
	for _, wrong := range []string{"", key + "x", key[:len(key)-1]} {
		if _, status := ticket(t, w, "X-AIO-API-Key", wrong); status != 401 {
			t.Errorf("with key %q: %d", wrong, status)
		}
	}
	for target, want := range map[string]int{
		"/vnc/index.html?ticket=" + good:            200,
		"/vnc/index.html?ticket=x":                  401,
		"/vnc/index.html":                           401,
		"/vnc/core/rfb.js":                          200,
		"/mcp?ticket=" + good:                       401,
		"/mcp/../vnc/index.html?ticket=" + good:     401, // nobody needs another spelling
		"/vnc/..%2fmcp?ticket=" + good:              401,
		"/vnc/../mcp?ticket=" + good:                401,
		"/vnc/../tickets?ticket=" + good:            403,
		"/vnc/index.html?x=" + good + "&api_key=no": 401,
	} {
		if a := w.raw(t, "GET", get(target)); a.Status != want && (want != 403 || a.Status != 405) {
			t.Errorf("GET %s: %d, want %d", strings.ReplaceAll(target, good, "TICKET"), a.Status, want)
		}
	}
	mint := "POST /tickets?ticket=" + good + " HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
	if a := w.raw(t, "POST", mint); a.Status != 401 {
		t.Errorf("a ticket buys a ticket: %d", a.Status)
	}
}

// dialDesktop connects to the screen with a ticket, as noVNC does.
func dialDesktop(t *testing.T, w *world, at string) net.Conn {
	t.Helper()
	good, _ := ticket(t, w, "X-AIO-API-Key", key)
	return dialWith(t, w, at, good)
}

func dialWith(t *testing.T, w *world, at, good string) net.Conn {
	t.Helper()
	conn, res, err := websocket.Dial(t.Context(), "ws://"+public+at+"?ticket="+good, &websocket.DialOptions{HTTPClient: w.client(), Subprotocols: []string{"binary"}})
	if err != nil {
		t.Fatalf("%s: %v (%v)", at, err, res)
	}
	conn.SetReadLimit(64 << 20)
	t.Cleanup(func() { _ = conn.CloseNow() })
	return websocket.NetConn(t.Context(), conn, websocket.MessageBinary)
}

// desktop is dialDesktop with the handshake done. It answers pings, also while nobody reads: the gate ends a desktop that doesn't for
// 90 s.
func desktop(t *testing.T, w *world, at string) *rfb {
	t.Helper()
	conn := dialDesktop(t, w, at)
	r, pipe := io.Pipe()
	go func() {
		_, err := io.Copy(pipe, conn)
		pipe.CloseWithError(err)
	}()
	screen, err := openRFB(readFrom{conn, r})
	if err != nil {
		t.Fatal(err)
	}
	return screen
}

// readFrom is a connection that is read by another reader.
type readFrom struct {
	net.Conn
	r io.Reader
}

func (c readFrom) Read(b []byte) (int, error) { return c.r.Read(b) }

// sitePage swaps its colors when its button is pressed, and tells of keys and clicks in their order.
const sitePage = `<!doctype html><title>e2e site</title>
<style>body { background: linear-gradient(90deg, #204060, #e0a040 90%); font: 40px sans-serif }
.on { background: linear-gradient(90deg, #e0a040, #204060 90%) }</style>
<script>let told = Promise.resolve()
onkeydown = onmousedown = e => { told = told.then(() => fetch('/acted?' + e.type + '-' + (e.key ?? e.x))).catch(() => {}) }</script>
<h1>Hello</h1><button onclick="document.body.classList.add('on'); this.textContent = 'Done'">Press me</button>`

var reference = regexp.MustCompile(`button \\"Press me\\" \[ref=(e\d+)`) // in a string of JSON

// sdk is a version of the official TypeScript SDK, and the protocol that it agrees on.
type sdk struct{ version, era, protocol string }

// testAgent drives the visible browser by a client on an SDK, while an RFB client and, if somebody watches, a person's browser
// look on.
func testAgent(t *testing.T, b *box, sdk sdk, watched bool) {
	var acted inputs
	site := &httptest.Server{Listener: b.w.listen(t, siteIP+":80"), Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/acted" {
			acted.record(r.URL.RawQuery)
			return
		}
		_, _ = io.WriteString(w, sitePage)
	})}}
	site.Start()
	defer site.Close()

	screen := desktop(t, b.w, "/websockify")
	other := desktop(t, b.w, "/vnc/websockify")
	if other.Width != screen.Width || screen.Width < 1000 {
		t.Errorf("screens of %d and %d pixels", screen.Width, other.Width)
	}
	t.Run("SDK "+sdk.version+" "+sdk.era, func(t *testing.T) {
		defer b.keepScreen(t, screen)
		c := startSDK(t, b.w, key, sdk.version, sdk.era)
		if !slices.Equal(c.Hello.Tools, []string{"browser-shell"}) || c.Hello.Protocol != sdk.protocol {
			t.Fatalf("tools %v, protocol %s", c.Hello.Tools, c.Hello.Protocol)
		}
		c.must("open", "http://"+siteIP+"/")
		screen.awaitCorner(t, "a page was opened", color.NRGBA{0xe0, 0xa0, 0x40, 255})
		snapshot := c.must("snapshot", "-i")
		m := reference.FindStringSubmatch(snapshot)
		if m == nil {
			t.Fatalf("no button in the snapshot: %s", snapshot)
		}
		c.must("click", "@"+m[1])
		screen.awaitCorner(t, "the button was pressed", color.NRGBA{0x20, 0x40, 0x60, 255})
		if watched { // not on C, whose noVNC and routes are B's
			person(t, b)
		}
		b.obeysNothing(t) // nor do the agent's programs
		c.must("close")
		screen.awaitCorner(t, "the page was closed", color.NRGBA{255, 255, 255, 255})
		for _, argv := range [][]string{{"open", "http://127.0.0.1:8088/tickets"}, {"open", "file:///etc/passwd"}, {"eval", "1"}, {"open", "http://" + sandboxIP + ":8080/"}} {
			if r := c.call(argv...); argv[1] != "http://"+sandboxIP+":8080/" && r.StructuredContent.ExitCode != 126 {
				t.Errorf("%v: %+v", argv, r)
			}
		}
		c.call("close")
	})
	t.Run("input", func(t *testing.T) {
		defer b.keepScreen(t, screen)
		testInput(t, b, &acted)
	})
}

// person opens noVNC in a browser of their own, and must see the desktop.
func person(t *testing.T, b *box) {
	good, _ := ticket(t, b.w, "X-AIO-API-Key", key)
	address := "http://" + public + "/vnc/index.html?autoconnect=1&resize=scale&ticket=" + good + "&path=" + url.QueryEscape("websockify?ticket="+good)
	p := openPage(t, b.w, address)
	const colors = `(() => {
		const c = document.querySelector('canvas');
		if (!document.documentElement.classList.contains('noVNC_connected') || !c || c.width < 1000) return 0;
		const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data, seen = new Set();
		for (let i = 0; i < d.length; i += 404) seen.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]);
		return seen.size;
	})()`
	await(t, need.Patience, "the desktop in noVNC", func() error {
		v, err := p.eval(t.Context(), colors)
		if n, _ := v.(float64); err == nil && n < 20 {
			err = fmt.Errorf("%v colours", v)
		}
		return err
	})
	png, err := p.screenshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.keep["novnc.png"] = png
}

// root is the container's file system as it runs, seen from outside: an image may have no program that could look.
func (b *box) root(t *testing.T) string {
	t.Helper()
	processes, err := b.Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(processes, func(p sandbox.Process) bool { return p.Inside == 1 })
	if i < 0 {
		t.Fatal("the container's first process isn't seen")
	}
	return fmt.Sprintf("/proc/%d/root", processes[i].PID)
}

// find lists what of the container's file system is so; the kernel's own directories aren't looked at.
func (b *box) find(t *testing.T, is func(p string, info fs.FileInfo) bool) (found []string) {
	t.Helper()
	root := b.root(t)
	seen := 0
	err := filepath.WalkDir(root+"/.", func(at string, d fs.DirEntry, err error) error {
		p := "/" + strings.TrimPrefix(strings.TrimPrefix(at, root), "/")
		switch {
		case err != nil:
			return nil // it is gone again
		case p == "/proc" || p == "/sys" || p == "/dev":
			return fs.SkipDir
		}
		info, err := d.Info()
		if seen++; err == nil && is(p, info) {
			found = append(found, p)
		}
		return nil
	})
	if err != nil || seen < 1000 {
		t.Fatalf("%d files are seen: %v", seen, err)
	}
	return found
}
