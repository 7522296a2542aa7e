package policy

import (
	"fmt"
	"strconv"
	"time"

	"github.com/slimctl/slimctl/internal/lazyregexp"
)

// Code is the class of a refusal. The numbers are application codes inside a tool result (`_meta.code`). They are never
// a JSON-RPC error.code: the MCP revision 2026-07-28 reserves that range.
type Code int

// The classes, in descending precedence.
const (
	Timeout          Code = -32007 // the deadline passed
	BudgetExceeded   Code = -32005 // size, rate or concurrency
	SandboxViolation Code = -32006 // a path, an environment or a program slot
	PolicyBlocked    Code = -32004 // URL, host, subcommand, option, value
	InvalidParams    Code = -32602 // the arguments do not fit the tool's schema
	Unreachable      Code = -32003 // permitted, but the site or the network does not answer
)

// classes holds the properties of each code; rank 0 has precedence over rank 1.
var classes = map[Code]struct {
	name string
	rank int
	exit int
}{
	Timeout:          {"TIMEOUT", 0, 124},
	BudgetExceeded:   {"BUDGET_EXCEEDED", 1, 75},
	SandboxViolation: {"SANDBOX_VIOLATION", 2, 126},
	PolicyBlocked:    {"POLICY_BLOCKED", 3, 126},
	InvalidParams:    {"INVALID_PARAMS", 4, 64},
	Unreachable:      {"UNREACHABLE", 5, 1},
}

// Name returns the word for the code, for instance POLICY_BLOCKED.
func (c Code) Name() string { return classes[c].name }

// ExitCode returns the exit_code of a result that was refused with this code.
func (c Code) ExitCode() int { return classes[c].exit }

// Refusal is the reason why a call was not run or not finished. It never contains the caller's text, so that it can be
// logged and shown.
type Refusal struct {
	Code       Code
	Rule       string        // stable id, for instance "wait.script"
	Message    string        // the problem and the remedy
	Retryable  bool          // the same call may succeed later
	RetryAfter time.Duration // how long to wait first; 0 if unknown
}

// Error returns the line for stderr: "POLICY_BLOCKED (-32004) wait.script: problem and remedy".
func (r *Refusal) Error() string {
	return fmt.Sprintf("%s (%d) %s: %s", r.Code.Name(), int(r.Code), r.Rule, r.Message)
}

// RefusalHeader is the header with the egress proxy's reason for refusing a request, or a number for egress.Why. No
// site can send it, since the proxy drops headers that begin with Proxy- from answers. No page can send it, since
// browsers reserve such headers.
const RefusalHeader = "Proxy-Browser-Shell-Refusal"

var refusalLine = lazyregexp.New(`^(retryable )?[A-Z_]+ \((-[0-9]{1,6})\) ([a-z.-]{1,64}): ([ -~]{1,500})$`)

// Header returns the value of RefusalHeader.
func (r *Refusal) Header() string {
	if r.Retryable {
		return "retryable " + r.Error()
	}
	return r.Error()
}

// ParseRefusal parses the value of RefusalHeader; it returns nil if it is invalid.
func ParseRefusal(header string) *Refusal {
	m := refusalLine.FindStringSubmatch(header)
	if m == nil {
		return nil
	}
	n, _ := strconv.Atoi(m[2]) // digits
	if _, known := classes[Code(n)]; !known {
		return nil
	}
	return &Refusal{Code: Code(n), Rule: m[3], Message: m[4], Retryable: m[1] != ""}
}

func refuse(code Code, rule, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Rule: rule, Message: fmt.Sprintf(format, args...)}
}

func blocked(rule, format string, args ...any) *Refusal {
	return refuse(PolicyBlocked, rule, format, args...)
}

// Worst returns the refusal with the highest precedence, the first among equals. It skips nil entries, and returns nil
// if there is no other.
func Worst(all ...*Refusal) *Refusal {
	var w *Refusal
	for _, r := range all {
		if r != nil && (w == nil || classes[r.Code].rank < classes[w.Code].rank) {
			w = r
		}
	}
	return w
}
