// Package server is browser-shell: one MCP tool that hands a checked argv to
// agent-browser, which drives the one Chromium of the image.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/server/policy"
)

// nodeDeadline is the longest run of a 0.8 to 0.19 agent-browser: after 30 s
// it sends the command again by itself, which could click twice.
const nodeDeadline = 28 * time.Second

// Server serves the one tool. Close it, or its daemons stay.
type Server struct {
	policy   *policy.Policy
	st       *state
	cli      *cli
	sessions *sessions
	mcp      *mcp.Server

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	mu     sync.Mutex
	closed bool
	calls  sync.WaitGroup
}

// New makes a server for a policy. version is browser-shell's own; log may be
// nil. agent-browser is not looked at before the first call.
func New(p *policy.Policy, version string, log *slog.Logger) (*Server, error) {
	st, err := openState(p.StateDir)
	if err != nil {
		return nil, err
	}
	s := &Server{policy: p, st: st, cli: &cli{conf: p.AgentBrowser, st: st}, sessions: newSessions(p.Limits.MaxSessions)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.mcp = mcp.NewServer(
		&mcp.Implementation{Name: ToolName, Title: "Browser", Version: version},
		&mcp.ServerOptions{Logger: log, Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}}},
	)
	s.mcp.AddTool(tool(), s.handle)
	return s, nil
}

// MCP is the protocol server, for a transport to run.
func (s *Server) MCP() *mcp.Server { return s.mcp }

// Close ends the running calls, then the daemons, and removes their files.
// Later calls do nothing.
func (s *Server) Close() {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return
	}
	s.cancel()
	s.calls.Wait()
	s.st.close()
}

// begin counts a call in; false when the server is closing.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.calls.Add(1)
	return true
}

var errClosing = errors.New("browser-shell is closing")

// handle answers one tools/call. Everything that a caller can get wrong is a
// result, so that a model can correct itself; an error means there is no one
// left to read a result.
func (s *Server) handle(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	if !s.begin() {
		return nil, errClosing
	}
	defer s.calls.Done()
	call, r := parseCall(req.Params.Arguments, s.policy.Limits)
	if r != nil {
		return refused(call.SessionID, r).answer(r, nil), nil
	}
	ctx, cancel := context.WithTimeout(ctx, call.Timeout)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()

	res, image, r := s.do(ctx, call)
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil, ctx.Err()
	}
	if r != nil {
		return refused(call.SessionID, r).answer(r, nil), nil
	}
	return res.answer(nil, image), nil
}

// do checks and runs one call.
func (s *Server) do(ctx context.Context, call Call) (Result, *mcp.ImageContent, *policy.Refusal) {
	version, missing := s.cli.ask(ctx)
	gen := policy.Node // the narrower grammar, when the version is not known
	if missing == nil {
		gen = version.Generation()
	}
	cmd, r := s.policy.Check(gen, call.Argv)
	if r != nil {
		return Result{}, nil, r
	}
	if missing != nil {
		return Result{SessionID: call.SessionID, ExitCode: exitNoRun, Stderr: missing.Error() + "\n"}, nil, nil
	}
	ses, r := s.sessions.enter(ctx, call.SessionID)
	if r != nil {
		return Result{}, nil, r
	}
	defer func() { s.sessions.leave(call.SessionID, ses, s.st.hasDaemon(ses.name)) }()
	if cmd.Name == "close" {
		s.st.endDaemon(ses.name, false)
		return Result{SessionID: call.SessionID, Stdout: "{\"closed\":true}\n"}, nil, nil
	}
	if gen == policy.Node {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, nodeDeadline)
		defer cancel()
	}
	return s.execute(ctx, call.SessionID, version, ses, cmd)
}

// execute runs a checked command in its session.
func (s *Server) execute(ctx context.Context, id string, version policy.Version, ses *session, cmd policy.Command) (Result, *mcp.ImageContent, *policy.Refusal) {
	var file shot
	var path string
	if cmd.Name == "screenshot" {
		file = s.st.newShot(ses.name, cmd.Shot)
		path = file.path()
		defer file.discard()
	}
	if res, ok := s.prepare(ctx, id, version, ses); !ok && ctx.Err() == nil {
		return res, nil, nil
	}
	out, err := s.cli.call(ctx, version, ses.name, cmd, path)
	if out.killed {
		// The daemon may still be at it, deaf to the next command.
		s.st.endDaemon(ses.name, true)
		return Result{}, nil, killed(out)
	}
	if err != nil {
		return Result{SessionID: id, ExitCode: exitNoRun, Stderr: fmt.Sprintf("agent-browser cannot be started: %s\n", err)}, nil, nil
	}
	res := normalise(id, out)
	if res.ExitCode != 0 {
		return res, nil, nil
	}
	if limit := s.policy.Limits.OutputBytes; len(res.Stdout) > limit {
		return Result{}, nil, tooLarge(limit)
	}
	if path == "" {
		return res, nil, nil
	}
	return s.withImage(res, file)
}

// prepare starts a newer daemon with its HTTP port closed: any page could
// otherwise talk to it. On failure it gives the result to answer with.
func (s *Server) prepare(ctx context.Context, id string, version policy.Version, ses *session) (Result, bool) {
	if !version.PinsTabs() || s.st.hasDaemon(ses.name) {
		return Result{}, true
	}
	out, err := s.cli.call(ctx, version, ses.name, policy.Command{Name: "stream", Args: []string{"disable"}}, "")
	if err != nil {
		return Result{SessionID: id, ExitCode: exitNoRun, Stderr: fmt.Sprintf("agent-browser cannot be started: %s\n", err)}, false
	}
	res := normalise(id, out)
	if res.ExitCode == 0 {
		return res, true
	}
	s.st.endDaemon(ses.name, true) // the next call starts over, with the port closed
	res.Stdout, res.Stderr = "", joinLines("the session could not be started", res.Stderr)
	return res, false
}

// withImage keeps the screenshot and adds it to the answer.
func (s *Server) withImage(res Result, file shot) (Result, *mcp.ImageContent, *policy.Refusal) {
	data, image, err := file.keep(res.Stdout, s.policy.Screenshot.MaxImageBytes)
	if err != nil {
		res.ExitCode, res.Stdout, res.Stderr = exitProtocol, "", joinLines(err.Error(), res.Stderr)
		return res, nil, nil
	}
	res.Stdout = data
	if !s.policy.Screenshot.ReturnImage {
		return res, nil, nil
	}
	if image == nil {
		res.Stderr = joinLines("the image is too large to return; it is kept at the path", res.Stderr)
	}
	return res, image, nil
}

func killed(out runResult) *policy.Refusal {
	if out.tooMuch {
		return &policy.Refusal{
			Code: policy.BudgetExceeded, Rule: "output.size",
			Message: fmt.Sprintf("agent-browser printed more than %d bytes and was ended; ask for less (snapshot -i -c -d 3)", maxRaw),
		}
	}
	return &policy.Refusal{
		Code: policy.Timeout, Rule: "timeout.run", Retryable: true,
		Message: "the command did not finish in time and was ended with its session; the page may have changed: open or snapshot again before going on",
	}
}

func tooLarge(limit int) *policy.Refusal {
	return &policy.Refusal{
		Code: policy.BudgetExceeded, Rule: "output.size",
		Message: fmt.Sprintf("the answer is larger than %d bytes; ask for less (snapshot -i -c, -d 3 or -s SELECTOR)", limit),
	}
}
