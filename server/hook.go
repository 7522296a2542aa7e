package server

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/cdp"
	"github.com/slimctl/slimctl/server/policy"
	"github.com/slimctl/slimctl/server/process"
)

// Hook checks a call before it runs and processes its result afterwards. It may change either. The product is a chain
// of hooks; see Server.buildRules.
type Hook interface {
	// OnBefore may change the call or deny it.
	OnBefore(ctx context.Context, c Call) (Call, Decision)
	// OnAfter receives every result, also that of a denied call.
	OnAfter(ctx context.Context, c Call, r Result) Result
}

// Decision is a hook's decision about a call; the zero value admits it.
type Decision struct{ Refusal *policy.Refusal }

// Call is one request in the chain.
type Call struct {
	Tool      string          // the called name
	Arguments json.RawMessage // as received; only validate reads them
	Origin    Origin
	Received  time.Time

	// Set by validate.
	SessionID  string // empty if it was malformed
	unnamed    bool   // the call has no session_id
	Argv       []string
	Timeout    time.Duration
	Generation policy.Generation
	Command    policy.Command // zero if the grammar refused it
	missing    error          // why agent-browser can't run

	denied bool // by an earlier hook

	// Set by budget.
	client *client
	ses    *session      // nil: the call has no session
	opened bool          // the call was admitted to open its session
	closes bool          // the call closes a session that has a page
	after  chan struct{} // closed when the session that this one replaces has ended; nil: it replaces none

	// Set by inject.
	Run  []string // arguments for agent-browser
	file string   // screenshot and pdf only: the artifact's name
}

// Origin identifies the caller, for budgets and the audit log.
type Origin struct {
	audit.Caller
	TraceID  string
	Protocol string
}

// owner returns the client that owns sessions and budgets: its key and its MCP session, as far as they exist.
func (o Origin) owner() string {
	if o.Session == "" {
		return o.Subject
	}
	return o.Subject + "\x00" + o.Session
}

// knownSubject returns the subject, or "" if the caller has shown no credential: strangers share the subject anonymous.
func (o Origin) knownSubject() string {
	if o.Subject == audit.Anonymous {
		return ""
	}
	return o.Subject
}

// Result is the answer to a call; see protocol.NewResult.
type Result struct {
	SessionID string // as given; empty if it was malformed
	ExitCode  int
	Stdout    string // one line of JSON, the command's data; empty unless ExitCode is 0
	Stderr    string // the error, or a warning

	Refusal   *policy.Refusal
	Image     *mcp.ImageContent // the screenshot
	Truncated bool
	Events    []string        // for the audit log, in order
	status    int             // HTTP status of the page opened; 0 if unknown
	newTabs   []string        // addresses of pages that the command opened
	dialogs   []cdp.Dialog    // that pages opened since the last command
	ran       bool            // agent-browser was started
	raw       *process.Result // its output; nil if it may not be shown
	secrets   []string        // content of the page's password fields
	refusedAt string          // address of the page that was refused, for the audit log
}

// pass implements both methods of Hook without effect; hooks with one method embed it.
type pass struct{}

func (pass) OnBefore(_ context.Context, c Call) (Call, Decision) { return c, Decision{} }
func (pass) OnAfter(_ context.Context, _ Call, r Result) Result  { return r }

func (r Result) withEvent(name string) Result {
	r.Events = append(r.Events, name)
	return r
}

func (r Result) withRefusal(why *policy.Refusal) Result {
	return Result{
		SessionID: r.SessionID, ExitCode: why.Code.ExitCode(), Stderr: why.Error() + "\n",
		Refusal: why, Events: r.Events, ran: r.ran,
	}
}

// about names the address of the page that was refused.
func (r Result) about(address string) Result {
	r.refusedAt = address
	return r
}

// chain is an ordered list of hooks.
type chain []Hook

// runBefore calls every hook, also after one has denied the call: of several refusals policy.Worst selects one. Once
// validate has set the call's timeout, it is the deadline.
func (hooks chain) runBefore(ctx context.Context, c Call) (Call, *policy.Refusal) {
	var all []*policy.Refusal
	for _, h := range hooks {
		within, cancel := c.deadline(ctx)
		var d Decision
		c, d = h.OnBefore(within, c)
		if errors.Is(within.Err(), context.DeadlineExceeded) {
			all = append(all, lateRefusal())
		}
		cancel()
		all = append(all, d.Refusal)
		c.denied = c.denied || d.Refusal != nil
	}
	return c, policy.Worst(all...)
}

func (hooks chain) runAfter(ctx context.Context, c Call, r Result) Result {
	for _, h := range hooks {
		r = h.OnAfter(ctx, c, r)
	}
	return r
}

// deadline returns ctx with the call's timeout, once that is known.
func (c Call) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.Timeout == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, c.Received.Add(c.Timeout))
}

func lateRefusal() *policy.Refusal {
	return &policy.Refusal{
		Code: policy.Timeout, Rule: "timeout.queue", Retryable: true,
		Message: "the time was over before the command could start; nothing was done: send the call again",
	}
}
