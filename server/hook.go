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

// Hook looks at a call before it runs and at its result afterwards, and may
// change either. The product is a chain of hooks; see Server.build.
type Hook interface {
	// OnBefore may change the call or deny it.
	OnBefore(ctx context.Context, c Call) (Call, Decision)
	// OnAfter sees every result, also of a call that was denied.
	OnAfter(ctx context.Context, c Call, r Result) Result
}

// Decision is what a hook says of a call; the zero value lets it pass.
type Decision struct{ Refusal *policy.Refusal }

// Call is one request on its way through the chain.
type Call struct {
	Tool      string          // the name that was called
	Arguments json.RawMessage // as received; only validate reads them
	Origin    Origin
	Received  time.Time

	// Filled in by validate.
	SessionID  string // empty when it was not well-formed
	Argv       []string
	Timeout    time.Duration
	Generation policy.Generation
	Command    policy.Command // zero when the grammar refused it
	missing    error          // why agent-browser cannot run

	denied bool // by a hook before this one

	// Filled in by budget.
	client *client
	ses    *session      // nil: the call is in none
	opened bool          // it was let open its session
	after  chan struct{} // closed when the session is over in whose place this one opens; nil: there was none

	// Filled in by inject.
	Run  []string // what agent-browser is given
	file string   // screenshot and pdf only: the artifact's name
}

// Origin says who called, for the audit log.
type Origin struct {
	audit.Caller
	TraceID  string
	Protocol string
	ended    []string // MCP sessions that are over, as Caller.Session has them
}

// owner names the client whom sessions and budgets belong to: its key and its MCP session, where there are such.
func (o Origin) owner() string {
	if o.Session == "" {
		return o.Subject
	}
	return o.Subject + "\x00" + o.Session
}

// Result is what a call answers: the four keys, in this order, in success,
// failure and refusal alike.
type Result struct {
	SessionID string `json:"session_id"` // as given; empty when it was not well-formed
	ExitCode  int    `json:"exit_code"`
	Stdout    string `json:"stdout"` // one line of JSON, the command's data; empty unless exit_code is 0
	Stderr    string `json:"stderr"` // what went wrong, or a warning

	Refusal   *policy.Refusal   `json:"-"`
	Image     *mcp.ImageContent `json:"-"` // of a screenshot
	Truncated bool              `json:"-"`
	Events    []string          `json:"-"` // for the audit log, in order
	status    int               // of the HTTP answer to open; 0 when it is not known
	newTabs   []string          // addresses of pages that the command opened
	dialogs   []cdp.Dialog      // that pages opened since the last command
	ran       bool              // agent-browser was started
	raw       *process.Result   // what it gave; nil when that may not be shown
	secrets   []string          // what stands in the page's password fields
}

// pass is embedded by hooks that use one of the two methods only.
type pass struct{}

func (pass) OnBefore(_ context.Context, c Call) (Call, Decision) { return c, Decision{} }
func (pass) OnAfter(_ context.Context, _ Call, r Result) Result  { return r }

func (r Result) event(name string) Result {
	r.Events = append(r.Events, name)
	return r
}

func (r Result) refuse(why *policy.Refusal) Result {
	return Result{
		SessionID: r.SessionID, ExitCode: why.Code.ExitCode(), Stderr: why.Error() + "\n",
		Refusal: why, Events: r.Events, ran: r.ran,
	}
}

// chain is an ordered list of hooks.
type chain []Hook

// before asks every hook, also after one has denied the call: where several
// deny it, the class decides (policy.Worst). The deadline is the call's own as
// soon as validate knows it.
func (hooks chain) before(ctx context.Context, c Call) (Call, *policy.Refusal) {
	var all []*policy.Refusal
	for _, h := range hooks {
		within, cancel := c.deadline(ctx)
		var d Decision
		c, d = h.OnBefore(within, c)
		if errors.Is(within.Err(), context.DeadlineExceeded) {
			all = append(all, late())
		}
		cancel()
		all = append(all, d.Refusal)
		c.denied = c.denied || d.Refusal != nil
	}
	return c, policy.Worst(all...)
}

func (hooks chain) after(ctx context.Context, c Call, r Result) Result {
	for _, h := range hooks {
		r = h.OnAfter(ctx, c, r)
	}
	return r
}

// deadline bounds ctx by the call's timeout, once that is known.
func (c Call) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.Timeout == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, c.Received.Add(c.Timeout))
}

func late() *policy.Refusal {
	return &policy.Refusal{
		Code: policy.Timeout, Rule: "timeout.queue", Retryable: true,
		Message: "the time was over before the command could start; nothing was done: send the call again",
	}
}
