// Package server is browser-shell: one MCP tool that hands a checked argv to
// agent-browser, which drives the one Chromium of the image.
//
// A call goes through a chain of hooks (hook.go, and Server.buildRules for their
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
	"golang.org/x/sync/semaphore"

	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/output"
	"github.com/slimctl/slimctl/server/policy"
	"github.com/slimctl/slimctl/server/protocol"
)

// Config configures a server.
type Config struct {
	Policy  *policy.Policy
	Version string         // browser-shell's own
	Log     *slog.Logger   // may be nil
	Network policy.Network // the zero value is the real network
}

// listTTL is the time for which a client may cache the tool's description, in milliseconds. Only a reload of the policy
// changes it, and clients are told.
const listTTL = 5 * 60 * 1000

// Server serves the one tool. Without Close its daemons remain.
type Server struct {
	st        *state
	log       *audit.Log
	artifacts *artifacts
	cli       *cli
	browser   *browser
	budget    *budget
	mcp       *mcp.Server
	running   running
	people    atomic.Int32 // that type or click at the desktop

	current atomic.Pointer[rules]

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	mu     sync.Mutex
	closed bool
	calls  sync.WaitGroup
}

// rules holds a policy and the chain built from it.
type rules struct {
	policy *policy.Policy
	digest string
	hooks  chain
}

// New returns a server. It returns an error if the state directory or the audit log is unusable. agent-browser and
// Chromium are first used by the first call.
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
	s.cli = &cli{conf: p.AgentBrowser, st: st, asking: semaphore.NewWeighted(1)}
	s.budget = newBudget(p.Limits, sessions)
	sessions.end = func(ses *session) { s.browser.evictSession(ses) }
	s.browser = &browser{cli: s.cli, st: st, sessions: sessions, artifacts: s.artifacts, network: conf.Network,
		chromium: newChromium(p.AgentBrowser.CDPPort, p.Egress.Proxy, st.base), starts: admission{served: map[string]int{}}}
	if err := s.usePolicy(p, audit.Start); err != nil {
		return nil, err
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.mcp = mcp.NewServer(
		&mcp.Implementation{Name: policy.ToolName, Title: "Browser", Version: conf.Version},
		&mcp.ServerOptions{
			Logger: conf.Log, Instructions: instructions, Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{ListChanged: true}},
			SetCacheable: func(_ context.Context, _ mcp.Request, c *mcp.Cacheable) { c.TTLMs = listTTL },
		},
	)
	s.mcp.AddTool(Tool(p), s.handleCall)
	s.mcp.AddReceivingMiddleware(s.refuseExecutors)
	go s.browser.endIdle(s.ctx, func() time.Duration {
		return time.Duration(s.current.Load().policy.Limits.SessionIdleSec) * time.Second
	})
	go s.browser.chromium.probe(s.ctx, func(ctx context.Context) (leave func(), ok bool) {
		if s.people.Load() > 0 { // a probe's window would take the keys from them
			return nil, false
		}
		return s.browser.enterProbe(ctx)
	})
	return s, nil
}

// AuditLimits returns the limits for each audit log.
func AuditLimits(p *policy.Policy) audit.Limits {
	return audit.Limits{MaxBytes: p.Audit.MaxBytes, Keep: p.Audit.Keep, Rotate: p.Audit.WhenFull == policy.Rotate}
}

func orDefault(path, dir, name string) string {
	if path != "" {
		return path
	}
	return filepath.Join(dir, name)
}

// usePolicy records an event and then replaces the policy.
func (s *Server) usePolicy(p *policy.Policy, event string) error {
	next, err := s.buildRules(p)
	if err != nil {
		return err
	}
	if err := s.recordEvent(event, next); err != nil {
		return err
	}
	s.current.Store(next)
	s.budget.setLimits(p.Limits)
	if s.mcp != nil {
		s.mcp.AddTool(Tool(p), s.handleCall) // described by the new policy
	}
	return nil
}

// buildRules returns the chain for a policy.
func (s *Server) buildRules(p *policy.Policy) (*rules, error) {
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
		validate{policy: p, generation: s.cli.readGeneration},
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

// Reload replaces the policy; running calls finish with the old one. Settings that are fixed at the start can't change:
// Reload returns an error that names them and keeps the old policy.
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
	return s.usePolicy(p, audit.Reload)
}

// recordEvent records an event that is not a call.
func (s *Server) recordEvent(event string, now *rules) error {
	return s.log.Finish(audit.Record{Event: event, PolicySHA256: now.digest, RunID: filepath.Base(s.st.run)})
}

// MCP returns the protocol server, which a transport runs.
func (s *Server) MCP() *mcp.Server { return s.mcp }

// Policy returns the current policy.
func (s *Server) Policy() *policy.Policy { return s.current.Load().policy }

// AuditLog returns the log, which others in this process write, too.
func (s *Server) AuditLog() *audit.Log { return s.log }

// Ready returns nil if calls can be recorded, which each needs.
func (s *Server) Ready() error { return s.log.Ready() }

// EndClient ends the browser's sessions of an MCP session that has ended; see audit.Caller.
func (s *Server) EndClient(session string) { s.browser.sessions.dropEnded(session) }

// CountPeople adds to the number of people that use the desktop. While there are any, an idle Chromium isn't probed.
func (s *Server) CountPeople(n int32) { s.people.Add(n) }

// EndCalls ends the running calls, and later ones at once.
func (s *Server) EndCalls() { s.cancel() }

// Close ends the running calls, then the daemons and tabs, and removes their files. Later calls do nothing.
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
	s.browser.chromium.close()
	_ = s.recordEvent(audit.Stop, s.current.Load()) // too late to refuse anything
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

// beginCall counts a starting call; it returns false if the server is closing.
func (s *Server) beginCall() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.calls.Add(1)
	return true
}

var errClosing = errors.New("browser-shell is closing")

// handleCall answers one tools/call. Every mistake of a caller is reported as a result, so that a model can correct
// itself. An error means that nobody is left to read a result.
func (s *Server) handleCall(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	if !s.beginCall() {
		return nil, errClosing
	}
	defer s.calls.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	by := readOrigin(req)
	if by.RequestID != "" {
		defer s.running.beginCall(by.RequestID)()
	}
	res := s.runCall(ctx, Call{Tool: req.Params.Name, Arguments: req.Params.Arguments, Origin: by, Received: time.Now()})
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return res.toMCP(), nil
}

// runCall runs one call through the chain, with the same policy from start to end.
func (s *Server) runCall(ctx context.Context, c Call) Result {
	now := s.current.Load()
	c, denied := now.hooks.runBefore(ctx, c)
	res := Result{SessionID: c.SessionID}
	if denied != nil {
		res = res.withRefusal(denied)
	} else {
		within, cancel := c.deadline(ctx)
		res = s.browser.runCall(within, now.policy, c)
		cancel()
	}
	return now.hooks.runAfter(context.WithoutCancel(ctx), c, res)
}

// refuseExecutors answers calls of general executors. Any other unknown tool gets the protocol's own error.
func (s *Server) refuseExecutors(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		call, ok := req.(*mcp.CallToolRequest)
		now := s.current.Load()
		switch {
		case !ok || call.Params.Name == now.policy.ToolName:
		case policy.IsExecutor(call.Params.Name):
			return s.handleCall(ctx, call)
		default: // recorded without its name, which may be anything
			by := readOrigin(call)
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
