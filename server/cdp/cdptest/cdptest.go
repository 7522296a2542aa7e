// Package cdptest is a fake Chromium for tests: it speaks just what package
// cdp and its users ask for, over HTTP and WebSocket on loopback.
package cdptest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	"github.com/coder/websocket"
)

// Page is a page of the fake browser.
type Page struct{ ID, Context, URL string }

// Server is a fake browser. It starts with one page, "first", of the default
// context "default".
type Server struct {
	Port int

	t    testing.TB
	http *httptest.Server

	mu       sync.Mutex
	conns    map[*client]bool
	contexts map[string]*client // who made them
	proxies  map[string]string  // context -> proxy server
	denied   map[string]bool    // contexts whose downloads are denied
	pages    []Page
	last     int
	calls    []string
	refuse   map[string]string
	hanging  bool
	held     []func()        // the commands of that time
	unborn   int             // pages to come whose process does not start
	dead     map[string]bool // pages that never answer
	dialogs  map[string]bool // pages that show one
	answers  []bool

	passwords []string
}

// SetPasswords says what stands in the password fields of every page.
func (s *Server) SetPasswords(values ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passwords = values
}

type client struct {
	ws       *websocket.Conn
	discover bool
	sessions map[string]string // session -> page
	enabled  map[string]bool   // sessions that are told of dialogs
}

// New starts a fake browser that ends with the test.
func New(t testing.TB) *Server {
	t.Helper()
	s := &Server{
		t: t, conns: map[*client]bool{}, contexts: map[string]*client{}, proxies: map[string]string{},
		denied: map[string]bool{}, refuse: map[string]string{}, dialogs: map[string]bool{}, dead: map[string]bool{},
		pages: []Page{{"first", "default", "about:blank"}},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/json/version", func(w http.ResponseWriter, _ *http.Request) {
		// Another host than ours: cdp has to take the path only.
		fmt.Fprint(w, `{"Browser":"Chrome/0","webSocketDebuggerUrl":"ws://198.51.100.1:1/devtools/browser/fake"}`)
	})
	mux.HandleFunc("/devtools/browser/fake", s.serve)
	s.http = httptest.NewServer(mux)
	s.Port = s.http.Listener.Addr().(*net.TCPAddr).Port
	t.Cleanup(s.Stop)
	return s
}

// Stop ends the browser as if it were killed.
func (s *Server) Stop() {
	s.Drop()
	s.http.Close()
}

// Drop ends all connections, as a browser that is restarted does: their
// contexts and pages are gone.
func (s *Server) Drop() {
	s.mu.Lock()
	conns := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, c := range conns {
		_ = c.ws.CloseNow()
		s.leave(c)
	}
}

// Hang makes the browser answer nothing, or answer again: what came meanwhile first.
func (s *Server) Hang(hanging bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hanging = hanging
	if !hanging {
		for _, answer := range s.held {
			answer()
		}
		s.held = nil
	}
}

// HangPage makes a page never answer again.
func (s *Server) HangPage(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead[id] = true
}

// FailToLaunch makes the processes of the next n pages not start.
func (s *Server) FailToLaunch(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unborn = n
}

// Refuse makes a method fail with a message; "" makes it work again.
func (s *Server) Refuse(method, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse[method] = message
}

// Pages returns the pages there are.
func (s *Server) Pages() []Page {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.pages)
}

// Contexts counts the contexts there are beside the default one.
func (s *Server) Contexts() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.contexts)
}

// Proxy returns the proxy of a context, and whether its downloads are denied.
func (s *Server) Proxy(context string) (proxy string, denied bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proxies[context], s.denied[context]
}

// Calls returns the methods that were called, in order.
func (s *Server) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// Navigate moves a page, as if it had gone there itself.
func (s *Server) Navigate(id, url string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.navigate(id, url)
}

// Popup opens a page in the context of another, or with opener "" in the
// default one as a person at the screen can, and gives its id.
func (s *Server) Popup(opener, url string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if opener == "" {
		return s.open("default", url)
	}
	i := s.index(opener)
	if i < 0 {
		s.t.Errorf("no page %s", opener)
		return ""
	}
	return s.open(s.pages[i].Context, url)
}

// ClosePage closes a page, as a person at the screen can.
func (s *Server) ClosePage(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.close(id)
}

// Dialog makes a page show a dialog ("alert", "confirm", "prompt",
// "beforeunload"): until it is closed the page does not respond.
func (s *Server) Dialog(page, kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dialogs[page] = true
	s.emitPage(page, "Page.javascriptDialogOpening", object{"type": kind, "message": "x", "hasBrowserHandler": false})
}

// Answers returns how the dialogs were closed: whether they were accepted.
func (s *Server) Answers() []bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.answers)
}

// Crash crashes a page's renderer.
func (s *Server) Crash(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.emit("Target.targetCrashed", map[string]any{"targetId": id, "status": "crashed", "errorCode": 5})
}

// Frame adds a frame with a process of its own to a page's context and returns its id.
func (s *Server) Frame(page string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.id("F")
	s.emit("Target.targetCreated", object{"targetInfo": object{"targetId": id, "type": "iframe", "browserContextId": s.pages[s.index(page)].Context}})
	return id
}

// CloseFrame ends a frame's process.
func (s *Server) CloseFrame(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.emit("Target.targetDestroyed", object{"targetId": id})
}

// Send sends any text to all clients.
func (s *Server) Send(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		_ = c.ws.Write(context.Background(), websocket.MessageText, []byte(text))
	}
}

// SendPage sends any text to the clients that watch a page's dialogs.
func (s *Server) SendPage(page, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		for session := range c.enabled {
			if c.sessions[session] == page {
				_ = c.ws.Write(context.Background(), websocket.MessageText, []byte(text))
			}
		}
	}
}

// Clients counts the connections there are.
func (s *Server) Clients() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Origin") != "" {
		http.Error(w, "Rejected an incoming WebSocket connection from an origin", http.StatusForbidden)
		return
	}
	ws, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	c := &client{ws: ws, sessions: map[string]string{}, enabled: map[string]bool{}}
	s.mu.Lock()
	s.conns[c] = true
	s.mu.Unlock()
	defer s.leave(c)
	for {
		_, b, err := ws.Read(context.Background())
		if err != nil {
			return
		}
		s.answer(c, b)
	}
}

// leave forgets a client and disposes what it made.
func (s *Server) leave(c *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	for id, by := range s.contexts {
		if by == c {
			s.dispose(id)
		}
	}
}

type params struct {
	Discover bool   `json:"discover"`
	URL      string `json:"url"`
	Target   string `json:"targetId"`
	Context  string `json:"browserContextId"`
	Proxy    string `json:"proxyServer"`
	Behavior string `json:"behavior"`
	Accept   bool   `json:"accept"`
}

type command struct {
	ID      int64
	Session string `json:"sessionId"`
	Method  string
	Params  params
}

func (s *Server) answer(c *client, b []byte) {
	var m command
	if json.Unmarshal(b, &m) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, m.Method)
	if s.hanging {
		s.held = append(s.held, func() { s.reply(c, m) })
		return
	}
	s.reply(c, m)
}

// reply executes a command and answers it. The caller holds s.mu.
func (s *Server) reply(c *client, m command) {
	if page := c.sessions[m.Session]; s.dead[page] || m.Method == "Page.getLayoutMetrics" && s.dialogs[page] {
		return
	}
	reply := map[string]any{"id": m.ID}
	if msg := s.refuse[m.Method]; msg != "" {
		reply["error"] = map[string]any{"code": -32000, "message": msg}
	} else if result, err := s.do(c, m.Method, m.Session, m.Params); err != nil {
		reply["error"] = map[string]any{"code": -32000, "message": err.Error()}
	} else {
		reply["result"] = result
	}
	c.write(reply)
	switch {
	case m.Method == "Browser.close": // and is started again
		go s.Drop()
	case m.Method == "Target.createTarget" && s.unborn > 0:
		s.unborn--
		id := s.pages[len(s.pages)-1].ID
		s.dead[id] = true
		s.emit("Target.targetCrashed", object{"targetId": id, "status": "failed to launch", "errorCode": 1002})
	}
}

func (c *client) write(v any) {
	b, _ := json.Marshal(v) // strings and maps of them
	_ = c.ws.Write(context.Background(), websocket.MessageText, b)
}

type object = map[string]any

func (s *Server) do(c *client, method, session string, p params) (object, error) {
	switch method {
	case "Target.setDiscoverTargets":
		c.discover = p.Discover
		for _, page := range s.pages {
			c.write(event("Target.targetCreated", object{"targetInfo": info(page)}))
		}
	case "Target.getTargets":
		infos := []object{}
		for _, page := range s.pages {
			infos = append(infos, info(page))
		}
		return object{"targetInfos": infos}, nil
	case "Target.createBrowserContext":
		id := s.id("C")
		s.contexts[id], s.proxies[id] = c, p.Proxy
		return object{"browserContextId": id}, nil
	case "Target.disposeBrowserContext":
		if s.contexts[p.Context] == nil {
			return nil, fmt.Errorf("Failed to find context with id %s", p.Context) //nolint:staticcheck // Chromium's words
		}
		s.dispose(p.Context)
	case "Browser.setDownloadBehavior":
		s.denied[p.Context] = p.Behavior == "deny"
	case "Target.createTarget":
		if p.Context == "" {
			p.Context = "default"
		}
		return object{"targetId": s.open(p.Context, p.URL)}, nil
	case "Target.closeTarget":
		if !s.close(p.Target) {
			return nil, errNoTarget
		}
		return object{"success": true}, nil
	case "Target.activateTarget":
		if s.index(p.Target) < 0 {
			return nil, errNoTarget
		}
	case "Target.attachToTarget":
		if s.index(p.Target) < 0 {
			return nil, errNoTarget
		}
		id := s.id("S")
		c.sessions[id] = p.Target
		return object{"sessionId": id}, nil
	case "Browser.getVersion":
	case "Page.enable":
		c.enabled[session] = true
	default:
		return s.page(c.sessions[session], method, p)
	}
	return object{}, nil
}

var errNoDialog = fmt.Errorf("No dialog is showing") //nolint:staticcheck // Chromium's words

var errNoTarget = fmt.Errorf("No target with given id found") //nolint:staticcheck // Chromium's words

// page answers a command to one page.
func (s *Server) page(id, method string, p params) (object, error) {
	if s.index(id) < 0 {
		return nil, fmt.Errorf("'%s' wasn't found", method)
	}
	switch method {
	case "Page.navigate":
		return object{"frameId": id, "loaderId": s.navigate(id, p.URL)}, nil
	case "Page.createIsolatedWorld":
		return object{"executionContextId": 1}, nil
	case "Runtime.evaluate":
		return object{"result": object{"value": append([]string{}, s.passwords...)}}, nil
	case "Page.resetNavigationHistory", "Page.getLayoutMetrics", "Network.enable", "Network.disable",
		"WebAuthn.enable", "WebAuthn.addVirtualAuthenticator":
		return object{}, nil
	case "Page.handleJavaScriptDialog":
		if !s.dialogs[id] {
			return nil, errNoDialog
		}
		delete(s.dialogs, id)
		s.answers = append(s.answers, p.Accept)
		return object{}, nil
	}
	return nil, fmt.Errorf("'%s' wasn't found", method)
}

func (s *Server) id(kind string) string {
	s.last++
	return fmt.Sprintf("%s%031d", kind, s.last)
}

func (s *Server) index(id string) int {
	return slices.IndexFunc(s.pages, func(p Page) bool { return p.ID == id })
}

func (s *Server) open(context, url string) string {
	p := Page{s.id("T"), context, url}
	s.pages = append(s.pages, p)
	s.emit("Target.targetCreated", object{"targetInfo": info(p)})
	return p.ID
}

func (s *Server) navigate(id, url string) (loader string) {
	i := s.index(id)
	if i < 0 {
		s.t.Errorf("no page %s", id)
		return ""
	}
	s.pages[i].URL = url
	s.emit("Target.targetInfoChanged", object{"targetInfo": info(s.pages[i])})
	loader = s.id("L")
	s.emitPage(id, "Page.frameNavigated", object{"frame": object{"id": id, "loaderId": loader, "url": url}})
	return loader
}

// emitPage sends an event to the sessions that watch a page.
func (s *Server) emitPage(page, method string, params object) {
	for c := range s.conns {
		for session, id := range c.sessions {
			if id == page && c.enabled[session] {
				e := event(method, params)
				e["sessionId"] = session
				c.write(e)
			}
		}
	}
}

func (s *Server) close(id string) bool {
	i := s.index(id)
	if i < 0 {
		return false
	}
	s.pages = slices.Delete(s.pages, i, i+1)
	s.emit("Target.targetDestroyed", object{"targetId": id})
	return true
}

func (s *Server) dispose(context string) {
	delete(s.contexts, context)
	delete(s.proxies, context)
	delete(s.denied, context)
	for _, p := range slices.Clone(s.pages) {
		if p.Context == context {
			s.close(p.ID)
		}
	}
}

func (s *Server) emit(method string, params object) {
	for c := range s.conns {
		if c.discover {
			c.write(event(method, params))
		}
	}
}

func event(method string, params object) object { return object{"method": method, "params": params} }

func info(p Page) object {
	return object{"targetId": p.ID, "type": "page", "title": "", "url": p.URL, "attached": false, "browserContextId": p.Context}
}
