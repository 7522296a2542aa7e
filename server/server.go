// Package server is browser-shell: one MCP tool that hands a checked argv to
// agent-browser, which drives the one Chromium of the image.
//
// A call goes through a chain of hooks (hook.go, and Server.build for their
// order): validate, budget, address, inject; then it runs (browser.go); then
// normalise, observed, keep, redact, truncate, record.
package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/output"
	"github.com/slimctl/slimctl/server/policy"
	"github.com/slimctl/slimctl/server/protocol"
)

// Config is what a server is made of.
type Config struct {
	Policy  *policy.Policy
	Version string         // browser-shell's own
	Log     *slog.Logger   // may be nil
	Network policy.Network // the zero value is the real one
}

// listTTL is for how many milliseconds a client may keep the tool's
// description, which never changes while the process lives.
const listTTL = 5 * 60 * 1000

// Server serves the one tool. Close it, or its daemons stay.
type Server struct {
	st        *state
	log       *audit.Log
	artifacts *artifacts
	cli       *cli
	browser   *browser
	budget    *budget
	mcp       *mcp.Server

	current atomic.Pointer[rules]

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	mu     sync.Mutex
	closed bool
	calls  sync.WaitGroup
}

// rules is a policy and the chain that was built from it.
type rules struct {
	policy *policy.Policy
	digest string
	hooks  chain
}

// New makes a server. Neither agent-browser nor Chromium is looked at before
// the first call. It is an error if the state directory or the audit log
// cannot be used.
func New(conf Config) (_ *Server, err error) {
	p := conf.Policy
	st, err := openState(p.StateDir, time.Duration(p.Limits.SessionIdleSec)*time.Second)
	if err != nil {
		return nil, err
	}
	s := &Server{st: st}
	defer func() {
		if err != nil {
			s.release()
		}
	}()
	if s.log, err = audit.Open(orDefault(p.Audit.File, st.base, "audit.jsonl"), AuditLimits(p)); err != nil {
		return nil, err
	}
	if s.artifacts, err = openArtifacts(orDefault(p.ArtifactsDir, st.base, "artifacts"), filepath.Base(st.run)); err != nil {
		return nil, err
	}
	sessions := newSessions()
	s.cli = &cli{conf: p.AgentBrowser, st: st, asking: newTurn()}
	s.budget = newBudget(p.Limits, sessions)
	sessions.end = func(ses *session) { s.browser.evict(ses) }
	s.browser = &browser{cli: s.cli, st: st, sessions: sessions, artifacts: s.artifacts, network: conf.Network, proxy: p.Egress.Proxy, dialing: newTurn()}
	if err := s.use(p, audit.Start); err != nil {
		return nil, err
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.mcp = mcp.NewServer(
		&mcp.Implementation{Name: policy.ToolName, Title: "Browser", Version: conf.Version},
		&mcp.ServerOptions{
			Logger: conf.Log, Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}},
			SetCacheable: func(_ context.Context, _ mcp.Request, c *mcp.Cacheable) { c.TTLMs = listTTL },
		},
	)
	s.mcp.AddTool(Tool(p), s.handle)
	s.mcp.AddReceivingMiddleware(s.executors)
	go s.browser.reap(s.ctx, func() time.Duration {
		return time.Duration(s.current.Load().policy.Limits.SessionIdleSec) * time.Second
	})
	return s, nil
}

// AuditLimits returns the bounds of each log.
func AuditLimits(p *policy.Policy) audit.Limits {
	return audit.Limits{MaxBytes: p.Audit.MaxBytes, Keep: p.Audit.Keep, Rotate: p.Audit.WhenFull == policy.Rotate}
}

func orDefault(path, dir, name string) string {
	if path != "" {
		return path
	}
	return filepath.Join(dir, name)
}

// use goes on with a policy, once that is on record.
func (s *Server) use(p *policy.Policy, event string) error {
	next, err := s.build(p)
	if err != nil {
		return err
	}
	if err := s.note(event, next); err != nil {
		return err
	}
	s.current.Store(next)
	s.budget.setLimits(p.Limits)
	if s.mcp != nil {
		s.mcp.AddTool(Tool(p), s.handle) // described by the new policy
	}
	return nil
}

// build makes the chain for a policy. A new hook is a line here.
func (s *Server) build(p *policy.Policy) (*rules, error) {
	redactor, err := output.NewRedactor(p.Redaction.Keys, p.Redaction.Patterns, output.Secrets(os.Environ()))
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	digest := hex.EncodeToString(sum[:])
	return &rules{p, digest, chain{
		validate{policy: p, generation: s.cli.ask},
		s.budget,
		address{policy: p, network: s.browser.network},
		inject{cdpPort: p.AgentBrowser.CDPPort, output: s.artifacts.dir},
		normalise{},
		observed{},
		keep{policy: p, artifacts: s.artifacts},
		redact{redactor: redactor},
		truncate{policy: p},
		record{log: s.log, redactor: redactor, policy: p, digest: digest, runID: filepath.Base(s.st.run)},
	}}, nil
}

// Reload goes on with another policy; calls that run finish with theirs. What
// was set up at the start cannot change: an error names it, and the old policy
// stays.
func (s *Server) Reload(p *policy.Policy) error {
	old := s.current.Load().policy
	for _, f := range []struct {
		key  string
		same bool
	}{
		{"tool_name", p.ToolName == old.ToolName},
		{"agent_browser", p.AgentBrowser == old.AgentBrowser},
		{"egress.proxy", p.Egress.Proxy == old.Egress.Proxy},
		{"audit", p.Audit == old.Audit},
		{"artifacts_dir", p.ArtifactsDir == old.ArtifactsDir},
		{"state_dir", p.StateDir == old.StateDir},
	} {
		if !f.same {
			return fmt.Errorf("%s cannot change while browser-shell runs: restart it", f.key)
		}
	}
	return s.use(p, audit.Reload)
}

// note records an event that is no call.
func (s *Server) note(event string, now *rules) error {
	return s.log.Finish(audit.Record{Event: event, PolicySHA256: now.digest, RunID: filepath.Base(s.st.run)})
}

// MCP is the protocol server, for a transport to run.
func (s *Server) MCP() *mcp.Server { return s.mcp }

// Close ends the running calls, then the daemons and tabs, and removes their
// files. Later calls do nothing.
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
	s.browser.close()
	_ = s.note(audit.Stop, s.current.Load()) // nothing can be refused any more
	s.release()
}

func (s *Server) release() {
	s.st.close()
	if s.artifacts != nil {
		s.artifacts.close()
	}
	if s.log != nil {
		s.log.Close()
	}
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
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	res := s.call(ctx, Call{Tool: req.Params.Name, Arguments: req.Params.Arguments, Origin: origin(req), Received: time.Now()})
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return res.answer(), nil
}

// call takes one call through the chain. It is one policy from end to end.
func (s *Server) call(ctx context.Context, c Call) Result {
	now := s.current.Load()
	c, denied := now.hooks.before(ctx, c)
	res := Result{SessionID: c.SessionID}
	if denied != nil {
		res = res.refuse(denied)
	} else {
		within, cancel := c.deadline(ctx)
		res = s.browser.run(within, now.policy, c)
		cancel()
	}
	return now.hooks.after(context.WithoutCancel(ctx), c, res)
}

// executors answers calls of general executors; any other unknown tool is the
// protocol's own error.
func (s *Server) executors(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		call, ok := req.(*mcp.CallToolRequest)
		now := s.current.Load()
		switch {
		case !ok || call.Params.Name == now.policy.ToolName:
		case policy.IsExecutor(call.Params.Name):
			return s.handle(ctx, call)
		default: // on record too; without its name, which may be anything
			by := origin(call)
			err := s.log.Write(audit.Record{
				Event: audit.PolicyBlocked, Rule: "tool.unknown", Decision: "deny", Refused: true, PolicySHA256: now.digest, RunID: filepath.Base(s.st.run),
				RequestID: by.RequestID, Subject: by.Subject,
			})
			if err != nil {
				return nil, errors.New("the audit log cannot be written")
			}
			return nil, protocol.UnknownTool([]string{now.policy.ToolName})
		}
		return next(ctx, method, req)
	}
}
