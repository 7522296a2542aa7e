package hub

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// startTime limits a start. npx and uvx may download the server first.
	startTime = 60 * time.Second
	// endTime is the time for a program to end after its stdin is closed, and again after SIGTERM.
	endTime = 2 * time.Second
	// pingTime is the interval of pings to an address, where the protocol has them.
	pingTime = 30 * time.Second
	// newsTime limits the time for which an answer waits for the messages before it.
	newsTime = time.Second
	// maxPending limits the queued messages for a client that doesn't read; more are dropped.
	maxPending = 256

	newEra     = "2026-07-28" // the first revision without sessions
	lastLegacy = "2025-11-25" // the last one that begins with initialize
)

// link is a connection to a server, with the calls that run over it.
type link struct {
	server  *server
	session *mcp.ClientSession
	conn    mcp.Connection // of session
	news    *news
	cmd     *exec.Cmd       // nil for an address
	scope   context.Context // of the link
	cancel  context.CancelFunc
	gone    chan struct{} // closed when the session has ended
	err     error         // after gone: why

	mu     sync.Mutex
	failed error // why the hub ended it; nil: it didn't
	calls  map[*call]bool
	tokens map[float64]*call // by the progress token that the server received
	minted float64
}

// keeper keeps a transport's connection, to close it without waiting for running calls.
type keeper struct {
	mcp.Transport
	news *news
	conn mcp.Connection
}

// Connect implements mcp.Transport.
func (k *keeper) Connect(ctx context.Context) (c mcp.Connection, err error) {
	k.conn, err = k.Transport.Connect(ctx)
	if _, program := k.Transport.(*mcp.CommandTransport); program && err == nil {
		return &ordered{Connection: k.conn, news: k.news}, nil
	}
	return k.conn, err
}

// news counts a program's progress and log messages.
type news struct {
	read, handled atomic.Int64
	moved         chan struct{}
}

// isNews reports whether a method's messages belong before the answer that follows them.
func isNews(method string) bool {
	return method == "notifications/progress" || method == "notifications/message"
}

// handleOne counts a handled message.
func (n *news) handleOne() {
	n.handled.Add(1)
	select {
	case n.moved <- struct{}{}:
	default:
	}
}

// ordered is a connection whose answers wait for the messages before them: go-sdk queues these, and delivers answers at
// once.
type ordered struct {
	mcp.Connection
	news *news
}

// Read implements mcp.Connection.
func (o *ordered) Read(ctx context.Context) (jsonrpc.Message, error) {
	msg, err := o.Connection.Read(ctx)
	switch m := msg.(type) {
	case *jsonrpc.Request:
		if isNews(m.Method) {
			o.news.read.Add(1)
		}
	case *jsonrpc.Response:
		late := time.After(newsTime)
		for o.news.handled.Load() < o.news.read.Load() {
			select {
			case <-o.news.moved:
			case <-late: // a question before them, which a client has to answer
				return msg, err
			}
		}
	}
	return msg, err
}

// openLink starts the program or connects to the address. ctx is that of the link, not only of the start. legacy begins
// with initialize: server/discover ends some servers.
func (s *server) openLink(ctx context.Context, legacy, main bool) (_ *link, err error) {
	l := &link{server: s, gone: make(chan struct{}), calls: map[*call]bool{}, tokens: map[float64]*call{}}
	l.scope, l.cancel = context.WithCancel(ctx)
	k := &keeper{news: &news{moved: make(chan struct{}, 1)}}
	l.news = k.news
	if k.Transport, err = l.transport(); err != nil {
		l.cancel()
		return nil, err
	}
	client := mcp.NewClient(&mcp.Implementation{Name: Name, Version: s.hub.version}, l.clientOptions(main))
	client.AddReceivingMiddleware(l.receive)
	o := &mcp.ClientSessionOptions{}
	if legacy {
		o.ProtocolVersion = lastLegacy
	}
	late := time.AfterFunc(startTime, l.cancel)
	l.session, err = client.Connect(l.scope, k, o)
	l.conn = k.conn
	if err == nil && !l.isNewer() && l.session.InitializeResult().Capabilities.Logging != nil {
		// It has one level for all clients; go-sdk filters for each.
		err = l.session.SetLoggingLevel(l.scope, &mcp.SetLoggingLevelParams{Level: "debug"})
	}
	if !late.Stop() {
		err = fmt.Errorf("it did not answer within %s", startTime)
	}
	if err != nil {
		l.close()
		return nil, l.describe(err)
	}
	go func() {
		l.err = l.session.Wait()
		close(l.gone)
	}()
	return l, nil
}

func (l *link) transport() (mcp.Transport, error) {
	s := l.server
	if s.URL == "" {
		path, err := exec.LookPath(s.Command)
		if err != nil {
			return nil, fmt.Errorf("%w; install it, or give its absolute path", err)
		}
		l.cmd = exec.Command(path, s.Args...)
		l.cmd.Env, l.cmd.Dir, l.cmd.Stderr = environment(s.Env), s.Cwd, &s.log
		l.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // npx and uvx start the server as a child
		l.cmd.WaitDelay = endTime
		return &mcp.CommandTransport{Command: l.cmd, TerminateDuration: endTime}, nil
	}
	client := &http.Client{
		Transport:     headers{s.Headers, http.DefaultTransport},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // headers are for this address
	}
	if s.Transport == "sse" {
		return &mcp.SSEClientTransport{Endpoint: s.URL, HTTPClient: client}, nil
	}
	return &mcp.StreamableClientTransport{Endpoint: s.URL, HTTPClient: client}, nil
}

// inherited are the variables that a program gets from the hub's environment. Others, which may hold secrets, must be in
// env.
var inherited = []string{
	"HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER", "SSL_CERT_FILE", "SSL_CERT_DIR",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
	"LC_*", "XDG_*", "DOCKER_*", "NPM_CONFIG_*", "npm_config_*", "UV_*",
}

func environment(own map[string]string) (env []string) {
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if slices.ContainsFunc(inherited, func(p string) bool {
			prefix, any := strings.CutSuffix(p, "*")
			return p == name || any && strings.HasPrefix(name, prefix)
		}) {
			env = append(env, v)
		}
	}
	for name, value := range own {
		env = append(env, name+"="+value)
	}
	return env
}

// headers adds headers to each request.
type headers struct {
	set  map[string]string
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (h headers) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, value := range h.set {
		r.Header.Set(name, value)
	}
	return h.next.RoundTrip(r)
}

func (l *link) clientOptions(main bool) *mcp.ClientOptions {
	o := &mcp.ClientOptions{
		// The client behind the hub is not known yet when a server of the older era receives this. A client that can't
		// answer refuses the request.
		Capabilities: &mcp.ClientCapabilities{
			RootsV2:     &mcp.RootCapabilities{},
			Sampling:    &mcp.SamplingCapabilities{Tools: &mcp.SamplingToolsCapabilities{}, Context: &mcp.SamplingContextCapabilities{}},
			Elicitation: &mcp.ElicitationCapabilities{Form: &mcp.FormElicitationCapabilities{}, URL: &mcp.URLElicitationCapabilities{}},
		},
		MultiRoundTrip:              &mcp.MultiRoundTripOptions{Disabled: true}, // the client behind the hub answers
		ProgressNotificationHandler: l.forwardProgress,
		LoggingMessageHandler: func(_ context.Context, req *mcp.LoggingMessageRequest) {
			l.tellSole(func(c *call) { _ = c.client.Log(c.ctx, req.Params) })
		},
		ElicitationCompleteHandler: func(_ context.Context, req *mcp.ElicitationCompleteNotificationRequest) {
			l.tellSole(func(c *call) { _ = c.client.NotifyElicitationComplete(c.ctx, req.Params) })
		},
	}
	if l.server.URL != "" {
		o.KeepAlive, o.KeepAliveFailureThreshold = pingTime, 2
	}
	if main {
		o.ToolListChangedHandler = func(context.Context, *mcp.ToolListChangedRequest) { l.server.requestRefresh(toolKind) }
		o.PromptListChangedHandler = func(context.Context, *mcp.PromptListChangedRequest) { l.server.requestRefresh(promptKind) }
		o.ResourceListChangedHandler = func(context.Context, *mcp.ResourceListChangedRequest) { l.server.requestRefresh(resourceKind) }
		o.ResourceUpdatedHandler = l.server.forwardUpdate
	}
	return o
}

func (l *link) isGone() bool {
	select {
	case <-l.gone:
		return true
	default:
		return false
	}
}

// isNewer reports whether the server speaks a revision without sessions.
func (l *link) isNewer() bool { return l.session.InitializeResult().ProtocolVersion >= newEra }

// close ends the link, and the program with all that it started in its process group.
func (l *link) close() {
	if l.conn != nil {
		_ = l.conn.Close() // a program's exit status is no error of the hub's
	}
	l.cancel()
	if l.cmd != nil && l.cmd.Process != nil {
		_ = syscall.Kill(-l.cmd.Process.Pid, syscall.SIGKILL) // fails if nothing is left
	}
}

// fail ends the link because of an error.
func (l *link) fail(err error) {
	l.mu.Lock()
	if l.failed == nil {
		l.failed = err
	}
	l.mu.Unlock()
	l.cancel()
	go l.close()
}

// describe returns the reason for the link's end: the hub's own, the program's exit status with its last words, or err.
func (l *link) describe(err error) error {
	l.mu.Lock()
	failed := l.failed
	l.mu.Unlock()
	if failed != nil {
		return failed
	}
	if err == nil {
		err = errors.New("it closed the connection")
	}
	if l.cmd == nil || l.cmd.ProcessState == nil {
		return err
	}
	if l.cmd.ProcessState.ExitCode() != 0 || err.Error() == "it closed the connection" {
		err = fmt.Errorf("it ended: %s", l.cmd.ProcessState)
	}
	lines := strings.Split(strings.TrimSpace(string(l.server.log.Bytes())), "\n")
	if last := oneLine(lines[len(lines)-1]); last != "" {
		err = fmt.Errorf("%w: %s", err, last)
	}
	return err
}

// oneLine returns a server's text as one short line.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(s[:min(len(s), 500)], ""))
}

// receive is middleware for what the server sends. A panic ends the link, not the hub.
func (l *link) receive(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (res mcp.Result, err error) {
		defer func() {
			if p := recover(); p != nil { // its value may contain arguments
				slog.Error("panic over a message of a server; it is restarted", "server", l.server.Name, "method", method, "stack", string(debug.Stack()))
				l.fail(fmt.Errorf("a message %s made the hub panic", method))
				err = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "internal error"}
			}
		}()
		if isNews(method) {
			defer l.news.handleOne()
		}
		switch p := req.GetParams().(type) {
		case *mcp.CreateMessageWithToolsParams, *mcp.ElicitParams, *mcp.ListRootsParams:
			return l.ask(ctx, p)
		}
		return next(ctx, method, req)
	}
}

// ask forwards a server's question to the client for which it works.
func (l *link) ask(ctx context.Context, params mcp.Params) (mcp.Result, error) {
	l.mu.Lock()
	c := l.soleCall()
	l.mu.Unlock()
	if c == nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "this request cannot be assigned to one client: calls of none, or of several, are in flight"}
	}
	both, cancel := context.WithCancel(c.ctx) // its values identify the client's stream
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	res, err := c.ask(both, params)
	var theirs *jsonrpc.Error
	if errors.As(err, &theirs) {
		return nil, theirs
	}
	return res, err
}

// call is a request in progress. A goroutine of its own notifies the client, so that a slow client doesn't delay the
// server.
type call struct {
	ctx    context.Context // the request's
	client *mcp.ServerSession
	token  any     // the client's
	given  float64 // ours, sent to the server; 0: none
	news   chan func()
	told   chan struct{}
}

// beginCall returns the call. The progress token in its meta is unique for the link: clients choose equal ones.
func (l *link) beginCall(ctx context.Context, client *mcp.ServerSession, meta mcp.Meta) *call {
	c := &call{ctx: ctx, client: client, news: make(chan func(), maxPending), told: make(chan struct{})}
	go func() {
		defer close(c.told)
		for tell := range c.news {
			if ctx.Err() == nil {
				tell()
			}
		}
	}()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls[c] = true
	switch token := meta["progressToken"].(type) {
	case string, float64:
		l.minted++
		c.token, c.given = token, l.minted
		l.tokens[c.given] = c
		meta["progressToken"] = c.given
	default:
		delete(meta, "progressToken")
	}
	return c
}

// endCall waits until the client has received everything: the answer comes last.
func (l *link) endCall(c *call) {
	l.mu.Lock()
	delete(l.calls, c)
	delete(l.tokens, c.given)
	close(c.news)
	l.mu.Unlock()
	<-c.told
}

// soleCall returns the call to which a message without a name must belong. It returns nil if calls of several clients
// run, since no client may see another's data. The caller holds l.mu.
func (l *link) soleCall() (found *call) {
	for c := range l.calls {
		if found != nil && found.client != c.client {
			return nil
		}
		found = c
	}
	return found
}

// tellSole never blocks.
func (l *link) tellSole(tell func(*call)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.soleCall(); c != nil {
		c.post(func() { tell(c) })
	}
}

func (l *link) forwardProgress(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
	token, _ := req.Params.ProgressToken.(float64)
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.tokens[token]; c != nil {
		params := *req.Params
		params.ProgressToken = c.token
		c.post(func() { _ = c.client.NotifyProgress(c.ctx, &params) }) // fails if the client has left
	}
}

// post queues a notification. The caller holds the link's mu, so that the call doesn't end meanwhile.
func (c *call) post(tell func()) {
	select {
	case c.news <- tell:
	default:
	}
}

func (c *call) ask(ctx context.Context, params mcp.Params) (mcp.Result, error) {
	switch p := params.(type) {
	case *mcp.CreateMessageWithToolsParams:
		return asResult(c.client.CreateMessageWithTools(ctx, p))
	case *mcp.ElicitParams:
		return asResult(c.client.Elicit(ctx, p))
	case *mcp.ListRootsParams:
		return asResult(c.client.ListRoots(ctx, p))
	}
	return nil, fmt.Errorf("no client can be asked %T", params)
}

// asResult avoids an interface that holds a nil pointer.
func asResult[R mcp.Result](res R, err error) (mcp.Result, error) {
	if err != nil {
		return nil, err
	}
	return res, nil
}
